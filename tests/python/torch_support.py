"""Samples, and comparing them, for the tests of pyddstore.torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

PAIR = np.dtype([("a", "<i4"), ("b", "<f8")])
PADDED = np.dtype({"names": ["a", "b"], "formats": ["u1", "<f8"], "offsets": [0, 8]})


def every_kind(i: int) -> dict[str, Any]:
    """A sample with a field of every kind."""
    return {
        "float tensor": torch.full((3, 2), float(i)),
        "0-d tensor": torch.tensor(i),
        "bfloat16": torch.full((2,), float(i % 7), dtype=torch.bfloat16),
        "float8": torch.tensor([i % 7, 1.0]).to(torch.float8_e4m3fn),
        "complex32": torch.tensor([i + 2j]).to(torch.complex32),
        "bools": torch.tensor([i % 2 == 0, True]),
        "no rows": torch.zeros(0, 3),
        "array": np.full((2, 2), i, np.int16),
        "big endian": np.arange(i, i + 3, dtype=">i4"),
        "0-d array": np.array(i, np.uint8),
        "empty array": np.zeros((2, 0)),
        "times": np.array([i, 2 * i], "M8[s]"),
        "bytes": np.array([b"ab", b"%03d" % i]),
        "float32": np.float32(i) / 3,
        "bool_": np.bool_(i % 3 == 0),
        "text": np.str_(f"{i:04}"),
        "moment": np.datetime64(i, "ms"),
        "int": i - 2**62,
        "float": i / 7,
        "bool": i % 2 == 1,
        "void": np.array((i, i + 0.5), PAIR)[()],
        "record": np.rec.array([(i, 0.5)], dtype=PAIR)[0],
        "structured": np.array([(i, 1), (2, i)], PADDED),
        "recarray": np.rec.array([(i, 1.5), (3, i)], dtype=PAIR),
        "0-d structured": np.array((i, 7), PAIR),
    }


def same(one: Any, other: Any, where: str = "") -> None:
    """Both are the same kind of thing, and equal."""
    assert type(one) is type(other), f"{where}: {type(one)}, {type(other)}"
    if isinstance(one, dict):
        assert list(one) == list(other), where
        for key in one:
            same(one[key], other[key], f"{where}[{key!r}]")
    elif isinstance(one, tuple | list):
        assert len(one) == len(other), where
        for n, (a, b) in enumerate(zip(one, other, strict=True)):
            same(a, b, f"{where}[{n}]")
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, where
        assert one.shape == other.shape, where
        wide = torch.complex64 if one.dtype.is_complex else torch.float64
        if one.dtype.is_complex or one.dtype.itemsize < 4:
            one, other = one.to(wide), other.to(wide)
        assert torch.equal(one, other), f"{where}: {one}, {other}"
    elif isinstance(one, np.ndarray | np.generic):
        assert one.dtype == other.dtype, where
        assert one.dtype.type is other.dtype.type, where
        assert one.shape == other.shape, where
        assert np.array_equal(one, other), f"{where}: {one}, {other}"
    else:
        assert one == other, f"{where}: {one}, {other}"


class Source:
    """`count` samples of make(i); notes which were asked for."""

    def __init__(self, count: int, make: Any = every_kind) -> None:
        self.count, self.make = count, make
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        if not 0 <= i < self.count:
            raise IndexError(i)
        self.asked.append(i)
        return self.make(i)


class Many(Source):
    """One that gives several at a time."""

    def __init__(self, count: int, make: Any = every_kind) -> None:
        super().__init__(count, make)
        self.chunks: list[list[int]] = []

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.chunks.append(indices)
        return [self.make(i) for i in indices]


def pair(i: int) -> tuple[Any, int]:
    """A plain sample: a tensor and a number."""
    return torch.arange(4.0) + i, i


def graph(i: int) -> dict[str, Any]:
    """A graph of a size of its own; some have no edges."""
    random = np.random.default_rng([3, i])
    nodes, edges = int(random.integers(1, 9)), int(random.integers(0, 20))
    return {
        "x": torch.from_numpy(random.random((nodes, 3))),
        "edges": random.integers(0, nodes, (edges, 2)),
        "y": float(i),
    }


def numbered(stored: Any, index: int) -> dict[str, Any]:
    """A decode that can be sent to another process."""
    import os
    import sys

    return {
        "sample": stored,
        "index": index,
        "pid": os.getpid(),
        "mpi": "mpi4py" in sys.modules,
    }


def as_list(batch: list[Any]) -> list[Any]:
    """A collate_fn that can be sent to another process."""
    return batch


class Ending:
    """A dataset of which reading one sample ends the process, or raises."""

    def __init__(self, ds: Any, at: int, how: str) -> None:
        self.ds, self.at, self.how = ds, at, how

    def __len__(self) -> int:
        return len(self.ds)

    def __getitem__(self, i: int) -> Any:
        import os
        import signal
        import sys

        sample = self.ds[i]
        if i == self.at:
            if self.how == "raises":
                raise LookupError("on purpose")
            if self.how == "exits":
                sys.exit(3)
            if self.how == "ends":
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        return sample
