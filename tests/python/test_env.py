"""How a process learns its rank from its launcher: what launchers set, one inside
another, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

import pyddstore
from pyddstore import FileComm, PyDDStore
from pyddstore.env import detect, handshake_dir, meeting_dir

NAMES = (
    *("DDSTORE_RANK", "DDSTORE_SIZE", "DDSTORE_RUN_ID", "DDSTORE_HANDSHAKE_DIR"),
    *("DDSTORE_EXCHANGE", "DDSTORE_SPANK_"),
    *("RANK", "WORLD_SIZE", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "MPI_LOCAL"),
)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in list(os.environ):
        if name.startswith(NAMES):
            monkeypatch.delenv(name)
    return monkeypatch


def give(patch: pytest.MonkeyPatch, words: str) -> None:
    """Sets the variables of a text, NAME=value each."""
    for word in words.split():
        patch.setenv(*word.split("=", 1))


def step(rank: int, size: int, number: int = 0) -> str:
    """What a task of srun finds."""
    return (
        f"SLURM_JOB_ID=17 SLURM_JOBID=17 SLURM_STEP_ID={number} SLURM_STEPID={number} "
        f"SLURM_PROCID={rank} SLURM_STEP_NUM_TASKS={size} SLURM_NTASKS={size} "
        f"SLURM_NPROCS={size} SLURM_TASKS_PER_NODE={size} "
    )


# A batch script of four tasks; salloc's shell; its shell by use_interactive_step.
BATCH = (
    "SLURM_JOB_ID=17 SLURM_JOBID=17 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_NPROCS=4 "
    "SLURM_TASKS_PER_NODE=2(x2) ENVIRONMENT=BATCH "
)
SALLOC = "SLURM_JOB_ID=17 SLURM_JOBID=17 SLURM_NTASKS=4 SLURM_NPROCS=4 "
INTERACTIVE = step(0, 1, 0xFFFFFFFA).replace("NTASKS=1", "NTASKS=4")
OMPI = "OMPI_COMM_WORLD_RANK={} OMPI_COMM_WORLD_SIZE={} PMIX_RANK={} "
RUN = "DDSTORE_RANK={} DDSTORE_SIZE={} DDSTORE_RUN_ID=f00 "
TORCHRUN = "RANK={} WORLD_SIZE={} LOCAL_RANK=0 TORCHELASTIC_RUN_ID=none "
HYDRA = "PMI_RANK={} PMI_SIZE={} PMI_FD=6 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=0 "

GOOD = {
    "ddstore run": (RUN.format(1, 4), 1, 4),
    "by hand": ("DDSTORE_RANK=3 DDSTORE_SIZE=4", 3, 4),
    "srun": (step(2, 4), 2, 4),
    "srun of one task": (step(0, 1), 0, 1),
    "an old name of the step": (
        "SLURM_JOBID=17 SLURM_STEPID=0 SLURM_PROCID=1 SLURM_NPROCS=2",
        1,
        2,
    ),
    "a step smaller than the job": (step(1, 2) + "SLURM_NTASKS=4", 1, 2),
    "the step's count is missing": (step(1, 2) + "SLURM_STEP_NUM_TASKS=", 1, 2),
    "only the oldest count": (
        step(1, 9) + "SLURM_STEP_NUM_TASKS= SLURM_NTASKS= SLURM_NPROCS=3",
        1,
        3,
    ),
    "a step over two components": (step(4, 5) + "SLURM_HET_SIZE=2", 4, 5),
    "srun --mpi=pmi2": (
        step(1, 2) + "PMI_RANK=1 PMI_SIZE=2 PMI_FD=9 PMI_JOBID=17.0",
        1,
        2,
    ),
    "mpirun": (OMPI.format(3, 4, 3), 3, 4),
    "mpirun in a batch script, on its node": (BATCH + OMPI.format(3, 4, 3), 3, 4),
    "mpirun in a batch script, on another": (step(0, 1) + OMPI.format(3, 4, 3), 3, 4),
    "the same where srun starts daemons with PMI": (
        step(0, 1) + "PMI_RANK=0 PMI_SIZE=1 " + OMPI.format(3, 4, 3),
        3,
        4,
    ),
    "mpirun in salloc": (SALLOC + OMPI.format(0, 2, 0), 0, 2),
    "mpirun in an interactive step": (INTERACTIVE + OMPI.format(1, 2, 1), 1, 2),
    "mpiexec": (HYDRA.format(1, 2), 1, 2),
    "mpiexec in a batch script": (BATCH + HYDRA.format(1, 2), 1, 2),
    "mpiexec that starts its proxies by srun": (step(1, 2) + HYDRA.format(3, 4), 3, 4),
    "another's PMI": ("PMI_RANK=1 PMI_SIZE=2", 1, 2),
    "torchrun": (TORCHRUN.format(5, 8), 5, 8),
    "one torchrun a task of srun": (step(1, 2) + TORCHRUN.format(5, 8), 5, 8),
    "one torchrun a rank of mpirun": (
        OMPI.format(1, 2, 1) + TORCHRUN.format(5, 8),
        5,
        8,
    ),
    "RANK and WORLD_SIZE by hand": (step(1, 2) + "RANK=1 WORLD_SIZE=2", 1, 2),
    "the same in a batch script": (BATCH + "RANK=1 WORLD_SIZE=2", 1, 2),
    "a stray RANK": (step(1, 2) + "RANK=7", 1, 2),
    "ddstore run in a batch script": (BATCH + RUN.format(1, 3), 1, 3),
    "ddstore run in a task of srun": (step(0, 1) + RUN.format(1, 3), 1, 3),
    "ddstore run in srun --mpi=pmi2": (
        step(0, 1) + "PMI_RANK=0 PMI_SIZE=1 " + RUN.format(1, 3),
        1,
        3,
    ),
}


@pytest.mark.parametrize("form", GOOD)
def test_launch_forms(clean: pytest.MonkeyPatch, form: str) -> None:
    words, rank, size = GOOD[form]
    give(clean, words)
    assert detect() == (rank, size)


CONTRADICTIONS = {
    "srun and RANK": step(1, 2) + "RANK=0 WORLD_SIZE=2",
    "srun and WORLD_SIZE": step(1, 2) + "RANK=1 WORLD_SIZE=4",
    "srun and its PMI": step(1, 2) + "PMI_RANK=0 PMI_SIZE=2",
    "srun and DDSTORE_RANK by hand": step(1, 2) + "DDSTORE_RANK=0 DDSTORE_SIZE=2",
    "mpirun and RANK": OMPI.format(0, 2, 0) + "RANK=1 WORLD_SIZE=2",
    "mpirun and PMI": OMPI.format(0, 2, 0) + "PMI_RANK=1 PMI_SIZE=2",
    "mpirun in ddstore run": OMPI.format(1, 4, 1) + RUN.format(0, 1),
    "three": OMPI.format(0, 2, 0) + step(0, 1) + "RANK=1 WORLD_SIZE=2",
}


@pytest.mark.parametrize("form", CONTRADICTIONS)
def test_contradictions(clean: pytest.MonkeyPatch, form: str) -> None:
    give(clean, CONTRADICTIONS[form])
    with pytest.raises(ValueError, match="contradict") as caught:
        detect()
    said = (
        "DDSTORE_RANK",
        "DDSTORE_SIZE",
        "RANK",
        "WORLD_SIZE",
        "PMI_RANK",
        "PMI_SIZE",
    )
    said += ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_PROCID")
    for word in CONTRADICTIONS[form].split():
        if word.partition("=")[0] in (*said, "SLURM_STEP_NUM_TASKS"):
            assert f" {word}" in str(caught.value)


@pytest.mark.parametrize("shell", [BATCH, SALLOC, INTERACTIVE])
def test_a_shell_of_a_job(clean: pytest.MonkeyPatch, tmp_path: Any, shell: str) -> None:
    give(clean, shell)
    calls: list[Any] = [
        lambda: FileComm.from_env(str(tmp_path / "h")),
        lambda: pyddstore.PyDDStore.from_env(handshake_dir=str(tmp_path / "h")),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="shell of Slurm's job 17; use srun"):
            call()


@pytest.mark.parametrize("title", ["batch", "0"])
def test_a_batch_script_submitted_from_a_step(
    clean: pytest.MonkeyPatch, title: str
) -> None:
    """It inherits the variables of that step; the task's parent tells."""
    parent = subprocess.Popen(
        [f"slurmstepd: [17.{title}]"],
        executable="/bin/sh",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write("sleep 60 & echo $!\n")
    parent.stdin.flush()
    task = parent.stdout.readline().strip()
    give(clean, step(0, 1) + f"SLURM_NTASKS=4 SLURM_TASK_PID={task}")
    try:
        if title == "batch":
            with pytest.raises(RuntimeError, match="use srun"):
                detect()
        else:
            assert detect() == (0, 1)
    finally:
        parent.communicate("kill $!\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (step(0, 2) + "SLURM_STEP_NUM_TASKS=1(x2)", "SLURM_STEP_NUM_TASKS=1(x2)"),
        (step(0, 2) + "SLURM_STEP_NUM_TASKS= SLURM_NTASKS=1(x2)", "NTASKS=1(x2)"),
        (step(0, 2) + "SLURM_PROCID=-1", "SLURM_PROCID=-1"),
        (step(0, 2) + "SLURM_STEP_ID=x", "SLURM_STEP_ID=x"),
        ("RANK=1_0 WORLD_SIZE=20", "RANK=1_0"),
        ("RANK=0 WORLD_SIZE=²", "WORLD_SIZE=²"),
        ("PMI_RANK=0x1 PMI_SIZE=2", "PMI_RANK=0x1"),
        ("OMPI_COMM_WORLD_RANK=one OMPI_COMM_WORLD_SIZE=2", "RANK=one"),
    ],
)
def test_no_numbers(clean: pytest.MonkeyPatch, words: str, said: str) -> None:
    give(clean, words)
    with pytest.raises(ValueError) as caught:
        detect()
    assert f"{said} is not a number" in str(caught.value)


