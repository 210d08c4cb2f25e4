"""ThreadDataLoader: a DataLoader whose workers are threads."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, TimeoutError
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate
from typing_extensions import Self

from .direct import direct
from .rows import in_turn
from .work import BufferPool, Work, find, has_buffers, rows_below


class ThreadDataLoader(DataLoader[Any]):
    """A DataLoader whose workers are threads of this process.

    Takes DataLoader's arguments by keyword, and gives what DataLoader gives: the same
    batches in the same order, collated the same way, with the same draws from the
    generator (those that datasets make themselves in a worker apart). num_workers *
    prefetch_factor batches are read ahead while the caller holds one. Each iter() is an
    iterator of its own, with its own threads; one that is left early ends them. An
    exception in a worker is raised here, with the worker's traceback. worker_init_fn is
    called in each thread, where torch.utils.data.get_worker_info() is None, as it is in
    the main process. DDSTORE_AFFINITY_WIDTH and _OFFSET bind threads to CPUs.

    reuse_buffers: reads go into a fixed pool of registered buffers, one set a worker.
    For a DistDataset, DistDatasetReader or WindowedDataset, or a Subset of one, and
    where a batch is copied out of them: with batch_size (or batch_sampler), and with
    the default collate_fn, or one of which collate_copies=True says that nothing it
    returns shares memory with the samples. Else ValueError or TypeError.

    A dataset of method 0 is read by one thread at most: num_workers is 0 or 1, else
    ValueError, and every rank takes as many batches. All that loaders have begun to
    read of it is read in the order in which it was begun, the same on all ranks: other
    iterators, batches read elsewhere and the dataset's free() come after it.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        reuse_buffers: bool = False,
        collate_copies: bool = False,
        **arguments: Any,
    ) -> None:
        self._closed = self._seeded = False
        self._pool: BufferPool | None = None
        self._running: weakref.WeakSet[_Batches] = weakref.WeakSet()
        self._ending: list[ThreadPoolExecutor] = []
        if arguments.get("multiprocessing_context") is not None:
            raise ValueError("multiprocessing_context: the workers are threads")
        super().__init__(dataset, **arguments)
        if isinstance(dataset, IterableDataset):
            raise TypeError("an IterableDataset has no indices to hand out to threads")
        self._together = [rows for rows in rows_below(dataset) if rows._method == 0]
        if self._together and self.num_workers > 1:
            raise ValueError(
                f"num_workers={self.num_workers}: reads of method 0 are collective and "
                "come from one thread; use num_workers=1, or method=1 or method=2"
            )
        self._direct = None
        if self.collate_fn is default_collate and has_buffers(dataset):
            self._direct = direct(find(dataset))
        if reuse_buffers:
            self._pool = self._new_pool(dataset, collate_copies)
            weakref.finalize(self, self._pool.close).atexit = False

    def _new_pool(self, dataset: Any, collate_copies: bool) -> BufferPool:
        if self.batch_sampler is None:
            raise ValueError(
                "reuse_buffers=True needs batch_size: without it nothing copies the "
                "samples out of the buffers"
            )
        if self.collate_fn is not default_collate and not collate_copies:
            raise ValueError(
                "reuse_buffers=True with a collate_fn of your own: say "
                "collate_copies=True if nothing that it returns shares memory with the "
                "samples"
            )
        size = self.batch_size or getattr(self.batch_sampler, "batch_size", None) or 1
        return BufferPool(find(dataset), max(1, self.num_workers), int(size))

    def check_worker_number_rationality(self) -> None:
        """DataLoader warns of more worker processes than CPUs. Threads mostly wait."""

    def __iter__(self) -> Any:
        if self._closed:
            raise RuntimeError("this loader was closed")
        if self._together:
            _warn_of_threads(self.num_workers)
            while self._ending:  # what an earlier iterator still reads with the others
                self._ending.pop().shutdown()
        batches = _Batches(self)
        self._running.add(batches)
        return batches

    def close(self) -> None:
        """Ends all iterators and their threads, and releases the buffers. Twice does
        nothing."""
        self._closed = True
        for batches in list(self._running):
            batches.close()
        while self._ending:
            self._ending.pop().shutdown()
        if self._pool is not None:
            self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _stop(
    executor: ThreadPoolExecutor | None,
    futures: deque[Future[Any]],
    ending: list[ThreadPoolExecutor] | None,
) -> None:
    """What is left of an iterator ends. ending, with method 0: what was begun is read
    to its end, as the other ranks do."""
    futures.clear()
    if executor is None:
        return
    executor.shutdown(wait=False, cancel_futures=ending is None)
    if ending is not None:
        ending.append(executor)


