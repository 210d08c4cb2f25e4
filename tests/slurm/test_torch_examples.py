"""The training examples as jobs of two nodes: the losses of one machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cluster import Jobs
from training_support import OWN, losses, need, paths, run, words

SCRIPT = Path(__file__).parents[2] / "slurm" / "ddstore-train.sbatch"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["train_vae.py", "train_molecules.py"])
def test_same_losses(name: str, jobs: Jobs) -> None:
    """By the job script as it is but for the number of tasks."""
    need(name)
    env = OWN | {"DDSTORE_HANDSHAKE_DIR": ""}
    command = [sys.executable, *words(name)]
    number = jobs.submit("--ntasks-per-node=1", str(SCRIPT), *command, env=env)
    expected = losses(run(name))
    output = jobs.passed(number, limit_s=100)
    assert paths(output) == ["tcp", "tcp"]
    assert "rank 0 on n1" in output
    assert "rank 1 on n2" in output
    assert losses(output) == expected
