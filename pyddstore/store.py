"""PyDDStore: the ways to open a store, over the reads of the extension."""

from __future__ import annotations

import itertools
import logging
import operator
import weakref
from collections.abc import Callable
from importlib import resources
from typing import Any

from . import _core, env

_plugin = resources.files(__package__).joinpath("libddstore_mpi.so")

HAVE_MPI = _plugin.is_file()
"""Whether this build opens stores over an MPI communicator."""

_log = logging.getLogger("pyddstore")

_namespaces = itertools.count()


class PyDDStore(_core.Store):
    """Rows of named variables, held by all ranks of a group and read by any process.

    comm_or_none: an MPI communicator, or None. method: 0 MPI, 1 rows, 2 rows that are
    also published in handshake_dir for extra members. handshake_dir: a directory that
    all members share; defaults to DDSTORE_HANDSHAKE_DIR. rank, size: this process and
    how many there are, without MPI. n_core: core ranks that an extra member expects (0:
    as their record says); accepted for size with method 2. nic_map: CPUs nearest to
    each network interface, in place of DDSTORE_NIC_MAP. exchange_ns: names this store's
    files; default s0, s1, ... in the order in which this process creates its stores.

    Opening a core store is collective; extra members wait for nobody. A core rank
    serves its rows from a thread of the library, whatever its Python does. Stores are
    context managers. Reads come from any thread. In a forked child the parent's store
    is of no use but for fork_reader(); pickled, a store becomes a reader too.
    """

    _held: Any = None  # of MPI

    def __init__(
        self,
        comm_or_none: Any = None,
        method: int = 0,
        handshake_dir: str = "",
        n_core: int = 0,
        nic_map: str | None = None,
        rank: int | None = None,
        size: int = 0,
        exchange_ns: str = "",
    ) -> None:
        if comm_or_none is not None:
            self._open_over(
                comm_or_none, method, handshake_dir, n_core, nic_map, rank, size,
                exchange_ns,
            )  # fmt: skip
            return
        # Creation order counts on every rank, also where one has a bad argument.
        ns = exchange_ns or (f"s{next(_namespaces)}" if rank is not None else "")
        method, n_core, size = self._checked(method, n_core, size, nic_map, ns)
        if rank is None:
            self._open_extra(method, handshake_dir, n_core, nic_map, size)
            return
        size = self._core_size(method, n_core, size)
        rank = operator.index(rank)
        if not 0 <= rank < size:
            raise ValueError(f"rank={rank}, size={size}: give a rank of 0 to size - 1")
        # A wrong method is refused where the ranks meet, so that all hear of it.
        method = min(max(method, -1), 3)
        place = env.meeting_dir(handshake_dir, rank, size)
        directory = place or ""
        if place is None and method == 2:
            directory = env.handshake_dir(handshake_dir)
        self._open(method, directory, ns, rank, size, 0, nic_map, pmi2=place is None)

    @staticmethod
    def _checked(
        method: int, n_core: int, size: int, nic_map: str | None, ns: str
    ) -> tuple[int, int, int]:
        method, n_core, size = map(operator.index, (method, n_core, size))
        if nic_map is not None and not isinstance(nic_map, str):
            raise TypeError(f"nic_map is text, not {type(nic_map).__name__}")
        if not isinstance(ns, str):
            raise TypeError(f"exchange_ns is text, not {type(ns).__name__}")
        for name, text in (("exchange_ns", ns), ("nic_map", nic_map or "")):
            if "\0" in text:
                raise ValueError(f"{name} must not hold NUL")
            text.encode()
        if not 0 <= n_core < 2**31 or not 0 <= size < 2**31:
            raise ValueError(f"n_core={n_core}, size={size}: give 0 to 2**31 - 1")
        return method, n_core, size

    def _open_over(
        self, comm: Any, method: int, directory: str, n_core: int,
        nic_map: str | None, rank: int | None, size: int, ns: str,
    ) -> None:  # fmt: skip
        """Over a communicator. Every rank meets the others before it can raise."""
        if not HAVE_MPI:
            raise RuntimeError(
                "this build has no MPI (pyddstore.HAVE_MPI is False): pass None and "
                "rank=, size=, handshake_dir="
            )
        try:
            from . import _mpi
        except ImportError as exc:
            raise RuntimeError(f"a communicator needs mpi4py: {exc}") from exc
        held = _mpi.hold(comm)
        weakref.finalize(self, setattr, held, "released", True).atexit = False
        meeting = held.meeting
        try:
            method, n_core, size = self._checked(method, n_core, size, nic_map, ns)
            for words, given in (("size", size), ("n_core", n_core)):
                if given not in (0, meeting.size):
                    raise ValueError(
                        f"{words}={given}: the communicator has {meeting.size} ranks"
                    )
            if rank not in (None, meeting.rank):
                raise ValueError(
                    f"rank={rank}, and in the communicator it is {meeting.rank}"
                )
            method = min(max(method, -1), 3)
            directory = env.handshake_dir(directory) if method == 2 else ""
            if "\0" in directory:
                raise ValueError("handshake_dir must not hold NUL")
            self._check_new()
            if method == 0:
                _mpi.load_plugin(str(_plugin))
                held.attach()
        except Exception as exc:
            held.released = True
            self._open_failed(meeting, exc)
        self._held = held
        self._open(
            method, directory, ns, meeting.rank, meeting.size, 0, nic_map, meeting,
            held.group,
        )  # fmt: skip

    def free(self) -> None:
        """Releases the store's memory, connections and registered buffers. On methods 1
        and 2 local: waits for nobody but this process's own running reads. On method 0
        collective: waits for every rank, so that none still reads. Twice does nothing,
        nor does it in a forked child with the parent's store.
        """
        if self._inherited():
            return
        held, self._held = self._held, None
        together = False
        try:
            together = held is not None and self.method == 0 and self._met_to_free()
        finally:
            super().free()
            if together:
                held.free()
            elif held is not None:
                held.released = True

    def _met_to_free(self) -> bool:
        """Waits for the other ranks' free(). False: one of them won't come."""
        from mpi4py import MPI

        if MPI.Is_finalized():
            return False
        try:
            self._meet_to_free()
        except _core.StoreClosedError:
            return False  # here or there it was freed already
        except Exception as exc:
            _log.warning("free() goes on without the other ranks: %s", exc)
            return False
        return True

    def _open_extra(
        self, method: int, directory: str, n_core: int, nic_map: str | None, size: int
    ) -> None:
        if size:
            raise ValueError("size without rank: a core member gives both")
        if method == 0:
            raise ValueError("method 0 needs an MPI communicator; use method 1 or 2")
        if method == 1:
            raise ValueError("method 1 without MPI needs rank= and size=")
        if method != 2:
            raise ValueError(f"method is {method}: give 0, 1 or 2")
        self._open(
            method, env.handshake_dir(directory), None, None, None, n_core, nic_map
        )

    @staticmethod
    def _core_size(method: int, n_core: int, size: int) -> int:
        if method == 2 and n_core:
            if size and size != n_core:
                raise ValueError(f"size={size} and n_core={n_core} differ")
            return n_core
        if not size:
            raise ValueError("rank without size: give both")
        return size

    def fork_reader(self) -> PyDDStore:
        """A reader: a read-only store of the same variables, with memory mappings and
        connections of its own, which waits for nobody and is freed on its own. For
        methods 1 and 2.

        In a forked process (a DataLoader worker) call it on the parent's store, of
        which nothing else can be used there. In the same process: one reader a thread.
        It has the variables that this store has now; for later ones make another.
        add(), init(), update(), view() and join() raise ValueError; get() and
        get_batch() take arrays as this store's do and raise what this store's would
        when a member closes or is lost. rank and size are this store's. Pickling a
        store, or a reader, gives the other process a reader too; the pickle holds the
        run's secret.

        Any thread. Raises RuntimeError with method 0; StoreClosedError if the store was
        freed; FabricError in a process forked by one that uses cxi and had not set
        DDSTORE_FORK_WORKERS=1 before it opened its store.
        """
        return _open_reader(self._describe(), self.method, self._nic_map)

    def __reduce__(
        self,
    ) -> tuple[Callable[..., PyDDStore], tuple[bytes, int, str | None]]:
        return _open_reader, (self._describe(), self.method, self._nic_map)

    @classmethod
    def from_env(
        cls,
        method: int = 1,
        handshake_dir: str = "",
        nic_map: str | None = None,
        exchange_ns: str = "",
    ) -> PyDDStore:
        """The store of this launch: rank and size as the launcher says. Without a
        directory, or with DDSTORE_EXCHANGE=pmi2, the tasks of a step of srun --mpi=pmi2
        meet through Slurm."""
        launch = env.detect()
        return cls(
            None,
            method=method,
            handshake_dir=handshake_dir,
            nic_map=nic_map,
            rank=launch.rank,
            size=launch.size,
            exchange_ns=exchange_ns,
        )

    def __repr__(self) -> str:
        who = "extra" if self.rank < 0 else f"rank {self.rank} of {self.size}"
        try:
            variables = ", ".join(self.names()) or "none"
        except _core.StoreClosedError:
            variables = "freed"
        except _core.DDStoreError:
            variables = "of the parent process"
        return f"<PyDDStore method {self.method}, {who}, variables: {variables}>"


def _open_reader(record: bytes, method: int, nic_map: str | None) -> PyDDStore:
    """What pickle calls in the other process."""
    store = PyDDStore.__new__(PyDDStore)
    store._open_reader(record, method, nic_map)
    return store
