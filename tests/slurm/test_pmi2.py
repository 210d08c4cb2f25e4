"""Steps of srun --mpi=pmi2, whose tasks meet through Slurm and need no directory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cluster import Finished, Jobs

ROOT = Path(__file__).parents[2]

# What every program of this file begins with.
HEAD = """
import logging, os, signal, subprocess, sys, threading, time
import numpy as np
from pyddstore import DDStoreError, FileComm, PyDDStore
os.environ.pop("DDSTORE_HANDSHAKE_DIR") if "nodir" in sys.argv else None
logging.basicConfig(format="%(levelname)s %(message)s")
rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])

def fails(kind, *words, call):
    begun = time.monotonic()
    try:
        call()
    except kind as exc:
        assert all(word in str(exc) for word in words), (words, str(exc))
        return time.monotonic() - begun
    raise AssertionError(f"no {kind}")
"""

ROWS = """
with FileComm.from_env(ns="a") as comm:
    assert (comm.rank, comm.size, comm.dir) == (rank, size, None)
    for length in (0, 1, 335, 336, 337, 3000, 50_000):
        got = comm.allgather(bytes([rank]) * (length + rank))
        assert got == [bytes([r]) * (length + r) for r in range(size)], length
    bad = threading.Lock() if rank == 1 else 1
    assert fails(TypeError, "rank 1", call=lambda: comm.allgather(bad)) < 10
    comm.barrier()
fails(DDStoreError, "closed", call=lambda: comm.allgather(1))
with FileComm.from_env(ns="a") as comm:  # nothing is left of the first one
    assert comm.allgather(-rank) == [-r for r in range(size)]
