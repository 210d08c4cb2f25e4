"""ThreadDataLoader against DataLoader."""

from __future__ import annotations

import gc
import sys
import types
import warnings
from collections import namedtuple
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="optional: torch is not installed")

import torch
from loader_support import COUNT, loaded, sample
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
    DistDatasetReader,
    ThreadDataLoader,
    WindowedDataset,
)


@pytest.fixture
def ds(tmp_path: Any) -> Any:
    yield from loaded(tmp_path)


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


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_readers(tmp_path: Any, workers: int) -> None:
    """Of a dataset that a running job holds, and windows over one."""
    given: dict[str, Any] = {"rank": 0, "size": 1, "handshake_dir": str(tmp_path / "h")}
    with DistDataset(Source(COUNT, sample), "ds", method=2, **given) as ds, \
            DistDatasetReader("ds", tmp_path / "h") as reader:  # fmt: skip
        own, theirs = (
            [one, Subset(one, [9, 3, -1]), WindowedDataset(one, 4, 3, fields=["x"])]
            for one in (ds, reader)
        )
        for mine, other in zip(own, theirs, strict=True):
            want = list(DataLoader(mine, batch_size=5))
            same(list(DataLoader(other, batch_size=5)), want)
            for reuse in (False, True):
                with ThreadDataLoader(
                    other, batch_size=5, num_workers=workers, reuse_buffers=reuse
                ) as loader:
                    same(list(loader), want)
                    same(list(loader), want)


class FakeMpi:
    THREAD_SERIALIZED = 2

    @staticmethod
    def Query_thread() -> int:
        return 1


def test_method_0(ds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rules that need no MPI."""
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
