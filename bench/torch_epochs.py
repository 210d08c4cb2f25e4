"""Shuffled epochs of a DistDataset against other places to keep samples.

    python bench/torch_epochs.py [--rows N] [--rounds N] [--json FILE] [--plot FILE.png]

Samples are a tensor of 12 KB and a number. The same ones lie in a DistDataset of two
processes (half of the rows in the other), in an array of this process, in LMDB, in
HDF5 and in one file each (in the page cache). Each way reads whole epochs in an order
of its own, in turn, for several rounds; the figure is the median of samples a second.
The second part reads batches of random graphs, whose sizes differ, by one call and by
two get()s a graph, as samples and joined to one array a field, out of mapped memory
and over TCP.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader

from pyddstore.torch import DistDataset, ThreadDataLoader

try:
    import lmdb
except ImportError:
    lmdb = None
try:
    import h5py
except ImportError:
    h5py = None

FLOATS, BATCH, GRAPHS = 3072, 128, 10_000


def row(i: int) -> Any:
    """The values of a sample, 12 KB."""
    return np.full(FLOATS, i, np.float32)


# ---- places to keep samples ----------------------------------------------------------


class Array:
    """An array of this process; also what the DistDataset is loaded from."""

    def __init__(self, rows: int, dir: str) -> None:
        self.data = np.repeat(np.arange(rows, dtype=np.float32), FLOATS)
        self.data = self.data.reshape(rows, FLOATS)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int) -> Any:
        return torch.from_numpy(self.data[i]), i


class Rows:
    """What a DistDataset is loaded from."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, i: int) -> Any:
        return torch.from_numpy(row(i)), i


class Files:
    """A file a sample."""

    def __init__(self, rows: int, dir: str) -> None:
        self.rows, self.dir = rows, dir
        os.makedirs(dir)
        for i in range(rows):
            row(i).tofile(self.path(i))

    def path(self, i: int) -> str:
        return f"{self.dir}/{i}"

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, i: int) -> Any:
        return torch.from_numpy(np.fromfile(self.path(i), np.float32)), i


class Opened:
    """A file that each process opens for itself."""

    def __init__(self, rows: int, dir: str) -> None:
        self.rows, self.dir = rows, dir
        self.pid, self.file = 0, None
        self.fill()

    def fill(self) -> None:
        raise NotImplementedError

    def open(self) -> Any:
        raise NotImplementedError

    def shut(self) -> None:
        raise NotImplementedError

    def __len__(self) -> int:
        return self.rows

    def opened(self) -> Any:
        if self.pid != os.getpid():
            self.pid, self.file = os.getpid(), self.open()
        return self.file

    def close(self) -> None:
        """So that a child may open it."""
        if self.pid == os.getpid():
            self.shut()
        self.pid, self.file = 0, None


class Lmdb(Opened):
    """One value a sample, read in one long transaction."""

    def fill(self) -> None:
        env = lmdb.open(self.dir, map_size=self.rows * FLOATS * 16 + 2**24)
        with env.begin(write=True) as txn:
            for i in range(self.rows):
                txn.put(b"%08d" % i, row(i).tobytes())
        env.close()

    def open(self) -> Any:
        self.env = lmdb.open(self.dir, readonly=True, lock=False, readahead=False)
        return self.env.begin(buffers=True)

    def shut(self) -> None:
        self.env.close()

    def __getitem__(self, i: int) -> Any:
        value = np.frombuffer(self.opened().get(b"%08d" % i), np.float32)
        return torch.from_numpy(value.copy()), i


class Hdf5(Opened):
    """One dataset of all rows."""

    def fill(self) -> None:
        with h5py.File(self.dir, "w") as file:
            data = file.create_dataset("rows", (self.rows, FLOATS), np.float32)
            for i in range(self.rows):
                data[i] = row(i)

    def open(self) -> Any:
        return h5py.File(self.dir, "r")["rows"]

    def shut(self) -> None:
        self.file.file.close()

    def __getitem__(self, i: int) -> Any:
        return torch.from_numpy(self.opened()[i]), i


# ---- epochs --------------------------------------------------------------------------


def places(rows: int, dir: str) -> dict[str, Any]:
    """Everything that can be imported, filled."""
    found: dict[str, Any] = {
        "array": Array(rows, dir),
        "files": Files(rows, dir + "/f"),
    }
    if lmdb is not None:
        found["LMDB"] = Lmdb(rows, dir + "/lmdb")
    if h5py is not None:
        found["HDF5"] = Hdf5(rows, dir + "/rows.h5")
    return found


def can_fork(ds: DistDataset) -> bool:
    """Whether worker processes can read the dataset."""
    return hasattr(ds.ddstore, "fork_reader")


