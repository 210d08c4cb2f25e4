# shellcheck shell=bash
# What setup, demo and test share: system packages, the virtual environment, builds.
# Sourced, with the checkout as the working directory. Every step first looks whether its
# work is already done, so that a second run needs neither time nor network.

# What the build needs. A package followed by `?` is skipped where the release has no such
# package. libfabric's headers are for path 2; fi_info and the library are what it loads.
# hwloc's headers are for NIC maps; the library that is loaded comes with them.
apt_build=(gcc libc6-dev pkg-config python3 python3-dev python3-venv ca-certificates
    libxxhash-dev libfabric-dev libfabric-bin libhwloc-dev)
# What the tests need besides.
apt_test=(libcmocka-dev clang libclang-rt-dev? cppcheck shellcheck iproute2 util-linux
    procps)

# Two MPIs side by side, for the tests of what is built with either.
apt_mpi=(openmpi-bin libopenmpi-dev mpich libmpich-dev)

# The cluster of the tests: a controller, daemons of nodes, commands; headers for the
# plugin; what srun --mpi= takes.
apt_slurm=(munge slurmctld slurmd slurm-client libslurm-dev libpmi2-0 libpmix2? libpmix2t64?)

# The virtual environment that need_venv, pip_install and need_package are about.
venv=.venv
# Builds without isolation find meson, ninja and cython there.
PATH=$PWD/.venv/bin:$PATH

say() { printf '%s\n' "$*"; }
note() { printf -- '-- %s\n' "$*" >&2; }
die() {
    printf '%s: %s\n' "${script:-scripts}" "$*" >&2
    exit 1
}

# Runs a command and shows what it prints only if it fails.
quietly() {
    local log code=0
    log=$(mktemp)
    "$@" >"$log" 2>&1 </dev/null || code=$?
    [ "$code" = 0 ] || cat "$log" >&2
    rm -f "$log"
    return "$code"
}

# Runs a command as root. (can_be_root has been asked before.)
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -- "$@"; fi
}
can_be_root() { [ "$(id -u)" = 0 ] || command -v sudo >/dev/null; }

# Of the packages given, prints those that are not installed, without their `?`.
missing_packages() {
    local package
    for package in "$@"; do
        if [ "$(dpkg-query -W -f '${db:Status-Status}' "${package%\?}" 2>/dev/null)" != installed ]; then
            printf '%s\n' "$package"
        fi
    done
}

