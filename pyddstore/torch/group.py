"""How the ranks of a dataset meet while it is loaded, and agree on what went wrong."""

from __future__ import annotations

import builtins
import itertools
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from .. import _core, env
from ..filecomm import FileComm
from ..store import PyDDStore

T = TypeVar("T")

DIRECTORY = "./ddstore_hs"  # where nothing names another

# Names of groups in their directories, in the order in which datasets are made.
_numbers: defaultdict[tuple[str | None, str, int], Any] = defaultdict(itertools.count)


class Failure(NamedTuple):
    """What went wrong on a rank, as the others hear of it."""

    kind: str
    text: str


class Meeting(ABC):
    """Ranks that gather objects, and open a store together."""

    rank: int
    size: int
    place: str  # the directory of what method 2 publishes

    @abstractmethod
    def allgather(self, obj: Any) -> list[Any]:
        """Every rank's object, by rank. Collective."""

    @abstractmethod
    def open_store(self, method: int) -> PyDDStore:
        """A store of these ranks. Collective."""

    @abstractmethod
    def close(self) -> None:
        """Leaves what was opened for this dataset. Local."""

    def agree(self, work: Callable[[], T]) -> list[T]:
        """What work() returns on every rank, by rank. If it raises on one, all raise,
        and the message names the rank. Collective."""
        cause = None
        mine: Any
        try:
            mine = work()
        except Exception as exc:
            cause, mine = exc, _described(exc)
        everyone = self.allgather(mine)
        for rank, one in enumerate(everyone):
            if isinstance(one, Failure):
                raise _exception(rank, one) from (cause if rank == self.rank else None)
        return everyone

    def same(self, what: dict[str, Any]) -> None:
        """ValueError on all ranks, unless all say the same. Collective."""
        everyone = self.allgather({key: repr(value) for key, value in what.items()})
        for rank, theirs in enumerate(everyone):
            for key, value in everyone[0].items():
                if theirs[key] != value:
                    differs = f"{key} is {theirs[key]} on rank {rank}"
                    raise ValueError(f"{differs}, and {value} on rank 0")

    def together(self, work: Callable[[], T]) -> T:
        """What work() returns, which is a collective call of these ranks' store: it
        fails on all of them or on none."""
        return work()


# Made of more than a text, or of another meaning on its way through a generator.
_SPECIAL = "UnicodeError", "ImportError", "StopIteration", "BaseExceptionGroup"


def _described(exc: Exception) -> Failure:
    known = getattr(builtins, type(exc).__name__, None)
    text = exc.args[0] if isinstance(exc, KeyError) and exc.args else exc
    special = any(kind.__name__ in _SPECIAL for kind in type(exc).__mro__)
    if type(exc) is known and not special:
        return Failure(type(exc).__name__, str(text))
    if isinstance(exc, _core.DDStoreError):
        return Failure("RuntimeError", str(exc))
    return Failure("RuntimeError", f"{type(exc).__name__}: {exc}")


def named(where: str, exc: Exception) -> Exception:
    """The exception again, saying where it happened; a RuntimeError in place of kinds
    that aren't Python's own."""
    failure = _described(exc)
    kind: type[Exception] = getattr(builtins, failure.kind)
    return kind(f"{where}: {failure.text}")


def _exception(rank: int, failure: Failure) -> Exception:
    kind: type[Exception] = getattr(builtins, failure.kind)
    return kind(f"rank {rank}: {failure.text}")


class ByFiles(Meeting):
    """Through files of a directory, or PMI2 (dir None). given: the directory that the
    caller named, if any. comm: the caller's own."""

    def __init__(
        self, dir: str | None, rank: int, size: int, ns: str, comm: FileComm | None,
        given: str | None,
    ) -> None:  # fmt: skip
        self.rank, self.size = rank, size
        self.place = dir or directory_of(given)
        self._dir, self._ns = dir, ns
        self._named = bool(dir or env._directory(given))
        self._own = comm is None
        self._comm = comm or FileComm(dir, rank, size, ns)

    def allgather(self, obj: Any) -> list[Any]:
        """Every rank's object, by rank. Collective."""
        return self._comm.allgather(obj)

    def part(self, number: int, rank: int, size: int) -> Meeting:
        """The ranks that give the same number, to open a store. They need a directory.
        Collective."""
        if not self._named:
            raise ValueError("ddstore_width over PMI2 needs handshake_dir")
        ns = f"{self._ns}-{number}"
        return ByFiles(self.place, rank, size, ns, None, self.place)

    def open_store(self, method: int) -> PyDDStore:
        """A store of these ranks. Over PMI2 only what it publishes needs a place."""
        place = self._dir or (self.place if method == 2 else "")
        return PyDDStore(
            None, method=method, handshake_dir=place, rank=self.rank, size=self.size,
            exchange_ns=f"{self._ns}-rows",
        )  # fmt: skip

    def close(self) -> None:
        """Leaves the group, unless it is the caller's."""
        if self._own:
            self._comm.close()


