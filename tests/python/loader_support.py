"""What the tests of ThreadDataLoader share."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch_support import Source

from pyddstore.torch import DistDataset

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


def loaded(tmp_path: Any) -> Iterator[DistDataset]:
    """The body of a fixture: COUNT samples, and no thread of a loader left behind."""
    with DistDataset(
        Source(COUNT, sample), "ds", rank=0, size=1, handshake_dir=str(tmp_path / "h")
    ) as one:
        yield one
        gc.collect()
        no_threads_are_left()


def threads() -> int:
    return sum(t.name.startswith("ThreadDataLoader") for t in threading.enumerate())


def no_threads_are_left(limit_s: float = 10) -> None:
    until = time.monotonic() + limit_s
    while threads():
        assert time.monotonic() < until, threading.enumerate()
        time.sleep(0.01)


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
