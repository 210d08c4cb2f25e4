"""The calls of real clients, a whole epoch of each, over a communicator and by every
method."""

from __future__ import annotations

import pathlib
from typing import Any

import mpi_launch
import pytest
from test_clients import fill_row_by_row, ragged_fields, three_stores_of_records

import pyddstore

pytestmark = pytest.mark.mpi


class Rank:
    """What these calls take a member for: a rank of a communicator."""

    def __init__(self, comm: Any, method: int, directory: pathlib.Path) -> None:
        self.comm, self.method, self.directory = comm, method, directory
        self.rank, self.size = comm.rank, comm.size
        self.stores: list[pyddstore.PyDDStore] = []

    def store(self) -> pyddstore.PyDDStore:
        """One more store."""
        given: dict[str, Any] = {"method": self.method}
        if self.method == 2:
            given["handshake_dir"] = str(self.directory / str(len(self.stores)))
        self.stores.append(pyddstore.PyDDStore(self.comm, **given))
        return self.stores[-1]

    def meet(self, sign: str) -> None:
        """All see what all have written."""
        self.comm.Barrier()
        for store in self.stores:
            store.epoch_begin()


# MPICH's MPI_Win_unlock spins until the target's process has run: with more threads
# than cores, which these clients have, each read takes tens of milliseconds.
BY_THREADS = (0, 1, 2) if mpi_launch.vendor() == "Open MPI" else (1, 2)
WAYS = [(m, shm) for m in (0, 1, 2) for shm in ("1", "0")]


def case(client: Any, size: int, methods: tuple[int, ...], **given: Any) -> list[Any]:
    return [
        pytest.param(client, size, *way, given,
                     id=f"{client.__name__}-method{way[0]}-shm{way[1]}",
                     marks=pytest.mark.mpi(min_size=size))
        for way in WAYS if way[0] in methods
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("client", "size", "method", "shm", "given"),
    [
        *case(three_stores_of_records, 2, BY_THREADS, prefix=True),
        *case(ragged_fields, 3, (0, 1, 2)),
        *case(fill_row_by_row, 2, (1, 2)),  # batches of several threads
    ],
)
def test_clients(
    comm: Any, shared_dir: pathlib.Path, monkeypatch: Any, client: Any, size: int,
    method: int, shm: str, given: dict[str, Any],
) -> None:  # fmt: skip
    monkeypatch.setenv("DDSTORE_SHM", shm)
    own = comm.Split(int(comm.rank >= size), comm.rank)
    if comm.rank < size:
        rank = Rank(own, method, shared_dir)
        client(rank, **given)
        for store in rank.stores:
            store.free()
    own.Free()
