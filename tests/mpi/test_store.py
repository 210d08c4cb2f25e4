"""A store over a communicator, by every method and path. Each element of the data tells
its global row and its column."""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import pyddstore

pytestmark = pytest.mark.mpi

WIDTH = 6
WAYS = [(m, shm) for m in (0, 1, 2) for shm in ("1", "0")]


def rows_of(rank: int) -> int:
    """Ranks have 0, 5, 10, ... rows; rank 0 has none."""
    return 5 * rank if rank else 0


def made(first: int, rows: int, dtype: Any = np.float64) -> Any:
    return (np.arange(first, first + rows)[:, None] * 100 + np.arange(WIDTH)).astype(
        dtype
    )


def encoded(rows: Any, dtype: Any = np.float64) -> Any:
    return (np.asarray(rows, np.int64)[:, None] * 100 + np.arange(WIDTH)).astype(dtype)


@pytest.fixture(params=WAYS, ids=lambda way: f"method{way[0]}-shm{way[1]}")
def way(request: Any, monkeypatch: Any) -> tuple[int, str]:
    monkeypatch.setenv("DDSTORE_SHM", request.param[1])
    way: tuple[int, str] = request.param
    return way


@pytest.fixture
def open_store(
    way: tuple[int, str], comm: Any, shared_dir: str
) -> Iterator[Callable[..., pyddstore.PyDDStore]]:
    """Opens stores of the test's method, which are freed when all ranks are done."""
    stores: list[pyddstore.PyDDStore] = []
    numbers = itertools.count()

    def make(over: Any = comm, group: str = "", **given: Any) -> pyddstore.PyDDStore:
        if way[0] == 2:  # a directory a group
            given = {"handshake_dir": f"{shared_dir}/{next(numbers)}{group}"} | given
        stores.append(pyddstore.PyDDStore(over, method=way[0], **given))
        return stores[-1]

    yield make
    comm.Barrier()
    for store in stores:
        store.free()


def filled(store: pyddstore.PyDDStore, comm: Any, dtype: Any = np.float64) -> int:
    """Adds the variable "v"; how many rows it has."""
    first = sum(map(rows_of, range(comm.rank)))
    store.add("v", made(first, rows_of(comm.rank), dtype))
    return sum(map(rows_of, range(comm.size)))


@pytest.mark.parametrize("dtype", ["f8", "i4", "u1", "c8"])
def test_every_row_from_every_rank(open_store: Any, comm: Any, dtype: str) -> None:
    store = open_store()
    total = filled(store, comm, dtype)
    assert store.info("v") == (
        total,
        WIDTH,
        np.dtype(dtype).itemsize,
    )
    for row in range(total):
        one = np.empty((1, WIDTH), dtype)
        store.get("v", one, row)
        assert (one == encoded([row], dtype)).all()
    rng = np.random.default_rng(comm.rank)
    for n in (0, 1, comm.rank, 7, 64):
        if not total:
            n = 0
        rows = rng.integers(0, max(total, 1), n)
        out = np.empty((n, WIDTH), dtype)
        store.get_batch("v", out, rows)
        assert (out == encoded(rows, dtype)).all()


def test_paths_are_told(open_store: Any, way: tuple[int, str], comm: Any) -> None:
    store = open_store()
    filled(store, comm)
    far = {0: "mpi", 1: "tcp", 2: "tcp"}[way[0]] if way[1] == "0" else "local"
    for peer in store.transports():
        assert peer["path"] == ("self" if peer["rank"] == comm.rank else far)
    assert repr(store).startswith(f"<PyDDStore method {way[0]}, rank {comm.rank} of")


def test_a_shard_in_one_get(open_store: Any, comm: Any) -> None:
    store = open_store()
    filled(store, comm)
    for rank in range(comm.size):
        first, n = sum(map(rows_of, range(rank))), rows_of(rank)
        out = np.empty((n, WIDTH))
        store.get("v", out, first)
        assert (out == made(first, n)).all()


