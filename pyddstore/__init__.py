"""Rows of a dataset, held in the memory of many processes and read by any of them."""

try:
    from . import _core as _core
except ImportError as exc:
    if "_core" not in str(exc):
        raise
    raise ImportError(
        f"{__path__[0]} is not built: it is a checkout's source, or the package is of "
        "another Python. Start Python in another directory, or install it anew"
    ) from exc
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
