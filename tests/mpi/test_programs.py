"""Programs that misbehave, or end as they please: none hangs, and each is told what is
wrong."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import mpi_launch
import pytest

HEAD = """
import logging, os, sys, threading, time
import mpi4py
if "LEVEL" in os.environ:
    mpi4py.rc.thread_level = os.environ["LEVEL"]
mpi4py.rc.finalize = os.environ.get("FINALIZE", "1") == "1"
from mpi4py import MPI
import numpy as np
import pyddstore

logging.basicConfig(format="LOG %(message)s")
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
method = int(sys.argv[1])

def opened():
    given = {"handshake_dir": sys.argv[2] + f"/{time.time()}"} if method == 2 else {}
    if method == 2:
        given = comm.bcast(given)
    store = pyddstore.PyDDStore(comm, method=method, **given)
    store.add("x", np.full((10, 400), rank, np.float32))
    return store

def check(store):
    out = np.zeros((size, 400), np.float32)
    store.get_batch("x", out, np.arange(size) * 10)
    assert (out == np.arange(size)[:, None]).all()
    store.get("x", out[:1], 10 * ((rank + 1) % size))
    assert (out[0] == (rank + 1) % size).all()

def told(words):
    os.write(1, f"{rank}: {words}\\n".encode())  # in one piece

def attempt(call):
    began = time.monotonic()
    try:
        call()
        told("nothing was raised")
    except Exception as exc:
        told(f"{time.monotonic() - began:.1f} s {type(exc).__name__}: {exc}")
"""

METHODS = pytest.mark.parametrize("method", [0, 1, 2])
PATHS = pytest.mark.parametrize("shm", ["1", "0"])


@pytest.fixture
def run(mpirun: mpi_launch.Mpirun, tmp_path: Any) -> Any:
    """Runs a program as three ranks; what each of them told, by rank."""

    def run(
        text: str, method: int, code: int | None = 0, n: int = 3, **env: str
    ) -> Any:
        env = {"DDSTORE_READ_TIMEOUT_S": "10"} | env
        end = mpirun(n, HEAD + text, str(method), str(tmp_path), env=env)
        assert code is None or (end.returncode == 0) == (code == 0), str(end)
        lines: list[list[str]] = [[], [], []]
        for who, words in re.findall(r"^(\d): (.*)$", end.stdout, re.MULTILINE):
            lines[int(who)].append(words)
        return lines, end

    return run


@METHODS
@PATHS
def test_a_program_that_never_frees(run: Any, method: int, shm: str) -> None:
    text = "a, b = opened(), opened()\ncheck(a)\ncheck(b)\ncomm.Barrier()\ntold('end')"
    lines, end = run(text, method, DDSTORE_SHM=shm)
    assert lines == [["end"]] * 3, str(end)


@METHODS
@PATHS
def test_free_after_mpi_ended(run: Any, method: int, shm: str) -> None:
    text = """
store = opened()
check(store)
comm.Barrier()
MPI.Finalize()
store.free()
attempt(lambda: store.get("x", np.zeros((1, 400), np.float32), 0))
attempt(lambda: pyddstore.PyDDStore(comm, method=method))
told("end")
"""
    lines, end = run(text, method, DDSTORE_SHM=shm, FINALIZE="0")
    for line in lines:
        assert "StoreClosedError" in line[0], str(end)
        assert "RuntimeError: MPI is not initialized, or was finalized" in line[1]
        assert line[2] == "end"


@METHODS
@PATHS
def test_use_after_mpi_ended(run: Any, method: int, shm: str) -> None:
    """What needs no MPI goes on; what needs it says so."""
    text = """
store = opened()
comm.Barrier()
MPI.Finalize()
attempt(lambda: store.add("y", np.zeros(3)))
store.free()
told("end")
"""
    lines, end = run(text, method, DDSTORE_SHM=shm, FINALIZE="0")
    for line in lines:
        assert re.search(r"(FabricError|StoreClosedError).*(MPI|freed)", line[0]), str(
            end
        )
        assert line[1] == "end"


@METHODS
@PATHS
def test_one_rank_raises(run: Any, method: int, shm: str) -> None:
    """The others wait for it in a collective call: they are told, and mpirun ends with
    its code."""
    text = """
store = opened()
check(store)
comm.Barrier()
if rank == 1:
    raise ValueError("boo")