def test_epochs_show_updates(open_store: Any, comm: Any) -> None:
    store = open_store()
    store.init("w", 3, WIDTH, 8)
    for turn in range(5):
        store.update("w", np.full((3, WIDTH), turn * 100 + comm.rank, np.int64), 0)
        store.epoch_begin()
        if store.method != 0:
            comm.Barrier()
        out = np.empty((comm.size * 3, WIDTH), np.int64)
        store.get_batch("w", out, np.arange(comm.size * 3))
        assert (out == turn * 100 + np.repeat(np.arange(comm.size), 3)[:, None]).all()
        store.epoch_end()
        if store.method != 0:
            comm.Barrier()


def test_three_stores_on_one_communicator(open_store: Any, comm: Any) -> None:
    stores = [open_store() for _ in range(3)]
    for i, store in enumerate(stores):
        store.add("record_array", np.full((4, 2), 10 * i + comm.rank, np.int16))
    for i, store in reversed(list(enumerate(stores))):
        out = np.empty((comm.size, 2), np.int16)
        store.get_batch("record_array", out, np.arange(comm.size) * 4)
        assert (out[:, 0] == 10 * i + np.arange(comm.size)).all()


def test_sub_communicators(open_store: Any, comm: Any) -> None:
    half = comm.Split(comm.rank % 2, -comm.rank)
    if comm.rank % 2:
        # Open MPI's osc/rdma may take windows that two parts of a communicator make on
        # one host at once for the same one.
        comm.Barrier()
    store = open_store(half, f"half{comm.rank % 2}")
    assert (store.rank, store.size) == (half.rank, half.size)
    store.add("v", np.full((2, 3), comm.rank))
    if not comm.rank % 2:
        comm.Barrier()
    out = np.empty((half.size, 3), int)
    store.get_batch("v", out, np.arange(half.size) * 2)
    members = half.allgather(comm.rank)
    assert (out[:, 0] == members).all()
    half.Free()  # the store has a duplicate
    store.get_batch("v", out, np.arange(len(members)) * 2)
    alone = open_store(MPI.COMM_SELF, f"rank{comm.rank}")
    alone.add("v", np.arange(6).reshape(3, 2))
    out = np.empty((2, 2), int)
    alone.get_batch("v", out, [2, 0])
    assert out.tolist() == [[4, 5], [0, 1]]


def test_reads_from_threads(open_store: Any, way: tuple[int, str], comm: Any) -> None:
    store = open_store()
    total = filled(store, comm)

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        out = np.empty((1, WIDTH))
        for row in rng.integers(0, max(total, 1), 200 if total else 0):
            store.get("v", out, row)
            assert (out == encoded([row])).all()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, range(8)))


def test_the_communicator_stays_the_users(open_store: Any, comm: Any) -> None:
    """Its error handler, its messages and its attributes are untouched."""
    own = comm.Dup()
    own.Set_errhandler(MPI.ERRORS_ARE_FATAL)
    request = own.irecv(source=(comm.rank + 1) % comm.size, tag=7)
    store = open_store(own)
    total = filled(store, comm)
    out = np.empty((total, WIDTH))
    store.get_batch("v", out, np.arange(total))
    assert own.Get_errhandler() == MPI.ERRORS_ARE_FATAL
    own.isend(comm.rank, dest=(comm.rank - 1) % comm.size, tag=7)
    assert request.wait() == (comm.rank + 1) % comm.size


def test_registered_destinations(
    open_store: Any, comm: Any, way: tuple[int, str]
) -> None:
    store = open_store()
    total = filled(store, comm)
    out = np.zeros((max(total, 1), WIDTH))
    if way[0] == 0:
        store.unregister_recv("v", out)  # nothing, as registering is
    else:
        with pytest.raises(ValueError, match="register"):
            store.unregister_recv("v", out)
    store.register_recv("v", out)
    store.register_recv("v", out)
    store.get_batch("v", out[:total], range(total))
    assert (out[:total] == encoded(range(total))).all()
    store.unregister_recv("v", out)


