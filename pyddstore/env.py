"""Which rank of how many this process is, as its launcher says; read on request."""

from __future__ import annotations

import os
from typing import NamedTuple

from . import _core


class Launch(NamedTuple):
    """A process's place in its launch."""

    rank: int
    size: int


def detect() -> Launch:
    """Rank and size from the variables that ``ddstore run`` sets.

    Raises RuntimeError where no launcher started this process, and ValueError where the
    variables contradict one another.
    """
    values = {row["name"]: row for row in _core.settings()}
    rank_row, size_row = values["DDSTORE_RANK"], values["DDSTORE_SIZE"]
    if "environment" not in (rank_row["origin"], size_row["origin"]):
        raise RuntimeError(
            "no launcher started this process: run it by `ddstore run -n N ...`, or "
            "pass rank and size"
        )
    for row in (rank_row, size_row):
        if row["bad"]:
            raise ValueError(f"{row['name']}={row['value']}: give {row['allowed']}")
    rank, size = int(rank_row["value"]), int(size_row["value"])
    if not 0 <= rank < size:
        raise ValueError(
            f"DDSTORE_RANK={rank} and DDSTORE_SIZE={size} contradict one another: rank "
            "must be 0 to size - 1"
        )
    return Launch(rank, size)


def handshake_dir(given: str | os.PathLike[str] | None) -> str:
    """The argument, else DDSTORE_HANDSHAKE_DIR, else ValueError."""
    # Not by _core.settings(), which shortens long values and can't show all bytes.
    path = (given and os.fsdecode(given)) or os.environ.get("DDSTORE_HANDSHAKE_DIR")
    if not path:
        raise ValueError(
            "a directory that all members share is needed: pass handshake_dir or set "
            "DDSTORE_HANDSHAKE_DIR"
        )
    return path