class ByMpi(Meeting):
    """Over an MPI communicator. own: made for this dataset."""

    def __init__(self, comm: Any, dir: str, own: bool = False) -> None:
        self.rank, self.size, self.place = comm.Get_rank(), comm.Get_size(), dir
        self._comm, self._own = comm, own

    def allgather(self, obj: Any) -> list[Any]:
        """Every rank's object, by rank."""
        return list(self._comm.allgather(obj))

    def part(self, number: int, rank: int, size: int) -> Meeting:
        """The ranks that give the same number, to open a store. Collective."""
        return ByMpi(self._comm.Split(number, rank), self.place, own=True)

    def open_store(self, method: int) -> PyDDStore:
        """A store of these ranks."""
        return PyDDStore(
            self._comm, method=method, handshake_dir=self.place if method == 2 else ""
        )

    def close(self) -> None:
        """Frees the communicator that part() made. Collective."""
        if self._own:
            self._comm.Free()


class Part(Meeting):
    """Some of the ranks, with a store of their own: what fails on one rank fails on all
    of the whole, and messages name the whole's ranks."""

    def __init__(self, whole: ByFiles | ByMpi, width: int) -> None:
        number = whole.rank // width
        first = number * width
        self.rank, self.size = whole.rank - first, min(width, whole.size - first)
        self.place = whole.place
        self._whole, self._mine = whole, slice(first, first + self.size)
        self._own: Meeting = whole.part(number, self.rank, self.size)

    def allgather(self, obj: Any) -> list[Any]:
        """Those of this part. Collective over the whole, as are all others."""
        return self._whole.allgather(obj)[self._mine]

    def agree(self, work: Callable[[], T]) -> list[T]:
        """What work() returns on the ranks of this part."""
        return self._whole.agree(work)[self._mine]

    def same(self, what: dict[str, Any]) -> None:
        """ValueError unless all ranks of the whole say the same."""
        self._whole.same(what)

    def together(self, work: Callable[[], T]) -> T:
        """What work() returns: a collective call of this part alone, of which the
        others hear if it fails."""
        done: list[T] = []
        self._whole.agree(lambda: done.append(work()))
        return done[0]

    def open_store(self, method: int) -> PyDDStore:
        """A store of this part."""
        return self.together(lambda: self._own.open_store(method))

    def close(self) -> None:
        """Leaves this part."""
        self._own.close()


def directory_of(given: str | None) -> str:
    """The argument, else DDSTORE_HANDSHAKE_DIR, else ./ddstore_hs."""
    try:
        return env.handshake_dir(given)
    except ValueError:
        return DIRECTORY


def is_mpi(comm: Any) -> bool:
    """Whether this is a communicator of mpi4py."""
    return comm is not None and not isinstance(comm, FileComm)


def meet(
    comm: Any, rank: int | None, size: int | None, handshake_dir: str | None
) -> ByFiles | ByMpi:
    """The group of a dataset, by whatever the caller has: a communicator, a FileComm,
    rank and size, or nothing but a launcher. Collective."""
    if comm is not None and (rank is not None or size is not None):
        raise ValueError("give either comm or rank and size")
    if (rank is None) != (size is None):
        raise ValueError(f"rank={rank}, size={size}: give both")
    if is_mpi(comm):
        if not callable(getattr(comm, "allgather", None)):
            raise TypeError(
                f"comm is an mpi4py communicator, a FileComm or None, not "
                f"{type(comm).__name__}"
            )
        return ByMpi(comm, directory_of(handshake_dir))
    if comm is not None:
        ns = _name(comm.ns, comm)
        return ByFiles(comm.dir, comm.rank, comm.size, ns, comm, handshake_dir)
    if rank is None or size is None:
        rank, size = env.detect()
        place = _place(handshake_dir, rank, size)
    else:
        place = directory_of(handshake_dir)
    ns = _name("", None, place, size)
    return ByFiles(place, rank, size, ns, None, handshake_dir)


def _name(ns: str, comm: FileComm | None, dir: str | None = None, size: int = 0) -> str:
    """The next name for a group of this directory and size."""
    if comm is not None:
        dir, size = comm.dir, comm.size
    number = next(_numbers[dir, ns, size])
    return f"{ns}-dataset{number}" if ns else f"dataset{number}"


def _place(given: str | None, rank: int, size: int) -> str | None:
    """Where the launcher's processes meet; None: through its PMI2."""
    try:
        return env.meeting_dir(given, rank, size)
    except ValueError:
        if env._directory(given):
            raise
        return DIRECTORY
