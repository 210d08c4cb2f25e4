"""Rows over MPI against what MPI itself takes for them.

    mpirun -n 2 python bench/mpi_rows.py [--json FILE]

Rank 0 reads rows of 3 KB of rank 1, once through a store's shared mapping and once with
DDSTORE_SHM=0. In the same run, in turn: MPI_Win_lock, MPI_Get and MPI_Win_unlock for
single rows and for a batch, and MPI_Allgatherv of the numbers with MPI_Alltoallv of the
rows, packed by numpy.take, as an exchange of all ranks. Each way has row numbers of its
own, which come back only when all the others have been read: the rows are in no cache.
All is read once more from among few rows, which stay in one.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import pyddstore
from pyddstore.bench_turns import Dealer

ROW_BYTES, ROWS, BATCH = 3072, 100_000, 128
FEW = 512  # rows that fit a cache
ROUNDS, GETS, BATCHES = 15, 300, 12

Numbers = NDArray[np.int64]

comm = MPI.COMM_WORLD
other = (comm.rank + 1) % comm.size


class Raw:
    """What a program does with MPI alone."""

    def __init__(self, shard: NDArray[np.uint8]) -> None:
        self.shard = shard
        self.window = MPI.Win.Create(shard, 1, comm=comm)
        self.out = np.empty((BATCH, ROW_BYTES), np.uint8)
        self.send = np.empty_like(self.out)
        self.everyone = np.empty(comm.size * BATCH, np.int64)

    def get(self, row: int, to: Any) -> None:
        """Locks, gets, unlocks."""
        self.window.Lock(other, MPI.LOCK_SHARED)
        place = (row - other * ROWS) * ROW_BYTES
        self.window.Get([to, MPI.BYTE], other, [place, ROW_BYTES, MPI.BYTE])
        self.window.Unlock(other)

    def single(self, rows: list[int]) -> None:
        """One row after the other."""
        for row in rows:
            self.get(row, self.out[0])

    def gets(self, rows: Numbers) -> None:
        """A batch by as many gets."""
        for i, row in enumerate(rows.tolist()):
            self.get(row, self.out[i])

    def exchange(self, rows: Numbers) -> None:
        """A batch by all ranks: the numbers to all, the rows to who wants them."""
        comm.Allgatherv(rows, [self.everyone, BATCH])
        wanted = self.everyone.reshape(comm.size, BATCH)[(comm.rank - 1) % comm.size]
        mine = wanted - comm.rank * ROWS
        np.take(self.shard, mine, axis=0, out=self.send, mode="clip")  # unbuffered
        sent, taken = np.zeros(comm.size, int), np.zeros(comm.size, int)
        sent[(comm.rank - 1) % comm.size] = taken[other] = BATCH * ROW_BYTES
        start = np.zeros(comm.size, int)
        comm.Alltoallv(
            [self.send, (sent, start), MPI.BYTE], [self.out, (taken, start), MPI.BYTE]
        )


class Store:
    """The same by a store."""

    def __init__(self, shard: NDArray[np.uint8], method: int, shm: str) -> None:
        os.environ["DDSTORE_SHM"] = shm
        self.store = pyddstore.PyDDStore(comm, method=method)
        self.store.add("rows", shard)
        self.out = np.empty((BATCH, ROW_BYTES), np.uint8)

    def single(self, rows: list[int]) -> None:
        """One row after the other."""
        one = self.out[:1]
        for row in rows:
            self.store.get("rows", one, row)

    def batch(self, rows: Numbers) -> None:
        """A batch by one call."""
        self.store.get_batch("rows", self.out, rows)


def in_turn(
    ways: dict[str, Callable[[Any], None]], calls: int, rows: int, together: bool,
    among: int = ROWS,
) -> dict[str, float]:  # fmt: skip
    """Median microseconds a call of each way. together: all ranks make the calls, else
    only rank 0, while the others wait. among: so many rows of the other rank's."""
    dealers = {name: Dealer(other * ROWS, other * ROWS + among, i)
               for i, name in enumerate(ways)}  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, call in ways.items():
            deals = [dealers[name].deal(rows).copy() for _ in range(calls)]
            work: list[Any] = deals if rows > 1 else [[int(d[0]) for d in deals]]
            comm.Barrier()
            began = time.perf_counter()
            if together or comm.rank == 0:
                for one in work:
                    call(one)
            times[name].append((time.perf_counter() - began) / calls * 1e6)
            comm.Barrier()
    return {name: statistics.median(all) for name, all in times.items()}


def budgets(
    get: dict[str, float], batch: dict[str, float], where: str
) -> list[dict[str, Any]]:
    """Each figure against what it is compared with."""
    raw, exchange = get["raw get"], batch["raw exchange"]
    cases = [
        ("get by mapping, method 0", get["method 0"], raw, 1 / 8),
        ("get by mapping, method 1", get["method 1"], raw, 1 / 8),
        ("batch by mapping, method 0, to 128 gets", batch["method 0"],
         batch["raw gets"], 1 / 8),
        ("batch by mapping, method 0, to the exchange", batch["method 0"],
         exchange, 1 / 3),
        ("batch by mapping, method 1, to the exchange", batch["method 1"],
         exchange, 1 / 3),
        ("get by MPI, method 0, DDSTORE_SHM=0", get["method 0 far"], raw, 1.2),
        ("batch by MPI, method 0, DDSTORE_SHM=0", batch["method 0 far"], exchange, 1.2),
    ]  # fmt: skip
    return [
        {"what": what, "rows": where, "us": us, "reference_us": reference,
         "ratio": us / reference, "budget": budget}
        for what, us, reference, budget in cases
    ]  # fmt: skip


def show(rows: list[dict[str, Any]]) -> None:
    """A table."""
    library = " ".join(MPI.Get_library_version().splitlines()[0].split()[:3])
    print(f"{library.rstrip(',')}, {comm.size} ranks, rows of {ROW_BYTES} bytes, ")
    print(f"batches of {BATCH}, medians of {ROUNDS} rounds")
    last = ""
    for row in rows:
        if row["rows"] != last:
            last = row["rows"]
            print(f"rows in {last}:")
        met = "" if row["ratio"] <= row["budget"] else "  MISSED"
        figures = f"{row['us']:9.2f} us {row['reference_us']:9.2f} us"
        ratio = f"ratio {row['ratio']:6.3f} (at most {row['budget']:.3f}){met}"
        print(f"{row['what']:45} {figures}  {ratio}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=pathlib.Path, help="writes the figures there")
    given = parser.parse_args()
    rng = np.random.default_rng(comm.rank)
    shard = rng.integers(0, 255, (ROWS, ROW_BYTES), np.uint8)
    raw = Raw(shard)
    stores = {"method 0": Store(shard, 0, "1"), "method 1": Store(shard, 1, "1"),
              "method 0 far": Store(shard, 0, "0")}  # fmt: skip
    gets = {"raw get": raw.single} | {name: s.single for name, s in stores.items()}
    batches = {"raw gets": raw.gets, "raw exchange": raw.exchange}
    batches |= {name: s.batch for name, s in stores.items()}
    rows = []
    for where, among in (("no cache", ROWS), ("a cache", FEW)):
        get = in_turn(gets, GETS, 1, together=False, among=among)
        batch = in_turn(batches, BATCHES, BATCH, together=True, among=among)
        rows += budgets(get, batch, where)
    if comm.rank == 0:
        show(rows)
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1))
    raw.window.Free()
    for store in stores.values():
        store.store.free()


if __name__ == "__main__":
    main()
