"""The calls of real clients, a whole epoch of each, over a communicator and by every
method."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from test_clients import fill_row_by_row, ragged_fields, three_stores_of_records

import pyddstore

pytestmark = pytest.mark.mpi(min_size=2)


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


@pytest.mark.parametrize("shm", ["1", "0"])
@pytest.mark.parametrize("method", [0, 1, 2])
@pytest.mark.parametrize(
    ("size", "client", "given"),
    [
        pytest.param(2, three_stores_of_records, {"prefix": True}, id="records"),
        pytest.param(3, ragged_fields, {}, id="fields"),
        pytest.param(2, fill_row_by_row, {}, id="rows"),
    ],
)
def test_clients(
    comm: Any, shared_dir: pathlib.Path, monkeypatch: Any, shm: str, method: int,
    size: int, client: Any, given: dict[str, Any],
) -> None:  # fmt: skip
    if comm.size < size:
        return  # it is for more ranks
    monkeypatch.setenv("DDSTORE_SHM", shm)
    own = comm.Split(int(comm.rank >= size), comm.rank)
    if comm.rank < size:
        rank = Rank(own, method, shared_dir)
        client(rank, **given)
        for store in rank.stores:
            store.free()
    own.Free()