# Installs those of the packages that are missing.
need_packages() {
    local missing wanted=() package
    if ! command -v dpkg-query >/dev/null; then
        note "no Debian or Ubuntu here: please install the equivalents of ${*%\?}"
        return
    fi
    mapfile -t missing < <(missing_packages "$@")
    for package in "${missing[@]}"; do
        case $package in
        *\?) ;;
        *) wanted+=("$package") ;;
        esac
    done
    if [ ${#missing[@]} = ${#wanted[@]} ] && [ ${#wanted[@]} = 0 ]; then
        return
    fi
    if [ ${#wanted[@]} -gt 0 ]; then
        can_be_root || die "needs root or sudo to: apt-get install ${wanted[*]}"
        note "installing ${wanted[*]}"
        quietly as_root env DEBIAN_FRONTEND=noninteractive apt-get -q update \
            || die "apt-get update failed; packages still needed: ${wanted[*]}"
    fi
    for package in "${missing[@]}"; do
        case $package in
        *\?) if apt-cache show "${package%\?}" >/dev/null 2>&1; then
            wanted+=("${package%\?}")
        fi ;;
        esac
    done
    if [ ${#wanted[@]} -gt 0 ] && can_be_root; then
        quietly as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y \
            install --no-install-recommends "${wanted[@]}" \
            || die "apt-get install failed for: ${wanted[*]}"
    fi
}

# Prints a Python that can build the extension: 3.10 or later, with venv and C headers.
# The system's comes first, since its headers are what need_packages has installed; PYTHON
# names another.
pick_python() {
    local PATH=${PATH#"$PWD/.venv/bin:"} python check='
import ensurepip, os, sys, sysconfig, venv
header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
sys.exit(not (sys.version_info >= (3, 10) and os.path.exists(header)))'
    if [ -n "${PYTHON:-}" ]; then
        "$PYTHON" -c "$check" 2>/dev/null \
            || die "PYTHON=$PYTHON is no Python 3.10 or later with venv and C headers"
        command -v "$PYTHON"
        return
    fi
    for python in /usr/bin/python3 python3 python3.{14,13,12,11,10}; do
        if command -v "$python" >/dev/null && "$python" -c "$check" 2>/dev/null; then
            command -v "$python"
            return
        fi
    done
    die "found no Python 3.10 or later with venv and C headers; name one by PYTHON=..."
}

# Makes the virtual environment and installs requirements-NAME.txt for each NAME given,
# what they need of each other included.
need_venv() {
    local name python stamp want
    if ! "$venv/bin/python" -c 'import pip' 2>/dev/null \
        || { [ -n "${PYTHON:-}" ] && [ "$(cat "$venv/made-by" 2>/dev/null)" != "$PYTHON" ]; }; then
        python=$(pick_python)
        note "making $venv with $python"
        rm -rf "$venv"
        "$python" -m venv "$venv" || die "can't make $venv with $python"
        printf '%s\n' "${PYTHON:-}" >"$venv/made-by"
    fi
    for name in "$@"; do
        stamp=$venv/requirements-$name.sum
        want=$(sha256sum <"scripts/requirements-$name.txt")
        if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
            note "installing scripts/requirements-$name.txt into $venv"
            # pip itself first, in a call of its own: it can't replace itself half-way.
            pip_install 'pip>=23.1'
            pip_install -r "scripts/requirements-$name.txt"
            printf '%s\n' "$want" >"$stamp"
        fi
    done
}

pip_install() {
    "$venv/bin/python" -m pip -qq --disable-pip-version-check install "$@" \
        || die "pip install $* failed (is the network there?)"
}

# What a build takes of the MPI there is: the answer of its compiler wrapper.
mpi_choice() {
    [ "${DDSTORE_MPI:-}" = 0 ] || ${MPICC:-mpicc} -show 2>/dev/null || true
}

# A checksum of all that the package is built from.
tree_sum() {
    {
        "$venv/bin/python" --version
        mpi_choice
        find meson.build meson_options.txt pyproject.toml README.md libddstore pyddstore \
            tests/meson.build bench/meson.build slurm/meson.build -name __pycache__ -prune \
            -o -type f -print0 2>/dev/null | sort -z | xargs -0 sha256sum || true
    } | sha256sum
}

# Installs the package into the virtual environment, unless this very tree is there already. An editable
# install is left alone: it builds what has changed when it's imported.
need_package() {
    local want
    if compgen -G "$venv/lib/python*/site-packages/_pyddstore_editable_loader.py" >/dev/null; then
        return
    fi
    want=$(tree_sum)
    if [ "$(cat "$venv/package.sum" 2>/dev/null)" != "$want" ]; then
        note "building pyddstore into $venv"
        rm -f "$venv/package.sum"
        # A build directory can't be configured anew by options that it has never heard of.
        cmp -s meson_options.txt "$venv/build-wheel.options" || rm -rf "$venv/build-wheel"
        cp meson_options.txt "$venv/build-wheel.options"
        pip_install --no-build-isolation --no-deps --force-reinstall \
            -Cbuild-dir="$venv/build-wheel" .
        printf '%s\n' "$want" >"$venv/package.sum"
    fi
}

# need_build DIR OPTION...: configures DIR if that hasn't been done with these options, and
# compiles what has changed.
need_build() {
    local dir=$1 want
    shift
    want="$(meson --version) ${CC:-cc} $(mpi_choice) $*"
    if [ "$(cat "$dir/configured" 2>/dev/null)" != "$want" ]; then
        note "configuring $dir"
        mkdir -p "$dir" # in build/, cp3... is that of an editable install: it stays
        find "$dir" -mindepth 1 -maxdepth 1 ! -name 'cp3*' -exec rm -rf {} +
        quietly meson setup "$dir" -Dpython=disabled "$@" || die "meson setup $dir failed"
        printf '%s\n' "$want" >"$dir/configured"
    fi
    quietly meson compile -C "$dir" || die "compiling in $dir failed"
}
