"""The training examples print the same losses, to the last digit, however rows are
read."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from training_support import EXAMPLES, environment, losses, need, paths, run

# method, loader, workers, DDSTORE_BATCH_GET, DDSTORE_SHM, beside what is the default:
# 1, thread, 1, 1, 1.
WAYS = {
    "train_vae.py": [(1, "data", 0, "0", "0"), (2, "data", 2, "1", "0")],
    "train_molecules.py": [(1, "data", 1, "1", "1"), (2, "thread", 2, "0", "0")],
}


def on_a_terminal(name: str, *more: str) -> tuple[str, str]:
    """What a run prints, and what its terminal shows beside that."""
    shown, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    try:
        output = run(name, *more, launcher=("--no-prefix",), stderr=terminal)
        os.set_blocking(shown, False)
        text = b""
        with contextlib.suppress(BlockingIOError):
            while True:
                text += os.read(shown, 1 << 16)
    finally:
        os.close(terminal)
        os.close(shown)
    return output, text.decode()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", WAYS)
def test_same_losses(name: str, tmp_path: Path) -> None:
    """First on a terminal, with a bar and a plot, then in other ways."""
    need(name)
    more = []
    if importlib.util.find_spec("matplotlib") is not None:
        more = [f"--plot={tmp_path / 'plot.png'}"]
    output, shown = on_a_terminal(name, *more)
    expected = losses(output)
    assert paths(output) == ["local", "local"]
    if more:
        assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    if importlib.util.find_spec("tqdm") is not None:
        assert "batch/s" in shown
    for method, loader, workers, batched, shm in WAYS[name]:
        output = run(
            name, f"--method={method}", f"--loader={loader}", f"--workers={workers}",
            DDSTORE_BATCH_GET=batched, DDSTORE_SHM=shm,
        )  # fmt: skip
        assert losses(output) == expected, output
        assert paths(output) == ["local" if shm == "1" else "tcp"] * 2


@pytest.mark.timeout(120)
def test_without_a_launcher() -> None:
    need("train_vae.py")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "train_vae.py")],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "train_vae.py: no launcher started this process" in done.stderr
    assert "Traceback" not in done.stderr
