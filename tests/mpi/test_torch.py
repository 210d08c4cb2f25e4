"""Datasets over a communicator, by every method; what is collective with method 0."""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="optional: torch is not installed")

import torch
import torch_support
from mpi4py import MPI
from torch.utils.data import DataLoader, DistributedSampler, StackDataset, Subset
from torch_support import every_kind, same

from pyddstore.torch import (
    DistDataset,
    DistDatasetReader,
    ThreadDataLoader,
    WindowedDataset,
)

pytestmark = pytest.mark.mpi

COUNT = 13


class Source:
    def __init__(self, count: int = COUNT, lengths: bool = False) -> None:
        self.count, self.lengths = count, lengths

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        if self.lengths:
            return {"x": np.full((i % 4, 2), i), "n": i}
        return torch.full((2, 3), float(i)), i


def numbers(samples: Any) -> list[int]:
    for x, n in samples:
        assert torch.equal(x, torch.full((2, 3), float(n)))
    return [n for _, n in samples]


@pytest.fixture(params=[0, 1, 2])
def method(request: Any) -> int:
    return int(request.param)


@pytest.fixture(params=["1", "0"], ids=["mapped", "far"])
def ds(
    comm: Any, shared_dir: str, method: int, request: Any, monkeypatch: Any
) -> Iterator[DistDataset]:
    monkeypatch.setenv("DDSTORE_SHM", request.param)
    with DistDataset(
        Source(), "ds", comm, method=method, handshake_dir=shared_dir
    ) as ds:
        yield ds
        comm.Barrier()


def test_samples(comm: Any, ds: DistDataset) -> None:
    assert ds.ddstore.size == comm.size
    assert numbers([ds[i] for i in range(-COUNT, COUNT)]) == list(range(COUNT)) * 2
    # Of method 0, single ones aren't collective: each rank reads as many as it likes.
    assert numbers([ds[0] for _ in range(comm.rank)]) == [0] * comm.rank
    wanted = [(comm.rank + 3 * i) % COUNT for i in range(comm.rank)]
    assert numbers(ds.__getitems__(wanted)) == wanted
    assert ds.__getitems__([]) == []
    rows = ds.read_rows([1, comm.rank], [1])
    assert rows[1].tolist() == [1, comm.rank]
    windows = WindowedDataset(ds, 3)
    assert windows[comm.rank][1].tolist() == [comm.rank, comm.rank + 1, comm.rank + 2]
    assert windows.__getitems__([4])[0][1].tolist() == [4, 5, 6]


def test_bad_index_on_one_rank(comm: Any, ds: DistDataset) -> None:
    """With method 0 all ranks hear of it; then all go on."""
    last = comm.size - 1
    mine = [0, COUNT] if comm.rank == last else [0, 1]
    calls = [lambda: ds.__getitems__(mine), lambda: ds.read_rows(mine, [1])]
    windows = WindowedDataset(ds, 2)
    calls.append(lambda: windows.__getitems__(mine))
    for call in calls:
        if comm.rank == last or ds.ddstore.method == 0:
            with pytest.raises(IndexError, match=str(COUNT)):
                call()
        else:
            call()
        assert numbers(ds.__getitems__([comm.rank])) == [comm.rank]


def test_bad_buffers_on_one_rank(comm: Any, ds: DistDataset) -> None:
    bufs = ds.alloc(1 if comm.rank == 0 else 4)
    if comm.rank == 0:
        with pytest.raises((ValueError, TypeError)):
            ds.__getitems__([1, 2], out=bufs)
    elif ds.ddstore.method == 0:
        with pytest.raises((ValueError, TypeError), match="rank 0"):
            ds.__getitems__([1, 2], out=bufs)
    assert numbers(ds.__getitems__([3])) == [3]
    ds.release(bufs)


@pytest.mark.parametrize("reuse", [False, True])
def test_thread_loader(comm: Any, ds: DistDataset, reuse: bool) -> None:
    sampler = DistributedSampler(ds, comm.size, comm.rank, seed=3)
    want = [batch[1].tolist() for batch in batches_of(sampler)]
    for workers in (0, 1):
        with ThreadDataLoader(
            ds, batch_size=2, sampler=sampler, num_workers=workers, reuse_buffers=reuse
        ) as loader:
            for _ in range(3):
                got = list(loader)
                assert [batch[1].tolist() for batch in got] == want
                for x, n in got:
                    assert torch.equal(x[:, 1, 2], n.float())
            # All leave early, and begin again.
            for _ in range(5):
                for count, _batch in enumerate(loader):
                    if count == 1:
                        break
                gc.collect()
            assert [batch[1].tolist() for batch in loader] == want
        comm.Barrier()


def batches_of(sampler: Any) -> Any:
    samples = [Source()[i] for i in range(COUNT)]
    return DataLoader(samples, batch_size=2, sampler=sampler)


