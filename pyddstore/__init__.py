"""Rows of a dataset, held in the memory of many processes and read by any of them."""

from ._core import (
    DDStoreError,
    FabricError,
    HandshakeTimeout,
    PeerLostError,
    StoreClosedError,
    __version__,
)
from .filecomm import FileComm
from .store import HAVE_MPI, PyDDStore

__all__ = [
    "HAVE_MPI",
    "DDStoreError",
    "FabricError",
    "FileComm",
    "HandshakeTimeout",
    "PeerLostError",
    "PyDDStore",
    "StoreClosedError",
    "__version__",
]
