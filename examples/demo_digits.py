"""Four processes hold the handwritten digits, all of them and a fifth one read them.

    python examples/demo_digits.py

starts everything twice: as it comes, so that rows are read through shared mappings, and
with DDSTORE_SHM=0, as if every process ran on a host of its own. Each of the four core
processes holds a quarter of the 1,797 digits and reads all of them in shuffled batches;
the fifth joins while they run, reads an epoch and leaves. Every row is compared with
the source.
"""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from subprocess import PIPE
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pyddstore

CORES = 4
BATCH = 128
EPOCHS = 20
LIMIT_S = 120

Images = NDArray[np.float32]
Process = subprocess.Popen[bytes]


# ---- one process ---------------------------------------------------------------------


def shards(images: Images) -> list[Images]:
    """The digits in as many parts as there are core processes."""
    return np.array_split(images, CORES)


def read_batch(
    store: pyddstore.PyDDStore, images: Images, out: Images, rows: NDArray[np.int64]
) -> float:
    """Reads some rows, compares them with the source; returns the reading's
    microseconds a row."""
    part = out[: len(rows)]
    began = time.perf_counter()
    store.get_batch("images", part, rows)
    seconds = time.perf_counter() - began
    wrong = rows[(part != images[rows]).any(axis=1)]
    if len(wrong) > 0:
        sys.exit(f"demo: row {wrong[0]} is not that of the source")
    return seconds / len(rows) * 1e6


def read_epochs(
    store: pyddstore.PyDDStore, images: Images, seed: int, epochs: int
) -> dict[str, Any]:
    """Reads all rows in random order, a few times; returns how many and how fast."""
    random = np.random.default_rng(seed)
    out = np.empty((BATCH, images.shape[1]), images.dtype)
    times = []
    for _ in range(epochs):
        order = random.permutation(len(images))
        for first in range(0, len(order), BATCH):
            times.append(read_batch(store, images, out, order[first : first + BATCH]))
    return {"rows": epochs * len(images), "us": statistics.median(times)}


def read_each_peer(store: pyddstore.PyDDStore, images: Images) -> list[dict[str, Any]]:
    """How each core process is reached, and how fast rows of it alone are."""
    random = np.random.default_rng(1)
    out = np.empty((BATCH, images.shape[1]), images.dtype)
    peers, first = [], 0
    for shard, peer in zip(shards(images), store.transports(), strict=True):
        rows = first + np.arange(len(shard))
        times = [
            read_batch(store, images, out, random.choice(rows, BATCH))
            for _ in range(50)
        ]
        peers.append({**peer, "us": statistics.median(times)})
        first += len(shard)
    return peers


def core(source: str, report: str) -> None:
    """A core process: holds its part, reads all, stays until it is told that the extra
    process has left."""
    images: Images = np.load(source)
    comm = pyddstore.FileComm.from_env(ns="demo")
    with pyddstore.PyDDStore.from_env(method=2) as store:
        store.add("images", shards(images)[comm.rank])
        mine = read_epochs(store, images, seed=comm.rank, epochs=EPOCHS)
        everyone = comm.allgather(mine)
        if comm.rank == 0:
            pathlib.Path(report).write_text(json.dumps(everyone))
            sys.stdin.read()  # ends when the extra process has left
        comm.barrier()


def extra(source: str, report: str) -> None:
    """The extra process: joins, reads an epoch, leaves."""
    images: Images = np.load(source)
    with pyddstore.PyDDStore(None, method=2, n_core=CORES) as store:
        store.join("images")
        epoch = read_epochs(store, images, seed=CORES, epochs=1)
        peers = read_each_peer(store, images)
    pathlib.Path(report).write_text(json.dumps({"epoch": epoch, "peers": peers}))


# ---- all of them ---------------------------------------------------------------------


def wait_for_both(cores: Process, extra: Process) -> None:
    """Waits for the extra process, then tells the core processes, by the end of their
    standard input, to leave. If either fails, both are ended."""
    try:
        end = time.monotonic() + LIMIT_S
        while extra.poll() is None and cores.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        if extra.poll() is None and cores.poll() is None:
            raise RuntimeError(f"not done within {LIMIT_S} s")
        if extra.poll() is not None:
            cores.communicate(timeout=LIMIT_S)
        for words, process in (("core processes", cores), ("extra process", extra)):
            if process.poll():
                raise RuntimeError(f"the {words} ended with code {process.returncode}")
    finally:
        for process in (extra, cores):
            if process.poll() is None:
                process.terminate()
            process.communicate()


