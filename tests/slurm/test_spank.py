"""Jobs on two nodes with the SPANK plugin: who gets which directory and NIC map, by all
ways to start ranks, and what is left after the jobs."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from cluster import NODES, why_no_cluster
from spank_build import PLUGIN, built
from spank_cluster import USER, SpankCluster, UserJobs

SCRIPTS = Path(__file__).parents[2] / "slurm"
NUMBERS = count()
MAPS = {
    "n1": "enp129s0=0-7",
    "n2": "ib0=4-11,20-27;ib1=0-3,12-19,28-31",
}
NAMES = "DDSTORE_HANDSHAKE_DIR,DDSTORE_NIC_MAP"
# What a rank sees, as one line.
TELL = """#!/bin/sh
exec 2>&1
printf '%s|' "$SLURM_JOB_ID" "$(uname -n)" "$DDSTORE_HANDSHAKE_DIR" \\
    "$DDSTORE_NIC_MAP" "$DDSTORE_SPANK_SET" "$DDSTORE_SPANK_ERROR" "$DDSTORE_N_CORE" \\
    "$(stat -c %a:%u "$DDSTORE_HANDSHAKE_DIR")"
echo
"""


@dataclass
class Rank:
    """What one has told."""

    job: str
    node: str
    dir: str
    map: str
    set: str
    error: str
    core: str
    stat: str


def ranks(output: str) -> list[Rank]:
    lines = [line.split("|")[:-1] for line in output.splitlines() if "|" in line]
    return [Rank(*line) for line in lines]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SpankCluster]:
    """With the plugin, for all jobs."""
    if why := why_no_cluster():
        pytest.skip(why)
    one = SpankCluster(built() / PLUGIN)
    good = False
    try:
        one.start()
        yield one
        assert not any(one.shared.glob("*/[0-9]*")), "directories are left"
        good = True
    finally:
        one.close(keep=not good)


@pytest.fixture
def jobs(cluster: SpankCluster) -> Iterator[UserJobs]:
    """Of a user; after them both nodes must be idle, as before."""
    own = UserJobs(cluster, cluster.folder / f"work-{next(NUMBERS)}")
    cluster.use(cluster.line("enable=always"))
    try:
        yield own
    finally:
        own.close()
    cluster.wait(cluster.idle, 20, "nodes that are idle")


@pytest.fixture
def tell(jobs: UserJobs) -> str:
    return jobs.program("tell", TELL)


def place(cluster: SpankCluster, name: str, user: str = "nobody") -> Path:
    """Where the directory of a job is."""
    return cluster.shared / user / name


def gone(cluster: SpankCluster, *names: str) -> None:
    """Waits until those directories are no more."""
    paths = [place(cluster, name) for name in names]
    cluster.wait(lambda: not any(path.exists() for path in paths), 20, "removal")


def check(cluster: SpankCluster, output: str, nodes: str, name: str = "") -> str:
    """That ranks on those nodes ("n1 n2") have what they should; their job, whose
    directory goes in time. name: of the directory, if not the job's number."""
    told = ranks(output)
    assert sorted(one.node for one in told) == nodes.split(), output
    for one in told:
        job = name or one.job
        assert one == Rank(
            job=one.job,
            node=one.node,
            dir=str(place(cluster, job)),
            map=MAPS[one.node],
            set=f"{job.partition('.')[0]}:{one.node}:{NAMES}",
            error="",
            core="",
            stat=f"700:{USER}",
        )
    return told[0].job


# ---- launch forms --------------------------------------------------------------------

