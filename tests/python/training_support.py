"""Runs the training examples and reads what they print, for their tests on this
machine, over MPI and on a Slurm cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
DATA = {"train_vae.py": "sklearn", "train_molecules.py": "ase"}
EPOCHS = 2
LIMIT_S = 100  # of a run; the machine may be loaded
# They find the file beside them; the library's own waits are long enough.
OWN = {"PYTHONSAFEPATH": "", "DDSTORE_HANDSHAKE_TIMEOUT_S": "60"}
FOREIGN = ("SLURM_", "DDSTORE_", "OMPI_", "PMI_", "PMIX_", "RANK", "WORLD_SIZE")


def need(name: str) -> None:
    """Skips a test where an example can't run."""
    for module in ("torch", DATA[name]):
        pytest.importorskip(module, reason=f"optional: {module} is not installed")


def words(name: str, *more: str) -> list[str]:
    """A short run of an example."""
    return [str(EXAMPLES / name), f"--epochs={EPOCHS}", *more]


def environment() -> dict[str, str]:
    """This one without what a launcher or a user has set."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
    return clean | OWN


def run(
    name: str,
    *more: str,
    launcher: tuple[str, ...] = (),
    stderr: int = subprocess.STDOUT,
    **env: str,
) -> str:
    """Two ranks by `ddstore run`; what they print."""
    ddstore = Path(sys.executable).with_name("ddstore")
    done = subprocess.run(
        [str(ddstore), "run", "-n", "2", *launcher, *words(name, *more)],
        env=environment() | env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def losses(output: str) -> list[str]:
    """The losses as they are printed, of all epochs; they fall."""
    found = re.findall(r"epoch \d+: loss (\S+)$", output, re.MULTILINE)
    assert len(found) == EPOCHS, output
    assert all(len(re.findall(r"\d", one.lstrip("0."))) == 10 for one in found), found
    assert float(found[-1]) < float(found[0]), output
    assert "samples/s" in output
    return found


def paths(output: str) -> list[str]:
    """How each of two ranks reads from the other one."""
    found = re.findall(
        r"rank (\d) on \S+: [\d.]+ s fetching, [\d.]+ s computing; "
        r"ranks by path: 0 (\S+), 1 (\S+)$",
        output,
        re.MULTILINE,
    )
    assert [(rank, (one, other)[int(rank)]) for rank, one, other in found] == [
        ("0", "self"), ("1", "self")
    ], output  # fmt: skip
    return [(one, other)[1 - int(rank)] for rank, one, other in found]
