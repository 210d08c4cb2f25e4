"""Worker processes of a plain DataLoader: fork, forkserver and spawn."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import threading
import time
from typing import Any

import numpy as np
import pytest
from members import Member, Members, raises

pytest.importorskip("torch", reason="optional: torch is not installed")

from torch.utils.data import ConcatDataset, DataLoader, Subset
from torch_support import (
    Ending,
    Source,
    as_list,
    graph,
    numbered,
    pair,
    same,
)

import pyddstore
from pyddstore.torch import (
    DistDataset,
    DistDatasetReader,
    ThreadDataLoader,
    WindowedDataset,
)

COUNT = 26
TCP = {"DDSTORE_SHM": "0", "DDSTORE_FABRIC": "tcp"}


def dataset(m: Member, source: Any, name: str = "ds", **more: Any) -> DistDataset:
    given = {"rank": m.rank, "size": m.size, "handshake_dir": m.dir}
    return DistDataset(source, name, **(given | more))


def epochs_of(ds: Any, start: str, persistent: bool) -> None:
    """Two epochs of four workers give what this process reads."""
    loader = DataLoader(
        ds, batch_size=3, num_workers=4, collate_fn=as_list,
        multiprocessing_context=start, persistent_workers=persistent,
    )  # fmt: skip
    pids = set()
    for _ in range(2):
        got = [one for batch in loader for one in batch]
        assert [one["index"] for one in got] == list(range(COUNT))
        assert not any(one["mpi"] for one in got)
        for i, one in enumerate(got):
            same(one["sample"], pair(i))
        pids |= {one["pid"] for one in got}
    assert os.getpid() not in pids
    assert len(pids) == (4 if persistent else 8)


def with_workers(m: Member, start: str, method: int) -> None:
    with dataset(m, Source(COUNT, pair), method=method, decode=numbered) as ds:
        for persistent in (False, True) if m.rank == 0 else ():
            epochs_of(ds, start, persistent)
        if m.rank == 1 and method == 2 and start == "fork":
            with DistDatasetReader("ds", m.dir, decode=numbered) as reader:
                epochs_of(reader, start, False)
        same(ds[COUNT - 1]["sample"], pair(COUNT - 1))
        m.mark(f"over {m.rank}")
        for rank in range(m.size):  # a dozen processes that import torch take long
            m.wait(f"over {rank}", 100)


@pytest.mark.parametrize("start", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize(("method", "env"), [(1, {}), (2, TCP)])
def test_workers(
    members: Members, start: str, method: int, env: dict[str, str]
) -> None:
    members(2, with_workers, env, limit_s=110, start=start, method=method)


def other_datasets(m: Member) -> None:
    with dataset(m, Source(COUNT, pair)) as ds, \
            dataset(m, Source(COUNT, graph), "g", ragged=True) as graphs:  # fmt: skip
        if m.rank == 0:
            for one in (
                Subset(ds, [5, 3, 9, 25, 0]),
                ConcatDataset([ds, ds]),
                WindowedDataset(ds, 3, dilation=2),
                graphs,
            ):

                def read(n: int, d: Any = one) -> list[Any]:
                    return list(DataLoader(d, batch_size=4, num_workers=n,
                                           collate_fn=as_list))  # fmt: skip

                same(read(2), read(0))
            for start in ("forkserver", "spawn"):
                parts = [Subset(ds, [5, 0]), ConcatDataset([ds, ds])]
                parts += [WindowedDataset(ds, 3, dilation=2), graphs, ds]
                whole = ConcatDataset(parts)
                loader = DataLoader(
                    whole, batch_size=9, num_workers=2, collate_fn=as_list,
                    multiprocessing_context=start,
                )  # fmt: skip
                same([one for batch in loader for one in batch], list(whole))
            collated = list(DataLoader(ds, batch_size=5, num_workers=2))
            same(collated, list(DataLoader(ds, batch_size=5)))
            # Beside threads of this process that read.
            with ThreadDataLoader(ds, batch_size=2, num_workers=2) as threads:
                batches = iter(threads)
                next(batches)
                same(list(DataLoader(ds, batch_size=5, num_workers=2)), collated)
                assert len(list(batches)) == len(threads) - 1
            m.mark("over")
        m.wait("over", 100)
        m.meet("read")


@pytest.mark.parametrize("env", [{}, TCP])
def test_other_datasets(members: Members, env: dict[str, str]) -> None:
    members(2, other_datasets, env, limit_s=110)


def children_that_end(m: Member, start: str, method: int) -> None:
    with dataset(m, Source(COUNT, pair), method=method) as ds:
        if m.rank == 0:
            for how in ("raises", "exits", "ends", "killed"):
                loader = DataLoader(
                    Ending(ds, 7, how), batch_size=2, num_workers=2,
                    multiprocessing_context=start, timeout=6,
                )  # fmt: skip
                # What a dead worker has sent may be gone; torch tells it in many ways.
                kind = LookupError if how == "raises" else Exception
                raises(kind, call=lambda lo=loader: list(lo))
                # The other worker's end is told by a signal, wherever we are then.
                with contextlib.suppress(RuntimeError):
                    del loader
                    gc.collect()
                    time.sleep(0.5)
                same([ds[i] for i in range(COUNT)], [pair(i) for i in range(COUNT)])
                same(ds.__getitems__([COUNT - 1, 0]), [pair(COUNT - 1), pair(0)])
            again = list(DataLoader(ds, batch_size=2, num_workers=2))
            assert len(again) == COUNT // 2
            m.mark("over")
        m.wait("over", 140)
        m.meet("read")
        same(ds[0], pair(0))
        if method == 2:
            with DistDatasetReader("ds", m.dir) as reader:
                same(reader[COUNT - 1], pair(COUNT - 1))
        m.meet("and again")


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("start", "method", "env"),
    [
        ("fork", 1, {}),
        ("fork", 2, TCP),
        ("forkserver", 2, {}),
        ("spawn", 1, TCP),
        ("spawn", 2, {}),
    ],
)
def test_children_that_end(
    members: Members, start: str, method: int, env: dict[str, str]
) -> None:
    members(2, children_that_end, env, limit_s=150, start=start, method=method)


def in_a_child(m: Member, method: int) -> None:
    """What else a forked child may do with the parent's dataset."""
    with dataset(m, Source(COUNT, pair), method=method) as ds:
        bufs = ds.alloc(4)

        def child() -> None:
            same(ds.__getitems__([3, 1], out=bufs), [pair(3), pair(1)])
            assert ds.ddstore.rank != m.rank or ds.ddstore is not store
            ds.release(bufs)
            threads = [threading.Thread(target=ds.get, args=(5,)) for _ in range(4)]
            for one in threads:
                one.start()
            for one in threads:
                one.join()
            ds.free()
            raises(pyddstore.StoreClosedError, call=lambda: ds[0])

        store = ds.ddstore
        for _ in range(2):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    child()
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitpid(pid, 0)[1] == 0
        same(ds.__getitems__([3, 1], out=bufs), [pair(3), pair(1)])
        ds.release(bufs)
        copy = pickle.loads(pickle.dumps(ds))
        assert b"Source" not in pickle.dumps(ds)
        same(copy[4], pair(4))
        assert copy.ddstore is not store
        copy.free()
        same(ds[4], pair(4))
        del copy
        gc.collect()
        m.meet("read")
        if method == 2:  # the children left what the parent has published
            with DistDatasetReader("ds", m.dir) as reader:
                same(reader[4], pair(4))
            m.meet("read from outside")


@pytest.mark.parametrize("method", [1, 2])
@pytest.mark.parametrize("env", [{}, TCP])
def test_forked_child_and_copy(
    members: Members, env: dict[str, str], method: int
) -> None:
    members(2, in_a_child, env, method=method)


def after_the_parent_freed(m: Member) -> None:
    ds = dataset(m, Source(4, lambda i: np.full(3, i)))
    record = pickle.dumps(ds)
    ds.free()
    late = pickle.loads(record)
    assert len(late) == 4
    assert late.shapes == (3,)
    raises(pyddstore.DDStoreError, call=lambda: late[0])


def test_reader_of_a_freed_store(members: Members) -> None:
    members(1, after_the_parent_freed, {"DDSTORE_HANDSHAKE_TIMEOUT_S": "3"})
