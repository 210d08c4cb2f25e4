"""The training examples under mpirun: the losses of `ddstore run`, through MPI and past
it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mpi_launch
import pytest
from training_support import OWN, losses, need, paths, run, words


@pytest.fixture
def over_mpi(mpirun: mpi_launch.Mpirun) -> Callable[..., list[str]]:
    """The losses of an example as two ranks of mpirun."""

    def over_mpi(name: str, *more: str, **env: str) -> list[str]:
        program, *rest = words(name, *more)
        end = mpirun(2, Path(program), *rest, env=OWN | env, timeout=100)
        assert end.returncode == 0, str(end)
        assert paths(end.stdout) == ["local", "local"]
        return losses(end.stdout)

    return over_mpi


@pytest.mark.timeout(300)
def test_vae(over_mpi: Callable[..., list[str]]) -> None:
    """A thread reads over MPI."""
    need("train_vae.py")
    assert over_mpi("train_vae.py", "--method=0") == losses(run("train_vae.py"))


@pytest.mark.timeout(300)
def test_molecules(over_mpi: Callable[..., list[str]], tmp_path: Path) -> None:
    """Graphs over MPI, one by one; and past it, by ranks that meet through files."""
    need("train_molecules.py")
    more = ["--method=0", "--loader=data", "--workers=0"]
    expected = over_mpi("train_molecules.py", *more, DDSTORE_BATCH_GET="0")
    files = {"DDSTORE_HANDSHAKE_DIR": str(tmp_path / "h")}
    assert over_mpi("train_molecules.py", "--method=1", **files) == expected
