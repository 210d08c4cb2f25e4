"""What stores hold of MPI: duplicates of communicators, which all ranks free together.

A store works on a duplicate of the communicator it is given. Freeing one takes all
ranks, in the same order, so a store that is dropped only marks its duplicate; those
that all ranks have marked are freed when the next store is opened on that communicator,
or when that is freed.
"""

from __future__ import annotations

import logging
import time
from functools import cache
from typing import Any, cast

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from . import _core

FREE_S = 5.0  # for all ranks to come when a communicator is freed
LOG_S = 10.0  # between lines that say what is waited for

_log = logging.getLogger("pyddstore")

# What MPI may still write to although nobody waits for it any more.
_kept: list[Any] = []


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

    def given_up(self) -> bool:
        """Whether a collective was started and never ended."""
        return bool(self._request != MPI.REQUEST_NULL)

    def _check(self) -> None:
        if MPI.Is_finalized():  # a call would end the process
            raise RuntimeError("MPI was finalized")


class Held:
    """A store's duplicate."""

    def __init__(self, comm: MPI.Comm, number: int, family: Family) -> None:
        self.comm = comm
        self.number = number
        self.family = family
        self.meeting = Meeting(comm)
        self.group: _core.MpiGroup | None = None
        self.released = False  # no store uses it any more

    def attach(self) -> None:
        """Gives it into the hands of the plugin, for method 0."""
        self.group = _core.MpiGroup(MPI._addressof(self.comm))

    def free(self) -> None:
        """Frees it. Collective: all ranks have come for it."""
        self.family.held.pop(self.number, None)
        if MPI.Is_finalized():
            return
        if self.group is not None:
            self.group.release()
        else:
            self.comm.Free()


class Family:
    """The duplicates of one communicator, by numbers that all ranks agree on."""

    def __init__(self) -> None:
        self.held: dict[int, Held] = {}
        self.next = 0

    def agree(self, comm: MPI.Comm, limit_s: float) -> int:
        """Frees what all ranks have released; returns the number of the next duplicate.
        Collective over comm."""
        released = sorted(
            number
            for number, one in self.held.items()
            if one.released and not one.meeting.given_up()
        )
        heads = _gather(comm, [self.next, len(released)], limit_s)
        most = int(heads[:, 1].max())
        self.next = int(heads[:, 0].max()) + 1
        if most:
            padded = released + [-1] * (most - len(released))
            rows = _gather(comm, padded, limit_s)
            common = set(rows[0].tolist()).intersection(
                *(set(r.tolist()) for r in rows)
            )
            for number in sorted(common - {-1}):
                self.held[number].free()
        return self.next - 1


def _gather(comm: MPI.Comm, numbers: list[int], limit_s: float) -> NDArray[np.int64]:
    """Each rank's numbers, a row a rank; all have as many."""
    mine = np.array(numbers, np.int64)
    all = np.empty((comm.Get_size(), len(mine)), np.int64)
    _wait(comm.Iallgather(mine, all), limit_s, mine, all)
    return all


def _wait(request: Any, limit_s: float, *buffers: Any) -> None:
    """Waits until a collective is over. What it leaves behind is kept for MPI."""
    begun = logged = time.monotonic()
    pause_s = 1e-6
    done = False
    try:
        while not (done := request.Test()):
            now = time.monotonic()
            if now > begun + limit_s:
                raise _core.HandshakeTimeout(
                    "opening the store: not all ranks of the communicator came within "
                    f"{limit_s:g} s (DDSTORE_HANDSHAKE_TIMEOUT_S)"
                )
            if now > logged + LOG_S:
                logged = now
                _log.warning(
                    "opening a store waits for %.0f s now: not all ranks of the "
                    "communicator are here",
                    now - begun,
                )
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 1e-3)
    finally:
        if not done:
            _kept.append((request, *buffers))


def _limit_s() -> float:
    """DDSTORE_HANDSHAKE_TIMEOUT_S, or its default where it can't be read: the library
    will say so when the ranks have met."""
    try:
        return float(_core.setting("DDSTORE_HANDSHAKE_TIMEOUT_S"))
    except ValueError:
        return 300.0


def _ends(comm: MPI.Comm, key: int, family: Family) -> None:
    """The user frees the communicator, which takes all ranks: so what all of them have
    released goes too."""
    if MPI.Is_finalized() or comm == MPI.COMM_WORLD or not family.held:
        return
    try:
        family.agree(comm, FREE_S)
    except Exception as exc:
        _log.warning("communicators of dropped stores are left open: %s", exc)


@cache
def _key() -> int:
    return int(MPI.Comm.Create_keyval(delete_fn=_ends))


def family_of(comm: MPI.Comm) -> Family:
    """That of the user's communicator."""
    family = comm.Get_attr(_key())
    if family is None:
        family = Family()
        comm.Set_attr(_key(), family)
    return cast(Family, family)


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
    limit_s = _limit_s()
    try:
        own, request = comm.Idup()
        _wait(request, limit_s, own)
        own.Set_errhandler(MPI.ERRORS_RETURN)
        family = family_of(comm)
        one = Held(own, family.agree(own, limit_s), family)
    except MPI.Exception as exc:
        raise _core.FabricError(
            f"opening the store: MPI can't duplicate the communicator ({exc}); free() "
            "stores, and communicators, that are not needed any more"
        ) from exc
    family.held[one.number] = one
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
