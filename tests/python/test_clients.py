"""The calls of real clients, as they are."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from members import Member, Members, environment

PATHS = [
    pytest.param({}, id="mapped"),
    pytest.param({"DDSTORE_SHM": "0", "DDSTORE_FABRIC": "tcp"}, id="tcp"),
]


def graph(store: int, rank: int, i: int) -> dict[str, Any]:
    """One sample, of a size of its own."""
    random = np.random.default_rng([store, rank, i])
    return {"id": (store, rank, i), "x": random.random((int(random.integers(1, 9)), 3))}


def three_stores_of_records(m: Member, prefix: bool) -> None:
    """Train, validation and test: bytes of all samples in one 1-D array of records."""
    splits = ["trainset", "valset", "testset"]
    counts = [5, 3, 0 if m.rank == 1 else 2]
    stores = [m.store() for _ in splits]
    tables = []
    for s, split in enumerate(splits):
        blobs = [pickle.dumps(graph(s, m.rank, i)) for i in range(counts[s])]
        name = f"{split}/record_array" if prefix else "record_array"
        data = np.frombuffer(b"".join(blobs), dtype=np.uint8)
        stores[s].add(name, data)
        del data
        sizes = np.array([len(blob) for blob in blobs], dtype=np.int64)
        stores[s].add(f"{name}_sizes", sizes)
        total = stores[s].info(f"{name}_sizes")[0]
        every = np.zeros(total, np.int64)
        stores[s].get_batch(f"{name}_sizes", every, range(total))
        tables.append((name, every, np.concatenate([[0], np.cumsum(every)])))

    def load(sample: tuple[int, int]) -> Any:
        s, i = sample
        name, sizes, offsets = tables[s]
        val = np.zeros(sizes[i], dtype=np.uint8)
        stores[s].get(name, val, offsets[i])  # a numpy.int64
        return pickle.loads(val.tobytes())["id"]

    per_rank = [[5, 5], [3, 3], [2, 0]]
    want = [
        (s, r, i) for s in range(3) for r in range(2) for i in range(per_rank[s][r])
    ]
    samples = [(s, i) for s in range(3) for i in range(sum(per_rank[s]))]
    assert [load(sample) for sample in samples] == want

    first = np.zeros(tables[0][1][0], dtype=np.uint8)
    stores[0].get(tables[0][0], first, 0)
    assert pickle.loads(first.tobytes())["id"] == (0, 0, 0)

    # Loader threads that bind themselves to a CPU.
    cpus = sorted(os.sched_getaffinity(0))

    def in_thread(sample: tuple[int, int]) -> Any:
        os.sched_setaffinity(0, {cpus[sample[1] % len(cpus)]})
        return load(sample)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(in_thread, samples * 20)) == want * 20

    # Epochs around every batch, also when it is left early.
    for batch in range(4):
        for store in stores:
            store.epoch_begin()
        for number, sample in enumerate(samples):
            load(sample)
            if number == batch:
                break
        for store in stores:
            store.epoch_end()
    m.meet("done")


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("env", PATHS)
def test_three_stores_of_records(
    members: Members, env: dict[str, str], prefix: bool
) -> None:
    members(2, three_stores_of_records, env, prefix=prefix)


def ragged_fields(m: Member) -> None:
    """Fields of several dimensions, ragged on the first axis; some have no rows."""
    store = m.store()
    lengths = [[3, 0, 2], [0], [1, 4]]
    fields = {
        "pos": ((3,), np.float64),
        "edge": ((2,), np.int64),
        "y": ((), np.float32),
        "cell": ((3, 3), np.float32),
    }

    def rows(rank: int, field: str) -> Any:
        shape, dtype = fields[field]
        n = sum(lengths[rank])
        size = n * int(np.prod(shape, dtype=int))
        return (np.arange(size) + 1000 * rank).astype(dtype).reshape(n, *shape)

    for field in fields:
        store.add(field, rows(m.rank, field))
    start = 0
    for rank in range(m.size):
        offset = 0
        for n in lengths[rank]:
            for field, (shape, dtype) in fields.items():
                val = np.zeros((n, *shape), dtype=dtype)
                store.get(field, val, np.int64(start))
                assert np.array_equal(val, rows(rank, field)[offset : offset + n])
            start, offset = start + n, offset + n
    store.get("pos", np.zeros((0, 3)), start)  # behind the last row
    m.meet("done")


@pytest.mark.parametrize("env", PATHS)
def test_ragged_fields(members: Members, env: dict[str, str]) -> None:
    members(3, ragged_fields, env)


def fill_row_by_row(m: Member) -> None:
    """init, then an update a row; several reader threads; the same row many times."""
    store = m.store()
    n, disp = 6, 1000
    store.init("data", n, disp, 4)
    for row in range(n):
        block = np.full(disp, 10 * m.rank + row, np.float32)
        store.update("data", block.reshape(1, -1), row)
    m.meet("filled")
    dst = np.zeros((n * m.size, disp), np.float32)
    for r in range(n * m.size):
        i = n * m.size - 1 - r
        store.get("data", dst[i : i + 1], start=r)
    want = [10 * rank + row for rank in range(m.size) for row in range(n)]
    assert dst[::-1, 0].tolist() == want
    assert (dst == dst[:, :1]).all()
    store.get_batch("data", dst[:5], [0] * 5)
    assert (dst[:5] == 0).all()

    def read(thread: int) -> bool:
        mine = np.empty((4, disp), np.float32)
        for turn in range(50):
            first = (thread + turn) % (n * m.size - 3)
            store.get_batch("data", mine, [first, first + 1, first + 2, first])
            assert mine[:, 5].tolist() == [*want[first : first + 3], want[first]]
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(8)))
    m.meet("done")


@pytest.mark.parametrize("env", PATHS)
def test_fill_row_by_row(members: Members, env: dict[str, str]) -> None:
    members(2, fill_row_by_row, env)


CLIENT = """
import sys
import numpy as np
from pyddstore import PyDDStore

class Dataset:
    def __init__(self, rank, size, dir):
        self.ddstore = PyDDStore(None, 1, dir, rank=rank, size=size)
        self.ddstore.add("record_array", np.arange(10) + 10 * rank)
    def __getitem__(self, i):
        val = np.zeros(1, dtype=np.int64)
        self.ddstore.get("record_array", val, i)
        return int(val[0])
    def __del__(self):
        self.ddstore.free()

rank, size, dir, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
data = Dataset(rank, size, dir)
assert [data[i] for i in range(10 * size)] == list(range(10 * size))
keep = data if how == "global" else None
if how == "leak":
    import ctypes
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(data.ddstore))  # never freed
if how == "late":
    import atexit
    atexit.register(data.ddstore.free)
"""


@pytest.mark.parametrize("how", ["global", "leak", "late", "collected"])
def test_the_end_of_clients(tmp_path: Any, how: str) -> None:
    """Freed from __del__ at the interpreter's end, or never; nobody waits for all."""
    group = [
        subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(rank), "3", str(tmp_path / "h"), how],
            cwd=tmp_path,
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    for process in group:
        _, err = process.communicate(timeout=50)
        # A rank that ends first may be missed by one that still reads from it.
        assert process.returncode == 0 or "rank " in err, err
        assert "Traceback" not in err or "Error: rank" in err, err