# ---- method 0's batches --------------------------------------------------------------


@pytest.fixture
def by_mpi(monkeypatch: Any) -> None:
    monkeypatch.setenv("DDSTORE_SHM", "0")


@pytest.mark.parametrize("most", ["1", "100", "777", "4K", "2M"])
def test_rounds_change_nothing(
    by_mpi: None, comm: Any, monkeypatch: Any, most: str
) -> None:
    monkeypatch.setenv("DDSTORE_ALLTOALL_MAX_BYTES", most)
    monkeypatch.setenv("DDSTORE_PROFILE", "1")
    store = pyddstore.PyDDStore(comm)
    total = filled(store, comm)
    rng = np.random.default_rng(comm.rank)
    far = 0
    for n in (0, 3, 40 * comm.rank, 50):
        rows = rng.integers(0, max(total, 1), n if total else 0)
        out = np.zeros((len(rows), WIDTH))
        store.get_batch("v", out, rows)
        assert (out == encoded(rows)).all()
        first = sum(map(rows_of, range(comm.rank)))
        far += ((rows < first) | (rows >= first + rows_of(comm.rank))).sum()
    profile = store.get_profile("v")
    assert profile["rows_mpi"] == far
    reference = ("calls", "rows", "lock_wait", "mr", "mr_miss", "read", "cq", "py_gets")
    assert not any(profile[key] for key in reference)
    store.free()


