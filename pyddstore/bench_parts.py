"""The parts of the benchmark that are measured from Python; run by
pyddstore.benchmarks in a process of its own, prints a figure a line as JSON."""

from __future__ import annotations

import argparse
import ctypes
import os
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pyddstore.bench_peers import (
    Peer,
    Rows,
    SocketClient,
    Table,
    check,
    fill,
    open_member,
    pin,
)
from pyddstore.bench_turns import Dealer, Numbers, Spread, Turns, Way, show, take_turns

KB, MB = 1 << 10, 1 << 20
ROW, BATCH = 3 * KB, 128
SIZES = [  # row bytes, batch, label
    (ROW, BATCH, "128 x 3 KB"),
    (64, BATCH, "128 x 64 B"),
    (512, BATCH, "128 x 512 B"),
    (12 * KB, BATCH, "128 x 12 KB"),
    (MB, 16, "16 x 1 MB"),
]
TRIES = 4  # until the control holds
GET_US = 0.8  # the most a get of 3 KB may take


class Bench:
    """What all parts need: CPUs, directory, length."""

    def __init__(self, quick: bool, copy_loop: str | None, directory: str) -> None:
        cpus = sorted(os.sched_getaffinity(0))
        self.cpu, self.peer_cpu = cpus[0], cpus[min(1, len(cpus) - 1)]
        self.quick, self.directory = quick, directory
        self.copy_rows: Any = None
        if copy_loop is not None:
            self.copy_rows = ctypes.CDLL(copy_loop).copy_rows
            pointer, size = ctypes.c_void_p, ctypes.c_size_t
            self.copy_rows.argtypes = [pointer, pointer, pointer, size, size]
            self.copy_rows.restype = None

    def data_bytes(self, full: int) -> int:
        """How much to read from: `full`, less where memory or haste demands it."""
        available = full * 16
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    available = int(line.split()[1]) * KB
        size = full // 4 if self.quick else full
        while size > available // 12 and size > 16 * MB:
            size //= 2
        return size

    def pair(self, tables: list[Table]) -> tuple[Any, Peer]:
        """Opens rank 0 here and starts rank 1."""
        peer = Peer(self.peer_cpu, "store", self.directory, *map(str, tables))
        store = open_member(self.directory, 0, tables)
        peer.listen()
        return store, peer

    def turns(
        self, ways: list[Way], out: Rows, batch: int, seconds: float, last: bool = False
    ) -> Turns:
        """Measures ways that read into out; if `last`, only the last row of a batch."""

        def verify(way: Way, numbers: Numbers) -> None:
            check(out, numbers[-1:] if last else numbers, way.name)
            out[:] = 0

        out[:] = 0
        return take_turns(ways, batch, seconds, self.quick, verify)

    def held_turns(
        self, ways: list[Way], out: Rows, batch: int, seconds: float, tries: int = TRIES
    ) -> tuple[Turns, bool, str]:
        """Measures until way 2, the control, scores 0.95 to 1.05 of way 1."""
        held, tried = False, 0
        while not held and tried < tries:
            turns = self.turns(ways, out, batch, seconds)
            score = turns.ratio(2, 1)
            held = 0.95 <= score.middle <= 1.05
            tried += 1
        note = (
            f"control {score.middle:.3f} ({score.low:.3f}-{score.high:.3f}); "
            f"{turns.calls} calls each, {len(turns.us)} rounds"
        )
        return turns, held, note if held else f"VOID: the control failed: {note}"


# ---- ways --------------------------------------------------------------------------


def product(store: Any, table: Table, out: Rows) -> Way:
    """get_batch."""
    get_batch, name = store.get_batch, table.name
    dealer = Dealer(0, table.rows, 1)
    return Way("get_batch", lambda rows: get_batch(name, out, rows), dealer)


def product_each(store: Any, table: Table, out: Rows) -> Way:
    """A get a row, each into the same array."""
    get, name = store.get, table.name

    def read(rows: list[int]) -> None:
        for row in rows:
            get(name, out, row)

    return Way("get", read, Dealer(0, table.rows, 2), lambda rows: rows.tolist())


def numpy_take(name: str, local: Rows, out: Rows, seed: int, **options: Any) -> Way:
    """numpy.take from an array of this process's own."""
    take = np.take

    def read(rows: Numbers) -> None:
        take(local, rows, axis=0, out=out, **options)

    return Way(name, read, Dealer(0, len(local), seed))


def copy_loop(bench: Bench, name: str, view: Rows, out: Rows, seed: int) -> Way:
    """The loop of memcpy in C, over this member's own shard as it is mapped."""
    copy_rows, row_bytes = bench.copy_rows, view.shape[1]
    source, target = view.ctypes.data, out.ctypes.data

    def read(rows: tuple[int, int]) -> None:
        copy_rows(target, source, rows[0], rows[1], row_bytes)

    dealer = Dealer(0, len(view), seed)
    return Way(name, read, dealer, lambda rows: (rows.ctypes.data, len(rows)))


