"""Collectives of processes that share a directory, without MPI."""

from __future__ import annotations

import operator
import os
import pickle
from typing import Any, NamedTuple

from . import _core, env


class _Failed(NamedTuple):
    """What a rank sends in place of an object that it can't send."""

    text: str


class FileComm:
    """A group of processes that meet through files of a shared directory.

    dir: on a file system that all ranks share; made (mode 0700) if it isn't there, and
    refused if others own it or may write to it. rank, size: this process and how many
    there are. ns: names the group's files, unique in dir (also among stores'
    exchange_ns), without dots. With dir None the ranks, which are all tasks of a Slurm
    step, meet through PMI2. Every rank creates its FileComms and makes its calls in
    the same order. One directory a run, or one namespace a group.

    Creating one is collective. Raises HandshakeTimeout, naming the missing ranks, after
    DDSTORE_HANDSHAKE_TIMEOUT_S; a failed collective ends the group.
    """

    def __init__(self, dir: str | None, rank: int, size: int, ns: str) -> None:
        self.dir = None if dir is None else os.fsdecode(dir)
        self.ns = ns
        rank, size = operator.index(rank), operator.index(size)
        if not 0 <= rank < size < 2**31:
            raise ValueError(f"rank={rank}, size={size}: give a rank of 0 to size - 1")
        self._comm = _core.Comm(self.dir, rank, size, ns)

    @classmethod
    def from_env(cls, dir: str | None = None, ns: str = "s0") -> FileComm:
        """The group of this launch; dir defaults to DDSTORE_HANDSHAKE_DIR. Without one,
        or with DDSTORE_EXCHANGE=pmi2, the tasks of a step of srun --mpi=pmi2 meet
        through Slurm."""
        launch = env.detect()
        place = env.meeting_dir(dir, launch.rank, launch.size)
        return cls(place, launch.rank, launch.size, ns)

    @property
    def rank(self) -> int:
        """This process's rank, 0 to size - 1."""
        return self._comm.rank

    @property
    def size(self) -> int:
        """How many ranks the group has."""
        return self._comm.size

    def allgather(self, obj: Any) -> list[Any]:
        """Every rank's object, by rank; objects travel pickled. Collective. An object
        that can't be pickled is a TypeError on every rank."""
        cause = None
        try:
            mine = pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as exc:
            cause = exc
            mine = pickle.dumps(_Failed(str(exc)))
        all = [pickle.loads(data) for data in self._comm.allgather(mine)]
        for rank, one in enumerate(all):
            if isinstance(one, _Failed):
                raise TypeError(
                    f"rank {rank}'s object can't be sent: {one.text}"
                ) from cause
        return all

    def barrier(self) -> None:
        """Returns when every rank has called it. Collective. Rank 0 returns once it has
        written the combined file, so don't remove dir right after one."""
        self._comm.barrier()

    def close(self) -> None:
        """Leaves the group. Local; twice does nothing."""
        self._comm.close()

    def __enter__(self) -> FileComm:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        place = f"rank={self.rank}, size={self.size}"
        return f"FileComm(dir={self.dir!r}, {place}, ns={self.ns!r})"