def test_a_column_of_as_many_values_as_bytes_go_in_a_round(
    by_mpi: None, comm: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("DDSTORE_ALLTOALL_MAX_BYTES", "64K")
    store = pyddstore.PyDDStore(comm)
    n = 65536
    store.add("column", np.arange(comm.rank * n, (comm.rank + 1) * n))
    rows = np.random.default_rng(comm.rank).permutation(comm.size * n)[:n]
    out = np.empty(n, int)
    store.get_batch("column", out, rows)
    assert (out == rows).all()
    one = np.empty(n, int)
    for rank in range(comm.size):
        store.get("column", one, rank * n)
        assert (one == np.arange(rank * n, (rank + 1) * n)).all()
    store.free()


# ---- one rank is wrong ---------------------------------------------------------------


class Unreadable:
    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise OSError("it can't be read")


def raised(comm: Any, call: Callable[[], Any]) -> list[tuple[str, str]]:
    """Class and text of what each rank got, within 10 s."""
    began = time.monotonic()
    try:
        call()
        mine = ("nothing", "")
    except Exception as exc:
        mine = (type(exc).__name__, str(exc))
    waited: list[float] = comm.allgather(time.monotonic() - began)
    all: list[tuple[str, str]] = comm.allgather(mine)
    assert max(waited) < 10
    return all


GOOD = np.zeros((3, 4), np.float32)
BAD_ADDS = {
    "dtype": ("TypeError", "x", GOOD.astype(np.int32)),
    "disp": ("ValueError", "x", np.zeros((3, 5), np.float32)),
    "name": ("ValueError", "another", GOOD),
    "name's type": ("TypeError", 7, GOOD),
    "unreadable": ("ValueError", "x", Unreadable()),
}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("what", BAD_ADDS)
def test_a_bad_add_on_one_rank(open_store: Any, comm: Any, what: str) -> None:
    kind, name, data = BAD_ADDS[what]
    bad = comm.size - 1
    store = open_store()

    def add() -> None:
        if comm.rank == bad:
            store.add(name, data)
        else:
            store.add("x", GOOD)

    for got, text in raised(comm, add):
        assert got == kind
        assert f"rank {bad}" in text
    total = filled(store, comm)
    out = np.empty((total, WIDTH))
    store.get_batch("v", out, np.arange(total))
    assert (out == encoded(np.arange(total))).all()


BAD_BATCHES = {
    "index": ("IndexError", "v", (1, WIDTH), "f8", [10**6]),
    "negative": ("IndexError", "v", (1, WIDTH), "f8", [-1]),
    "unknown": ("KeyError", "nothing", (1, WIDTH), "f8", [0]),
    "another": ("ValueError", "u", (1, WIDTH), "f8", [0]),
    "dtype": ("TypeError", "v", (1, WIDTH), "f4", [0]),
    "shape": ("ValueError", "v", (1, WIDTH + 1), "f8", [0]),
    "count": ("ValueError", "v", (2, WIDTH), "f8", [0]),
}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("shm", ["1", "0"])
@pytest.mark.parametrize("what", BAD_BATCHES)
def test_a_bad_batch_on_one_rank(
    comm: Any, what: str, shm: str, monkeypatch: Any
) -> None:
    monkeypatch.setenv("DDSTORE_SHM", shm)
    kind, name, shape, dtype, rows = BAD_BATCHES[what]
    bad = comm.size - 1
    store = pyddstore.PyDDStore(comm)
    total = filled(store, comm)
    store.add("u", np.zeros((2, WIDTH)))
    out = np.empty((2, WIDTH))

    def batch() -> None:
        if comm.rank == bad:
            store.get_batch(name, np.empty(shape, dtype), rows)
        else:
            store.get_batch("v", out, [0, total - 1])

    for got, text in raised(comm, batch):
        assert got == kind
        assert f"rank {bad}" in text
    store.get_batch("v", out, [0, total - 1])
    assert (out == encoded([0, total - 1])).all()
    store.free()


@pytest.mark.mpi(min_size=2)
def test_different_calls_at_once(comm: Any) -> None:
    store = pyddstore.PyDDStore(comm)
    filled(store, comm)

    def call() -> None:
        if comm.rank == 1:
            store.get_batch("v", np.empty((0, WIDTH)), [])
        else:
            store.add("w", GOOD)

    for got, text in raised(comm, call):
        assert got == "DDStoreError"
        words = (
            "rank 1 and rank 0 are in different collective calls (get_batch and add)"
        )
        assert words in text
    store.add("w", GOOD)  # all know of it, so the store goes on
    store.get_batch("w", np.empty((1, 4), np.float32), [0])
    store.free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("what", ["add", "epoch", "batch"])
def test_free_on_one_rank(comm: Any, caplog: Any, what: str) -> None:
    """As `with` does, when its body raises."""
    calls: dict[str, Any] = {
        "add": lambda: store.add("w", GOOD),
        "epoch": lambda: store.epoch_begin(),
        "batch": lambda: store.get_batch("v", np.empty((0, WIDTH)), []),
    }
    store = pyddstore.PyDDStore(comm)
    filled(store, comm)
    outcome = raised(comm, store.free if comm.rank == 1 else calls[what])
    for rank, (got, text) in enumerate(outcome):
        if rank == 1:
            assert got == "nothing"
        else:
            assert got == "StoreClosedError"
            assert "rank 1 frees its store" in text
    if comm.rank == 1:
        assert "goes on without the other ranks" in caplog.text
    store.free()


@pytest.mark.mpi(min_size=2)
def test_ranks_that_open_differently(
    comm: Any, way: tuple[int, str], shared_dir: str, monkeypatch: Any
) -> None:
    method, bad = way[0], comm.size - 1
    own = {"handshake_dir": shared_dir} if method == 2 else {}
    cases: list[tuple[str, str, dict[str, Any], dict[str, str]]] = [
        ("ValueError", "method", {"method": 1 if method != 1 else 0}, {}),
        ("ValueError", "n_core", {"n_core": 77}, {}),
        ("ValueError", "rank=", {"rank": comm.size}, {}),
        ("TypeError", "nic_map", {"nic_map": 7}, {}),
        ("ValueError", "method", {"method": 9}, {}),
        ("ValueError", "ALLTOALL", {}, {"DDSTORE_ALLTOALL_MAX_BYTES": "77"}),
        ("ValueError", "4J", {}, {"DDSTORE_ALLTOALL_MAX_BYTES": "4J"}),
        ("ValueError", "soon", {}, {"DDSTORE_HANDSHAKE_TIMEOUT_S": "soon"}),
        ("ValueError", "exchange_ns", {"exchange_ns": "a\0b"}, {}),
        ("ValueError", "nic_map", {"nic_map": "a\0b"}, {}),
    ]
    for kind, word, change, env in cases:
        with monkeypatch.context() as patch:
            for name, value in env.items():
                if comm.rank == bad:
                    patch.setenv(name, value)
            given = {"method": method} | own | (change if comm.rank == bad else {})
            got = raised(comm, lambda g=given: pyddstore.PyDDStore(comm, **g))
        for one, text in got:
            assert one == kind, (word, text)
            assert word in text
            assert f"rank {bad}" in text


@pytest.mark.mpi(min_size=2)
def test_one_rank_opens_a_store_again(open_store: Any, way: Any, comm: Any) -> None:
    store = open_store()
    total = filled(store, comm)
    again = store if comm.rank == 1 else pyddstore.PyDDStore.__new__(type(store))
    for kind, text in raised(comm, lambda: again.__init__(comm, way[0], "unused")):
        assert kind == "ValueError"
        assert "rank 1: this store was opened before" in text
    out = np.empty((total, WIDTH))
    store.get_batch("v", out, np.arange(total))
    assert (out == encoded(np.arange(total))).all()


# ---- its end -------------------------------------------------------------------------


def test_after_free(open_store: Any, comm: Any) -> None:
    store = open_store()
    total = filled(store, comm)
    comm.Barrier()
    store.free()
    store.free()
    for call in (
        lambda: store.get("v", np.empty((1, WIDTH)), 0),
        lambda: store.get_batch("v", np.empty((1, WIDTH)), [0]),
        lambda: store.add("w", GOOD),
        lambda: store.epoch_begin(),
    ):
        with pytest.raises(pyddstore.StoreClosedError):
            call()
    again = open_store()
    assert filled(again, comm) == total


def test_readers(way: tuple[int, str], open_store: Any, comm: Any) -> None:
    """In this process; tests/python has them in others, where no MPI is needed."""
    store = open_store()
    total = filled(store, comm)
    out = np.empty((total, WIDTH))
    if way[0] == 0:
        for call in (store.fork_reader, lambda: pickle.dumps(store)):
            with pytest.raises(RuntimeError, match="method 1 or 2"):
                call()
    else:
        readers = [store.fork_reader(), pickle.loads(pickle.dumps(store))]
        for reader in readers:
            reader.get_batch("v", out, np.arange(total))
            assert np.array_equal(out, encoded(range(total)))
            reader.free()
    store.get_batch("v", out, np.arange(total))
    assert np.array_equal(out, encoded(range(total)))


def test_dropped_stores_are_freed_later(comm: Any) -> None:
    """In another order on each rank, when the next store is opened, or when the
    communicator is freed."""
    import gc

    from pyddstore import _mpi

    own = comm.Dup()
    family = _mpi.family_of(own)
    for _ in range(5):
        stores: list[Any] = []
        for method in (0, 1, 0):
            stores.append(pyddstore.PyDDStore(own, method=method))
            filled(stores[-1], comm)
        assert len(family.held) <= 6  # three of the last round
        comm.Barrier()
        for i in np.random.default_rng(comm.rank).permutation(3):
            stores[i] = None
        gc.collect()
    assert all(one.released for one in family.held.values())
    own.Free()
    assert len(family.held) == 0


def test_what_is_no_communicator() -> None:
    for what, kind in ((7, TypeError), ("comm", TypeError), (MPI.COMM_NULL, Exception)):
        with pytest.raises(kind):
            pyddstore.PyDDStore(what)
