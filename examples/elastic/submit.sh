#!/usr/bin/env bash
# Submits a core job, which holds the rows, and extra jobs, which read them.
#
#   submit.sh [OPTION...] RUN
#
# RUN is a directory that all nodes share; it is made if need be. Jobs meet in it, and
# leave their logs and results there.
#
#   -n, --extras N       extra jobs (2)
#   --add                extra jobs only: for a core that is there, or yet to come
#   --nodes N            nodes of the core (2)
#   --tasks-per-node N   core processes on each (2)
#   --gib G              fill the rows up to this size
#   --minutes M          end after so many; without, by the file RUN/stop
#   --epochs E           of each extra member (10); 0: until RUN/stop is there
#   --batch B            rows that are read at once (256)
#   --wait S, --rejoin S seconds for a core to come, and for another one if it goes
#   --every S            seconds between lines of progress (5)
#   --sbatch OPTION      for all jobs, such as --sbatch=--account=me; more than once
#   --core-sbatch, --extra-sbatch OPTION   for these jobs only
#   --python PROGRAM     a Python with pyddstore and scikit-learn (python3)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
slurm=$(cd "$here/../../slurm" && pwd)

usage() { sed -n '/^# Submits/,/^set/s/^# \?//p' "${BASH_SOURCE[0]}"; }
die() {
    printf 'submit.sh: %s\n' "$*" >&2
    exit 2
}

extras=2
add=
run=
python=python3
core_sbatch=()
extra_sbatch=()
core_options=()
extra_options=()
while [ $# -gt 0 ]; do
    option=$1
    shift
    case $option in
    -h | --help)
        usage
        exit
        ;;
    --add)
        add=1
        continue
        ;;
    -*) ;;
    *)
        [ -z "$run" ] || die "one RUN, not $run and $option"
        run=$option
        continue
        ;;
    esac
    # What is left takes a value: --option value, --option=value, -n value or -nvalue.
    case $option in
    -n?*)
        value=${option#-n}
        option=-n
        ;;
    --*=*)
        value=${option#*=}
        option=${option%%=*}
        ;;
    *)
        [ $# -gt 0 ] || die "$option needs a value (--help tells more)"
        value=$1
        shift
        ;;
    esac
    case $option in
    -n | --extras) extras=$value ;;
    --nodes) core_sbatch+=("--nodes=$value") ;;
    --tasks-per-node) core_sbatch+=("--ntasks-per-node=$value") ;;
    --gib | --minutes) core_options+=("$option=$value") ;;
    --epochs | --batch | --wait | --rejoin | --every) extra_options+=("$option=$value") ;;
    --sbatch)
        core_sbatch+=("$value")
        extra_sbatch+=("$value")
        ;;
    --core-sbatch) core_sbatch+=("$value") ;;
    --extra-sbatch) extra_sbatch+=("$value") ;;
    --python) python=$value ;;
    *) die "there is no option $option (--help tells more)" ;;
    esac
done
if [ -z "$run" ]; then
    usage >&2
    exit 2
fi
[[ $extras =~ ^[0-9]+$ ]] || die "--extras $extras is no number"
command -v sbatch >/dev/null || die "there is no sbatch here; README.md tells what to do"
python=$(command -v -- "$python") || die "there is no $python here"
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python") # links say which venv
unset PYTHONSAFEPATH # the programs import files that lie beside them
# Elsewhere than in a checkout, whose pyddstore/ is not the installed package.
(cd "$here" && "$python" -c 'import pyddstore, sklearn') \
    || die "$python lacks a package; activate an environment, or name its --python"

run=$(realpath -m -- "$run")
mkdir -p -- "$run/results"

# submit OPTION... SCRIPT ARGUMENT...: prints the job's number.
submit() {
    local job
    job=$(sbatch --parsable --output="$run/%x-%j.out" "$@")
    printf '%s\n' "${job%%;*}" # a cluster's name may follow
}

after=()
if [ -z "$add" ]; then
    rm -f -- "$run/stop" # of an earlier core
    core=$(submit "${core_sbatch[@]}" "$slurm/ddstore-core.sbatch" "$run/exchange" \
        "$python" "$here/core.py" "$run" "${core_options[@]}")
    echo "core job $core"
    after=("--dependency=after:$core") # don't wait on a node for a core in the queue
fi
for ((i = 0; i < extras; i++)); do
    extra=$(submit "${after[@]}" "${extra_sbatch[@]}" "$slurm/ddstore-extra.sbatch" \
        "$run/exchange" "$python" "$here/extra.py" "$run" "${extra_options[@]}")
    echo "extra job $extra"
done

printf '\n%s\n' "more:  $0 --add -n 1 $run
look:  squeue --me; tail -f $run/*.out
       $python $here/summary.py $run
leave: scancel JOB, any extra job at any time
stop:  touch $run/stop"
