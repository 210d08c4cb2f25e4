"""How a build finds an MPI, and what comes of one that has none."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import zipfile

import mpi_launch
import pytest

CHECKOUT = pathlib.Path(__file__).parents[2]
C_ONLY = ("-Dpython=disabled", "-Dtests=disabled", "-Dbench=disabled")

# ---- finding it ----------------------------------------------------------------------


def configure(
    build: pathlib.Path, *options: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["meson", "setup", str(build), *C_ONLY, *options],
        cwd=CHECKOUT,
        env={k: v for k, v in os.environ.items() if k != "MPICC"} | (env or {}),
        capture_output=True,
        text=True,
        check=False,
    )


def summary(done: subprocess.CompletedProcess[str]) -> str:
    """What the configuration says of MPI."""
    found = re.search(r"MPI plugin *: (.*)", done.stdout)
    assert found, done.stdout + done.stderr
    return found[1]


def test_wrapper_that_does_not_work(tmp_path: pathlib.Path) -> None:
    done = configure(tmp_path / "auto", env={"MPICC": "false"})
    assert summary(done) == "NO"
    assert "false does not build MPI programs" in done.stdout
    done = configure(tmp_path / "enabled", "-Dmpicc=/no/mpicc", "-Dmpi=enabled")
    assert done.returncode != 0
    assert "no MPI: -Dmpicc=WRAPPER or MPICC" in done.stdout


def test_the_compiler_is_the_wrapper(tmp_path: pathlib.Path) -> None:
    """As on Crays; there is no mpicc then."""
    path = tmp_path / "bin"
    path.mkdir()
    (path / "mpicc").write_text("#!/bin/sh\nexit 1\n")
    (path / "mpicc").chmod(0o755)
    env = {"CC": mpi_launch.tool("mpicc"), "PATH": f"{path}:{os.environ['PATH']}"}
    done = configure(tmp_path / "build", "-Dmpi=enabled", env=env)
    assert summary(done) == f"by {env['CC']}"


def test_how_wrappers_write_it(tmp_path: pathlib.Path) -> None:
    """The plugin finds libraries of an uncommon place, and takes no warnings and no way
    of compiling from the MPI."""
    words = [mpi_launch.tool("mpicc"), "-show"]
    shown = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    own = tmp_path / "lib"
    own.mkdir()
    wrapper = tmp_path / "mpicc"
    more = f"-Xlinker --enable-new-dtags -Xlinker -rpath -Xlinker {own}/1 "
    more += f"-Wl,-rpath -Wl,{own}/2 -Wl,-rpath={own}/3 -L{own} -Wno-such -pthread"
    wrapper.write_text(f"#!/bin/sh\necho ccache {shown.strip()} {more}\n")
    wrapper.chmod(0o755)
    build = tmp_path / "build"
    done = configure(build, f"-Dmpicc={wrapper}", "-Dwerror=true")
    assert summary(done) == f"by {wrapper}"
    name = "libddstore/src/mpi/libddstore_mpi.so"
    target = next(
        line.split(":")[0].removeprefix("build ")
        for line in (build / "build.ninja").read_text().splitlines()
        if line.startswith(f"build {name}") and "c_LINKER" in line
    )
    subprocess.run(["ninja", "-C", build, target], check=True)
    dynamic = subprocess.run(
        ["readelf", "-d", build / target], check=True, capture_output=True, text=True
    ).stdout
    found = re.search(r"\(RUNPATH\).*\[(.*)\]", dynamic)
    assert found
    assert set(found[1].split(":")) >= {f"{own}/1", f"{own}/2", f"{own}/3", str(own)}


# ---- none of it ----------------------------------------------------------------------

# The rest runs with these files hidden from it.
HIDE = """
while [ "$1" != -- ]; do mount --bind /dev/null "$1" || exit 99; shift; done
shift
exec "$@"
"""
CHECK = """
import ctypes, pathlib, shutil, sys
for path in sys.argv[1:]:
    try:
        ctypes.CDLL(path)
    except OSError:
        continue
    sys.exit(f"{path} is still there")
try:
    from mpi4py import MPI
except ImportError:
    pass
else:
    sys.exit("mpi4py still works")
assert not shutil.which("mpirun"), shutil.which("mpirun")
import pyddstore
assert pyddstore.HAVE_MPI is False
folder = pathlib.Path(pyddstore.__file__).parent
assert folder.is_relative_to(sys.prefix), folder
assert not list(folder.glob("*mpi*.so"))
"""
TESTS = [
    "tests/python/test_reads.py",
    "tests/python/test_variables.py",
    "tests/python/test_collective.py::test_constructor_arguments",
]


def files_of_mpis() -> list[str]:
    """Libraries and programs of every MPI here."""
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI  # noqa: F401  its libraries are mapped now

    maps = pathlib.Path("/proc/self/maps").read_text()
    cache = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True)
    found = {
        os.path.realpath(path)
        for path in re.findall(r"(/\S+)$", maps + cache.stdout, re.MULTILINE)
        if re.match(r"lib(p?mpi|mpich|open-(pal|rte))", os.path.basename(path))
    }
    for folder in os.environ["PATH"].split(":"):
        for path in pathlib.Path(folder).glob("mpi*"):
            if re.match(r"mpi(cc|run|exec)(\.|$)", path.name):
                found.add(os.path.realpath(path))
    return sorted(found)


def namespace() -> list[str]:
    """Starts a program with mounts of its own."""
    words = ["unshare", "--mount", "--propagation", "private"]
    if os.geteuid() != 0:
        words.insert(1, "--map-root-user")
    try:
        subprocess.run([*words, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as exc:
        pytest.skip(f"nothing can be hidden here: {exc}")
    return words


@pytest.mark.timeout(300)
def test_wheel_without_mpi(tmp_path: pathlib.Path) -> None:
    """Built with DDSTORE_MPI=0, it passes its tests where there is no MPI."""
    apart = namespace()
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"),
            *("wheel", "--no-build-isolation", "--no-deps", "-w", str(tmp_path)),
            *(f"-Cbuild-dir={tmp_path}/build", str(CHECKOUT)),
        ],
        env=os.environ | {"DDSTORE_MPI": "0"},
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert not [n for n in zipfile.ZipFile(wheel).namelist() if "libddstore_mpi" in n]

    # An environment of its own, but for what tests need.
    venv = tmp_path / "venv"
    python = str(venv / "bin" / "python")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"),
            *("--python", python, "install", "--no-deps", str(wheel)),
        ],
        check=True,
    )
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")

    hidden = files_of_mpis()
    libraries = [path for path in hidden if ".so" in path]
    assert libraries
    start = [*apart, "sh", "-c", HIDE, "sh", *hidden, "--", python]
    subprocess.run([*start, "-c", CHECK, *libraries], check=True, cwd=tmp_path)
    pytest_itself = os.path.join(sysconfig.get_path("scripts"), "pytest")
    done = subprocess.run(
        [
            *(*start, pytest_itself, "-p", "no:cacheprovider"),
            *(f"--basetemp={tmp_path}/t", *TESTS),
        ],
        cwd=CHECKOUT,
        env={k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
