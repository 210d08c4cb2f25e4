"""Windows over consecutive rows, and rows of concatenated datasets."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Dataset

from .rows import Buffers, Rows, row_numbers, zeros
from .samples import TENSOR, Key


class WindowedDataset(Dataset[Any]):
    """Windows of a dataset's rows, such as pieces of time series.

    Sample i is the rows s, s + dilation, ... (`window` of them) with s = i * stride, or
    starts[i]: the fields of ds, or those chosen by `fields`, stacked, as tensors or
    arrays of ``(window, *shape)`` in the structure of a sample. They are as stored:
    decode is not applied. ds: a DistDataset or DistDatasetReader, which the caller
    frees. A batch is one read_rows(). A window past the end, or before the start:
    IndexError.
    """

    def __init__(
        self,
        ds: Rows,
        window: int,
        stride: int = 1,
        dilation: int = 1,
        starts: Sequence[int] | None = None,
        fields: Iterable[Key] | None = None,
    ) -> None:
        for what, number in (
            ("window", window), ("stride", stride), ("dilation", dilation),
        ):  # fmt: skip
            if operator.index(number) < 1:
                raise ValueError(f"{what} is {number}: give 1 or more")
        self.dataset = ds
        self.window = window
        self._structure = ds._structure.picked(ds._structure.chosen(fields))
        if not self._structure.fields:
            raise ValueError("fields=[]: choose one field at least")
        for field in self._structure.fields:
            if field.ragged:
                raise ValueError(
                    f"field {field.key!r} is ragged and can't be stacked: choose "
                    "others by fields="
                )
        self._steps = np.arange(window, dtype=np.int64) * dilation
        self._starts = self._all_starts(starts, stride, len(ds))

    def _all_starts(
        self, starts: Sequence[int] | None, stride: int, total: int
    ) -> NDArray[np.int64]:
        last = total - 1 - int(self._steps[-1])
        if starts is None:
            return np.arange(0, last + 1, stride, dtype=np.int64)
        given = row_numbers(starts, None)
        bad = np.flatnonzero((given < 0) | (given > last))
        if bad.size:
            start = int(given[bad[0]])
            raise IndexError(
                f"window {bad[0]} has rows {start} to {start + int(self._steps[-1])}: "
                f"the dataset has {total}"
            )
        return np.array(given, np.int64)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> Any:
        """Window `index`; negative ones count from the end. Never collective."""
        stacked = self._stacked([operator.index(index)], None, single=True)
        return self._samples(stacked, 1)[0]

    def __getitems__(self, indices: Sequence[int], out: Buffers | None = None) -> Any:
        """``[self[i] for i in indices]``, by one read_rows(). out: of alloc(). Threads
        as for the dataset's."""
        if type(self).__getitem__ is not WindowedDataset.__getitem__:
            return [self[i] for i in indices]  # what a subclass makes of them
        return self._samples(self._stacked(indices, out), len(indices))

    def _stacked(
        self, indices: Any, out: Buffers | None, single: bool = False
    ) -> list[Any]:
        """Each field of these windows as one batch."""
        with nullcontext() if single else self.dataset._told():
            numbers = row_numbers(indices, len(self))
            if numbers.size and not (numbers.min() >= 0 and numbers.max() < len(self)):
                raise IndexError(
                    f"index {indices} is out of range: there are {len(self)} windows"
                )
        rows = (self._starts[numbers][:, None] + self._steps).ravel()
        read = self.dataset._read(rows, self._structure.fields, out, single)
        return [
            read[field.key].reshape(len(numbers), self.window, *field.shape)
            for field in self._structure.fields
        ]

    def _samples(self, stacked: list[Any], n: int) -> list[Any]:
        columns = [
            batch.unbind(0) if field.kind == TENSOR else list(batch)
            for field, batch in zip(self._structure.fields, stacked, strict=True)
        ]
        return self._structure.samples(columns, n)

    def _stacked_zeros(self) -> list[Any]:
        """Two windows of zeros, stacked, that nobody has stored."""
        return [zeros(field, 2, self.window) for field in self._structure.fields]

    def _like_samples(self) -> list[Any]:
        """The same two, each by itself."""
        return self._samples(self._stacked_zeros(), 2)

    def alloc(self, n: int) -> Buffers:
        """Registered buffers for n windows; see the dataset's."""
        buffers = self.dataset.alloc(n * self.window, self._structure.keys)
        buffers.samples = n
        return buffers

    def release(self, bufs: Buffers) -> None:
        """Takes back the registration of what alloc() returned. Twice: ValueError."""
        self.dataset.release(bufs)


def row_of(concat: ConcatDataset[Any], source: int, index: int) -> int:
    """The row in a ConcatDataset of sample `index` of its dataset number `source`. Both
    count from 0. IndexError: there is none."""
    source, index = operator.index(source), operator.index(index)
    if not 0 <= source < len(concat.datasets):
        raise IndexError(f"source {source}: there are {len(concat.datasets)}")
    ends = concat.cumulative_sizes
    first = ends[source - 1] if source else 0
    if not 0 <= index < ends[source] - first:
        raise IndexError(f"sample {index}: source {source} has {ends[source] - first}")
    return int(first + index)
