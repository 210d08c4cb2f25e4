"""Which rank of how many this process is, as its launcher says; read on request."""

from __future__ import annotations

import logging
import os
from typing import NamedTuple

from . import _core

_log = logging.getLogger("pyddstore")

# From here on, Slurm's steps are shells: batch, interactive and so on.
_FIRST_SPECIAL = 0xFFFFFFF0

# Variables of rank and size; of several sizes the first that is there.
_TORCH = "RANK", ("WORLD_SIZE",)
_OMPI = "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)
_PMI = "PMI_RANK", ("PMI_SIZE",)
_SLURM = "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")


class Launch(NamedTuple):
    """A process's place in its launch."""

    rank: int
    size: int


class _Source(NamedTuple):
    """What one launcher has set. text: names and values; around: launchers that may
    have started this one, whose numbers are those of something larger."""

    launcher: str
    rank: int
    size: int
    text: str
    around: frozenset[str]


def detect() -> Launch:
    """Rank and size from what the launcher has set: ``ddstore run``, srun, mpirun or
    torchrun. Of launchers inside one another the innermost counts, such as mpirun in a
    job of Slurm.

    Raises RuntimeError where no launcher started this process, also in the shell of a
    Slurm job, and ValueError, which lists all variables, where they contradict one
    another.
    """
    sources = [one for one in (_own(), _torchrun(), _ompi(), _pmi(), _slurm()) if one]
    if not sources:
        raise RuntimeError(f"no launcher started this process: {_advice()}")
    outer = frozenset[str]().union(*(one.around for one in sources))
    inner = [one for one in sources if one.launcher not in outer]
    if len({(one.rank, one.size) for one in inner}) > 1:
        raise ValueError(
            "launchers contradict one another: "
            + "; ".join(f"{one.launcher} says {one.text}" for one in sources)
        )
    one = inner[0]
    if not 0 <= one.rank < one.size:
        raise ValueError(
            f"{one.text} contradict one another: rank must be 0 to size - 1"
        )
    return Launch(one.rank, one.size)


def _own() -> _Source | None:
    """As `ddstore run` sets it, or its user."""
    values = {row["name"]: row for row in _core.settings()}
    rows = values["DDSTORE_RANK"], values["DDSTORE_SIZE"]
    if "environment" not in [row["origin"] for row in rows]:
        return None
    for row in rows:
        if row["bad"]:
            raise ValueError(f"{row['name']}={row['value']}: give {row['allowed']}")
    rank, size = (int(row["value"]) for row in rows)
    text = f"DDSTORE_RANK={rank} and DDSTORE_SIZE={size}"
    run = bool(os.environ.get("DDSTORE_RUN_ID"))
    around = frozenset({"srun", "PMI of srun"} if run else ())
    return _Source("ddstore run", rank, size, text, around)


def _torchrun() -> _Source | None:
    """torchrun has workers of its own in each task; others set the two by hand."""
    elastic = bool(os.environ.get("TORCHELASTIC_RUN_ID"))
    around = {"srun", "PMI of srun", "mpirun", "PMI"} if elastic else ()
    name = "torchrun" if elastic else "the environment"
    return _pair(name, *_TORCH, around)


def _ompi() -> _Source | None:
    """Open MPI. Its ranks on other nodes are below a task of its own srun, those on the
    first node are in the batch shell."""
    return _pair("mpirun", *_OMPI, {"srun", "PMI of srun"})


def _pmi() -> _Source | None:
    """MPICH and its kin, by their mpiexec (which may start its proxies by srun) or by
    srun itself."""
    own = bool(os.environ.get("MPI_LOCALNRANKS"))
    name = "PMI" if own or _slurm_shell() else "PMI of srun"
    return _pair(name, *_PMI, {"srun"} if own else ())


def _slurm() -> _Source | None:
    """The step's own number of tasks comes first: the others may be the job's."""
    return None if _slurm_shell() else _pair("srun", *_SLURM, ())


def _slurm_shell() -> bool:
    """Whether this is no task of a step that srun has started."""
    step = os.environ.get("SLURM_STEP_ID") or os.environ.get("SLURM_STEPID")
    return not step or _number("SLURM_STEP_ID", step) >= _FIRST_SPECIAL or _in_script()