@pytest.mark.parametrize(
    "words", [step(2, 2), OMPI.format(4, 4, 4), "RANK=0 WORLD_SIZE=0"]
)
def test_a_rank_beyond_the_size(clean: pytest.MonkeyPatch, words: str) -> None:
    give(clean, words)
    with pytest.raises(ValueError, match=r"RANK|PROCID") as caught:
        detect()
    assert "rank must be 0 to size - 1" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("RANK=1", "(RANK is set, WORLD_SIZE isn't)"),
        ("OMPI_COMM_WORLD_SIZE=1", "(OMPI_COMM_WORLD_SIZE is set, "),
        (
            "SLURM_JOB_ID=17 SLURM_STEP_ID=0 SLURM_PROCID=1",
            "(SLURM_PROCID is set, SLURM_STEP_NUM_TASKS or SLURM_NTASKS or",
        ),
        ("", "ddstore run"),
    ],
)
def test_half_a_launcher(clean: pytest.MonkeyPatch, words: str, said: str) -> None:
    give(clean, words)
    with pytest.raises(RuntimeError, match="no launcher started") as caught:
        detect()
    assert said in str(caught.value)


def test_nothing_is_read_before_it_is_asked_for(tmp_path: Any) -> None:
    """A package that is imported in a broken environment, and not asked, works."""
    env = {**os.environ, "SLURM_STEP_ID": "0", "SLURM_PROCID": "x", "RANK": "y"}
    code = (
        "import os, pyddstore; os.environ.update(RANK='0', WORLD_SIZE='1'); "
        "[os.environ.pop(n) for n in list(os.environ) if n.startswith('SLURM')]; "
        "print(pyddstore.FileComm.from_env('h').allgather(7))"
    )
    end = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (end.returncode, end.stdout) == (0, "[7]\n"), end.stderr