attempt(lambda: store.add("y", np.zeros((3, 4), np.float32)))
"""
    lines, end = run(text, method, code=1, DDSTORE_SHM=shm)
    assert "ValueError: boo" in end.stderr
    if mpi_launch.vendor() == "Open MPI":
        assert lines[0] or lines[2]
    for line in lines[0] + lines[2]:  # mpirun may have ended them first
        assert float(line.split(" s ")[0]) < 10
        assert re.search(r"(PeerLostError|StoreClosedError).*rank 1", line)


@METHODS
def test_stores_are_dropped_in_any_order(run: Any, method: int) -> None:
    text = """
stores = [opened() for _ in range(3)]
for store in stores:
    check(store)
comm.Barrier()
del store
for i in np.random.default_rng(rank).permutation(3):
    stores[i] = None
    time.sleep(0.05 * rank)
for _ in range(3):
    store = opened()
    check(store)
    comm.Barrier()
    del store
told("end")
"""
    for shm in "01":
        lines, end = run(text, method, DDSTORE_SHM=shm)
        assert lines == [["end"]] * 3, str(end)


@METHODS
def test_a_constructor_that_fails(run: Any, method: int) -> None:
    text = """
given = {"nic_map": 7} if rank == 1 else {}
attempt(lambda: pyddstore.PyDDStore(comm, method, sys.argv[2], **given))
store = opened()
check(store)
comm.Barrier()
told("end")
"""
    lines, end = run(text, method)
    for line in lines:
        assert "TypeError" in line[0], str(end)
        assert "rank 1" in line[0]
        assert line[1] == "end"


ABSENT = """
store = opened()
comm.Barrier()
if rank == 1:
    %s
attempt(lambda: store.add("y", np.zeros((3, 4), np.float32)))
attempt(lambda: store.add("z", np.zeros((3, 4), np.float32)))
"""


@METHODS
def test_a_rank_that_drops_its_store(run: Any, method: int) -> None:
    text = ABSENT % "del store; told('dropped'); time.sleep(6); sys.exit()"
    lines, end = run(text, method)
    assert lines[1] == ["dropped"], str(end)
    for line in lines[0] + lines[2]:
        seconds, words = line.split(" s ", 1)
        assert float(seconds) < 10
        assert re.match(r"(PeerLostError|StoreClosedError): ", words)
    for line in (lines[0][0], lines[2][0]):
        assert "rank 1" in line


@METHODS
def test_a_rank_that_is_absent(run: Any, method: int) -> None:
    """It is named in the log every 10 s and in the error at the time-out; then the
    store is closed, also for the late one."""
    text = ABSENT % "time.sleep(14)"
    lines, end = run(text, method, DDSTORE_HANDSHAKE_TIMEOUT_S="12")
    for line in (lines[0], lines[2]):
        assert re.match(r"1[2-9]\.. s HandshakeTimeout: .*missing rank 1 ", line[0]), (
            str(end)
        )
        assert "StoreClosedError" in line[1]
    assert re.match(r".*(PeerLostError|StoreClosedError): .*rank [02]", lines[1][0])
    named = re.findall(
        r"^LOG .* waits for 1\d s now, for rank 1 ", end.stderr, re.MULTILINE
    )
    assert len(named) == 2, str(end)


@PATHS
def test_rows_of_a_dropped_store(run: Any, shm: str) -> None:
    """They are read, or the rank is named: at once, and the others' go on."""
    text = """
store = opened()
check(store)
comm.Barrier()
if rank == 1:
    del store
comm.Barrier()
if rank != 1:
    out = np.zeros((1, 400), np.float32)
    attempt(lambda: store.get("x", out, 10))
    if out[0, 0]:
        assert (out == 1).all()
    store.get("x", out, 20 if rank == 0 else 0)
    assert (out == (2 if rank == 0 else 0)).all()
comm.Barrier()
told("end")
"""
    lines, end = run(text, 0, DDSTORE_SHM=shm)
    assert lines[1] == ["end"], str(end)
    for line in (lines[0], lines[2]):
        if line[0] != "nothing was raised":
            assert re.match(r"0\.. s StoreClosedError: rank 1: ", line[0]), str(end)
        assert line[1] == "end"