def run_all(source: pathlib.Path, shm: str) -> dict[str, Any]:
    """One round: the core processes under `ddstore run`, the extra one beside them."""
    with tempfile.TemporaryDirectory(prefix="ddstore-demo-") as place:
        reports = [os.path.join(place, name) for name in ("core.json", "extra.json")]
        env = {k: v for k, v in os.environ.items() if not k.startswith("DDSTORE_")}
        env["DDSTORE_SHM"] = shm
        env["DDSTORE_HANDSHAKE_TIMEOUT_S"] = "60"
        env["DDSTORE_HANDSHAKE_DIR"] = os.path.join(place, "exchange")
        this = [sys.executable, os.path.abspath(__file__)]
        # The script, since `python -m` in the checkout would find its sources.
        ddstore = pathlib.Path(sys.executable).with_name("ddstore")
        launcher = [str(ddstore), "run", "-n", str(CORES)]
        commands = [
            [*launcher, this[1], "core", str(source), reports[0]],
            [*this, "extra", str(source), reports[1]],
        ]
        wait_for_both(*(subprocess.Popen(c, env=env, stdin=PIPE) for c in commands))
        core_report, extra_report = (
            json.loads(pathlib.Path(report).read_text()) for report in reports
        )
    readers = {f"core {rank}": row for rank, row in enumerate(core_report)}
    readers["extra"] = extra_report["epoch"]
    return {"readers": readers, "peers": extra_report["peers"]}


def show(console: Any, mapped: dict[str, Any], network: dict[str, Any]) -> None:
    """Both rounds side by side."""
    from rich import box
    from rich.table import Table

    console.print(
        f"\n[bold]Shuffled batches of {BATCH} of all rows, each row checked[/]"
    )
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("reader", style="cyan")
    for column in ("rows", "µs a row", "with DDSTORE_SHM=0"):
        table.add_column(column, justify="right")
    for name, row in mapped["readers"].items():
        other = network["readers"][name]["us"]
        table.add_row(name, f"{row['rows']:,}", f"{row['us']:.3f}", f"{other:.3f}")
    console.print(table)

    console.print("[bold]How the extra process reaches each core process[/]")
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("rank", style="cyan", justify="right")
    for column in ("pid", "path", "µs a row", "with DDSTORE_SHM=0", "µs a row"):
        table.add_column(column, justify="right" if column != "path" else "left")
    table.add_column("because", style="dim", overflow="fold")
    for row, other in zip(mapped["peers"], network["peers"], strict=True):
        table.add_row(
            str(row["rank"]), str(row["pid"]), row["path"], f"{row['us']:.3f}",
            other["path"], f"{other['us']:.3f}", f"{row['reason']}; {other['reason']}",
        )  # fmt: skip
    console.print(table)


def main() -> None:
    began = time.monotonic()
    from rich.console import Console
    from rich.progress import Progress

    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    with tempfile.TemporaryDirectory(prefix="ddstore-digits-") as place:
        source = pathlib.Path(place) / "digits.npy"
        with Progress(
            console=console, transient=True, disable=not console.is_terminal
        ) as progress:
            task = progress.add_task("loading the digits", total=3)
            from sklearn.datasets import load_digits

            np.save(source, load_digits().data.astype(np.float32))
            rounds = []
            for shm, words in (("1", "shared mappings"), ("0", "network")):
                progress.update(task, advance=1, description=f"reading by {words}")
                rounds.append(run_all(source, shm))
    mapped, network = rounds
    show(console, mapped, network)
    rows = sum(row["rows"] for one in rounds for row in one["readers"].values())
    speeds = ", ".join(
        f"{one['readers']['extra']['us']:.2f} µs a row by {one['peers'][0]['path']}"
        for one in rounds
    )
    print(
        f"demo: {CORES} core processes and an extra one read {rows:,} rows, all right; "
        f"{speeds} ({time.monotonic() - began:.0f} s)"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["core"]:
        core(*sys.argv[2:])
    elif sys.argv[1:2] == ["extra"]:
        extra(*sys.argv[2:])
    else:
        try:
            main()
        except (subprocess.TimeoutExpired, RuntimeError, KeyboardInterrupt) as error:
            sys.exit(f"demo: failed: {error}")
