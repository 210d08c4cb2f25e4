"""ThreadDataLoader(reuse_buffers=True): its pool of registered buffers."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from members import Member, Members

pytest.importorskip("torch", reason="optional: torch is not installed")

import torch
from loader_support import COUNT, loaded, no_threads_are_left, sample, threads
from torch.utils.data import DataLoader
from torch_support import Source, same

from pyddstore.torch import DistDataset, ThreadDataLoader


@pytest.fixture
def ds(tmp_path: Any) -> Any:
    yield from loaded(tmp_path)


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
    no_threads_are_left()
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
    no_threads_are_left()
    assert registered.count == 0


def test_a_pool_that_fails_releases_what_it_had(
    ds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second set's last field can't be registered."""
    registered: list[str] = []
    store = type(ds.ddstore)
    register, unregister = store.register_recv, store.unregister_recv

    def registering(self: Any, name: str, array: Any) -> None:
        if registered.count("ds/bool"):
            raise MemoryError("no more")
        register(self, name, array)
        registered.append(name)

    def unregistering(self: Any, name: str, array: Any) -> None:
        unregister(self, name, array)
        registered.remove(name)

    monkeypatch.setattr(store, "register_recv", registering)
    monkeypatch.setattr(store, "unregister_recv", unregistering)
    with pytest.raises(MemoryError, match="no more"):
        ThreadDataLoader(ds, batch_size=2, num_workers=2, reuse_buffers=True)
    assert registered == []
    with pytest.raises(KeyError):
        ds.alloc(2, ["x", "nothing"])
    assert registered == []


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
