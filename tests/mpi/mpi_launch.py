"""Runs programs under mpirun, with a time limit and nothing left behind.

`python mpi_launch.py N PROGRAM...` shows what rank 0 printed, or, after a failure, what
all ranks did. Tests use the fixture `mpirun` of conftest.py.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

LIMIT_S = 300.0
MARK = "MPI_LAUNCH_MARK"  # in the environment of all that one mpirun starts
# What a launcher has set for this process is not for those that it starts.
LAUNCHERS = ("OMPI_", "PMI_", "PMIX_", "SLURM_", "HYDRA_", "MPI_LOCAL")

# Its output goes where its rank says.
TO_FILE = (
    'exec "$@" >"$MPI_LAUNCH_LOGS/${OMPI_COMM_WORLD_RANK-$PMI_RANK}" 2>&1 </dev/null'
)


@dataclass
class Finished:
    """What became of an mpirun."""

    returncode: int  # negative: the signal; of mpirun itself
    stdout: str
    stderr: str
    duration: float  # in seconds
    timed_out: bool

    def __str__(self) -> str:
        ended = "did not end in" if self.timed_out else f"ended {self.returncode} after"
        return (
            f"mpirun {ended} {self.duration:.1f} s\n"
            f"-- stdout:\n{self.stdout}\n-- stderr:\n{self.stderr}"
        )


class Mpirun(Protocol):
    """What the fixture `mpirun` is called as."""

    def __call__(
        self,
        n: int,
        program: str | Path,
        *arguments: str,
        env: dict[str, str] | None = None,
        timeout: float = 60.0,
        may_hang: bool = False,
    ) -> Finished: ...


def compiled_for() -> tuple[str, tuple[int, ...]]:
    """The MPI that mpi4py was compiled for, and its version."""
    import mpi4py

    if "mpi4py.MPI" not in sys.modules:
        mpi4py.rc.initialize = False
    from mpi4py import MPI

    return MPI.get_vendor()


def vendor() -> str:
    """The name of that MPI."""
    return compiled_for()[0]


def version() -> tuple[int, ...]:
    """The version of that MPI."""
    return compiled_for()[1]


def tool(name: str) -> str:
    """Where a program of that MPI lies, `mpirun` or `mpicc`."""
    # As Debian calls them beside those of another MPI.
    longer = f"{name}.{vendor().lower().replace(' ', '')}"
    path = shutil.which(longer) or shutil.which(name)
    if path is None:
        raise FileNotFoundError(f"no {name} of {vendor()} is on PATH")
    return path


def command(n: int) -> list[str]:
    """The mpirun of that MPI, for n ranks on this host, however many cores it has."""
    words = [tool("mpirun"), "-n", str(n)]
    if vendor() == "Open MPI":
        words += ["--oversubscribe", "--allow-run-as-root", "--bind-to", "none"]
    return words


def marked(mark: str) -> list[int]:
    """The processes that have this mark, whichever group or session they are in."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if f"{MARK}={mark}\0".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def sweep(mark: str) -> None:
    """Kills all that is left of an mpirun. Zombies have no environment any more."""
    until = time.monotonic() + 10
    while left := marked(mark):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            raise RuntimeError(f"processes {left} can't be killed")
        time.sleep(0.02)


def environment(changes: dict[str, str] | None = None) -> dict[str, str]:
    """This environment without what a launcher has set, and with the changes."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    own = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",  # several tests share the cores
    }
    return env | own | (changes or {})


def launch(
    n: int,
    program: Sequence[str],
    *,
    env: dict[str, str] | None = None,
    timeout: float = LIMIT_S,
    cwd: str | Path | None = None,
) -> Finished:
    """Runs a program as n ranks."""
    mark = uuid.uuid4().hex
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            [*command(n), *program],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment(env) | {MARK: mark},
            cwd=cwd,
            start_new_session=True,
        )
        timed_out = False
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
            process.terminate()  # so that it removes its files
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        finally:
            if process.poll() is None:
                process.kill()
            sweep(mark)
            process.wait()
        duration = time.monotonic() - began
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    return Finished(process.returncode, texts[0], texts[1], duration, timed_out)


def main() -> int:
    """Runs a program with a log for each rank."""
    n, program = int(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder)
        words = ["sh", "-c", TO_FILE, "rank", *program]
        end = launch(n, words, env={"MPI_LAUNCH_LOGS": folder})
        good = end.returncode == 0 and not end.timed_out
        for rank in range(1 if good else n):
            log = logs / str(rank)
            text = log.read_text(errors="replace") if log.exists() else "(no log)\n"
            text = text.replace("\0", "")  # MPICH ends its version so
            print(text if good else f"== rank {rank} of {n}\n{text}", end="")
    if not good:
        print(end)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