def test_a_rank_that_is_absent_when_a_store_is_opened(run: Any) -> None:
    text = """
if rank == 1:
    time.sleep(14)
else:
    attempt(lambda: pyddstore.PyDDStore(comm))
    time.sleep(2)
os._exit(0)  # what was begun never ends
"""
    lines, end = run(text, 0, code=None, DDSTORE_HANDSHAKE_TIMEOUT_S="12")
    for line in (lines[0], lines[2]):
        assert re.match(r"1[2-4]\.. s HandshakeTimeout: opening the store", line[0]), (
            str(end)
        )
    assert len(re.findall("LOG opening a store waits for 1. s now", end.stderr)) == 2


@METHODS
def test_a_rank_that_is_stopped_and_goes_on(run: Any, method: int) -> None:
    text = """
import signal, subprocess
store = opened()
comm.Barrier()
if rank == 1:
    me = os.getpid()
    words = f"sleep 0.2; kill -STOP {me}; sleep 3; kill -CONT {me}"
    subprocess.Popen(words, shell=True)
    time.sleep(0.5)
store.add("y", np.full((2, 3), rank))
out = np.zeros((size, 3), int)
store.get_batch("y", out, np.arange(size) * 2)
assert (out[:, 0] == np.arange(size)).all()
comm.Barrier()
told("end")
"""
    lines, end = run(text, method)
    assert lines == [["end"]] * 3, str(end)


@pytest.mark.parametrize("level", ["single", "funneled", "serialized", "multiple"])
@PATHS
def test_thread_levels(run: Any, level: str, shm: str) -> None:
    text = """
store = opened()
check(store)
failed = []

def read():
    try:
        for _ in range(50):
            out = np.zeros((1, 400), np.float32)
            store.get("x", out, 10 * ((rank + 1) % size))
            assert (out == (rank + 1) % size).all()
    except RuntimeError as exc:
        failed.append(str(exc))

threads = [threading.Thread(target=read) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
told(failed[0] if failed else "all read")
comm.Barrier()
store.free()
"""
    lines, end = run(text, 0, DDSTORE_SHM=shm, LEVEL=level)
    for line in lines:
        assert line == ["all read"], str(end)


@METHODS
def test_an_interrupt_in_a_collective(run: Any, method: int) -> None:
    """Ctrl-C ends the wait of one rank, and the others hear of it."""
    text = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
store = opened()
comm.Barrier()
if rank == 0:
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
else:
    time.sleep(2)
try:
    store.add("y", np.zeros(3))
    told("nothing was raised")
except BaseException as exc:
    told(f"{type(exc).__name__}: {exc}")
store.free()
"""
    lines, end = run(text, method, code=None, DDSTORE_SHM="0")
    assert lines[0] == ["KeyboardInterrupt: "], str(end)
    for line in lines[1:]:
        assert re.match(r"(PeerLost|StoreClosed)Error: .*rank 0", line[0]), str(end)


@PATHS
def test_another_store_after_one_that_timed_out(run: Any, shm: str) -> None:
    """What can't be freed any more is kept, and nobody waits for it."""
    text = """
store = opened()
comm.Barrier()
if rank == 0:
    attempt(lambda: store.get_batch("x", np.zeros((1, 400), np.float32), [11]))
else:
    time.sleep(3)
del store
comm.Barrier()
began = time.monotonic()
os.environ["DDSTORE_HANDSHAKE_TIMEOUT_S"] = "20"
store = opened()
check(store)
store.free()
told("end" if time.monotonic() - began < 15 else "late")
"""
    env = {"DDSTORE_SHM": shm, "DDSTORE_HANDSHAKE_TIMEOUT_S": "2"}
    # MPICH aborts in MPI_Finalize where a window was not freed.
    lines, end = run(text, 0, code=None, **env)
    assert "HandshakeTimeout" in lines[0][0], str(end)
    assert [line[-1] for line in lines] == ["end"] * 3, str(end)


