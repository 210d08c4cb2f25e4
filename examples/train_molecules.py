"""A small message-passing network learns how firmly molecules hold together.

    ddstore run -n 4 examples/train_molecules.py
    mpirun -n 4 python examples/train_molecules.py --method 0
    sbatch slurm/ddstore-train.sbatch python examples/train_molecules.py

The G2 set that ASE ships: 148 molecules and 14 free atoms, with measured enthalpies.
Each is a graph of a size of its own: atomic numbers, positions, and edges between atoms
that are near each other, which the dataset keeps as ragged fields. What is learnt is
the atomization energy; the loss is the mean error in eV (squared and halved
below 1 eV). With the same number of ranks, --batch and --seed, all methods, loaders
and numbers of workers print the same losses, and so do both settings of
DDSTORE_BATCH_GET.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from training import options, run

CUTOFF = 3.0  # Angstrom, between two atoms that have an edge
ELEMENTS = 18  # atomic numbers are below
HIDDEN, WAVES, ROUNDS = 32, 16, 2


class Molecules:
    """The G2 set, by name, as graphs."""

    def __init__(self) -> None:
        from ase.data.g2 import data

        self.data = data
        self.names = sorted(data)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: int) -> dict[str, Any]:
        from ase.symbols import symbols2numbers

        one = self.data[self.names[i]]
        positions = np.array(one["positions"])
        apart = np.linalg.norm(positions[:, None] - positions, axis=-1)
        near = (apart < CUTOFF) & ~np.eye(len(positions), dtype=bool)
        return {
            "numbers": torch.tensor(symbols2numbers(one["symbols"])),
            "positions": torch.tensor(positions, dtype=torch.float32),
            "edges": torch.from_numpy(np.argwhere(near)),
            "energy": self.energy(one),
        }

    def energy(self, one: dict[str, Any]) -> float:
        """What it takes to pull all atoms apart, in eV: from enthalpies of formation,
        of the molecule at room temperature and of free atoms at none."""
        from ase.symbols import string2symbols
        from ase.units import kcal, mol

        atoms = [self.data[symbol] for symbol in string2symbols(one["symbols"])]
        warm = one["thermal correction"]
        apart = sum(a["enthalpy"] - a["thermal correction"] for a in atoms)
        return float((apart - one["enthalpy"] + one.get("ZPE", 0) + warm) * kcal / mol)


def one_graph(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """A batch: its molecules side by side as one graph. All of it is copied."""
    sizes = torch.tensor([len(one["numbers"]) for one in samples])
    first = torch.cumsum(sizes, 0) - sizes
    shifted = [one["edges"] + at for one, at in zip(samples, first, strict=True)]
    return {
        "numbers": torch.cat([one["numbers"] for one in samples]),
        "positions": torch.cat([one["positions"] for one in samples]),
        "edges": torch.cat(shifted),
        "molecule": torch.repeat_interleave(torch.arange(len(samples)), sizes),
        "energy": torch.tensor([one["energy"] for one in samples]),
    }


def perceptron(width: int, out: int) -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(width, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, out))


class Network(nn.Module):
    """Atoms tell their neighbours what they are; then each states its part of the
    energy, of which `scale` eV is usual."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.element = nn.Embedding(ELEMENTS, HIDDEN)
        self.message = nn.ModuleList(
            perceptron(2 * HIDDEN + WAVES, HIDDEN) for _ in range(ROUNDS)
        )
        self.update = nn.ModuleList(
            perceptron(2 * HIDDEN, HIDDEN) for _ in range(ROUNDS)
        )
        self.part = perceptron(HIDDEN, 1)
        self.register_buffer("centres", torch.linspace(0.5, CUTOFF, WAVES))

    def forward(self, batch: dict[str, Any]) -> Any:
        """The energy of each molecule."""
        positions, (one, other) = batch["positions"], batch["edges"].T
        apart = (positions[one] - positions[other]).norm(dim=1)
        waves = torch.exp(-20 * (apart[:, None] - self.centres).square())
        atoms = self.element(batch["numbers"])
        for message, update in zip(self.message, self.update, strict=True):
            said = message(torch.cat([atoms[one], atoms[other], waves], dim=1))
            heard = torch.zeros_like(atoms).index_add(0, one, said)
            atoms = atoms + update(torch.cat([atoms, heard], dim=1))
        parts = self.scale * self.part(atoms)[:, 0]
        energy = torch.zeros(len(batch["energy"]))
        return energy.index_add(0, batch["molecule"], parts)


def loss_of(model: Any, batch: dict[str, Any]) -> tuple[Any, int]:
    """The mean of a batch, and its samples."""
    energy = batch["energy"]
    return functional.smooth_l1_loss(model(batch), energy), len(energy)


def main() -> None:
    """Everything, on each rank."""
    given = options(__doc__ or "", epochs=60, batch=8, rate=1e-3)

    def ready(ds: Any, comm: Any) -> tuple[Any, Any, Any]:
        everything = ds.read_rows(range(len(ds)), fields=["energy", "numbers"])
        atoms = len(everything["numbers"].values)
        return Network(everything["energy"].sum() / atoms), loss_of, one_graph

    run("molecules", Molecules(), given, ready, ragged=True)


if __name__ == "__main__":
    main()