# ---- path 1 ------------------------------------------------------------------------


def path1(bench: Bench) -> None:
    """Mapped rows against numpy.take, and against a loop of memcpy."""
    tables = []
    for row_bytes, _, _ in SIZES:
        size = bench.data_bytes(768 * MB if row_bytes == ROW else 256 * MB)
        rows = size // row_bytes
        tables.append(Table(row_bytes, rows, rows // 2))
    store, peer = bench.pair(tables)
    for table, (row_bytes, batch, label) in zip(tables, SIZES, strict=True):
        out = np.empty((batch, row_bytes), np.uint8)
        local = np.empty((table.rows, row_bytes), np.uint8)
        fill(local, 0)
        path1_take(bench, store, table, local, out, label)
        del local
        if row_bytes == ROW:
            if bench.copy_rows is not None:
                path1_copy(bench, store, table, out, label)
            path1_get(bench, store, table)
    store.free()
    peer.close()


def path1_take(
    bench: Bench, store: Any, table: Table, local: Rows, out: Rows, label: str
) -> None:
    """get_batch against numpy.take with its defaults, from an array of numpy's own."""
    main = table.row_bytes == ROW
    ways = [
        product(store, table, out),
        numpy_take("numpy.take", local, out, 3),
        numpy_take("numpy.take again", local, out, 4),
        numpy_take("numpy.take, mode=clip", local, out, 5, mode="clip"),
    ]
    turns, held, note = bench.held_turns(
        ways, out, len(out), 2.5 if main else 1.0, TRIES if main else 1
    )
    show(
        "path1",
        f"get_batch {label}, mapped (Python)",
        "us",
        turns.time(0).middle,
        turns.time(1).middle,
        "us take",
        turns.ratio(0, 1),
        "<= 1.0" if main else None,
        f"numpy.take with mode=clip {turns.time(3).middle:.4g} us; {note}",
        void=not held,
    )


def path1_copy(bench: Bench, store: Any, table: Table, out: Rows, label: str) -> None:
    """get_batch against the loop of memcpy."""
    view = store.view(table.name)
    ways = [
        product(store, table, out),
        copy_loop(bench, "memcpy", view, out, 3),
        copy_loop(bench, "memcpy again", view, out, 4),
    ]
    turns, held, note = bench.held_turns(ways, out, len(out), 2.5)
    show(
        "path1",
        f"get_batch {label}, mapped, against C (Python)",
        "us",
        turns.time(0).middle,
        turns.time(1).middle,
        "us memcpy",
        turns.ratio(0, 1),
        "<= 1.25",
        note,
        void=not held,
    )


def path1_get(bench: Bench, store: Any, table: Table) -> None:
    """A get of one row, which has a bound in microseconds, and next to it a loop of
    memcpy over single rows."""
    out = np.empty((1, table.row_bytes), np.uint8)
    ways = [product_each(store, table, out)]
    turns = bench.turns(ways, out, BATCH, 2.0, last=True)
    us = [Spread.of([us[0] / BATCH for us in turns.us])][0]
    show(
        "path1",
        "get 3 KB, mapped (Python)",
        "us",
        us.middle,
        GET_US,
        "us allowed",
        Spread(us.low / GET_US, us.middle / GET_US, us.high / GET_US),
        "<= 1.0",
        f"{us.low:.3f} to {us.high:.3f} us; {turns.calls * BATCH} calls",
    )


# ---- path 3 ------------------------------------------------------------------------


def path3(bench: Bench) -> None:
    """Rows over TCP against a plain socket."""
    size = bench.data_bytes(256 * MB)
    tables = [Table(ROW, size // ROW, 0), Table(MB, size // MB, 0)]
    server = Peer(bench.peer_cpu, "socket", *map(str, tables))
    os.environ["DDSTORE_SHM"] = "0"
    os.environ["DDSTORE_FABRIC"] = "tcp"
    store, peer = bench.pair(tables)
    client = SocketClient(int(server.listen()))
    path3_one(bench, store, client, tables, 0, BATCH, "get_batch 128 x 3 KB", "<= 1.3")
    path3_one(bench, store, client, tables, 0, 1, "get 3 KB", "<= 1.3")
    path3_one(bench, store, client, tables, 1, 16, "get_batch 16 x 1 MB", ">= 0.85")
    path3_one(bench, store, client, tables, 1, 1, "get 1 MB", ">= 0.85")
    client.close()
    store.free()
    peer.close()
    server.close()


def path3_one(
    bench: Bench,
    store: Any,
    client: SocketClient,
    tables: list[Table],
    number: int,
    batch: int,
    name: str,
    budget: str,
) -> None:
    """One table and batch. Budgets of the form >= are of speeds, in MB/s."""
    table = tables[number]
    out = np.empty((batch, table.row_bytes), np.uint8)
    ask = Way(
        "plain socket",
        lambda rows: client.read(number, rows, out),
        Dealer(0, table.rows, 6),
    )
    ours = product_each if batch == 1 else product
    turns = bench.turns([ours(store, table, out), ask], out, batch, 2.5)
    us = [turns.time(way).middle for way in (0, 1)]
    speed = budget.startswith(">=")
    values = [batch * table.row_bytes / us[way] if speed else us[way] for way in (0, 1)]
    unit = "MB/s" if speed else "us"
    show(
        "path3",
        f"{name}, tcp (Python)",
        unit,
        values[0],
        values[1],
        f"{unit} socket",
        turns.ratio(1, 0) if speed else turns.ratio(0, 1),
        budget,
        f"{turns.calls} calls each",
    )


# ---- threads -----------------------------------------------------------------------


class Window:
    """Threads that read in one way for as long as they are let."""

    def __init__(self, bench: Bench, ways: list[list[Way]]) -> None:
        self.ways = ways  # of each thread
        self.cpus = (bench.cpu, bench.peer_cpu)
        self.seconds = 0.04 if bench.quick else 0.1

    def gains(self, turn: int) -> list[float]:
        """Two threads against one, in each way."""
        gain = [0.0] * len(self.ways[0])
        for way in range(len(gain))[:: -1 if turn % 2 else 1]:
            one = self.rate(way, 1, self.seconds)
            gain[way] = self.rate(way, 2, self.seconds) / one
        return gain

    def rate(self, way: int, threads: int, seconds: float) -> float:
        """Calls a second of all threads together."""
        stop = threading.Event()
        begin = threading.Barrier(threads + 1)
        rates = [0.0] * threads

        def work(number: int) -> None:
            pin(self.cpus[number])
            one = self.ways[number][way]
            read, prepare, deal = one.read, one.prepare, one.dealer.deal
            stopped: Callable[[], bool] = stop.is_set
            calls = 0
            begin.wait()
            start = time.perf_counter()
            while not stopped():
                read(prepare(deal(BATCH)))
                calls += 1
            rates[number] = calls / (time.perf_counter() - start)

        workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
        for worker in workers:
            worker.start()
        begin.wait()
        time.sleep(seconds)
        stop.set()
        for worker in workers:
            worker.join()
        return sum(rates)


def threads(bench: Bench) -> None:
    """What a second thread is worth, against what it is worth to loops of memcpy."""
    if bench.cpu == bench.peer_cpu:
        return
    rows = bench.data_bytes(512 * MB) // ROW
    table = Table(ROW, rows, rows // 2)
    store, peer = bench.pair([table])
    view = store.view(table.name)
    ways = []
    for seed in (10, 20):
        out = np.zeros((BATCH, ROW), np.uint8)
        ours = product(store, table, out)
        ours.dealer = Dealer(0, table.rows, seed)
        if bench.copy_rows is not None:
            others = [copy_loop(bench, "memcpy", view, out, seed + i) for i in (1, 2)]
        else:
            others = [
                numpy_take("take", view, out, seed + i, mode="clip") for i in (1, 2)
            ]
        ways.append([ours, *others])
    what = ways[0][1].name
    window = Window(bench, ways)
    held, tried = False, 0
    while not held and tried < TRIES:
        gains = [window.gains(turn) for turn in range(3 if bench.quick else 9)]
        score = Spread.of([gain[2] / gain[1] for gain in gains])
        held = 0.95 <= score.middle <= 1.05
        tried += 1
    show(
        "threads",
        "speed-up of two threads, get_batch 128 x 3 KB, mapped (Python)",
        "x",
        Spread.of([gain[0] for gain in gains]).middle,
        Spread.of([gain[1] for gain in gains]).middle,
        f"x {what}",
        Spread.of([gain[0] / gain[1] for gain in gains]),
        ">= 0.95",
        ("" if held else "VOID: the control failed: ")
        + f"control {score.middle:.3f} ({score.low:.3f}-{score.high:.3f})",
        void=not held,
    )
    del view
    store.free()
    peer.close()


PARTS = {"path1": path1, "path3": path3, "threads": threads}


def main() -> None:
    """Runs one part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--copy-loop", metavar="FILE")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ddstore-bench-") as directory:
        bench = Bench(given.quick, given.copy_loop, directory)
        pin(bench.cpu)
        PARTS[given.part](bench)


if __name__ == "__main__":
    main()