def test_a_shard_beyond_2_gib(run: Any) -> None:
    """Read near its end, where an int would not do."""
    text = """
rows, width = (2_200_000_000 // 4096 if rank == 0 else 5), 512
store = pyddstore.PyDDStore(comm)
store.init("big", rows, width, 8)
view = store.view("big").view(np.int64)
view[:, 0] = view[:, -1] = np.arange(rows) + 10**9 * rank
store.epoch_begin()
total = store.info("big")[0]
first = total - 5 * (size - 1)
wanted = np.array([first - 1, 0, first, first - 2, total - 1, 2**31 // 4096 + 1])
out = np.zeros((len(wanted), width), np.int64)
store.get_batch("big", out, wanted)
numbers = [n if n < first else 10**9 * (1 + (n - first) // 5) + (n - first) % 5
           for n in wanted.tolist()]
assert out[:, 0].tolist() == out[:, -1].tolist() == numbers
for row, number in zip(wanted.tolist(), numbers):
    store.get("big", out[:1], row)
    assert out[0, 0] == out[0, -1] == number
if rank == 1:  # more than an int counts, in one call
    every = np.zeros((first, width), np.int64)
    store.get("big", every, 0)
    for column in (0, -1):
        assert (every[:, column] == np.arange(first)).all()
    assert not every[:, 1:-1].any()
store.epoch_end()
told(" ".join(peer["path"] for peer in store.transports()))
store.free()
"""
    lines, end = run(text, 0, DDSTORE_SHM="0")
    assert lines == [["self mpi mpi"], ["mpi self mpi"], ["mpi mpi self"]], str(end)


@METHODS
@pytest.mark.parametrize("raises", [False, True])
def test_freed_at_the_interpreters_end(run: Any, method: int, raises: bool) -> None:
    """By __del__ of a client's object; one rank may have raised before."""
    text = """
class Dataset:
    def __init__(self):
        self.ddstore = opened()
    def __del__(self):
        self.ddstore.free()

data = Dataset()
check(data.ddstore)
comm.Barrier()
if rank == 1 and os.environ.get("RAISES"):
    raise ValueError("boo")
if os.environ.get("RAISES"):
    attempt(lambda: data.ddstore.add("y", np.zeros((3, 4), np.float32)))
told("end")
"""
    if raises:
        lines, end = run(text, method, code=1, RAISES="1")
        assert "ValueError: boo" in end.stderr
        for line in lines[0][:1] + lines[2][:1]:  # mpirun may have ended them first
            assert float(line.split(" s ")[0]) < 10
            assert re.search(r"(PeerLostError|StoreClosedError).*rank 1", line)
    else:
        lines, end = run(text, method)
        assert lines == [["end"]] * 3, str(end)
    assert end.duration < 30


def test_a_plugin_for_another_mpi(
    run: Any, tmp_path: Any, request: pytest.FixtureRequest
) -> None:
    other = {"Open MPI": "mpicc.mpich", "MPICH": "mpicc.openmpi"}[mpi_launch.vendor()]
    if not shutil.which(other):
        pytest.skip("optional: there is one MPI here")
    top, plugin = request.config.rootpath / "libddstore", tmp_path / "libddstore_mpi.so"
    sources = sorted((top / "src/mpi").glob("*.c"))
    words = [other, "-shared", "-fPIC", "-D_GNU_SOURCE", "-I", top / "include"]
    subprocess.run([*words, *sources, "-o", plugin], check=True)
    text = """
import pathlib
pyddstore.store._plugin = pathlib.Path(os.environ["PLUGIN"])
attempt(lambda: pyddstore.PyDDStore(comm))
store = opened()
check(store)
comm.Barrier()
told("end")
"""
    lines, end = run(text, 1, PLUGIN=str(plugin))
    for line in lines:
        assert "RuntimeError" in line[0], str(end)
        assert "mpi4py runs with" in line[0]
        assert "Open MPI" in line[0]
        assert "MPICH" in line[0]
        assert "method=1" in line[0]
        assert line[1:] == ["end"]


def test_a_killed_rank(run: Any) -> None:
    """mpirun ends the others, or leaves them be if it is told to: then they hear it."""
    if mpi_launch.vendor() != "Open MPI" or mpi_launch.version() >= (5,):
        pytest.skip("optional: only Open MPI 4 lets the other ranks go on")
    # Open MPI's own end may wait for the dead.
    text = ABSENT % "os.kill(os.getpid(), 9)" + "os._exit(0)\n"
    for method in (0, 1):
        lines, end = run(text, method, code=None, OMPI_MCA_orte_enable_recovery="1",
                         OMPI_MCA_orte_abort_on_non_zero_status="0")  # fmt: skip
        for line in (lines[0][0], lines[2][0]):
            assert re.search(r"PeerLostError: .*rank 1: process \d+ on host", line), (
                str(end)
            )
