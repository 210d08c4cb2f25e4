"""What the two training examples share: options, how ranks meet, loaders, the loop that
tells fetching from computing, and what is printed and drawn at the end."""

from __future__ import annotations

import argparse
import importlib.util
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from pyddstore import FileComm
from pyddstore.torch import DistDataset, ThreadDataLoader

# ---- options -------------------------------------------------------------------------


def options(text: str, **defaults: Any) -> argparse.Namespace:
    """The options that both examples take. text: the example's own description."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=text, formatter_class=formatter)

    def option(name: str, kind: Any, help: str, **more: Any) -> None:
        given = {"type": kind, "default": defaults.get(name.lstrip("-"))} | more
        parser.add_argument(name, help=f"{help} (%(default)s)", **given)

    method = int(os.environ.get("DDSTORE_METHOD") or 1)
    option("--epochs", positive, "passes over all samples")
    option("--batch", positive, "samples a rank takes at a time")
    option("--rate", float, "learning rate")
    option("--method", int, "of the store; 0 needs mpirun", default=method,
           choices=(0, 1, 2))  # fmt: skip
    option("--loader", str, "workers are processes (data) or threads (thread)",
           default="thread", choices=("data", "thread"))  # fmt: skip
    option("--workers", natural, "workers a rank has", default=1)
    option("--seed", natural, "of weights, order and noise", default=1)
    option("--plot", str, "draws loss and times into this file", metavar="FILE.png")
    given = parser.parse_args()
    if given.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib")
    return given


def natural(text: str) -> int:
    """A number from 0 on."""
    if (number := int(text)) < 0:
        raise ValueError
    return number


def positive(text: str) -> int:
    """A number from 1 on."""
    if (number := int(text)) < 1:
        raise ValueError
    return number


# ---- ranks ---------------------------------------------------------------------------


def meet(method: int) -> Any:
    """The ranks of this run: those of MPI for method 0, and where mpirun has started
    them and no directory is given; else as the launcher's variables say. Both kinds of
    communicator have rank, size, allgather() and barrier()."""
    mpirun = {"OMPI_COMM_WORLD_RANK", "MPI_LOCALNRANKS"} & os.environ.keys()
    own = os.environ.get("DDSTORE_RUN_ID") or os.environ.get("DDSTORE_HANDSHAKE_DIR")
    if method == 0 or (mpirun and not own):
        from mpi4py import MPI

        return MPI.COMM_WORLD
    try:
        return FileComm.from_env(ns="training")
    except (RuntimeError, ValueError) as exc:
        sys.exit(f"{os.path.basename(sys.argv[0])}: {exc}")


def join_gloo(comm: Any) -> None:
    """torch.distributed over TCP. Rank 0 opens a port of its own, which the others hear
    of by comm. Where host names resolve to an address that other hosts can't reach, set
    GLOO_SOCKET_IFNAME."""
    hosts = comm.allgather(socket.gethostname())
    host = hosts[0]
    if len(set(hosts)) == 1:
        host = "127.0.0.1"
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = None
    if comm.rank == 0:
        store = dist.TCPStore(
            host, 0, comm.size, is_master=True, wait_for_workers=False
        )
    port = comm.allgather(store.port if store else 0)[0]
    if store is None:
        store = dist.TCPStore(host, port, comm.size, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size)


def repeatable(seed: int) -> None:
    """The same seed gives the same numbers, to the last digit: one thread adds up in
    one order."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)


# ---- training ------------------------------------------------------------------------

Loss = Callable[[Any, Any], Any]


def loader_of(
    ds: DistDataset, comm: Any, given: argparse.Namespace, collate: Any
) -> Any:
    """Batches of this rank's part of each epoch's order."""
    sampler = DistributedSampler(ds, comm.size, comm.rank, seed=given.seed)
    more = {} if collate is None else {"collate_fn": collate}
    if given.loader == "data":
        keep = given.workers > 0
        return DataLoader(
            ds, given.batch, sampler=sampler, num_workers=given.workers,
            persistent_workers=keep, **more,
        )  # fmt: skip
    return ThreadDataLoader(
        ds, batch_size=given.batch, sampler=sampler, num_workers=given.workers,
        reuse_buffers=True, collate_copies=True, **more,
    )  # fmt: skip


@dataclass
class Report:
    """What a rank has to tell: losses by epoch, times, how it reads from each rank."""

    host: str = field(default_factory=lambda: os.uname().nodename)
    losses: list[float] = field(default_factory=list)
    samples: int = 0
    fetching: float = 0.0  # seconds
    computing: float = 0.0
    paths: list[str] = field(default_factory=list)


