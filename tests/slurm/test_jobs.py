"""Jobs on two nodes without MPI: how ranks find each other, cores and extra members in
jobs of their own, jobs that are cancelled or requeued, and shells that are no ranks."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, Jobs

SCRIPTS = Path(__file__).parents[2] / "slurm"

# Every rank reads all rows, and tells how.
TRAIN = """
import json, os, sys
import numpy as np
from pyddstore import FileComm, PyDDStore
ns = sys.argv[1] if len(sys.argv) > 1 else "train"
comm = FileComm.from_env(ns=ns)
with PyDDStore.from_env(method=1, exchange_ns=f"{ns}-rows") as store:
    numbers = [100 * r + i for r in range(comm.size) for i in range(20 + r)]
    seed = int(os.environ.get("SLURM_JOB_ID", 0)) * 1000
    seed += int(os.environ.get("SLURM_STEP_ID", 0))
    everything = np.array(numbers, np.int64)[:, None] + np.arange(48) * 100_000 + seed
    first = sum(20 + r for r in range(comm.rank))
    store.add("x", everything[first : first + 20 + comm.rank])
    total, width, _ = store.info("x")
    assert (total, width) == everything.shape
    random = np.random.default_rng(comm.rank)
    for _ in range(5):
        order = random.permutation(total)
        out = np.zeros((total, width), np.int64)
        store.get_batch("x", out, order)
        assert (out == everything[order]).all()
    paths = sorted(peer["path"] for peer in store.transports())
    everybody = comm.allgather((comm.rank, paths, os.uname().nodename))
    if comm.rank == 0:
        told = [os.environ.get("SLURM_STEP_ID"), os.environ.get("SLURM_JOB_ID")]
        vnis = os.environ.get("SLINGSHOT_VNIS")
        print(json.dumps({"ranks": everybody, "told": told, "vnis": vnis}), flush=True)
    comm.barrier()
"""

FROM_ENV = """
import os, sys
from pyddstore import FileComm
try:
    comm = FileComm.from_env("unused")
except Exception as exc:
    sys.exit(f"{type(exc).__name__}: {exc}")
print("rank", comm.rank, "of", comm.size)
"""

# Holds rows of a value, argv[1] + 1000 * SLURM_RESTART_COUNT, until `end` exists.
CORE = """
import os, sys, time
import numpy as np
from pyddstore import FileComm, PyDDStore
value = int(sys.argv[1]) + 1000 * int(os.environ.get("SLURM_RESTART_COUNT", 0))
comm = FileComm.from_env(ns="core")
with PyDDStore.from_env(method=2) as store:
    store.add("x", np.full((50, 512), value, np.int32))
    out = np.zeros((50 * comm.size, 512), np.int32)
    for _ in range(3):
        store.get_batch("x", out, range(len(out)))
        assert (out == value).all(), out
    comm.barrier()
    if comm.rank == 0:
        print("serving", value, flush=True)
    while not os.path.exists("end"):
        time.sleep(0.05)
    comm.barrier()
"""

# Reads on until `end` exists; joins again, if argv[1] says so, when the core has gone.
EXTRA = """
import os, sys, time
import numpy as np
from pyddstore import DDStoreError, PyDDStore
store = PyDDStore(None, method=2)
seen = None
while not os.path.exists("end"):
    if seen is None:
        store.join("x")
        total, width, _ = store.info("x")
        out = np.zeros((total, width), np.int32)
    begun = time.monotonic()
    try:
        store.get_batch("x", out, np.random.permutation(total))
    except DDStoreError as exc:
        took = time.monotonic() - begun
        print(f"{type(exc).__name__} after {took:.2f} s: {exc}", flush=True)
        if "again" not in sys.argv:
            sys.exit(took > 10)
        seen = None
        continue
    values = np.unique(out).tolist()
    assert len(values) == 1, values
    if values != seen:
        assert seen is None, (seen, values)
        seen = values
        paths = sorted(peer["path"] for peer in store.transports())
        print("sees", *values, *paths, flush=True)