def ways(rows: int, dir: str, ds: DistDataset) -> dict[str, Any]:
    """All loaders, by name."""
    made: dict[str, Any] = {}
    common = {"batch_size": BATCH, "shuffle": True}
    for name, dataset in [*places(rows, dir).items(), ("DistDataset", ds)]:
        for n in (0, 1, 2):
            if n == 0 or dataset is not ds or can_fork(ds):
                made[f"{name}, DataLoader({n})"] = DataLoader(
                    dataset, num_workers=n, **common
                )
        for n in (1, 2):
            if name in ("array", "DistDataset"):
                made[f"{name}, ThreadDataLoader({n})"] = ThreadDataLoader(
                    dataset, num_workers=n, **common
                )
        if dataset is ds:
            for n in (0, 1, 2):
                made[f"{name}, ThreadDataLoader({n}), reuse_buffers"] = (
                    ThreadDataLoader(ds, num_workers=n, reuse_buffers=True, **common)
                )
    return made


def epoch(loader: Any) -> float:
    """Samples a second."""
    began = time.perf_counter()
    samples = sum(len(numbers) for _, numbers in loader)
    rate = float(samples / (time.perf_counter() - began))
    if isinstance(loader.dataset, Opened):
        loader.dataset.close()
    return rate


def measure(loaders: dict[str, Any], rounds: int) -> dict[str, float]:
    """Medians, the loaders in turn."""
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for n in range(rounds):
        order = list(loaders)
        for name in order[n % len(order) :] + order[: n % len(order)]:
            rates[name].append(epoch(loaders[name]))
    return {name: statistics.median(all) for name, all in rates.items()}


# ---- graphs --------------------------------------------------------------------------


class Graphs:
    """Random graphs: 5 to 60 nodes of 9 floats, 2 to 5 edges a node."""

    def __len__(self) -> int:
        return GRAPHS

    def __getitem__(self, i: int) -> Any:
        random = np.random.default_rng([7, i])
        nodes = int(random.integers(5, 61))
        edges = nodes * int(random.integers(2, 6))
        return {
            "x": random.random((nodes, 9), np.float32),
            "edges": random.integers(0, nodes, (edges, 2), np.int32),
        }


class TwoGets:
    """The same graphs by two get()s each; where they lie is known beforehand."""

    def __init__(self, ds: DistDataset) -> None:
        self.store = ds.ddstore
        self.where = {}
        for key in ("x", "edges"):
            where = np.empty((len(ds), 2), np.int64)
            self.store.get_batch(f"graphs/{key}/offsets", where, range(len(ds)))
            self.where[key] = where.tolist()

    def __getitem__(self, i: int) -> Any:
        start, rows = self.where["x"][i]
        x = np.empty((rows, 9), np.float32)
        self.store.get("graphs/x", x, start)
        start, rows = self.where["edges"][i]
        edges = np.empty((rows, 2), np.int32)
        self.store.get("graphs/edges", edges, start)
        return {"x": x, "edges": edges}


