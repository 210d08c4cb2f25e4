"""The rows of the example: the handwritten digits that scikit-learn ships, and behind
them as many made-up ones as wanted. Every process can tell what a row must be."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WIDTH = 64
ROW_BYTES = 4 * WIDTH
BLOCK = 1 << 15  # rows that are made at once

Rows = NDArray[np.float32]
Numbers = NDArray[np.int64]


def digits() -> Rows:
    """Images of 8 by 8 pixels, one a row."""
    from sklearn.datasets import load_digits

    return np.ascontiguousarray(load_digits().data, np.float32)


def expected(source: Rows, numbers: Numbers) -> Rows:
    """What the rows of these numbers hold. Behind the digits, value c of row r is
    (r + c * (1 + r // 2**24)) % 2**24: exact in float32, and no two rows are alike."""
    row = numbers[:, None]
    rows = ((row + np.arange(WIDTH) * (1 + (row >> 24))) & 0xFFFFFF).astype(np.float32)
    real = numbers < len(source)
    rows[real] = source[numbers[real]]
    return rows


def total_rows(source: Rows, gib: float) -> int:
    """The digits, filled up to so many GiB."""
    return max(len(source), int(gib * 2**30) // ROW_BYTES)


def shard(total: int, rank: int, size: int) -> tuple[int, int]:
    """First row of a rank, and how many it holds."""
    first, end = total * rank // size, total * (rank + 1) // size
    return first, end - first


def fill(rows: Rows, source: Rows, first: int) -> None:
    """Writes the rows from `first` on where they belong, without a copy of them all."""
    for at in range(0, len(rows), BLOCK):
        block = rows[at : at + BLOCK]
        block[:] = expected(source, first + at + np.arange(len(block)))
