"""Builds the SPANK plugin, and the programs that play slurmstepd for it, where that
hasn't been done."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]
PLUGIN = "slurm/spank_ddstore.so"
HOSTS = ("tests/slurm/spank_host", "tests/slurm/spank_host_plain")
TARGETS = (PLUGIN, *HOSTS)


def run(*words: str) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {k: v for k, v in os.environ.items() if not k.startswith("DDSTORE_")}
    done = subprocess.run(
        words, env=env | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(words)}:\n{done.stdout}{done.stderr}"


def knows(folder: Path) -> bool:
    """Whether a build directory has been made with Slurm's headers there."""
    rules = folder / "build.ninja"
    return rules.exists() and all(
        f"build {target}:" in rules.read_text() for target in TARGETS
    )


def built() -> Path:
    """The directory with all TARGETS as this tree has them now: build/, if that is
    there, else build-slurm/."""
    header = "slurm/spank.h"
    if not Path("/usr/include", header).exists():
        pytest.skip(f"no {header}: `scripts/test slurm` installs it")
    folder = TREE / "build"
    tree = os.open(TREE, os.O_RDONLY)
    try:
        fcntl.flock(tree, fcntl.LOCK_EX)  # two runs of pytest may be at it
        # As another user, nothing is written into it.
        if not knows(folder) or folder.stat().st_uid != os.geteuid():
            folder = TREE / "build-slurm"
        if not knows(folder):
            shutil.rmtree(folder, ignore_errors=True)
            off = [f"-D{part}=disabled" for part in ("python", "tests", "bench", "mpi")]
            run("meson", "setup", "-Doptimization=1", *off, str(folder), str(TREE))
        run("ninja", "-C", str(folder), *TARGETS)
    finally:
        os.close(tree)
    return folder
