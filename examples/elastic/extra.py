"""An extra member: joins the core, reads shuffled epochs, checks every row, leaves.

    python extra.py RUN                   # or by submit.sh

It may start before the core, be cancelled while it reads, and joins again when the core
was requeued. Exit codes: 0 done, or RUN/stop is there; 3 no core came, or came back; 4
a row was wrong; 143 cancelled; 1 anything else.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

import numpy as np
from dataset import ROW_BYTES, WIDTH, Numbers, Rows, digits, expected
from results import Results, host, name, say
from summary import paths, speeds

from pyddstore import (
    DDStoreError,
    HandshakeTimeout,
    PeerLostError,
    PyDDStore,
    StoreClosedError,
)

LOOK_S = 1.0  # between two looks for the stop file
LINE_S = 10.0  # between two result lines
PROBES = 10  # batches of each core rank's rows alone
IN_VAIN = 5  # joins without a row read, then the core is given up
NO_CORE, WRONG_ROW = 3, 4
CORE_GONE = (PeerLostError, StoreClosedError)


class Ended(BaseException):
    """A signal has come that ends the process; args: its number."""


class Stopped(Exception):
    """RUN/stop is there."""


class WrongRow(Exception):
    """A row is not what it must be."""


def end_by(signum: int, _: object) -> NoReturn:
    signal.signal(signum, signal.SIG_IGN)
    raise Ended(signum)


@dataclass
class Tally:
    """What this member has done: its result line."""

    member: str
    host: str
    role: str = "extra"
    began: float = field(default_factory=time.time)
    state: str = "waiting"
    joins: int = 0
    epochs: int = 0
    rows: int = 0
    wrong: int = 0
    seconds: float = 0.0  # in get_batch
    peers: list[dict[str, Any]] = field(default_factory=list)


class Bar:
    """How far it is: tqdm's bar on a terminal, else a line every few seconds. total: 0
    if nobody knows."""

    def __init__(self, total: int, every_s: float) -> None:
        self.total, self.every_s = total, every_s
        self.n = self.shown = 0
        self.shown_at = time.monotonic()
        self.tqdm: Any = None
        if sys.stderr.isatty():
            with contextlib.suppress(ImportError):
                from tqdm import tqdm

                self.tqdm = tqdm(
                    total=total or None, unit=" rows", unit_scale=True, leave=False
                )

    def step(self, rows: int, epoch: int) -> None:
        """So many more."""
        self.n += rows
        passed = time.monotonic() - self.shown_at
        if self.tqdm is not None:
            self.tqdm.set_description(f"epoch {epoch}", refresh=False)
            self.tqdm.update(rows)
        elif passed >= self.every_s:
            rate = (self.n - self.shown) / passed
            part = f"{100 * self.n / self.total:.0f} %, " if self.total else ""
            say(
                f"epoch {epoch}: {part}{self.n:,} rows; {rate:,.0f} rows/s, "
                f"{rate * ROW_BYTES / 1e6:,.1f} MB/s with checks"
            )
            self.shown, self.shown_at = self.n, time.monotonic()

    def close(self) -> None:
        if self.tqdm is not None:
            self.tqdm.close()


class Extra:
    """One extra member from its start to its end."""

    def __init__(self, run: Path, options: argparse.Namespace) -> None:
        self.run, self.options = run, options
        self.stop = run / "stop"
        self.tally = Tally(f"extra {name()}", host())
        self.results = Results(run, f"extra-{name()}")
        self.random = np.random.default_rng()
        self.source = digits()
        self.out = np.empty((options.batch, WIDTH), np.float32)
        self.look_at = self.line_at = 0.0

    # -- joining --

    def stop_if_told(self, *_: object) -> None:
        if self.stop.exists():
            raise Stopped

    @contextlib.contextmanager
    def joined(self, limit_s: float | None) -> Iterator[PyDDStore]:
        """The store of a core that has all its rows. Waits so long for one, and looks
        once a second for the stop file."""
        if limit_s is not None:  # read when a store is opened
            os.environ["DDSTORE_HANDSHAKE_TIMEOUT_S"] = f"{max(limit_s, 0.001)}"
        exchange = str(self.run / "exchange")
        with PyDDStore(None, method=2, handshake_dir=exchange) as store:
            signal.signal(signal.SIGALRM, self.stop_if_told)
            signal.setitimer(signal.ITIMER_REAL, LOOK_S, LOOK_S)
            try:
                # In this order: when there are shards, the rows are filled.
                store.join("rows")
                store.join("shards")
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            store.register_recv("rows", self.out)
            yield store

    # -- reading --

    def read(self, store: PyDDStore, numbers: Numbers) -> float:
        """Reads rows and checks them; the seconds that reading took."""
        part: Rows = self.out[: len(numbers)]
        began = time.perf_counter()
        store.get_batch("rows", part, numbers)
        took = time.perf_counter() - began
        bad = numbers[(part != expected(self.source, numbers)).any(axis=1)]
        self.tally.wrong += len(bad)
        if len(bad):
            raise WrongRow(f"row {bad[0]} is wrong, as are {len(bad)} of its batch")
        return took

    def probe(self, store: PyDDStore) -> None:
        """Reads a few batches of each core rank's rows alone, and says what it sees."""
        shards = np.empty((store.size, 3), np.int64)
        store.get_batch("shards", shards, range(store.size))
        speed: list[float | None] = []
        for first, count, n_digits in shards.tolist():
            if n_digits != len(self.source):
                raise WrongRow(f"the core has {n_digits} digits, not those of here")
            times = [
                self.read(store, first + self.random.integers(0, count, len(self.out)))
                for _ in range(PROBES + 1 if count else 0)
            ]
            # The first one connects.
            speed.append(median(times[1:]) / len(self.out) * 1e6 if count else None)
        self.tally.peers = [
            {key: peer[key] for key in ("rank", "host", "path")} | {"us": us}
            for peer, us in zip(store.transports(), speed, strict=True)
        ]
        self.tally.joins += 1
        total = store.info("rows")[0]
        say(f"joined a core of {store.size} ranks with {total:,} rows")
        say(f"ranks by path: {paths(self.tally.peers)} a row")

    def epoch(self, store: PyDDStore, total: int, bar: Bar) -> None:
        """Reads all rows in random order."""
        order = self.random.permutation(total)
        for at in range(0, total, len(self.out)):
            numbers = order[at : at + len(self.out)]
            self.tally.seconds += self.read(store, numbers)
            self.tally.rows += len(numbers)
            bar.step(len(numbers), self.tally.epochs + 1)
            self.now_and_then()
        self.tally.epochs += 1

    def now_and_then(self) -> None:
        """Looks for the stop file, and tells that this member lives."""
        now = time.monotonic()
        if now >= self.look_at:
            self.look_at = now + LOOK_S
            self.stop_if_told()
        if now >= self.line_at:
            self.write()

    def write(self) -> None:
        """A result line."""
        self.line_at = time.monotonic() + LINE_S
        self.results.write(asdict(self.tally))

    def epochs(self, store: PyDDStore) -> None:
        self.tally.state = "reading"
        self.write()
        self.probe(store)
        self.write()
        total = store.info("rows")[0]
        wanted = self.options.epochs
        bar = Bar(max(wanted - self.tally.epochs, 0) * total, self.options.every)
        try:
            while not wanted or self.tally.epochs < wanted:
                self.epoch(store, total, bar)
        finally:
            bar.close()

    # -- all of it --

    def read_on(self) -> None:
        """Reads from the core that is there, and from the next one if it goes."""
        limit, vain = self.options.wait, 0
        self.write()
        say(f"{self.tally.member} on {self.tally.host}: waiting for a core")
        while True:
            rows = self.tally.rows
            try:
                with self.joined(limit) as store:
                    self.epochs(store)
                return
            except CORE_GONE as exc:
                vain = vain + 1 if self.tally.rows == rows else 0
                self.stop_if_told()
                if vain == IN_VAIN:
                    raise
                limit = self.options.rejoin
                wait = "" if limit is None else f" for {limit:g} s"
                say(f"the core is gone ({exc}); waiting{wait} for another one")
            self.tally.state = "waiting"
            self.write()
            time.sleep(min(vain, 1))

    def state_and_code(self) -> tuple[str, int]:
        """Reads; how it ended."""
        try:
            self.read_on()
        except Stopped:
            return "stopped", 0
        except Ended as end:
            return "cancelled", int(128 + end.args[0])
        except (HandshakeTimeout, *CORE_GONE) as exc:
            come = "came back" if self.tally.joins else "came"
            say(f"no core {come}: {exc}")
            return "no core", NO_CORE
        except WrongRow as exc:
            say(f"WRONG: {exc}")
            return "failed", WRONG_ROW
        except (DDStoreError, MemoryError, OSError, ValueError) as exc:
            say(f"{type(exc).__name__}: {exc}")
            return "failed", 1
        return "done", 0

    def main(self) -> int:
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, end_by)
        tally = self.tally
        tally.state, code = self.state_and_code()
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, signal.SIG_IGN)
        self.write()
        rate, mb = speeds(tally.rows, tally.seconds)
        right = "all right" if not tally.wrong else f"{tally.wrong:,} WRONG"
        us = tally.seconds / max(tally.rows, 1) * 1e6
        say(
            f"{tally.member} on {tally.host}: {tally.state}; epochs: {tally.epochs:,}, "
            f"rows: {tally.rows:,}, {right}; {rate} rows/s, {mb} MB/s, "
            f"{us:.2f} µs a row"
        )
        for peer in tally.peers:
            alone = "no rows" if peer["us"] is None else f"{peer['us']:.2f} µs a row"
            say(f"  rank {peer['rank']} on {peer['host']}: {peer['path']}, {alone}")
        return code


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Reads and checks the rows of a core, in shuffled epochs.",
        epilog="Exit codes: 0 done or stopped, 3 no core, 4 wrong row, 143 cancelled.",
    )
    add = parser.add_argument
    add("run", type=Path, help="directory that all members see")
    add("--epochs", type=int, default=10, help="0: until RUN/stop is there")
    add("--batch", type=int, default=256, help="rows that are read at once")
    add("--wait", type=float, help="seconds for a core to come; default: the library's")
    add("--rejoin", type=float, help="seconds for another core; default: the library's")
    add("--every", type=float, default=5, help="seconds between lines of progress")
    options = parser.parse_args()
    if options.epochs < 0 or options.batch < 1:
        parser.error("give --epochs of 0 or more and --batch of 1 or more")
    return options


if __name__ == "__main__":
    given = arguments()
    place = given.run.resolve()
    try:
        place.mkdir(exist_ok=True)
    except OSError as error:
        sys.exit(f"extra: {place}: {error.strerror}")
    sys.exit(Extra(place, given).main())
