"""ThreadDataLoader against DataLoader, and what it promises beside."""

from __future__ import annotations

import gc
import os
import threading
import time
import traceback
import warnings
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from members import Member, Members

pytest.importorskip("torch", reason="optional: torch is not installed")

import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Subset,
    WeightedRandomSampler,
)
from torch_support import Source, graph, pair, same

from pyddstore.torch import (
    DistDataset,
    ThreadDataLoader,
    WindowedDataset,
)

COUNT = 53


def sample(i: int) -> dict[str, Any]:
    """All kinds that the default collate_fn takes."""
    return {
        "x": torch.arange(6.0).reshape(2, 3) + i,
        "half": torch.tensor([i % 8], dtype=torch.bfloat16),
        "a": np.full((2, 2), i, np.int16),
        "0-d": np.array(i, np.uint8),
        "scalar": np.float32(i),
        "flag": np.bool_(i % 2),
        "int": i,
        "float": i / 2,
        "bool": i % 3 == 0,
    }


@pytest.fixture
def ds(tmp_path: Any) -> Any:
    before = threading.active_count()
    with DistDataset(
        Source(COUNT, sample), "ds", rank=0, size=1, handshake_dir=str(tmp_path / "h")
    ) as one:
        yield one
        gc.collect()
        threads_are(before)


def threads() -> int:
    return sum(t.name.startswith("ThreadDataLoader") for t in threading.enumerate())


def threads_are(count: int, limit_s: float = 10) -> None:
    until = time.monotonic() + limit_s
    while threads():
        assert time.monotonic() < until, threading.enumerate()
        time.sleep(0.01)


def weighted() -> Any:
    return WeightedRandomSampler(torch.ones(COUNT), 31)


ARGUMENTS: dict[str, Any] = {
    "plain": lambda: {},
    "batches": lambda: {"batch_size": 8},
    "shuffled": lambda: {"batch_size": 8, "shuffle": True},
    "whole batches": lambda: {"batch_size": 10, "shuffle": True, "drop_last": True},
    "one batch": lambda: {"batch_size": COUNT + 1},
    "own generator": lambda: {
        "batch_size": 4, "shuffle": True, "generator": torch.Generator().manual_seed(5),
    },
    "sampler": lambda: {"batch_size": 7, "sampler": weighted()},
    "replaced": lambda: {
        "batch_size": 6, "sampler": RandomSampler(range(COUNT), True, 70),
    },
    "batch sampler": lambda: {
        "batch_sampler": BatchSampler(RandomSampler(range(COUNT)), 9, False),
    },
    "lists": lambda: {"batch_sampler": [[1, 2], [3], [], [4, 5, 6, -1]],
                      "collate_fn": list},
    "collate": lambda: {"batch_size": 5, "collate_fn": len},
}  # fmt: skip


def epochs(loader: Any, seed: int) -> tuple[list[Any], Any, Any]:
    """Two epochs, and what the generators say afterwards."""
    torch.manual_seed(seed)
    batches = [list(loader), list(loader)]
    own = loader.generator
    return (
        batches, torch.rand(1), None if own is None else torch.rand(1, generator=own),
    )  # fmt: skip


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("how", ARGUMENTS)
def test_equal_to_dataloader(ds: Any, how: str, workers: int) -> None:
    more = {"num_workers": workers, "prefetch_factor": 3 if workers else None}
    reuses = how not in ("lists", "collate")
    for dataset in (ds, Subset(ds, list(range(COUNT))[::-1]), ConcatDataset([ds])):
        torch.manual_seed(1)
        want = epochs(DataLoader(dataset, **ARGUMENTS[how]()), 3)
        with ThreadDataLoader(dataset, **ARGUMENTS[how](), **more) as loader:
            assert len(loader) == len(want[0][0])
            assert len(iter(loader)) == len(want[0][0])
        with ThreadDataLoader(dataset, **ARGUMENTS[how](), **more) as loader:
            same(epochs(loader, 3), want)
        if reuses and not isinstance(dataset, ConcatDataset):
            arguments = ARGUMENTS[how]()
            with ThreadDataLoader(
                dataset, reuse_buffers=True, **arguments, **more
            ) as loader:
                same(epochs(loader, 3), want)


