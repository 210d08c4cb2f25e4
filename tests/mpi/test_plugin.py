"""The plugin that the package brings, on the ranks of the MPI that it is built for."""

from __future__ import annotations

import ctypes
import os
import pathlib
from importlib import resources
from typing import Any

import pytest
from mpi4py import MPI

pytestmark = pytest.mark.mpi


def plugin() -> ctypes.CDLL:
    return ctypes.CDLL(str(resources.files("pyddstore") / "libddstore_mpi.so"))


def test_ranks_are_the_launchers(comm: Any) -> None:
    sizes = (os.environ.get(name) for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"))
    assert str(comm.size) in sizes
    assert sorted(comm.allgather(comm.rank)) == list(range(comm.size))


def test_library_is_mpi4pys(comm: Any) -> None:
    library = plugin().ddstore_mpi_library
    library.restype = ctypes.c_char_p
    expected = MPI.Get_library_version().splitlines()[0].rstrip("\0")
    assert library().decode() == expected


def test_shared_dir(comm: Any, shared_dir: pathlib.Path) -> None:
    (shared_dir / str(comm.rank)).touch()
    comm.barrier()
    assert {p.name for p in shared_dir.iterdir()} == {str(r) for r in range(comm.size)}


@pytest.mark.mpi(min_size=2)
def test_others_are_there(comm: Any) -> None:
    assert comm.size >= 2
