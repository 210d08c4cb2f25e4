"""A variational autoencoder learns the 1,797 handwritten digits of scikit-learn.

    ddstore run -n 4 examples/train_vae.py
    mpirun -n 4 python examples/train_vae.py --method 0
    sbatch slurm/ddstore-train.sbatch python examples/train_vae.py

Each rank holds its share of the images in memory; all ranks read any of them, in an
order that is new in each epoch, and average their gradients (DDP over gloo). With the
same number of ranks, --batch and --seed, all methods, loaders and numbers of workers
print the same losses, and so do both settings of DDSTORE_BATCH_GET. The loss is in nats
an image.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from training import options, run

PIXELS, HIDDEN, LATENT = 64, 128, 8


class Digits:
    """Images of 8 by 8 pixels, with values of 0 to 16 as they come."""

    def __init__(self) -> None:
        from sklearn.datasets import load_digits

        self.images = torch.from_numpy(load_digits().data).to(torch.uint8)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> Any:
        return self.images[i]


class Autoencoder(nn.Module):
    """Images to a few numbers, each with an uncertainty, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(PIXELS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2 * LATENT)
        )
        self.decoder = nn.Sequential(
            nn.Linear(LATENT, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, PIXELS)
        )

    def forward(self, images: Any, noise: Any) -> tuple[Any, Any, Any]:
        """Logits of the pixels, means and logarithms of variances."""
        mean, log_variance = self.encoder(images).chunk(2, dim=1)
        code = mean + noise * torch.exp(0.5 * log_variance)
        return self.decoder(code), mean, log_variance


class Loss:
    """What an image costs: pixels that are wrong, and the code that tells them. The
    noise has a generator of its own, since loaders draw from the common one."""

    def __init__(self, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)

    def __call__(self, model: Any, batch: Any) -> tuple[Any, int]:
        """The mean of a batch, and its samples."""
        images = batch.to(torch.float32) / 16
        count = len(images)
        noise = torch.randn(count, LATENT, generator=self.random)
        logits, mean, log_variance = model(images, noise)
        pixels = functional.binary_cross_entropy_with_logits(
            logits, images, reduction="sum"
        )
        spread = mean.square() + log_variance.exp() - 1 - log_variance
        return (pixels + 0.5 * spread.sum()) / count, count


def main() -> None:
    """Everything, on each rank."""
    given = options(__doc__ or "", epochs=20, batch=64, rate=3e-3)

    def ready(ds: Any, comm: Any) -> tuple[Any, Any, Any]:
        return Autoencoder(), Loss(1000 * given.seed + comm.rank), None

    run("digits", Digits(), given, ready)


if __name__ == "__main__":
    main()