class _Batches(Iterator[Any]):
    """One pass over a loader."""

    def __init__(self, loader: ThreadDataLoader) -> None:
        pin = _pins(loader.pin_memory)
        self._work = Work(loader, loader._pool, pin)
        self._length = loader
        self._together = loader._together
        self._timeout = loader.timeout or None
        sampler: Any = loader.batch_sampler  # one without batches is false
        self._order = iter(loader.sampler if sampler is None else sampler)
        # DataLoader draws its workers' seed here, whether it has workers or not; once,
        # if it keeps them.
        if not (loader.persistent_workers and loader._seeded):
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        loader._seeded = True
        self._futures: deque[Future[Any]] = deque()
        self._executor: ThreadPoolExecutor | None = None
        workers = loader.num_workers
        if workers:
            self._executor = ThreadPoolExecutor(workers, "ThreadDataLoader")
        self._end = weakref.finalize(
            self, _stop, self._executor, self._futures,
            loader._ending if loader._together else None,
        )  # fmt: skip
        for _ in range(workers * max(1, loader.prefetch_factor or 1)):
            self._submit()

    def _submit(self) -> None:
        """Hands the next indices to the workers, if there are any."""
        if self._executor is not None and self._end.alive:
            for indices in self._order:
                submit = self._executor.submit
                self._futures.append(
                    in_turn(self._together, submit, self._work, indices)
                    if self._together
                    else submit(self._work, indices)
                )
                return

    def __next__(self) -> Any:
        if not self._end.alive:
            raise StopIteration
        if self._executor is None:
            return self._work(next(self._order))
        if not self._futures:
            self._end()
            raise StopIteration
        first = self._futures[0]
        try:
            first.exception(self._timeout)
        except TimeoutError:
            text = f"DataLoader timed out after {self._timeout} seconds"
            raise RuntimeError(text) from None
        except CancelledError:
            raise StopIteration from None
        if not self._end.alive:  # closed meanwhile
            raise StopIteration
        self._futures.popleft()
        self._submit()
        return first.result()

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return len(self._length)

    def close(self) -> None:
        """Ends the iterator, and waits for what its threads have begun."""
        self._end()
        if self._executor is not None:
            self._executor.shutdown()


def _pins(asked: bool) -> bool:
    """Whether batches are pinned: where there is a device for it."""
    if not asked:
        return False
    accelerator = getattr(torch, "accelerator", torch.cuda)
    if accelerator.is_available():
        return True
    warnings.warn(
        "pin_memory is set, but there is no accelerator: memory isn't pinned",
        stacklevel=4,
    )
    return False


_warned = False


def _warn_of_threads(workers: int) -> None:
    """Once, where MPI was told that only one thread would call it."""
    global _warned
    mpi = getattr(sys.modules.get("mpi4py"), "MPI", None)
    if _warned or not workers or mpi is None:
        return
    if mpi.Query_thread() < mpi.THREAD_SERIALIZED:
        _warned = True
        warnings.warn(
            "MPI's thread level is below MPI_THREAD_SERIALIZED, and a worker thread is "
            "going to read over MPI: set mpi4py.rc.thread_level = 'serialized' before "
            "mpi4py.MPI is imported, or use method=1",
            stacklevel=3,
        )