def test_no_batches(ds: Any) -> None:
    for workers in (0, 2):
        loader = ThreadDataLoader(ds, batch_size=None, num_workers=workers)
        same(list(loader), list(DataLoader(ds, batch_size=None)))


def test_windows_and_graphs(ds: Any, tmp_path: Any) -> None:
    windows = WindowedDataset(ds, 4, stride=3, fields=["x", "int"])
    want = list(DataLoader(windows, batch_size=5))
    for reuse in (False, True):
        same(
            list(ThreadDataLoader(
                windows, batch_size=5, num_workers=2, reuse_buffers=reuse)),
            want,
        )  # fmt: skip
    with DistDataset(Source(30, graph), "g", rank=0, size=1, ragged=True,
                     handshake_dir=str(tmp_path / "h")) as graphs:  # fmt: skip

        def join(batch: list[Any]) -> dict[str, Any]:
            return {
                "x": torch.cat([one["x"] for one in batch]),
                "edges": np.concatenate([one["edges"] for one in batch]),
            }

        want = list(DataLoader(graphs, batch_size=7, collate_fn=join))
        with ThreadDataLoader(
            graphs, batch_size=7, collate_fn=join, num_workers=2,
            reuse_buffers=True, collate_copies=True,
        ) as loader:  # fmt: skip
            same(list(loader), want)


class Slow:
    """A dataset that counts what was begun, and waits to be let on."""

    def __init__(self, count: int = 100) -> None:
        self.count = count
        self.begun: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> int:
        self.begun.append(i)
        assert self.gate.wait(20)
        return i


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (1, 3), (2, 2), (3, None)])
def test_batches_in_flight(workers: int, prefetch: int | None) -> None:
    slow = Slow()
    loader = ThreadDataLoader(
        slow, batch_size=1, num_workers=workers, prefetch_factor=prefetch
    )
    ahead = workers * (prefetch or 2)

    def settled(want: int) -> None:
        until = time.monotonic() + 10
        while len(slow.begun) < want and time.monotonic() < until:
            time.sleep(0.002)
        time.sleep(0.05)
        assert len(slow.begun) == want

    batches = iter(loader)
    settled(ahead)
    for held in range(1, 6):
        next(batches)
        settled(ahead + held)
    del batches
    threads_are(0)


def test_separate_iterators(ds: Any) -> None:
    with ThreadDataLoader(
        ds, batch_size=5, num_workers=1, reuse_buffers=True
    ) as loader:
        one, other = iter(loader), iter(loader)
        assert one is not other
        first = next(one)
        same(next(other), first)
        second = next(one)
        same([second, *one], list(loader)[1:])
        assert next(one, None) is next(one, None) is None
        assert len(list(other)) == len(loader) - 1


@pytest.mark.parametrize("reuse", [False, True])
def test_left_early(ds: Any, reuse: bool) -> None:
    loader = ThreadDataLoader(
        ds, batch_size=2, num_workers=3, prefetch_factor=4, reuse_buffers=reuse
    )
    for _ in range(30):
        for n, _batch in enumerate(loader):
            if n == 2:
                break
    gc.collect()
    threads_are(0)
    if reuse:
        assert loader._pool is not None
        assert loader._pool._free.qsize() == 3
    assert len(list(loader)) == len(loader)
    loader.close()
    loader.close()
    with pytest.raises(RuntimeError, match="closed"):
        iter(loader)