store.free()
print("ended well", flush=True)
"""


@pytest.fixture
def train(jobs: Jobs) -> tuple[str, str]:
    return sys.executable, jobs.program("train.py", TRAIN)


def told(output: str) -> list[dict[str, Any]]:
    """What the ranks 0 have printed."""
    lines = [line for line in output.splitlines() if line.startswith("{")]
    return [json.loads(line) for line in lines]


def check_paths(one: dict[str, Any]) -> None:
    """Ranks of the same node read by mapping, others by TCP."""
    hosts = [host for _, _, host in one["ranks"]]
    for i, (rank, paths, host) in enumerate(one["ranks"]):
        near = hosts.count(host) - 1
        far = len(hosts) - 1 - near
        assert rank == i
        assert paths == ["local"] * near + ["self"] + ["tcp"] * far, one


# ---- launch forms --------------------------------------------------------------------


def test_train_script(jobs: Jobs, train: tuple[str, str]) -> None:
    """As it is: two nodes, two ranks each."""
    script = str(SCRIPTS / "ddstore-train.sbatch")
    vnis = {"SLINGSHOT_VNIS": "11,12", "DDSTORE_HANDSHAKE_DIR": ""}
    number = jobs.submit(script, *train, env=vnis)
    (one,) = told(jobs.passed(number))
    assert one["vnis"] == "12"
    assert [host for _, _, host in one["ranks"]] == ["n1", "n1", "n2", "n2"]
    check_paths(one)
    assert jobs.field(number, "Network") == "single_node_vni,job_vni"
    assert not list(jobs.folder.glob(".ddstore*"))
    failing = jobs.submit(script, "sh", "-c", "exit $((3 * (SLURM_PROCID == 1)))")
    assert jobs.wait(failing) == "FAILED"


@pytest.mark.parametrize("name", ["train", "core", "extra"])
def test_scripts_help(cluster: Cluster, name: str) -> None:
    script = str(SCRIPTS / f"ddstore-{name}.sbatch")
    end = cluster.run("bash", script, "--help")
    assert f"ddstore-{name}.sbatch" in end.stdout
    assert "sbatch [OPTION...]" in end.stdout
    for words in ([], ["h", "true"]):
        end = cluster.run("bash", script, *words, check=False)
        assert (end.returncode, end.stdout) == (2, "")
        assert "sbatch [OPTION...]" in end.stderr


def test_srun_alone(jobs: Jobs, train: tuple[str, str]) -> None:
    (one,) = told(jobs.run("srun", "-N2", "-n3", *train).stdout)
    assert len(one["ranks"]) == 3
    check_paths(one)
    (one,) = told(jobs.run("srun", "-n1", *train).stdout)
    assert one["ranks"] == [[0, ["self"], "n1"]]
    words = ("srun", "-N2", "-n4", "--mpi=pmi2")
    (one,) = told(jobs.run(*words, *train).stdout)
    check_paths(one)


def test_salloc(jobs: Jobs, train: tuple[str, str]) -> None:
    """Steps as large as the job, and smaller ones; the shell itself is refused."""
    shell = jobs.program("shell.py", FROM_ENV)
    text = (
        f"{sys.executable} {shell}; srun {' '.join(train)}; "
        f"srun -n3 {' '.join(train)}; srun -N1 -n2 {' '.join(train)}"
    )
    end = jobs.run("salloc", "-N2", "-n4", "sh", "-c", text)
    assert "RuntimeError: no launcher started this process" in end.stderr
    assert "use srun" in end.stderr
    assert [len(one["ranks"]) for one in told(end.stdout)] == [4, 3, 2]
    for one in told(end.stdout):
        check_paths(one)


def test_two_steps_at_once(jobs: Jobs, train: tuple[str, str]) -> None:
    """In namespaces of their own. Of two in the same one, one is refused."""
    step = f"srun --overlap -N2 -n2 {' '.join(train)}"
    number = jobs.submit("-N2", "-n4", f"--wrap={step} a & {step} b & wait")
    output = jobs.passed(number)
    assert sorted(one["told"][0] for one in told(output)) == ["0", "1"], output
    stays = (
        "import time; open('in', 'w').close()\n"
        "    while not os.path.exists('out'): time.sleep(0.05)\n"
    )
    # srun may lose the last words of a step that it ends.
    keep = (
        "import sys, traceback\n"
        "def keep(*error):\n"
        "    with open('refused', 'a') as f:\n"
        "        traceback.print_exception(*error, file=f)\n"
        "sys.excepthook = keep\n"
    )
    slow = jobs.program(
        "slow.py", keep + TRAIN.replace("    comm.barrier()\n", f"    {stays}")
    )
    same = f"srun --overlap -K1 -N2 -n2 {sys.executable} {slow}"
    text = (
        f"{same} & first=$!; while [ ! -e in ]; do sleep 0.1; done; "
        f"{same} && echo both; touch out; wait $first"
    )
    number = jobs.submit("-N2", "-n4", f"--wrap={text}")
    output = jobs.passed(number)
    assert len(told(output)) == 1, output
    assert "both" not in output
    refused = (jobs.folder / "refused").read_text()
    assert "is held by rank 0 of another group" in refused
    assert f"launch slurm:{number}:" in refused


def test_array(jobs: Jobs, train: tuple[str, str]) -> None:
    """Tasks of an array run at once, each a group of its own."""
    script = jobs.program(
        "array.sh",
        '#!/bin/sh\nDDSTORE_HANDSHAKE_DIR=$PWD/h$SLURM_ARRAY_TASK_ID exec srun "$@"\n',
    )
    first = jobs.submit("-N2", "-n2", "--array=0-2", script, *train)
    jobs.cluster.wait(
        lambda: not jobs.run("squeue", "-h", "-j", first).stdout, 60, "the array's end"
    )
    outputs = [path.read_text() for path in jobs.folder.glob("*.out")]
    groups = [one for output in outputs for one in told(output)]
    assert len({one["told"][1] for one in groups}) == 3, outputs
    for one in groups:
        check_paths(one)


def test_components(jobs: Jobs, train: tuple[str, str]) -> None:
    """A step over both components of a heterogeneous job, and one on each."""
    words = " ".join(train)
    script = jobs.program(
        "components.sh",
        "#!/bin/sh\n#SBATCH -n2\n#SBATCH hetjob\n#SBATCH -n3\n"
        f"srun --het-group=0,1 {words}\n"
        f"srun --het-group=0 {words} a & srun --het-group=1 {words} b & wait\n",
    )
    output = jobs.passed(jobs.submit(script))
    groups = told(output)
    assert sorted(len(one["ranks"]) for one in groups) == [2, 3, 5], output
    for one in groups:
        check_paths(one)


def test_a_shell_is_no_rank(jobs: Jobs, cluster: Cluster) -> None:
    """A batch script, also one that is submitted inside a step, and the shell that
    salloc starts on a node."""
    shell = jobs.program("shell.py", FROM_ENV)
    run = f"--wrap={sys.executable} {shell}"
    refused = jobs.submit("-N2", "-n4", run)
    assert jobs.wait(refused) == "FAILED"
    inside = jobs.run("srun", "-n1", "sbatch", "--parsable", "-n2", "-oinside", run)
    jobs.ids.append(inside.stdout.strip())
    assert jobs.wait(jobs.ids[-1]) == "FAILED"
    conf = jobs.folder / "slurm.conf"
    text = (cluster.folder / "etc" / "slurm.conf").read_text()
    conf.write_text(f"{text}LaunchParameters=use_interactive_step\n")
    step = jobs.run(
        *("salloc", "-n2"),
        env={"SLURM_CONF": str(conf), "SHELL": "/bin/sh"},
        stdin=f"{sys.executable} {shell}\nsrun {sys.executable} {shell}\n",
        check=False,
    )
    assert "rank 1 of 2" in step.stdout
    outputs = [jobs.output(refused), (jobs.folder / "inside").read_text(), step.stderr]
    for output in outputs:
        assert (
            "RuntimeError: no launcher started this process: this is a batch or "
            in (output)
        )
        assert "use srun" in output
        assert "rank 0" not in output


def test_mpirun(jobs: Jobs, train: tuple[str, str]) -> None:
    """Inside sbatch: some ranks are below the batch script, some in a step."""
    mpirun = shutil.which("mpirun.openmpi")
    if mpirun is None:
        pytest.skip("optional: Open MPI isn't installed")
    options = "--allow-run-as-root --bind-to none --map-by ppr:2:node"
    wrap = f"--wrap={mpirun} {options} {' '.join(train)}"
    (one,) = told(jobs.passed(jobs.submit("-N2", "--ntasks-per-node=2", wrap)))
    assert [host for _, _, host in one["ranks"]] == ["n1", "n1", "n2", "n2"]
    check_paths(one)


# ---- core and extra members in jobs of their own -------------------------------------


def start(jobs: Jobs, script: str, program: str, *more: str) -> str:
    """Submits slurm/ddstore-SCRIPT.sbatch with a program of this file."""
    text = {"core.py": CORE, "extra.py": EXTRA}[program]
    return jobs.submit(
        *more[:-1],
        str(SCRIPTS / f"ddstore-{script}.sbatch"),
        *("h", sys.executable, jobs.program(program, text), more[-1]),
        env={"DDSTORE_HANDSHAKE_DIR": ""},
    )


def test_extra_jobs_come_and_go(jobs: Jobs) -> None:
    """One before the core job, which is cancelled while it reads, one after it, and one
    after the first has ended."""
    before = start(jobs, "extra", "extra.py", "--nodelist=n2", "once")
    jobs.wait(before, "RUNNING")
    core = start(jobs, "core", "core.py", "7")
    jobs.said(core, "serving 7")
    after = start(jobs, "extra", "extra.py", "--nodelist=n1", "once")
    for number in (before, after):
        jobs.said(number, "sees 7 local local tcp tcp")
    jobs.cancel(before)
    assert jobs.wait(before) == "CANCELLED"
    third = start(jobs, "extra", "extra.py", "-N2", "--ntasks=2", "once")
    jobs.cluster.wait(lambda: jobs.output(third).count("sees 7 ") == 2, 30, "both")
    (jobs.folder / "end").touch()
    assert jobs.passed(third).count("ended well") == 2
    assert "ended well" in jobs.passed(after)
    jobs.passed(core)
    assert "Error" not in jobs.output(before) + jobs.output(after)


def test_core_is_cancelled(jobs: Jobs) -> None:
    """Extra members on either node get a clear error, in time."""
    core = start(jobs, "core", "core.py", "7")
    extra = start(jobs, "extra", "extra.py", "-N2", "--ntasks=2", "once")
    jobs.cluster.wait(lambda: jobs.output(extra).count("sees 7 ") == 2, 60, "both")
    jobs.cancel(core)
    output = jobs.passed(extra)
    errors = [line for line in output.splitlines() if " after " in line]
    assert len(errors) == 2, output
    for error in errors:
        assert error.startswith(("StoreClosedError", "PeerLostError")), output
        assert "rank" in error
    assert jobs.wait(core) == "CANCELLED"


def test_requeue(jobs: Jobs) -> None:
    """The job that is requeued holds new rows, and nobody sees an old one after."""
    core = start(jobs, "core", "core.py", "7")
    extra = start(jobs, "extra", "extra.py", "-N2", "--ntasks=2", "again")
    jobs.cluster.wait(lambda: jobs.output(extra).count("sees 7 ") == 2, 60, "both")
    jobs.run("scontrol", "requeue", core)
    jobs.said(core, "serving 1007")
    jobs.cluster.wait(lambda: jobs.output(extra).count("sees 1007 ") == 2, 60, "both")
    assert jobs.field(core, "Restarts") == "1"
    (jobs.folder / "end").touch()
    output = jobs.passed(extra)
    assert output.count("sees") == 4, output
    assert output.count("ended well") == 2
    jobs.passed(core)