def _in_script() -> bool:
    """Whether this is a batch script all the same: sbatch called inside a step hands
    the variables of that one on to the script. The parent of every task is Slurm's, and
    has the step in its title."""
    try:
        pid = _number("SLURM_TASK_PID", os.environ.get("SLURM_TASK_PID", ""))
        with open(f"/proc/{pid}/stat", "rb") as file:
            parent = int(file.read().rpartition(b") ")[2].split()[1])
        with open(f"/proc/{parent}/cmdline", "rb") as file:
            title = file.read().rstrip(b"\0 ")
    except (OSError, ValueError, IndexError):
        return False
    return title.startswith(b"slurmstepd: [") and title.endswith(b".batch]")


def _pair(
    launcher: str,
    rank_name: str,
    size_names: tuple[str, ...],
    around: set[str] | tuple[()],
) -> _Source | None:
    """A source, if rank and one of the sizes are there."""
    rank = os.environ.get(rank_name)
    sizes = [(name, os.environ.get(name)) for name in size_names]
    name, size = next(((name, size) for name, size in sizes if size), ("", ""))
    if not rank or not size:
        return None
    return _Source(
        launcher,
        _number(rank_name, rank),
        _number(name, size),
        f"{rank_name}={rank} and {name}={size}",
        frozenset(around),
    )


def _number(name: str, value: str) -> int:
    if not (value.isascii() and value.isdecimal()):
        raise ValueError(f"{name}={value} is not a number")
    return int(value)


def _advice() -> str:
    """What to do where no launcher has set all that is needed."""
    job = os.environ.get("SLURM_JOB_ID") or os.environ.get("SLURM_JOBID")
    pairs: list[tuple[str, tuple[str, ...]]] = [_TORCH, _OMPI, _PMI]
    if job:
        if _slurm_shell():
            return (
                f"this is a batch or interactive shell of Slurm's job {job}; use srun "
                "there, as in `srun python train.py`"
            )
        pairs.append(_SLURM)
    half = [
        f" ({name} is set, {' or '.join(others)} isn't)"
        for rank, sizes in pairs
        for name, others in ((rank, sizes), (sizes[0], (rank,)))
        if os.environ.get(name)
    ]
    return (
        "run it by `ddstore run -n N ...`, srun, mpirun or torchrun, or pass rank and "
        f"size{''.join(half)}"
    )


_NO_DIRECTORY = (
    "a directory that all members share is needed: pass handshake_dir or set "
    "DDSTORE_HANDSHAKE_DIR"
)


def _directory(given: str | os.PathLike[str] | None) -> str:
    """The argument, else DDSTORE_HANDSHAKE_DIR, else an empty text."""
    # Not by _core.settings(), which shortens long values and can't show all bytes.
    return (given and os.fsdecode(given)) or os.environ.get("DDSTORE_HANDSHAKE_DIR", "")


def handshake_dir(given: str | os.PathLike[str] | None, more: str = "") -> str:
    """The argument, else DDSTORE_HANDSHAKE_DIR, else ValueError, for the reason that
    the Slurm plugin tells, if it is to set it and couldn't."""
    path = _directory(given)
    if not path:
        why = os.environ.get("DDSTORE_SPANK_ERROR")
        raise ValueError((why or _NO_DIRECTORY) + more)
    return path


def meeting_dir(
    given: str | os.PathLike[str] | None, rank: int, size: int
) -> str | None:
    """Where a group without a communicator meets, by DDSTORE_EXCHANGE: a directory, or
    None for the launcher's PMI2."""
    exchange = _exchange()
    path = _directory(given)
    if exchange == "file" or (exchange == "auto" and path):
        return handshake_dir(given)
    why = _why_no_pmi2(rank, size)
    if not why:
        return None
    if path:
        _log.warning("DDSTORE_EXCHANGE=pmi2: %s. Meeting in %s instead", why, path)
        return path
    slurm = exchange == "pmi2" or os.environ.get("SLURM_STEP_ID")
    return handshake_dir(given, f"; and no PMI2: {why}" if slurm else "")


def _exchange() -> str:
    row = next(r for r in _core.settings() if r["name"] == "DDSTORE_EXCHANGE")
    if row["bad"]:
        raise ValueError(f"{row['name']}={row['value']}: give {row['allowed']}")
    return str(row["value"])


def _why_no_pmi2(rank: int, size: int) -> str:
    """Why PMI2 is no way for this rank to meet the others; "" if it is one."""
    try:
        mine = _core.pmi2_launch()
    except RuntimeError as exc:
        return str(exc)
    if mine != (rank, size):
        return f"to PMI2 this is rank {mine[0]} of {mine[1]}, not {rank} of {size}"
    return ""