tens = np.arange(10, dtype=np.int32)
for method in (1, 2) if os.path.exists("public") else (1,):
    public = "public" if method == 2 else ""
    if public:
        os.environ["DDSTORE_EXCHANGE"] = "pmi2"
    with PyDDStore.from_env(method=method, handshake_dir=public) as store:
        store.add("x", np.full((10, 7), rank, np.int32) + tens[:, None] * 100)
        out = np.zeros((10 * size, 7), np.int32)
        order = np.random.default_rng(rank).permutation(len(out))
        store.get_batch("x", out, order)
        assert (out == (order // 10 + order % 10 * 100)[:, None]).all()
        fails((TypeError, ValueError), "rank 1", call=lambda: store.add(
            "y", np.zeros((3, 3), np.float32 if rank == 1 else np.float64)))
        if public and rank == 0:
            code = "from pyddstore import PyDDStore\\ns = PyDDStore(None, method=2)"
            code += "\\ns.join('x')\\nassert s.info('x')[0] == 40"
            env = os.environ | {"DDSTORE_HANDSHAKE_DIR": public}
            subprocess.run([sys.executable, "-c", code], env=env, check=True)
        paths = sorted(peer["path"] for peer in store.transports())
        store.add("z", np.zeros(1))
print("rank", rank, *paths)
"""


def step(
    jobs: Jobs,
    text: str,
    *options: str,
    argv: tuple[str, ...] = ("nodir",),
    env: dict[str, str] | None = None,
    check: bool = True,
) -> Finished:
    """A step of two ranks a node with the program HEAD + text."""
    program = jobs.program("program.py", HEAD + text)
    words = options or ("-N2", "--ntasks-per-node=2", "--mpi=pmi2")
    return jobs.run(
        "srun", "-Q", *words, sys.executable, program, *argv, env=env, check=check
    )


@pytest.mark.parametrize("build", ["build", "build-asan", "build-tsan"])
def test_conformance(jobs: Jobs, build: str) -> None:
    """The suite of all ways to meet, in C."""
    member = ROOT / build / "tests" / "c" / "pmi2_member"
    if not member.exists():
        pytest.skip(f"{'' if build == 'build' else 'optional: '}no {member}")
    (jobs.folder / "shared").touch()
    around = ("setarch", "-R") if build == "build-tsan" else ()
    words = ("--mpi=pmi2", *around, str(member), "shared")
    assert "passed" in jobs.run("srun", "-N2", "-n4", *words).stdout
    (jobs.folder / "shared").write_bytes(b"")
    assert "passed" in jobs.run("srun", "-n1", *words).stdout


def test_64_members(jobs: Jobs) -> None:
    """Records of 3,000 bytes."""
    member = str(ROOT / "build" / "tests" / "c" / "pmi2_member")
    (jobs.folder / "shared").touch()
    options = ("-N2", "-n64", "--overcommit", "--mpi=pmi2")
    said = jobs.run("srun", *options, member, "shared").stdout
    assert "64 members, 3000 bytes each: " in said
    assert "passed" in said


def test_rows_without_a_directory(jobs: Jobs) -> None:
    """Method 2 needs one, only to publish."""
    for public in (False, True):
        if public:
            (jobs.folder / "public").mkdir(mode=0o700)
        lines = sorted(step(jobs, ROWS).stdout.splitlines())
        assert lines == [f"rank {r} local self tcp tcp" for r in range(4)]
    files = [path.name for path in (jobs.folder / "public").rglob("*")]
    assert files == []  # what was published has gone, and nothing was exchanged there


@pytest.mark.parametrize("plugin", ["none", "pmix"])
def test_fallback(jobs: Jobs, plugin: str) -> None:
    """Without PMI2, with a sentence: to a directory, if there is one."""
    options = ("-N1", "-n2", f"--mpi={plugin}")
    text = (
        "with FileComm.from_env() as comm:\n    print(comm.dir, comm.allgather(rank))\n"
    )
    end = step(jobs, text, *options, argv=(), env={"DDSTORE_EXCHANGE": "pmi2"})
    assert end.stdout.count("/h [0, 1]") == 2
    said = "WARNING DDSTORE_EXCHANGE=pmi2: no launcher offers PMI2 to this process"
    assert end.stderr.count(said) == 2
    assert f"Meeting in {jobs.folder}/h instead" in end.stderr
    text = (
        "fails(ValueError, 'pass handshake_dir or set', 'no PMI2', 'PMI_FD', "
        "'srun --mpi=pmi2', call=FileComm.from_env)"
    )
    step(jobs, text, *options)


def test_auto_takes_a_directory_first(jobs: Jobs) -> None:
    text = "with FileComm.from_env() as c:\n    print(c.dir, c.allgather(1))\n"
    for env, place in (({}, f"{jobs.folder}/h"), ({"DDSTORE_EXCHANGE": "pmi2"}, None)):
        end = step(jobs, text, argv=(), env=env)
        assert end.stdout.count(f"{place} [1, 1, 1, 1]") == 4
        assert end.stderr == ""


def test_who_has_no_pmi2(jobs: Jobs) -> None:
    """Children of tasks, groups that are no whole step, and a library that is none."""
    text = (
        "fails(ValueError, f'this is rank {rank} of 4, not 0 of 1', call=\n"
        "    lambda: PyDDStore(None, method=1, rank=0, size=1))\n"
        "child = 'from pyddstore import FileComm; FileComm.from_env()'\n"
        "end = subprocess.run([sys.executable, '-c', child], capture_output=True)\n"
        "assert b'is no open socket; only the process that srun starts' in end.stderr\n"
    )
    step(jobs, text)
    for name, words in (("libm.so.6", "is no libpmi2"), ("none.so", "can't load")):
        text = f"fails(ValueError, {name!r}, {words!r}, call=FileComm.from_env)"
        step(jobs, text, env={"DDSTORE_LIBPMI2": name})


def test_absent(jobs: Jobs) -> None:
    """A rank that never comes, or comes to something else."""
    text = """
comm = FileComm.from_env()
if rank == 3:
    while not os.path.exists("seen"):
        time.sleep(0.05)
else:
    from pyddstore import HandshakeTimeout
    took = fails(HandshakeTimeout, "4 ranks of the step", "2 s", call=comm.barrier)
    assert took < 5, took
    fails(DDStoreError, "earlier collective", call=comm.barrier)
    print("heard")
    if rank == 0:
        time.sleep(1)
        open("seen", "w").close()
"""
    end = step(jobs, text, env={"DDSTORE_HANDSHAKE_TIMEOUT_S": "2"})
    assert end.stdout.count("heard") == 3
    text = """
one, other = FileComm.from_env(ns="one"), FileComm.from_env(ns="other")
took = fails(DDStoreError, "has given nothing", "in the same order", call=lambda:
    (other if rank == 2 else one).allgather(rank))
assert took < 10
"""
    step(jobs, text)


def test_interrupted(jobs: Jobs) -> None:
    text = """
comm = FileComm.from_env()
if rank == 0:
    threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    assert fails(KeyboardInterrupt, call=comm.barrier) < 5
    open("seen", "w").close()
while not os.path.exists("seen"):
    time.sleep(0.05)
"""
    step(jobs, text)


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "store.free()"])
def test_a_rank_is_lost(jobs: Jobs, end: str) -> None:
    """The others are in a collective call of a store, and hear of it soon."""
    text = f"""
store = PyDDStore.from_env()
store.add("x", np.zeros((3, 3)))
if rank == 1:
    open("gone", "w").close()
    {end}
    while not all(os.path.exists(f"heard{{r}}") for r in (0, 2, 3)):
        time.sleep(0.05)
    sys.exit(0)
while not os.path.exists("gone"):
    time.sleep(0.05)
took = fails(DDStoreError, "rank 1", call=lambda: store.add("y", np.zeros(3)))
assert took < 10, took
open(f"heard{{rank}}", "w").close()
"""
    options = ("-N2", "-n4", "--mpi=pmi2", "--kill-on-bad-exit=0")
    step(jobs, text, *options, check=False)
    heard = sorted(path.name for path in jobs.folder.glob("heard*"))
    assert heard == ["heard0", "heard2", "heard3"]