@pytest.mark.parametrize("reuse", [False, True])
def test_several_iterators(comm: Any, ds: DistDataset, reuse: bool) -> None:
    """Over one store: of one loader, of another one, and batches in between."""
    parts = [[(i + comm.rank) % COUNT for i in range(COUNT)], [3, comm.rank, 4, 12, 7]]
    more = {"batch_size": 2, "num_workers": 1, "reuse_buffers": reuse}
    loaders: list[Any] = [ThreadDataLoader(Subset(ds, part), **more) for part in parts]
    loaders.append(ThreadDataLoader(Subset(ds, parts[0]), batch_size=2))
    for turn in range(6):
        first = iter(loaders[0])
        seen = next(first)[1].tolist()
        time.sleep(0.003 * ((comm.rank + turn) % comm.size))
        if turn % 2:
            first = iter(loaders[0])  # takes the place of one that still reads
            seen = []
        second, third = iter(loaders[1]), iter(loaders[2])
        others: list[Any] = [[], []]
        for batch in first:
            seen += batch[1].tolist()
            assert numbers(ds.__getitems__([comm.rank, 5])) == [comm.rank, 5]
            for into, one in zip(others, (second, third), strict=True):
                into += [n for b in itertools.islice(one, 1) for n in b[1].tolist()]
        for into, one in zip(others, (second, third), strict=True):
            into += [n for b in one for n in b[1].tolist()]
        assert seen == parts[0]
        assert others == [parts[1], parts[0]]
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("reuse", [False, True])
def test_free_after_leaving_early(
    comm: Any, shared_dir: str, reuse: bool, caplog: Any
) -> None:
    """What the loader has begun ends first, although nobody closed it."""
    for turn in range(8):
        ds = DistDataset(Source(), "ds", comm, method=0)
        loader = ThreadDataLoader(
            ds, batch_size=1, num_workers=1, prefetch_factor=9, reuse_buffers=reuse
        )
        for batch in loader:
            assert batch[1].tolist() == [0]
            break
        del loader, batch
        time.sleep(0.002 * ((comm.rank + turn) % comm.size))
        ds.free()
    assert [one.getMessage() for one in caplog.records] == []


def test_workers_are_refused(comm: Any, ds: DistDataset) -> None:
    if ds.ddstore.method != 0:
        return
    stacks = StackDataset([1] * COUNT, ds), StackDataset(n=range(COUNT), x=ds)
    for one in (ds, Subset(ds, [1]), WindowedDataset(ds, 2), *stacks):
        with pytest.raises(ValueError, match=r"num_workers=2.*method=1"):
            ThreadDataLoader(one, num_workers=2)
    with pytest.raises(RuntimeError, match="method=1 or method=2"):
        pickle.dumps(ds)


def test_ragged_and_reader(comm: Any, shared_dir: str, method: int) -> None:
    source = Source(lengths=True)
    with DistDataset(source, "g", comm, method=method, handshake_dir=shared_dir,
                     ragged=True) as ds:  # fmt: skip
        wanted = [comm.rank, 5, 0, 3]
        for i, one in zip(wanted, ds.__getitems__(wanted), strict=True):
            assert one["n"] == i
            assert np.array_equal(one["x"], source[i]["x"])
        assert np.array_equal(ds[7]["x"], source[7]["x"])
        if method == 2:
            with DistDatasetReader("g", shared_dir) as reader:
                assert np.array_equal(reader[7]["x"], source[7]["x"])
        comm.Barrier()


@pytest.mark.mpi(min_size=2)
def test_width(comm: Any, shared_dir: str) -> None:
    for method in (0, 1):
        with DistDataset(Source(), "w", comm, 1, method=method,
                         handshake_dir=shared_dir) as ds:  # fmt: skip
            assert ds.ddstore.size == 1
            assert numbers(ds.__getitems__(range(COUNT))) == list(range(COUNT))
    with pytest.raises(ValueError, match="ddstore_width"):
        DistDataset(Source(), "w", comm, 1, method=2, handshake_dir=shared_dir)
    comm.Barrier()


@pytest.mark.mpi(min_size=2)
def test_bad_sample(comm: Any, shared_dir: str, method: int) -> None:
    class Bad(Source):
        def __getitem__(self, i: int) -> Any:
            return super().__getitem__(i) if i != COUNT - 1 else (torch.zeros(2, 4), i)

    with pytest.raises(ValueError, match=f"sample {COUNT - 1}, field 0: shape"):
        DistDataset(Bad(), "b", comm, method=method, handshake_dir=shared_dir)
    with pytest.raises(ValueError, match="method"):
        DistDataset(Source(), "b", comm, method=3 if comm.rank else method)


@pytest.mark.mpi(min_size=2)
def test_bad_sample_of_one_part(comm: Any, shared_dir: str) -> None:
    """All ranks hear of it, also those that have stores of their own."""
    last = comm.size - 1

    class Bad(Source):
        def __getitem__(self, i: int) -> Any:
            if i == 0 and comm.rank == last:
                raise LookupError("unreadable")
            return super().__getitem__(i)

    for method in (0, 1):
        with pytest.raises(LookupError, match=f"rank {last}: sample 0: unreadable"):
            DistDataset(Bad(), "b", comm, 1, method=method, handshake_dir=shared_dir)
    for given in ({"ragged": True}, {"fields": [1]}):
        with pytest.raises(ValueError, match=f"{next(iter(given))} is"):
            DistDataset(
                Source(), "b", comm, method=0, **(given if comm.rank == last else {})
            )