# ---- where a group meets -------------------------------------------------------------


def test_where_to_meet(clean: pytest.MonkeyPatch) -> None:
    """A directory first, then PMI2, as DDSTORE_EXCHANGE says."""
    assert meeting_dir("/a", 0, 2) == "/a"
    with pytest.raises(ValueError, match=r"pass handshake_dir or set \w+$"):
        meeting_dir("", 0, 2)
    give(clean, "DDSTORE_HANDSHAKE_DIR=/b DDSTORE_EXCHANGE=auto")
    assert meeting_dir("/a", 0, 2) == "/a"
    assert meeting_dir(None, 0, 2) == "/b"
    give(clean, "DDSTORE_EXCHANGE=file")
    assert meeting_dir("", 0, 2) == "/b"
    give(clean, "DDSTORE_EXCHANGE=mail")
    with pytest.raises(ValueError, match=r"DDSTORE_EXCHANGE.*auto\|file\|pmi2"):
        meeting_dir("/a", 0, 2)


def test_no_pmi2(
    clean: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    """Falls back to the directory, or says all that could be done."""
    give(clean, f"DDSTORE_EXCHANGE=pmi2 DDSTORE_HANDSHAKE_DIR={tmp_path}")
    assert meeting_dir("", 0, 2) == str(tmp_path)
    (line,) = caplog.messages
    assert line.startswith("DDSTORE_EXCHANGE=pmi2: no launcher offers PMI2")
    assert f"Meeting in {tmp_path} instead" in line
    clean.delenv("DDSTORE_HANDSHAKE_DIR")
    for words, said in (
        ("DDSTORE_EXCHANGE=pmi2", r"PMI_FD isn't set.*srun --mpi=pmi2"),
        (step(0, 2) + "DDSTORE_EXCHANGE=auto", r"PMI_FD isn't set.*srun --mpi=pmi2"),
        ("PMI_FD=no", "PMI_FD=no is no open socket"),
        ("PMI_FD=999", "PMI_FD=999 is no open socket"),
        ("PMI_FD=0", "PMI_FD=0 is no open socket"),
        ("PMI_FD=-1", "PMI_FD=-1 is no open socket"),
    ):
        give(clean, words)
        with pytest.raises(ValueError, match=f"a directory .* is needed.*{said}"):
            meeting_dir("", 0, 2)


def test_what_the_slurm_plugin_says(clean: pytest.MonkeyPatch) -> None:
    """Its error counts where a directory is needed and there is none."""
    clean.setenv("DDSTORE_SPANK_ERROR", "/scratch/me: no space left")
    clean.setenv("DDSTORE_SPANK_SET", "17:n1:")
    assert meeting_dir("/a", 0, 2) == "/a"
    for call in (
        lambda: meeting_dir("", 0, 2),
        lambda: handshake_dir(""),
        lambda: PyDDStore(None, method=2),
        lambda: PyDDStore(None, method=1, rank=0, size=1),
    ):
        with pytest.raises(ValueError, match=r"^/scratch/me: no space left"):
            call()
