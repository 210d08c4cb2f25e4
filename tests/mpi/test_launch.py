"""The means of these tests: what hangs is ended, and nothing is left of it."""

from __future__ import annotations

import pathlib
import signal

from mpi_launch import Mpirun

HANGS = """
import subprocess, time
print(subprocess.Popen(["setsid", "sleep", "86400"]).pid, flush=True)
from mpi4py import MPI
time.sleep(86400)
"""
DIES = """
import os, time
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 1:
    os.kill(os.getpid(), 11)
time.sleep(86400)
"""
GOOD = """
import os, sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
if comm.reduce(comm.rank) == 1:
    print(os.environ["HERE"], *sys.argv[1:])
"""


def gone(pid: int) -> bool:
    try:
        status = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return status.rpartition(") ")[2][0] == "Z"


def test_good_end(mpirun: Mpirun) -> None:
    end = mpirun(2, GOOD, "a", "b", env={"HERE": "x"})
    assert (end.returncode, end.stdout) == (0, "x a b\n"), end


def test_hang(mpirun: Mpirun) -> None:
    end = mpirun(2, HANGS, timeout=12, may_hang=True)
    assert end.timed_out
    assert 12 <= end.duration < 50
    pids = [int(word) for word in end.stdout.split()]
    assert len(pids) == 2, end
    assert all(gone(pid) for pid in pids)


def test_death(mpirun: Mpirun) -> None:
    end = mpirun(2, DIES, timeout=30)
    assert end.returncode not in (0, -signal.SIGTERM), end
