"""Reading samples out of a store: what datasets and their readers have in common."""

from __future__ import annotations

import operator
import os
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset
from typing_extensions import Self

from .. import _core
from ..store import PyDDStore
from .load import offsets_variable, variable
from .samples import TENSOR, Field, Key, RaggedRows, Structure, tensor_array

Decode = Callable[[Any, int], Any]


class Buffers(dict[Key, Any]):
    """Buffers by field, for so many samples; see alloc(). Its owner releases them."""

    def __init__(self, rows: int, dataset: str) -> None:
        super().__init__()
        self.dataset = dataset
        self.rows = self.samples = rows
        self.pid = os.getpid()
        self.registered: list[tuple[str, NDArray[Any]]] | None = []


def _flat(batch: Any) -> NDArray[Any]:
    """A batch's memory as an array, for the store."""
    return tensor_array(batch) if isinstance(batch, torch.Tensor) else batch


def row_numbers(indices: Any, total: int | None) -> NDArray[np.int64]:
    """Indices as int64, unchecked; with a total, negative ones count from the end.
    TypeError: they are no integers. IndexError: outside of 64 bits."""
    if isinstance(indices, torch.Tensor):
        indices = indices.detach().cpu().numpy()
    elif not isinstance(indices, np.ndarray | list | tuple | range):
        indices = list(indices)
    array = np.asarray(indices) if len(indices) else np.empty(0, np.int64)
    if array.dtype.kind != "i" or array.ndim != 1:
        bad = isinstance(indices, np.ndarray) and array.dtype.kind != "u"
        if array.ndim != 1 or bad:
            raise TypeError(f"indices are a list of integers, not {indices!r}")
        numbers = [operator.index(i) for i in indices]
        for number in numbers:
            if not -(2**63) <= number < 2**63:
                raise IndexError(f"index {number} is out of range")
        array = np.array(numbers, np.int64)
    array = array.astype(np.int64, copy=False)
    if total is not None and array.size and array.min() < 0:
        array = np.where(array < 0, array + total, array)
    return array


_turn = threading.local()  # here: whether this thread has its turn


def in_turn(
    datasets: Sequence[Rows], submit: Callable[..., Future[Any]], work: Any, *given: Any
) -> Future[Any]:
    """Submits work(*given), which reads these datasets of method 0, to a thread. What
    is begun for one of them runs one after another, in the order in which it was begun:
    so it does on all ranks, of whatever loaders they are."""
    before = [one._last for one in datasets if one._last is not None]
    done = threading.Event()
    future = submit(_after, before, done, work, *given)
    for one in datasets:
        one._last = done
    return future


def _after(
    before: list[threading.Event], done: threading.Event, work: Any, *given: Any
) -> Any:
    try:
        for one in before:
            one.wait()
        _turn.here = True
        return work(*given)
    finally:
        _turn.here = False
        done.set()


def _outside(index: int, total: int) -> IndexError:
    return IndexError(f"index {index} is out of range: the dataset has {total} samples")