def test_default_method(comm: Any, shared_dir: str, monkeypatch: Any) -> None:
    with DistDataset(Source(), "d", comm) as ds:
        assert ds.ddstore.method == 0
    monkeypatch.setenv("DDSTORE_METHOD", "1")
    with DistDataset(Source(), "d", comm, handshake_dir=shared_dir) as ds:
        assert ds.ddstore.method == 1
        comm.Barrier()
    assert MPI.Query_thread() >= MPI.THREAD_SERIALIZED
    assert "torch" in sys.modules


@pytest.mark.parametrize("count", [0, 1, 11])
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_every_kind(
    comm: Any, shared_dir: str, method: int, count: int, chunk_size: int | None
) -> None:
    """Also where ranks have no samples."""
    source = torch_support.Source(count)
    given = {"method": method, "handshake_dir": shared_dir, "chunk_size": chunk_size}
    with DistDataset(source, "k", comm, **given) as ds:
        mine = count // comm.size + (comm.rank < count % comm.size)
        assert len(source.asked) == mine + bool(mine)
        assert len(ds) == count
        wanted = [(comm.rank + 3 * i) % count for i in range(4 if count else 0)]
        same(ds.__getitems__(wanted), [every_kind(i) for i in wanted])
        same([ds[i] for i in range(-count, 0)], [every_kind(i) for i in range(count)])
        rows = ds.read_rows(wanted, ["int"]) if count else {}
        for column in rows.values():
            assert column.tolist() == [i - 2**62 for i in wanted]
        with ThreadDataLoader(
            ds, batch_size=3, num_workers=1, collate_fn=list
        ) as loader:
            got = [one for batch in loader for one in batch]
        same(got, [every_kind(i) for i in range(count)])
        comm.Barrier()


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_encode_decode_fields(
    comm: Any, shared_dir: str, method: int, chunk_size: int | None
) -> None:
    texts = [f"text {i:02}" for i in range(COUNT)]
    given = {"method": method, "handshake_dir": shared_dir, "chunk_size": chunk_size}
    with DistDataset(
        texts, "t", comm, **given,
        encode=lambda text: np.frombuffer(text.encode(), np.uint8),
        decode=lambda stored, i: (stored.tobytes().decode(), i),
    ) as ds:  # fmt: skip
        wanted = [comm.rank, -1, 0]
        want = [(texts[i], i % COUNT) for i in wanted]
        assert ds.__getitems__(wanted) == [ds[i] for i in wanted] == want
        comm.Barrier()
    source = torch_support.Source(COUNT)
    with DistDataset(source, "f", comm, **given, fields=["int", "text"]) as ds:
        want = [{k: every_kind(i)[k] for k in ("text", "int")} for i in (3, comm.rank)]
        same(ds.__getitems__([3, comm.rank]), want)
        same(ds[3], want[0])
        comm.Barrier()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("start", ["forkserver", "spawn"])
@pytest.mark.parametrize("method", [1, 2])
def test_worker_processes(comm: Any, shared_dir: str, method: int, start: str) -> None:
    """They know nothing of MPI."""
    source = torch_support.Source(5, torch_support.pair)
    with DistDataset(source, "w", comm, method=method, handshake_dir=shared_dir,
                     decode=torch_support.numbered) as ds:  # fmt: skip
        if comm.rank < 2:
            loader: Any = DataLoader(
                ds, batch_size=2, num_workers=1, multiprocessing_context=start,
                collate_fn=torch_support.as_list,
            )  # fmt: skip
            got = [one for batch in loader for one in batch]
            assert not any(one["mpi"] for one in got)
            assert {one["pid"] for one in got}.isdisjoint({os.getpid()})
            want = [torch_support.pair(i) for i in range(5)]
            same([one["sample"] for one in got], want)
        assert ds[0]["mpi"]
        comm.Barrier()


BAD: list[Any] = [
    ([0, COUNT], IndexError),
    (np.array([0, COUNT]), IndexError),
    (torch.tensor([0, COUNT]), IndexError),
    ([0.5], TypeError),
    (7, TypeError),
]


@pytest.mark.parametrize(("wanted", "kind"), BAD, ids=repr)
def test_bad_indices_on_one_rank(ds: DistDataset, wanted: Any, kind: Any) -> None:
    """With method 0 all ranks are told, however the indices are given."""
    last = MPI.COMM_WORLD.size - 1
    mine = wanted if MPI.COMM_WORLD.rank == last else [0, 1]
    together = ds.ddstore.method == 0
    if together or mine is wanted:
        with pytest.raises(kind):
            ds.__getitems__(mine)
    assert len(ds.__getitems__([0, 1])) == 2


def test_bad_field_on_one_rank(ds: DistDataset) -> None:
    bad = MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1
    if ds.ddstore.method == 0 or bad:
        with pytest.raises(KeyError):
            ds.read_rows([0], fields=["none"] if bad else None)
    assert len(ds.read_rows([0, 1])) == 2