class Progress:
    """A bar on rank 0's terminal, plain lines elsewhere."""

    def __init__(self, rank: int, steps: int) -> None:
        self.rank = rank
        self.bar: Any = None
        if rank == 0 and sys.stderr.isatty() and importlib.util.find_spec("tqdm"):
            from tqdm import tqdm

            self.bar = tqdm(total=steps, unit="batch", leave=False)

    def step(self) -> None:
        """One batch is done."""
        if self.bar is not None:
            self.bar.update()

    def say(self, text: str) -> None:
        """A line, from rank 0."""
        if self.bar is not None:
            self.bar.write(text)
        elif self.rank == 0:
            print(text, flush=True)

    def close(self) -> None:
        """Takes the bar away."""
        if self.bar is not None:
            self.bar.close()


def run_epoch(
    loader: Any, model: Any, optimizer: Any, loss_of: Loss, progress: Progress,
    report: Report,
) -> float:  # fmt: skip
    """One pass. Returns the mean loss over all ranks; computing includes waiting for
    the gradients of the others."""
    total = torch.zeros(2, dtype=torch.float64)  # of losses, of samples
    before = time.perf_counter()
    batches = iter(loader)
    while (batch := next(batches, None)) is not None:
        fetched = time.perf_counter()
        optimizer.zero_grad()
        loss, count = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        total += torch.tensor([loss.item() * count, count], dtype=torch.float64)
        after = time.perf_counter()
        report.fetching += fetched - before
        report.computing += after - fetched
        before = after
        progress.step()
    report.fetching += time.perf_counter() - before
    report.samples += int(total[1])
    dist.all_reduce(total)
    return float(total[0] / total[1])


def train(
    ds: DistDataset, comm: Any, given: argparse.Namespace, model: Any, loss_of: Loss,
    collate: Any = None,
) -> Report:  # fmt: skip
    """All epochs. loss_of(model, batch): the mean loss of a batch, and its samples."""
    loader = loader_of(ds, comm, given, collate)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=given.rate)
    progress = Progress(comm.rank, given.epochs * len(loader))
    report = Report()
    for epoch in range(given.epochs):
        loader.sampler.set_epoch(epoch)
        loss = run_epoch(loader, wrapped, optimizer, loss_of, progress, report)
        report.losses.append(loss)
        progress.say(f"epoch {epoch + 1}: loss {loss:#.10g}")
    progress.close()
    if isinstance(loader, ThreadDataLoader):
        loader.close()
    report.paths = [peer["path"] for peer in ds.ddstore.transports()]
    return report


def run(
    name: str, source: Any, given: argparse.Namespace, ready: Callable[..., Any],
    ragged: bool = False,
) -> None:  # fmt: skip
    """All of a run: ranks meet, load the source, train and tell. ready(ds, comm): the
    model, its loss and its collate_fn, or None for the default one."""
    repeatable(given.seed)
    comm = meet(given.method)
    join_gloo(comm)
    with DistDataset(source, name, comm, method=given.method, ragged=ragged) as ds:
        report = train(ds, comm, given, *ready(ds, comm))
        comm.barrier()  # nobody leaves while others still read
    reports = comm.allgather(report)
    if comm.rank == 0:
        show(reports)
        if given.plot:
            plot(reports, f"{name}: {comm.size} ranks", given.plot)
    dist.destroy_process_group()
    comm.barrier()


# ---- what comes out ------------------------------------------------------------------


def show(reports: Sequence[Report]) -> None:
    """A line a rank, and the speed of all."""
    for rank, one in enumerate(reports):
        paths = ", ".join(f"{peer} {path}" for peer, path in enumerate(one.paths))
        print(
            f"rank {rank} on {one.host}: {one.fetching:.3f} s fetching, "
            f"{one.computing:.3f} s computing; ranks by path: {paths}"
        )
    seconds = max(one.fetching + one.computing for one in reports)
    samples = sum(one.samples for one in reports)
    print(f"{samples:,} samples in {seconds:.1f} s: {samples / seconds:,.0f} samples/s")


def plot(reports: Sequence[Report], title: str, path: str) -> None:
    """Loss by epoch, and beside it each rank's seconds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6))
    losses = reports[0].losses
    left.plot(range(1, len(losses) + 1), losses, color="#2a7f62")
    left.set(xlabel="epoch", ylabel="loss", title=title)
    ranks = range(len(reports))
    fetching = [one.fetching for one in reports]
    computing = [one.computing for one in reports]
    right.bar(ranks, computing, color="#95a5a6", label="computing")
    right.bar(ranks, fetching, bottom=computing, color="#c0392b", label="fetching")
    right.set(xlabel="rank", ylabel="seconds", title="where the time went")
    for axes in (left, right):
        axes.xaxis.get_major_locator().set_params(integer=True)
    right.margins(y=0.2)  # for the legend
    right.legend(loc="upper center", ncols=2)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(f"plot: {path}")