class Rows(Dataset[Any]):
    """Samples in a store, by index.

    Reads come from any thread, with method 0 from one. Pickled, it is what a process
    needs to open a reader of its own, at its first read; a forked process does so too.
    """

    def __init__(
        self,
        store: PyDDStore,
        name: str,
        structure: Structure,
        total: int,
        decode: Decode | None,
    ) -> None:
        self.name = name
        self._structure = structure
        self._total = total
        self._decode = decode
        self._batched = _core.setting("DDSTORE_BATCH_GET") == "1"
        self._method = store.method
        self._store: PyDDStore | None = store
        self._pid: int | None = os.getpid()
        self._record: bytes | None = None  # of the store, in another process
        self._freed = False
        self._opening = threading.Lock()
        self._last: threading.Event | None = None  # of what loaders have begun

    # ---- the store -------------------------------------------------------------------

    @property
    def ddstore(self) -> PyDDStore:
        """The store: in the process that loaded the dataset its own, elsewhere a
        reader. The dataset frees it."""
        if self._pid != os.getpid():
            self._open_here()
        if self._store is None or self._freed:
            raise _core.StoreClosedError(f"the dataset {self.name!r} was freed")
        return self._store

    def _open_here(self) -> None:
        """Opens a reader in a process that got the dataset by fork or pickle."""
        with self._opening:
            if self._pid == os.getpid() or self._freed:
                return
            if self._method == 0:
                raise RuntimeError(_NO_WORKERS)
            if self._record is not None:
                self._store = pickle.loads(self._record)
            elif self._store is not None:
                parent: Any = self._store
                self._store = parent.fork_reader()
            self._record = None
            self._pid = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        if self._method == 0:
            raise RuntimeError(_NO_WORKERS)
        record = self._record
        if record is None:
            record = pickle.dumps(self.ddstore)
        state = {k: v for k, v in self.__dict__.items() if k not in _OWN}
        return state | {"_record": record, "_store": None, "_pid": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._opening = threading.Lock()

    def free(self) -> None:
        """Frees the store, or this process's reader. Local on methods 1 and 2;
        collective on method 0, after what loaders have begun. Twice does nothing.
        Others may still be reading: meet them before."""
        mine = self._pid == os.getpid()
        if mine:
            self._wait_for_loaders()
        self._freed = True
        store, self._store = self._store, None
        if store is not None and mine:
            store.free()

    def _wait_for_loaders(self) -> None:
        """Method 0: until what loaders have begun is read, as on the other ranks."""
        if self._last is not None and not getattr(_turn, "here", False):
            self._last.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.free()

    # ---- what is in it ---------------------------------------------------------------

    def __len__(self) -> int:
        return self._total

    def len(self) -> int:
        """How many samples there are, over all ranks."""
        return self._total

    @property
    def shapes(self) -> Any:
        """The fields' shapes, in the sample's structure. A ragged first dimension is
        None."""
        return self._structure.shapes

    @property
    def dtypes(self) -> Any:
        """The fields' dtypes, in the sample's structure: torch's for tensors, else
        NumPy's."""
        return self._structure.dtypes

    def __repr__(self) -> str:
        state = ", freed" if self._freed else ""
        return f"<{type(self).__name__} {self.name!r}: {self._total} samples{state}>"

    # ---- samples ---------------------------------------------------------------------

    def get(self, index: int) -> Any:
        """Sample `index`, as ``ds[index]``."""
        return self[index]

    def __getitem__(self, index: Any) -> Any:
        """Sample `index`, in memory of its own; negative ones count from the end.
        IndexError: there is none. Any thread; never collective."""
        if isinstance(index, slice):
            raise TypeError("a slice is no sample: give an integer, or use Subset")
        number = operator.index(index)
        row = number + self._total if number < 0 else number
        if not 0 <= row < self._total:
            raise _outside(number, self._total)
        store = self.ddstore
        values = []
        for field in self._structure.fields:
            if field.ragged:
                values.append(self._get_run(store, field, row))
                continue
            batch = field.empty(1)
            store.get(variable(self.name, field.key), _flat(batch), row)
            values.append(field.split(batch, 1)[0])
        return self._decoded(self._structure.build(values), row)

    def _get_run(self, store: PyDDStore, field: Field, row: int) -> Any:
        where = np.empty((1, 2), np.int64)
        store.get(offsets_variable(self.name, field.key), where, row)
        start, rows = where[0].tolist()
        values = field.empty(rows)
        store.get(variable(self.name, field.key), _flat(values), start)
        return field.runs(RaggedRows(values, _as(field, np.array([0, rows]))))[0]

    def _decoded(self, sample: Any, row: int) -> Any:
        return sample if self._decode is None else self._decode(sample, row)

    def __getitems__(self, indices: Sequence[int], out: Buffers | None = None) -> Any:
        """``[ds[i] for i in indices]``, by one get_batch a field, two for a ragged one.

        out: buffers of alloc(), in which the samples then lie, until they are used
        again. Any thread; with method 0 collective: every rank calls it as often, from
        one thread.
        """
        if type(self).__getitem__ is not Rows.__getitem__:
            return [self[i] for i in indices]  # what a subclass makes of them
        rows = self._checked(indices)
        read = self._read(rows, self._structure.fields, out)
        n = len(rows)
        columns = [
            field.runs(read[field.key])
            if field.ragged
            else field.split(read[field.key], n)
            for field in self._structure.fields
        ]
        samples = self._structure.samples(columns, n) if columns else []
        if self._decode is not None:
            decode = self._decode
            numbers = rows.tolist()
            samples = [decode(s, i) for s, i in zip(samples, numbers, strict=True)]
        return samples

    def _stacked(self, indices: Any, out: Buffers | None) -> list[Any]:
        """Each field of these samples as one batch."""
        rows = self._checked(indices)
        return list(self._read(rows, self._structure.fields, out).values())

    def _stacked_zeros(self) -> list[Any]:
        """Two samples of zeros, stacked, that nobody has stored."""
        return [zeros(field, 2) for field in self._structure.fields]

    def _like_samples(self) -> list[Any]:
        """The same two, each by itself."""
        fields = self._structure.fields
        columns = [f.split(zeros(f, 2), 2) for f in fields]
        return self._structure.samples(columns, 2)

    # ---- rows of fields --------------------------------------------------------------

    def read_rows(
        self,
        rows: Sequence[int],
        fields: Iterable[Key] | None = None,
        out: Buffers | None = None,
    ) -> dict[Key, Any]:
        """The fields of these samples, stacked, as they are stored: key to a tensor or
        array of ``(len(rows), *shape)``; of a ragged field RaggedRows.

        fields: keys, all by default; KeyError: there is no such field. out: buffers of
        alloc(), of which the result is a part; ValueError: there are more rows than
        they hold. Threads as for __getitems__().
        """
        with self._told():
            chosen = self._structure.chosen(fields)
        return self._read(self._checked(rows), chosen, out)

    def _checked(self, indices: Any) -> NDArray[np.int64]:
        total = self._total
        with self._told():
            rows = row_numbers(indices, total)
            outside = rows[(rows < 0) | (rows >= total)]
            if outside.size:
                bad = int(outside[0])
                raise _outside(bad - total if bad < 0 else bad, total)
            return rows

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What fails inside fails on all ranks, with method 0: the others are in the
        call, after what loaders have begun."""
        if self._batched:
            self._wait_for_loaders()
        try:
            yield
        except Exception as exc:
            if self._method == 0 and self._batched:
                self.ddstore._get_batch_failed(exc)
            raise

    def _read(
        self,
        rows: NDArray[np.int64],
        fields: tuple[Field, ...],
        out: Buffers | None,
        single: bool = False,
    ) -> dict[Key, Any]:
        """single: by get(), which is not collective with method 0."""
        store = self.ddstore
        batched = self._batched and not (single and self._method == 0)
        if out is not None:
            with self._told():
                _check_buffers(out, fields, len(rows))
        read: dict[Key, Any] = {}
        for field in fields:
            into = None if out is None else out[field.key]
            if field.ragged:
                read[field.key] = self._read_runs(store, field, rows, into, batched)
                continue
            batch = field.empty(len(rows)) if into is None else into[: len(rows)]
            _batch(store, variable(self.name, field.key), batch, rows, batched)
            read[field.key] = batch
        return read

    def _read_runs(
        self, store: PyDDStore, field: Field, rows: NDArray[np.int64], into: Any,
        batched: bool,
    ) -> RaggedRows:  # fmt: skip
        where = np.empty((len(rows), 2), np.int64)
        _batch(store, offsets_variable(self.name, field.key), where, rows, batched)
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(where[:, 1], out=offsets[1:])
        total = int(offsets[-1])
        if into is None:
            values = field.empty(total)
        else:
            values = into.values[:total]
            into.offsets[: len(offsets)] = _as(field, offsets)
        if batched:
            store._get_runs(variable(self.name, field.key), _flat(values), where)
        else:
            flat = _flat(values)
            ends = offsets.tolist()
            for start, a, b in zip(where[:, 0].tolist(), ends, ends[1:], strict=False):
                store.get(variable(self.name, field.key), flat[a:b], start)
        return RaggedRows(values, _as(field, offsets))

    # ---- buffers ---------------------------------------------------------------------

    def alloc(self, n: int, fields: Iterable[Key] | None = None) -> Buffers:
        """Registered buffers for n samples: key to ``(n, *shape)``, of a ragged field
        RaggedRows that hold n of the longest. The dataset keeps them until release()
        or free()."""
        n = operator.index(n)
        if n < 0:
            raise ValueError(f"alloc({n}): give 0 or more samples")
        store = self.ddstore
        buffers = Buffers(n, self.name)
        try:
            for field in self._structure.chosen(fields):
                self._alloc_field(store, buffers, field)
        except BaseException:
            self.release(buffers)
            raise
        return buffers

    def _alloc_field(self, store: PyDDStore, buffers: Buffers, field: Field) -> None:
        n = buffers.rows
        batch = field.empty(n * field.longest if field.ragged else n)
        flat, name = _flat(batch), variable(self.name, field.key)
        if flat.nbytes and buffers.registered is not None:
            store.register_recv(name, flat)
            buffers.registered.append((name, flat))
        if field.ragged:
            batch = RaggedRows(batch, _as(field, np.zeros(n + 1, np.int64)))
        buffers[field.key] = batch

    def release(self, bufs: Buffers) -> None:
        """Takes back the registration of what alloc() returned. Twice: ValueError."""
        if not isinstance(bufs, Buffers) or bufs.registered is None:
            raise ValueError("these buffers aren't registered, or not any more")
        if bufs.dataset != self.name:
            raise ValueError(f"these buffers are of the dataset {bufs.dataset!r}")
        registered, bufs.registered = bufs.registered, None
        if self._freed or bufs.pid != os.getpid():
            return
        for name, flat in registered:
            self.ddstore.unregister_recv(name, flat)


_OWN = ("_opening",)  # not sent to another process
_NO_WORKERS = (
    "a dataset of method 0 is read over MPI, which worker processes can't do: use "
    "method=1 or method=2, or ThreadDataLoader(num_workers=1)"
)


def _batch(
    store: PyDDStore, name: str, batch: Any, rows: NDArray[np.int64], batched: bool
) -> None:
    """Rows into a batch, by one call or by one a row."""
    flat = _flat(batch)
    if batched:
        store.get_batch(name, flat, rows)
        return
    for i, row in enumerate(rows.tolist()):
        store.get(name, flat[i : i + 1], row)


def zeros(field: Field, *shape: int) -> Any:
    """Zeros of a field, (*shape, *field.shape)."""
    count = int(np.prod(shape))
    batch = field.empty(count)
    flat = _flat(batch)
    flat.reshape(-1).view(np.uint8)[...] = 0
    return batch.reshape((*shape, *field.shape))


def _as(field: Field, offsets: NDArray[np.int64]) -> Any:
    return torch.from_numpy(offsets) if field.kind == TENSOR else offsets


def _check_buffers(out: Buffers, fields: tuple[Field, ...], rows: int) -> None:
    if rows > out.rows:
        raise ValueError(f"the buffers hold {out.rows} samples, not {rows}")
    for field in fields:
        if field.key not in out:
            raise KeyError(f"the buffers have no field {field.key!r}: {list(out)}")