def graph_epochs(ds: DistDataset, rounds: int) -> dict[str, float]:
    """Microseconds a batch by each way, medians of epochs in turn."""
    single = TwoGets(ds)

    def joined(wanted: list[int]) -> Any:
        """As read_rows() gives it, and loaders of graphs need it."""
        found = [single[i] for i in wanted]
        batch = {}
        for key in ("x", "edges"):
            values = [one[key] for one in found]
            offsets = np.cumsum([0] + [len(one) for one in values])
            batch[key] = np.concatenate(values), offsets
        return batch

    calls: dict[str, Callable[[list[int]], Any]] = {
        "graphs, by a batch": ds.__getitems__,
        "graphs, by two gets each": lambda wanted: [single[i] for i in wanted],
        "joined, by read_rows": ds.read_rows,
        "joined, by two gets each": joined,
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for n in range(rounds):
        for name, call in list(calls.items())[:: 1 if n % 2 else -1]:
            order = np.random.default_rng().permutation(GRAPHS).tolist()
            batches = [order[i : i + BATCH] for i in range(0, GRAPHS, BATCH)]
            began = time.perf_counter()
            for wanted in batches:
                call(wanted)
            times[name].append((time.perf_counter() - began) / len(batches) * 1e6)
    return {name: statistics.median(all) for name, all in times.items()}


# ---- the other process ---------------------------------------------------------------


def dataset(rank: int, dir: str, rows: int) -> DistDataset:
    """The rows, half of them here."""
    return DistDataset(Rows(rows), "rows", rank=rank, size=2, handshake_dir=dir)


def graphs(rank: int, dir: str) -> DistDataset:
    """The graphs, half of them here."""
    return DistDataset(
        Graphs(), "graphs", rank=rank, size=2, handshake_dir=dir, ragged=True
    )


def other(dir: str, rows: int, done: Any) -> None:
    """Holds its half."""
    kept = [dataset(1, dir, rows)]
    for shm in ("1", "0"):
        os.environ["DDSTORE_SHM"] = shm
        kept.append(graphs(1, dir))
    done.wait()
    for one in kept:
        one.free()


def show(title: str, figures: dict[str, float], unit: str, base: str) -> None:
    """A table of figures and their ratios to one of them."""
    table = Table(title=title, title_justify="left")
    table.add_column("way")
    table.add_column(unit, justify="right")
    table.add_column(f"to {base}", justify="right")
    for name, figure in figures.items():
        table.add_row(name, f"{figure:,.0f}", f"{figure / figures[base]:.2f}")
    Console(width=100).print(table)


def plot(
    rates: dict[str, float], batches: dict[str, dict[str, float]], to: str
) -> None:
    """Bars of all figures, one panel a table."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [("shuffled epochs: samples/s (more is better)", rates)] if rates else []
    panels += [
        (f"graphs, {path}: us a batch of {BATCH} (less is better)", figures)
        for path, figures in batches.items()
    ]
    sizes = [len(figures) for _, figures in panels]
    figure, axes = pyplot.subplots(
        len(panels), figsize=(9, 0.3 * sum(sizes) + len(panels)), squeeze=False,
        height_ratios=sizes, layout="constrained",
    )  # fmt: skip
    for (title, figures), ax in zip(panels, axes[:, 0], strict=True):
        ours = ("DistDataset", "graphs, by a batch", "joined, by read_rows")
        colours = ["#2471a3" if n.startswith(ours) else "#aab7b8" for n in figures]
        bars = ax.barh(list(figures), list(figures.values()), color=colours)
        ax.bar_label(bars, fmt="{:,.0f}", padding=3)
        ax.set_title(title, loc="left")
        ax.margins(x=0.12)
        ax.invert_yaxis()
    figure.savefig(to, dpi=120)


def budgets(rates: dict[str, float], batches: dict[str, dict[str, float]]) -> Any:
    """What was aimed at, and what came out."""
    rows: list[Any] = []
    if rates:
        ours = rates["DistDataset, ThreadDataLoader(1), reuse_buffers"]
        base = rates["array, DataLoader(0)"]
        rows.append(("to the array, DataLoader(0)", ours / base, 0.9))
    if "LMDB, DataLoader(0)" in rates:
        best = max(rates[f"LMDB, DataLoader({n})"] for n in (0, 1, 2))
        rows.append(("to LMDB, DataLoader(0)", ours / rates["LMDB, DataLoader(0)"], 5))
        rows.append(("to LMDB, DataLoader(1)", ours / rates["LMDB, DataLoader(1)"], 5))
        rows.append(("to LMDB, the best of 0, 1 and 2 workers", ours / best, 5))
    for path, all in batches.items():
        for what, ours in (("graphs", "a batch"), ("joined", "read_rows")):
            ratio = all[f"{what}, by two gets each"] / all[f"{what}, by {ours}"]
            rows.append((f"{what}, {path}: times faster than two gets each", ratio, 5))
    return [{"what": w, "ratio": r, "at_least": b} for w, r, b in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--graphs", action="store_true", help="the second part only")
    parser.add_argument("--json", type=pathlib.Path, help="writes the figures there")
    parser.add_argument("--plot", help="draws the figures there; needs matplotlib")
    given = parser.parse_args()
    os.environ["DDSTORE_PROFILE"] = "1"
    spawn = multiprocessing.get_context("spawn")
    done = spawn.Event()
    with tempfile.TemporaryDirectory() as dir:
        hs = f"{dir}/exchange"
        peer = spawn.Process(target=other, args=(hs, given.rows, done), daemon=True)
        peer.start()
        ds = dataset(0, hs, given.rows)
        sets = {}
        for path, shm in (("mapped", "1"), ("tcp", "0")):
            os.environ["DDSTORE_SHM"] = shm
            sets[path] = graphs(0, hs)
        loaders = {} if given.graphs else ways(given.rows, dir, ds)
        rates = measure(loaders, given.rounds if loaders else 0)
        profile = ds.ddstore.get_profile("rows/0")
        batches = {path: graph_epochs(g, given.rounds) for path, g in sets.items()}
        for one in (ds, *sets.values()):
            one.free()
        done.set()
        peer.join()
    if rates:
        show("Shuffled epochs", rates, "samples/s", "array, DataLoader(0)")
    for path, figures in batches.items():
        show(f"Graphs, {path}", figures, "us a batch", "graphs, by a batch")
    checked = budgets(rates, batches)
    for one in checked:
        met = "" if one["ratio"] >= one["at_least"] else "  MISSED"
        print(f"{one['what']:60} {one['ratio']:6.2f} (at least {one['at_least']}){met}")
    print(f"registrations in {profile['rows']:,} rows: {profile['mr_miss']}")
    if given.plot:
        plot(rates, batches, given.plot)
    if given.json:
        figures = {"rates": rates, "batches": batches, "budgets": checked}
        given.json.write_text(json.dumps(figures | {"profile": profile}, indent=1))


if __name__ == "__main__":
    main()
