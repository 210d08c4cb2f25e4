"""A core process: holds its part of the rows and publishes it, until it is stopped.

    ddstore run -n 4 core.py RUN          # or by submit.sh

RUN is a directory that all members see. The core ends when there is a file RUN/stop,
which it makes itself after --minutes, or by SIGTERM. Rank 0 tells who reads, as far as
extra members leave word in RUN/results.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from dataset import ROW_BYTES, WIDTH, digits, fill, shard, total_rows
from results import Results, host, name, read_all, say, silent_s
from summary import show

from pyddstore import DDStoreError, FileComm, PyDDStore

LOOK_S = 1.0  # between two looks for the stop file
LINE_S = 60.0  # between two lines of rank 0 if nothing changes
LEAVE_S = 20.0  # for extra members to leave after the stop


class Ended(BaseException):
    """A signal has come that ends the process; args: its number."""


def end_by(signum: int, _: object) -> NoReturn:
    signal.signal(signum, signal.SIG_IGN)
    raise Ended(signum)


def publish(store: PyDDStore, gib: float) -> int:
    """Adds the rows, then who holds which: once that is there, all rows are."""
    source = digits()
    total = total_rows(source, gib)
    first, count = shard(total, store.rank, store.size)
    store.init("rows", count, WIDTH, 4)
    fill(store.view("rows").view(np.float32), source, first)
    store.add("shards", np.array([[first, count, len(source)]], np.int64))
    return total


class Watch:
    """What rank 0 sees of the extra members."""

    def __init__(self, run: Path) -> None:
        self.run, self.began, self.told, self.line_at = run, time.time(), "", 0.0

    def readers(self) -> list[dict[str, Any]]:
        """Last lines of extra members that read at the moment."""
        return [
            line
            for line in read_all(self.run, self.began)
            if line["role"] == "extra"
            and line["state"] == "reading"
            and not silent_s(line)
        ]

    def tell(self) -> None:
        """Who reads, when that changes and once in a while."""
        readers = self.readers()
        names = ", ".join(f"{one['member']} on {one['host']}" for one in readers)
        text = f"readers: {len(readers)}" + (f" ({names})" if names else "")
        if text != self.told or time.monotonic() >= self.line_at:
            say(f"core: after {time.time() - self.began:.0f} s {text}")
            self.told, self.line_at = text, time.monotonic() + LINE_S

    def until_stopped(self, stop: Path, minutes: float) -> None:
        """Stays until there is the stop file, then until the readers have left."""
        end = time.monotonic() + 60 * minutes if minutes else float("inf")
        while not stop.exists():
            if time.monotonic() >= end:
                stop.touch()  # for the other ranks and the extra members
            self.tell()
            time.sleep(LOOK_S)
        say(f"core: {stop} is there; waiting for readers to leave")
        end = time.monotonic() + LEAVE_S
        while self.readers() and time.monotonic() < end:
            time.sleep(LOOK_S / 4)


def lead(store: PyDDStore, run: Path, total: int, minutes: float) -> None:
    """What rank 0 does while the others wait."""
    size = f"{total:,} rows, {total * ROW_BYTES / 1e6:,.1f} MB"
    results = Results(run, f"core-{name()}")
    line = {
        "member": f"core {name().rpartition('.')[0] or name()}",
        "role": "core",
        "host": host(),
        "hosts": [peer["host"] for peer in store.transports()],
        "began": time.time(),
        "restarts": int(os.environ.get("SLURM_RESTART_COUNT", 0)),
        "held": total,
    }
    say(f"core: {store.size} ranks hold {size}")
    results.write({**line, "state": "serving"})
    state = "failed"
    try:
        Watch(run).until_stopped(run / "stop", minutes)
        state = "stopped"
    except Ended:
        state = "cancelled"
        raise
    finally:
        results.write({**line, "state": state})


def serve(run: Path, gib: float, minutes: float) -> None:
    """Everything from the opening to the end."""
    run.mkdir(exist_ok=True)
    exchange = str(run / "exchange")
    rank = None
    try:
        with (
            FileComm.from_env(exchange, ns="core") as comm,
            PyDDStore.from_env(method=2, handshake_dir=exchange) as store,
        ):
            total = publish(store, gib)
            rank = comm.rank
            if rank == 0:
                lead(store, run, total, minutes)
            while not (run / "stop").exists():
                time.sleep(LOOK_S)
            comm.barrier()  # rank 0 has waited for the readers
    finally:
        if rank == 0:
            show(run)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Holds rows for extra members until RUN/stop is there."
    )
    parser.add_argument("run", type=Path, help="directory that all members see")
    parser.add_argument(
        "--gib", type=float, default=0, help="fill up to this size with made-up rows"
    )
    parser.add_argument(
        "--minutes", type=float, default=0, help="make RUN/stop after so many"
    )
    options = parser.parse_args()
    run: Path = options.run.resolve()
    if (run / "stop").exists():
        say(f"core: {run / 'stop'} is there; remove it for another core")
        return 0
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, end_by)
    try:
        serve(run, options.gib, options.minutes)
    except Ended as end:
        say(f"core: ended by {signal.Signals(end.args[0]).name}")
        return int(128 + end.args[0])
    except (DDStoreError, MemoryError, OSError, ValueError) as exc:
        say(f"core: {type(exc).__name__}: {exc}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
