"""What a worker thread does for a batch: read it, collate it, pin it."""

from __future__ import annotations

import itertools
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import ConcatDataset, StackDataset, Subset

from .. import _core
from .rows import Buffers, Rows
from .windows import WindowedDataset


def rows_below(dataset: Any) -> Iterator[Rows]:
    """The datasets in stores that a dataset of PyTorch's own kinds reads from."""
    if isinstance(dataset, Rows):
        yield dataset
    elif isinstance(dataset, ConcatDataset | StackDataset):
        parts: Any = dataset.datasets
        for one in parts.values() if isinstance(parts, dict) else parts:
            yield from rows_below(one)
    elif isinstance(dataset, Subset | WindowedDataset):
        yield from rows_below(dataset.dataset)


def _below(dataset: Any) -> Any:
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return dataset


def has_buffers(dataset: Any) -> bool:
    """Whether find() finds one."""
    return isinstance(_below(dataset), Rows | WindowedDataset)


def find(dataset: Any) -> Rows | WindowedDataset:
    """The dataset that has buffers, behind subsets. TypeError: there is none."""
    below = _below(dataset)
    if isinstance(below, Rows | WindowedDataset):
        return below
    raise TypeError(
        "reuse_buffers=True needs a DistDataset, DistDatasetReader or WindowedDataset, "
        f"or a Subset of one, not {type(below).__name__}"
    )


def indices_in(dataset: Any, indices: Any) -> Any:
    """The indices in find(dataset)."""
    while type(dataset) is Subset:
        indices = [dataset.indices[i] for i in indices]
        dataset = dataset.dataset
    return indices


_UNREGISTERED = ("self", "local", "tcp")  # paths on which registering saves nothing


class BufferPool:
    """Sets of registered buffers, each used by one batch at a time.

    saves: whether reads into them are faster than into fresh memory.
    """

    def __init__(self, dataset: Rows | WindowedDataset, sets: int, rows: int) -> None:
        self.dataset = dataset
        self._free: queue.SimpleQueue[Buffers | None] = queue.SimpleQueue()
        self._closed = False
        self._rows = rows
        store = next(rows_below(dataset)).ddstore
        self._together = store.method == 0
        self.saves = any(p["path"] not in _UNREGISTERED for p in store.transports())
        try:
            for _ in range(sets):
                self._free.put(dataset.alloc(rows))
        except BaseException:
            self.close()
            raise

    @contextmanager
    def borrowed(self, rows: int) -> Iterator[Buffers]:
        """A set of buffers for so many samples, until the end of the block."""
        buffers = self._free.get()
        try:
            # With method 0 the other ranks read what was begun, closed or not.
            if self._closed and not self._together:
                raise RuntimeError("this loader was closed")
            # A batch sampler's batches may grow. None: that has failed before.
            if rows > self._rows:
                self._rows = rows
            if buffers is not None and rows > buffers.samples:
                old, buffers = buffers, None
                self.dataset.release(old)
            if buffers is None:
                buffers = self.dataset.alloc(self._rows)
            yield buffers
        except (_core.DDStoreError, KeyboardInterrupt):
            buffers = None  # bytes may still arrive in what the store keeps registered
            raise
        finally:
            self._free.put(buffers)
            if self._closed:
                self.close()

    def close(self) -> None:
        """Releases all buffers, those in use once they are given back."""
        self._closed = True
        while True:
            try:
                buffers = self._free.get_nowait()
            except queue.Empty:
                break
            if buffers is not None:
                self.dataset.release(buffers)
        self._free.put(None)  # whoever waits for buffers hears of it


class Work:
    """Makes a batch of its indices, in whichever thread. Knows no iterator, so that one
    that is dropped can end."""

    def __init__(self, loader: Any, pool: BufferPool | None, pin: bool) -> None:
        self._dataset = loader.dataset
        self._collate = loader.collate_fn
        self._batched = loader.batch_sampler is not None
        self._pool = pool
        self._direct = loader._direct
        self._pin = pin
        self._begin = loader.worker_init_fn if loader.num_workers else None
        self._cpus = _cpus() if loader.num_workers else None
        self._numbers = itertools.count()
        self._thread = threading.local()

    def __call__(self, indices: Any) -> Any:
        """The batch."""
        if not hasattr(self._thread, "number"):
            self._thread.number = next(self._numbers)
            self._start(self._thread.number)
        batch = self._collated(indices)
        return _pinned(batch) if self._pin else batch

    def _collated(self, indices: Any) -> Any:
        whole = self._direct if self._batched and len(indices) else None
        if whole is not None and (self._pool is None or not self._pool.saves):
            return whole(indices_in(self._dataset, indices), None)
        if self._pool is None:
            return self._collate(self._samples(indices))
        below = indices_in(self._dataset, indices)
        with self._pool.borrowed(len(below)) as out:
            if whole is not None:
                return whole(below, out)
            return self._collate(self._pool.dataset.__getitems__(below, out=out))

    def _start(self, number: int) -> None:
        """In each thread, before its first batch."""
        if self._cpus:
            allowed, width, offset = self._cpus
            first = number * width + offset
            mine = {allowed[(first + i) % len(allowed)] for i in range(width)}
            os.sched_setaffinity(0, mine)
        if self._begin is not None:
            self._begin(number)

    def _samples(self, indices: Any) -> Any:
        if not self._batched:
            return self._dataset[indices]
        many = getattr(self._dataset, "__getitems__", None)
        if many:
            return many(indices)
        return [self._dataset[i] for i in indices]


def _cpus() -> tuple[list[int], int, int] | None:
    """CPUs of this process, how many a thread gets, and where the first one's begin."""
    width = int(_core.setting("DDSTORE_AFFINITY_WIDTH"))
    offset = int(_core.setting("DDSTORE_AFFINITY_OFFSET"))
    return (sorted(os.sched_getaffinity(0)), width, offset) if width else None


def _pinned(batch: Any) -> Any:
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(batch)