class Counting:
    """Counts the buffers of a dataset that are registered."""

    def __init__(self, ds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        alloc, release = ds.alloc, ds.release

        def counted_alloc(n: int) -> Any:
            self.count += 1
            return alloc(n)

        def counted_release(bufs: Any) -> None:
            release(bufs)
            self.count -= 1

        monkeypatch.setattr(ds, "alloc", counted_alloc)
        monkeypatch.setattr(ds, "release", counted_release)


def test_dropped_loaders_release_buffers(
    ds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered = Counting(ds, monkeypatch)
    for _ in range(10):
        loader = ThreadDataLoader(ds, batch_size=2, num_workers=2, reuse_buffers=True)
        batches = iter(loader)
        next(batches)
        assert registered.count >= 2
        del loader, batches
        gc.collect()
    threads_are(0)
    assert registered.count == 0


def test_subclasses(ds: Any) -> None:
    """One that overrides single samples is asked for these."""

    class Doubled(DistDataset):
        def __getitem__(self, i: Any) -> Any:
            return super().__getitem__(i)["int"] * 2

    ds.__class__ = Doubled
    assert ds.__getitems__([3, -1]) == [6, 2 * COUNT - 2]
    assert next(iter(DataLoader(ds, batch_size=3))).tolist() == [0, 2, 4]
    for more in ({}, {"num_workers": 1}, {"reuse_buffers": True}):
        loader = ThreadDataLoader(ds, batch_size=3, **more)
        assert next(iter(loader)).tolist() == [0, 2, 4]


def test_close_ends_iterators(ds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    registered = Counting(ds, monkeypatch)
    loader = ThreadDataLoader(ds, batch_size=2, num_workers=2, reuse_buffers=True)
    batches = iter(loader)
    next(batches)
    loader.close()
    assert threads() == 0
    with pytest.raises(StopIteration):
        next(batches)
    assert registered.count == 0


class Failing(Slow):
    def __getitem__(self, i: int) -> int:
        if i % 10 == 3:
            self.give_up(i)
        return i

    def give_up(self, i: int) -> None:
        raise LookupError(f"sample {i} is bad")


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_exceptions(workers: int) -> None:
    batches = iter(ThreadDataLoader(Failing(30), batch_size=5, num_workers=workers))
    for n in range(6):
        if n % 2:
            assert next(batches).tolist() == list(range(5 * n, 5 * n + 5))
            continue
        with pytest.raises(LookupError, match=f"sample {5 * n + 3} is bad") as caught:
            next(batches)
        names = [frame.name for frame in traceback.extract_tb(caught.tb)]
        assert names[-1] == "give_up"
        assert "__getitem__" in names
    with pytest.raises(StopIteration):
        next(batches)


def test_exceptions_of_reads(ds: Any) -> None:
    for reuse in (False, True):
        with ThreadDataLoader(
            ds, batch_sampler=[[0], [COUNT], [1]], num_workers=1, reuse_buffers=reuse
        ) as loader:
            batches = iter(loader)
            assert next(batches)["int"] == 0
            with pytest.raises(IndexError, match=f"{COUNT} is out of range"):
                next(batches)
            assert next(batches)["int"] == 1


def test_timeout() -> None:
    slow = Slow()
    slow.gate.clear()
    batches = iter(ThreadDataLoader(slow, num_workers=1, timeout=0.2))
    with pytest.raises(RuntimeError, match=r"timed out after 0\.2 seconds"):
        next(batches)
    slow.gate.set()
    assert next(batches) == 0


def test_worker_init_fn() -> None:
    seen = []

    def begin(number: int) -> None:
        seen.append((number, threading.current_thread()))
        time.sleep(0.05)

    list(ThreadDataLoader(Slow(), num_workers=3, worker_init_fn=begin))
    assert sorted(n for n, _ in seen) == [0, 1, 2]
    assert len({thread for _, thread in seen}) == 3

    def bad(number: int) -> None:
        raise ZeroDivisionError("at the beginning")

    with pytest.raises(ZeroDivisionError, match="at the beginning"):
        next(iter(ThreadDataLoader(Slow(), num_workers=1, worker_init_fn=bad)))


def test_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = sorted(os.sched_getaffinity(0))

    def cpus(width: int, offset: int, workers: int) -> list[set[int]]:
        monkeypatch.setenv("DDSTORE_AFFINITY_WIDTH", str(width))
        monkeypatch.setenv("DDSTORE_AFFINITY_OFFSET", str(offset))
        seen = {}

        def begin(number: int) -> None:
            seen[number] = os.sched_getaffinity(0)
            time.sleep(0.05)

        list(ThreadDataLoader(Slow(), num_workers=workers, worker_init_fn=begin))
        assert os.sched_getaffinity(0) == set(allowed)
        return [seen[n] for n in range(workers)]

    n = len(allowed)
    assert cpus(0, 1, 2) == [set(allowed)] * 2
    assert cpus(1, 0, 2) == [{allowed[0]}, {allowed[1 % n]}]
    assert cpus(1, 1, 2) == [{allowed[1 % n]}, {allowed[2 % n]}]
    assert cpus(2 * n, 1, 1) == [set(allowed)]


def test_arguments(ds: Any) -> None:
    for given, kind, words in [
        ({"num_workers": -1}, ValueError, "num_workers"),
        ({"prefetch_factor": 2}, ValueError, "prefetch_factor"),
        ({"num_workers": 1, "multiprocessing_context": "spawn"}, ValueError, "threads"),
        ({"batch_size": None, "reuse_buffers": True}, ValueError, "needs batch_size"),
        ({"collate_fn": list, "reuse_buffers": True}, ValueError, "collate_copies"),
        ({"nonsense": 1}, TypeError, "nonsense"),
    ]:
        with pytest.raises(kind, match=words):
            ThreadDataLoader(ds, **given)
    for other in (ConcatDataset([ds]), [1, 2], Subset([1, 2], [0])):
        with pytest.raises(TypeError, match="DistDataset"):
            ThreadDataLoader(other, reuse_buffers=True)
    with pytest.raises(TypeError):
        ThreadDataLoader(ds, 4)  # type: ignore[misc]

    class Stream(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter(range(3))

    with pytest.raises(TypeError, match="IterableDataset"):
        ThreadDataLoader(Stream())


def test_buffers_grow(ds: Any) -> None:
    """With a batch sampler that has batches of all sizes."""
    batches = [[1], list(range(20)), [2], list(range(COUNT)), []]
    for workers in (0, 1, 2):
        with ThreadDataLoader(
            ds, batch_sampler=batches, reuse_buffers=True, num_workers=workers,
            collate_fn=lambda b: [one["int"] for one in b], collate_copies=True,
        ) as loader:  # fmt: skip
            assert list(loader) == batches
            assert list(loader) == batches


def test_batches_stay(ds: Any) -> None:
    """What was returned isn't overwritten when buffers are used again."""
    with ThreadDataLoader(
        ds, batch_size=4, num_workers=2, reuse_buffers=True
    ) as loader:
        kept = list(loader)
        list(loader)
        same(kept, list(DataLoader(ds, batch_size=4)))


def test_pin_memory(ds: Any) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        loader = ThreadDataLoader(ds, batch_size=30, num_workers=1, pin_memory=True)
        batch = next(iter(loader))
    if torch.cuda.is_available():
        assert batch["x"].is_pinned()
    else:
        assert any("pin_memory" in str(one.message) for one in seen)
        assert not batch["x"].is_pinned()


def test_pinned(ds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were a device."""
    from pyddstore.torch import loader as module
    from pyddstore.torch import work

    monkeypatch.setattr(module, "_pins", lambda asked: asked)
    monkeypatch.setattr(work, "_pinned", lambda batch: ("pinned", batch))
    for workers in (0, 2):
        loader = ThreadDataLoader(ds, num_workers=workers, pin_memory=True)
        assert {one[0] for one in loader} == {"pinned"}


def test_decode_and_other_containers(tmp_path: Any) -> None:
    Point = namedtuple("Point", "x y")
    given: dict[str, Any] = {"rank": 0, "size": 1, "handshake_dir": str(tmp_path / "h")}
    makers = {
        "single": lambda i: torch.tensor([i, i]),
        "number": lambda i: i,
        "tuple": pair,
        "list": lambda i: list(pair(i)),
        "one": lambda i: (i,),
        "empty": lambda i: (torch.zeros(0, 2), i),
    }
    for name, make in makers.items():
        with DistDataset(Source(9, make), name, **given) as ds:
            want = list(DataLoader(ds, batch_size=4))
            plain = list(DataLoader([make(i) for i in range(9)], batch_size=4))
            same(want, plain)
            for reuse in (False, True):
                same(list(ThreadDataLoader(ds, batch_size=4, num_workers=1,
                                           reuse_buffers=reuse)), want)  # fmt: skip
    with DistDataset(Source(9, pair), "decoded", **given,
                     decode=lambda s, i: Point(s[0] * 2, i)) as ds:  # fmt: skip
        want = list(DataLoader(ds, batch_size=4))
        for reuse in (False, True):
            got = list(
                ThreadDataLoader(ds, batch_size=4, num_workers=1, reuse_buffers=reuse)
            )
            same(got, want)


def test_uncollatable(tmp_path: Any) -> None:
    """What the default collate_fn refuses, it refuses here."""
    with DistDataset(
        [np.array([b"ab"])], "s", rank=0, size=1, handshake_dir=str(tmp_path / "h")
    ) as ds:
        for loader in (DataLoader(ds), ThreadDataLoader(ds, num_workers=1)):
            with pytest.raises(TypeError, match="found"):
                list(loader)


def shuffled_epochs(m: Member) -> list[int]:
    with DistDataset(Source(COUNT, sample), "ds", rank=m.rank, size=m.size,
                     handshake_dir=m.dir) as ds:  # fmt: skip
        torch.manual_seed(m.rank)
        with ThreadDataLoader(ds, batch_size=6, shuffle=True, num_workers=2,
                              reuse_buffers=True) as loader:  # fmt: skip
            seen: list[int] = []
            for _ in range(3):
                for batch in loader:
                    numbers = batch["int"].tolist()
                    assert batch["x"][:, 1, 2].tolist() == [5.0 + i for i in numbers]
                    seen += numbers
        profile = ds.ddstore.get_profile("ds/x")
        assert profile["mr_miss"] == 0
        assert profile["rows"] == 3 * COUNT
        m.meet("read")
    return seen


def test_across_ranks(members: Members) -> None:
    orders = members(3, shuffled_epochs, {"DDSTORE_PROFILE": "1"})
    for order in orders:
        assert sorted(order) == sorted(list(range(COUNT)) * 3)
    assert orders[0] != orders[1]


def left_running(m: Member) -> None:
    """The process ends while an iterator lives and threads read."""
    ds = DistDataset(Source(COUNT, sample), "ds", rank=0, size=1, handshake_dir=m.dir)
    globals()["kept"] = [ds, iter(ThreadDataLoader(ds, num_workers=2, batch_size=3))]
    next(globals()["kept"][1])


def test_exit_while_reading(members: Members) -> None:
    members(1, left_running)


class FakeMpi:
    THREAD_SERIALIZED = 2

    @staticmethod
    def Query_thread() -> int:
        return 1


def test_method_0(ds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rules that need no MPI."""
    import sys
    import types

    from pyddstore.torch import loader as module

    monkeypatch.setattr(ds, "_method", 0)
    with pytest.raises(ValueError, match=r"num_workers=2.*method=1"):
        ThreadDataLoader(Subset(ConcatDataset([[1], ds]), [0]), num_workers=2)
    with pytest.raises(RuntimeError, match="method=1 or method=2"):
        list(DataLoader(ds, num_workers=1))
    mpi = types.SimpleNamespace(MPI=FakeMpi)
    monkeypatch.setitem(sys.modules, "mpi4py", mpi)  # type: ignore[arg-type]
    monkeypatch.setattr(module, "_warned", False)
    loader = ThreadDataLoader(ds, batch_size=4, num_workers=1)
    with pytest.warns(UserWarning, match="SERIALIZED"):
        batches = iter(loader)
    next(batches)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del batches
        gc.collect()
        assert len(list(loader)) == len(loader)
    loader.close()


def test_batch_sampler_without_batches(ds: Any) -> None:
    """drop_last leaves one of length 0, which is false."""
    few = Subset(ds, range(6))
    assert list(ThreadDataLoader(few, batch_size=10, drop_last=True)) == []


def test_persistent_workers_draw_once(ds: Any) -> None:
    orders = []
    for kind in (DataLoader, ThreadDataLoader):
        loader = kind(
            ds, batch_size=COUNT, shuffle=True, num_workers=1, persistent_workers=True,
            generator=torch.Generator().manual_seed(1),
        )  # fmt: skip
        orders.append([next(iter(loader))["int"].tolist() for _ in range(3)])
    assert orders[0] == orders[1]