FORMS = {
    "srun": ("srun -N2 {tell}", "n1 n2"),
    "srun --export=NONE": ("srun -N2 --export=NONE {tell}", "n1 n2"),
    "salloc": ("salloc -N2 srun {tell}", "n1 n2"),
    "salloc, a smaller step": (
        "salloc -N2 --ntasks-per-node=2 srun -N1 -n2 -w n2 {tell}",
        "n2 n2",
    ),
    "sbatch": ("sbatch -N2 -w n1,n2", "n1", "{tell}"),
    "sbatch, srun": ("sbatch -N2", "n1 n1 n2", "{tell}; srun {tell}"),
    "sbatch, srun --export=NONE": (
        *("sbatch -N2 --export=NONE", "n1 n2"),
        "srun --export=NONE {tell}",
    ),
    "sbatch, a smaller step": ("sbatch -N2", "n2", "srun -N1 -n1 -w n2 {tell}"),
    "two steps at once": (
        *("sbatch -N2", "n1 n1 n2 n2"),
        "srun --overlap {tell} & srun --overlap {tell} & wait",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_launch_form(
    cluster: SpankCluster, jobs: UserJobs, tell: str, form: str
) -> None:
    command, nodes, *script = FORMS[form]
    if script:
        wrap = f"--wrap={script[0].format(tell=tell)}"
        output = jobs.passed(jobs.submit(*command.split()[1:], wrap))
    else:
        output = jobs.run(*command.format(tell=tell).split()).stdout
    job = check(cluster, output, nodes)
    gone(cluster, job)
    for node in NODES:
        assert not list(cluster.state(node).glob(f"job-{job}-*"))


def test_the_shell_of_salloc(cluster: SpankCluster, jobs: UserJobs, tell: str) -> None:
    """It is no task and has no directory; the steps in it have one."""
    end = jobs.run("salloc", "-N1", "sh", "-c", f"{tell}; srun {tell}")
    shell, step = ranks(end.stdout)
    assert (shell.node, shell.dir, shell.set) == ("head", "", "")
    assert step.dir == str(place(cluster, step.job))


def test_array(cluster: SpankCluster, jobs: UserJobs, tell: str) -> None:
    jobs.ids.append(
        jobs.run(
            *("sbatch", "--parsable", "-o%a", "-N1", "--array=0-2"),
            f"--wrap=srun {tell}",
        ).stdout.strip()
    )
    cluster.wait(lambda: not jobs.run("squeue", "-h").stdout, 60, "the array's end")
    told = [ranks((jobs.folder / str(i)).read_text())[0] for i in range(3)]
    assert len({one.dir for one in told}) == 3
    for one in told:
        assert one.dir == str(place(cluster, one.job))
    gone(cluster, *(one.job for one in told))


def test_components(cluster: SpankCluster, jobs: UserJobs, tell: str) -> None:
    """Those of a heterogeneous job share the directory of the first."""
    script = jobs.program(
        "components.sh",
        "#!/bin/sh\n#SBATCH -n1\n#SBATCH -w n1\n#SBATCH hetjob\n#SBATCH -n1\n"
        f"#SBATCH -w n2\n{tell}\nsrun --het-group=0,1 {tell}\n"
        f"srun --het-group=1 {tell}\n",
    )
    number = jobs.submit(script)
    output = jobs.passed(number)
    check(cluster, output, "n1 n1 n2 n2", number)
    gone(cluster, number)


def test_mpirun(cluster: SpankCluster, jobs: UserJobs, tell: str) -> None:
    """Inside sbatch."""
    mpirun = shutil.which("mpirun.openmpi")
    if mpirun is None:
        pytest.skip("optional: Open MPI isn't installed")
    options = "--bind-to none --map-by ppr:1:node"
    number = jobs.submit("-N2", f"--wrap={mpirun} {options} {tell}")
    check(cluster, jobs.passed(number), "n1 n2")
    gone(cluster, number)


def test_requeue(cluster: SpankCluster, jobs: UserJobs, tell: str) -> None:
    """The second run has a directory of its own, in the script and in steps."""
    text = (
        f"#!/bin/sh\n{tell}\nsrun {tell}\nsrun --export=NONE {tell}\n"
        'touch "$DDSTORE_HANDSHAKE_DIR/file"; echo told\n'
        'test -n "$SLURM_RESTART_COUNT" || sleep 60\n'
    )
    script = jobs.program("again.sh", text)
    number = jobs.submit("-N1", "-w", "n1", "--requeue", "--open-mode=append", script)
    jobs.said(number, "told")
    assert place(cluster, number).is_dir()
    cluster.run("scontrol", "requeue", number)
    output = jobs.passed(number)
    runs = [part for part in output.split("told\n") if "|" in part]
    check(cluster, runs[0], "n1 n1 n1", number)
    check(cluster, runs[1], "n1 n1 n1", f"{number}.1")
    gone(cluster, number, f"{number}.1")


def test_root(cluster: SpankCluster, tell: str) -> None:
    (root,) = ranks(cluster.run("srun", "-N1", tell).stdout)
    assert root.dir == str(place(cluster, root.job, "root"))
    assert root.stat == "700:0"
    cluster.wait(lambda: not Path(root.dir).exists(), 20, "removal")


# ---- whose value ---------------------------------------------------------------------


def test_values_of_the_user(cluster: SpankCluster, jobs: UserJobs, tell: str) -> None:
    """Those of the environment, and those that a script sets, are kept."""
    env = {"DDSTORE_HANDSHAKE_DIR": str(jobs.folder), "DDSTORE_NIC_MAP": "eth0=0-7"}
    for one in ranks(jobs.run("srun", "-N2", tell, env=env).stdout):
        assert (one.dir, one.map, one.set) == (str(jobs.folder), "eth0=0-7", "")
    text = f"#!/bin/sh\nexport DDSTORE_HANDSHAKE_DIR={jobs.folder}\nsrun {tell}\n"
    number = jobs.submit("-N2", jobs.program("own.sh", text))
    told = ranks(jobs.passed(number))
    for one in told:
        assert (one.dir, one.map) == (str(jobs.folder), MAPS[one.node])
        assert one.set == f"{number}:{one.node}:DDSTORE_NIC_MAP"
    assert len(told) == 2


def test_values_of_another_job(
    cluster: SpankCluster, jobs: UserJobs, tell: str
) -> None:
    """One that submits another hands its environment on."""
    # As if this one had been requeued.
    inner = (
        f'SLURM_RESTART_COUNT=1 sbatch -o inner -N1 -w n2 --wrap="{tell}; srun {tell}"'
    )
    number = jobs.submit("-N1", "-w", "n1", f"--wrap={tell}; {inner}")
    check(cluster, jobs.passed(number), "n1")
    cluster.wait(cluster.idle, 60, "the inner job's end")
    job = check(cluster, (jobs.folder / "inner").read_text(), "n2 n2")
    assert job != number
    gone(cluster, number, job)


# ---- options -------------------------------------------------------------------------


def test_help(jobs: UserJobs) -> None:
    for program in ("srun", "sbatch", "salloc"):
        text = jobs.run(program, "--help").stdout
        for option in ("--ddstore=", "--ddstore-dir=", "--ddstore-join="):
            assert option in text, program


def test_opt_in(cluster: SpankCluster, jobs: UserJobs, tell: str) -> None:
    cluster.use(cluster.line())
    (one,) = ranks(jobs.run("srun", "-N1", tell).stdout)
    assert (one.dir, one.map, one.set, one.error) == ("", "", "", "")
    check(cluster, jobs.run("srun", "-N2", "--ddstore", tell).stdout, "n1 n2")
    text = (
        f"#!/bin/sh\n#SBATCH --ddstore\n{tell}\nsrun {tell}\nsrun --ddstore=no {tell}"
    )
    number = jobs.submit("-N1", "-w", "n1", jobs.program("asks.sh", text))
    script, step, without = ranks(jobs.passed(number))
    assert script.dir == step.dir == str(place(cluster, number))
    assert (without.dir, without.map, without.set) == ("", "", "")
    number = jobs.submit("-N1", "--ddstore", "--export=NONE", f"--wrap=srun {tell}")
    (step,) = ranks(jobs.passed(number))
    assert step.dir == str(place(cluster, number))
    end = jobs.run("salloc", "-N1", "--ddstore=yes", "srun", tell)
    check(cluster, end.stdout, end.stdout.split("|")[1])


def test_dir_option(cluster: SpankCluster, jobs: UserJobs, tell: str) -> None:
    text = f"#!/bin/sh\n#SBATCH --ddstore-dir={jobs.folder}/%j/d\n{tell}\nsrun {tell}\n"
    number = jobs.submit("-N2", jobs.program("asks.sh", text))
    told = ranks(jobs.passed(number))
    path = jobs.folder / number / "d" / number
    assert [one.dir for one in told] == [str(path)] * 3
    cluster.wait(lambda: not path.exists(), 20, "removal")
    assert path.parent.exists()


def test_bad_options(cluster: SpankCluster, jobs: UserJobs, tell: str) -> None:
    """The job runs."""
    for option, reason in (
        ("--ddstore=maybe", "give yes or no"),
        ("--ddstore-dir=here", "give an absolute path"),
        ("--ddstore-join=12x", "give JOBID or JOBID.STEP"),
        ("--ddstore-dir=/proc/no", "'no' No such file or directory"),
    ):
        end = jobs.run("srun", "-N1", option, tell)
        (one,) = ranks(end.stdout)
        assert one.dir == ""
        assert reason in one.error
        assert reason in end.stderr
        assert reason in (cluster.log / f"slurmd-{one.node}").read_text()


# ---- joining -------------------------------------------------------------------------

CORE = """
import os, time
import numpy as np
from pyddstore import PyDDStore
with PyDDStore.from_env(method=2) as store:
    store.add("x", np.full((4, 8), 7, np.int32))
    print("serving", flush=True)
    while not os.path.exists("end"):
        time.sleep(0.05)
"""

EXTRA = """
import os
import numpy as np
from pyddstore import PyDDStore
with PyDDStore(None, method=2) as store:
    store.join("x")
    out = np.zeros((4, 8), np.int32)
    store.get_batch("x", out, range(4))
    print("sees", out.min(), out.max(), os.environ["DDSTORE_N_CORE"])
"""


def test_join(cluster: SpankCluster, jobs: UserJobs, tell: str) -> None:
    """A real core job, by its number; one that isn't there; and another user's."""
    jobs = UserJobs(cluster, jobs.folder, 0)  # who may run this Python for certain
    core, extra = jobs.program("core.py", CORE), jobs.program("extra.py", EXTRA)
    number = jobs.submit("-N2", "-n2", f"--wrap=srun {sys.executable} {core}")
    cluster.wait(lambda: jobs.output(number).count("serving") == 2, 60, "the core")
    base = cluster.shared / "root"
    (base / f"{number}.x").touch()
    for form in (number, f"{number}.0"):
        option = f"--ddstore-join={form}"
        end = jobs.run("srun", "-N1", option, sys.executable, extra)
        assert "sees 7 7 2" in end.stdout
    (one,) = ranks(jobs.run("srun", "-N1", f"--ddstore-join={number}.5", tell).stdout)
    assert (one.dir, one.core) == (str(base / number), "")
    (one,) = ranks(jobs.run("srun", "-N1", "--ddstore-join=999", tell).stdout)
    assert (one.dir, one.error, one.core) == (str(base / "999"), "", "")
    user = UserJobs(cluster, jobs.folder / "other")
    options = (f"--ddstore-dir={base}", f"--ddstore-join={number}")
    base.chmod(0o755)
    (one,) = ranks(user.run("srun", "-N1", *options, tell).stdout)
    assert (one.dir, "another user (uid 0)" in one.error) == ("", True)
    (jobs.folder / "end").touch()
    jobs.passed(number)
    cluster.wait(lambda: not (base / number).exists(), 20, "removal")
    (base / f"{number}.x").unlink()


def test_job_scripts(cluster: SpankCluster, jobs: UserJobs, tell: str) -> None:
    """The training script takes the plugin's directory; those of core and extra jobs
    have one of their own."""
    number = jobs.submit(str(SCRIPTS / "ddstore-train.sbatch"), tell)
    check(cluster, jobs.passed(number), "n1 n1 n2 n2")
    for script in ("core", "extra"):
        path = str(SCRIPTS / f"ddstore-{script}.sbatch")
        number = jobs.submit("-N1", "-n1", path, "h", tell)
        (one,) = ranks(jobs.passed(number))
        assert (one.dir, one.map) == (f"{jobs.folder}/h", MAPS[one.node])


# ---- what users do with their directory ----------------------------------------------


def test_removed_and_replaced(cluster: SpankCluster, jobs: UserJobs, tell: str) -> None:
    """A directory that its user has removed is made again by the next step; one that
    has become a link is left alone, and so is where it leads."""
    victim = jobs.folder / "victim"
    text = (
        f'#!/bin/sh\nrm -r "$DDSTORE_HANDSHAKE_DIR"\nsrun {tell}\n'
        'rm -r "$DDSTORE_HANDSHAKE_DIR"\nmkdir victim\ntouch victim/precious\n'
        f'ln -s {victim} "$DDSTORE_HANDSHAKE_DIR"\nsrun {tell}\n'
    )
    number = jobs.submit("-N1", jobs.program("replaces.sh", text))
    made, linked = ranks(jobs.passed(number))
    assert (made.dir, made.stat) == (str(place(cluster, number)), f"700:{USER}")
    assert linked.dir == ""
    assert "is no directory but a symbolic link" in linked.error
    cluster.wait(cluster.idle, 20, "the job's end")
    log = cluster.log / f"slurmd-{made.node}"
    cluster.wait(
        lambda: "is not removed: it is no directory any more" in log.read_text(),
        *(10, "a line in the log"),
    )
    assert (victim / "precious").exists()
    place(cluster, number).unlink()


def test_two_jobs_at_once(cluster: SpankCluster, jobs: UserJobs) -> None:
    """The end of one leaves the other's directory."""
    wait = 'touch "$DDSTORE_HANDSHAKE_DIR/x"; while [ ! -e end ]; do sleep 0.1; done'
    text = f'{wait}; ls "$DDSTORE_HANDSHAKE_DIR"'
    long = jobs.submit("-N1", f"--wrap={text}")
    jobs.wait(long, "RUNNING")
    short = jobs.submit("-N1", '--wrap=touch "$DDSTORE_HANDSHAKE_DIR/x"')
    jobs.passed(short)
    gone(cluster, short)
    assert place(cluster, long).is_dir()
    (jobs.folder / "end").touch()
    assert jobs.passed(long) == "x\n"
    gone(cluster, long)


def test_cancelled(cluster: SpankCluster, jobs: UserJobs) -> None:
    number = jobs.submit("-N2", "--wrap=srun sleep 100")
    cluster.wait(place(cluster, number).exists, 20, "the directory")
    jobs.cancel(number)
    gone(cluster, number)


def test_a_helper_hangs(cluster: SpankCluster, jobs: UserJobs, tell: str) -> None:
    """On one node: the step is held up for a moment, and told; the node stays. (It
    can't be hwloc that hangs: slurmstepd uses that itself.)"""
    begun = time.monotonic()
    jobs.run("srun", "-N2", "true")
    usual = time.monotonic() - begun
    (cluster.state("n1") / "nic_map").unlink()
    with open(cluster.state("n1") / "nic_map.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        begun = time.monotonic()
        told = ranks(jobs.run("srun", "-N2", tell).stdout)
        assert time.monotonic() - begun < usual + 2
    held, other = sorted(told, key=lambda one: one.node)
    assert "preparing a step took more than 975 ms" in held.error
    assert (held.map, held.stat) == ("", f"700:{USER}")
    assert (other.map, other.error) == (MAPS["n2"], "")
    check(cluster, jobs.run("srun", "-N2", tell).stdout, "n1 n2")


# ---- the file itself -----------------------------------------------------------------


def test_what_it_links() -> None:
    """The C library alone, and nothing of Slurm; it shows what Slurm looks for."""
    plugin = str(built() / PLUGIN)
    dynamic = subprocess.check_output(["readelf", "-dW", plugin], text=True)
    needed = {
        line.split("[")[1].split("]")[0].split(".so")[0]
        for line in dynamic.splitlines()
        if "(NEEDED)" in line
    }
    own = {"libc", "libpthread", "libdl", "ld-linux-x86-64", "ld-linux-aarch64"}
    assert "libc" in needed
    assert needed <= own
    symbols = subprocess.check_output(["nm", "-D", plugin], text=True).splitlines()
    shown = {
        line.split()[-1] for line in symbols if " U " not in line and " w " not in line
    }
    calls = ("init", "init_post_opt", "user_init", "task_init", "job_epilog")
    data = ("plugin_name", "plugin_type", "plugin_version", "spank_plugin_version")
    assert shown == {*data, *(f"slurm_spank_{name}" for name in calls)}
    taken = {line.split()[-1] for line in symbols if "spank_" in line and " U " in line}
    assert {name for name in taken if name.startswith("slurm")} == set()
