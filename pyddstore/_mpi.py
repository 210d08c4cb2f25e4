"""What stores hold of MPI: duplicates of communicators, which all ranks free together.

A store works on a duplicate of the communicator it is given. Freeing one takes all
ranks, in the same order, so a store that is dropped only marks its duplicate; those
that all ranks have marked are freed when the next store is opened on that communicator.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any, cast

from mpi4py import MPI

from . import _core


@cache
def _held_key() -> int:
    return int(MPI.Comm.Create_keyval())


class Meeting:
    """Collectives of a communicator that are started and then asked for."""

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm
        self._request = MPI.REQUEST_NULL
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.failure: BaseException | None = None

    def start(self, mine: Any, all: Any) -> None:
        """Starts gathering every rank's bytes."""
        self._check()
        self._request = self._comm.Iallgather([mine, MPI.BYTE], [all, MPI.BYTE])

    def test(self) -> bool:
        """Whether they are there."""
        self._check()
        return bool(self._request.Test())

    def _check(self) -> None:
        if MPI.Is_finalized():  # a call would end the process
            raise RuntimeError("MPI was finalized")


class Held:
    """A store's duplicate."""

    def __init__(self, comm: MPI.Comm, siblings: list[Held]) -> None:
        self.comm = comm
        self.siblings = siblings  # of the same communicator, itself included
        self.meeting = Meeting(comm)
        self.group: _core.MpiGroup | None = None
        self.released = False  # no store uses it any more

    def attach(self) -> None:
        """Gives it into the hands of the plugin, for method 0."""
        self.group = _core.MpiGroup(MPI._addressof(self.comm))

    def free(self) -> None:
        """Frees it. Collective: all ranks have come for it."""
        self.siblings.remove(self)
        if MPI.Is_finalized():
            return
        if self.group is not None:
            self.group.release()
        else:
            self.comm.Free()


def _wait(request: Any, what: str) -> None:
    """Waits until a collective is over, with the deadline of all meetings."""
    limit_s = float(_core.setting("DDSTORE_HANDSHAKE_TIMEOUT_S"))
    end = time.monotonic() + limit_s
    pause_s = 1e-6
    while not request.Test():
        if time.monotonic() > end:
            raise _core.HandshakeTimeout(
                f"{what}: not all ranks of the communicator came within {limit_s:g} s "
                "(DDSTORE_HANDSHAKE_TIMEOUT_S)"
            )
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 1e-3)


def _free_released(held: list[Held], comm: MPI.Comm) -> None:
    """Frees what all ranks have released, in the order of creation."""
    if not held:
        return
    mine = bytearray(one.released for one in held)
    all = bytearray(len(held))
    _wait(
        comm.Iallreduce([mine, MPI.BYTE], [all, MPI.BYTE], MPI.BAND), "freeing stores"
    )
    for one, released in zip(list(held), all, strict=True):
        if released:
            one.free()


def hold(comm: Any) -> Held:
    """A duplicate of the communicator for one more store. Collective."""
    if not isinstance(comm, MPI.Intracomm):
        raise TypeError(
            f"comm_or_none is an mpi4py intracommunicator or None, not "
            f"{type(comm).__name__}"
        )
    if MPI.Is_finalized() or not MPI.Is_initialized():
        raise RuntimeError("MPI is not initialized, or was finalized")
    if comm == MPI.COMM_NULL:
        raise ValueError("the communicator is MPI.COMM_NULL")
    own, request = comm.Idup()
    _wait(request, "opening the store")
    own.Set_errhandler(MPI.ERRORS_RETURN)
    held = cast("list[Held] | None", comm.Get_attr(_held_key()))
    if held is None:
        held = []
        comm.Set_attr(_held_key(), held)
    _free_released(held, own)
    one = Held(own, held)
    held.append(one)
    return one


def load_plugin(file: str) -> None:
    """Loads the plugin; RuntimeError unless it runs with mpi4py's own MPI."""
    own = " ".join(MPI.Get_library_version().rstrip("\0").splitlines()[0].split())
    theirs = _core.load_plugin(file)
    # Between MPIs of different kinds not even a version can be asked for: the calls may
    # come out at the wrong one.
    if ("Open MPI" in own) == ("Open MPI" in theirs):
        theirs = " ".join(_core.plugin_library().split())
    if own != theirs:
        raise RuntimeError(
            f"mpi4py runs with {own}, and pyddstore was built for {theirs}: build one "
            "of them for the other's MPI, or use method=1"
        )
