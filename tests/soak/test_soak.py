"""Soak: rows are read for minutes while members come and go; memory, descriptors and
files stay what they were."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_support import (
    NURSERY,
    Crew,
    Member,
    MemberError,
    attempt,
    crew,
    descriptors,
    rss_kib,
    tasks,
)

ROWS, WIDTH = 4096, 96  # of a rank; 768 bytes a row

READER = """
def soak(seconds, batch=128):
    # Batches of random rows, each checked; every second from four new threads too.
    rng = np.random.default_rng(os.getpid())
    until, rows = time.monotonic() + seconds, 0
    out = np.empty((batch, WIDTH), dtype=np.int64)
    buffers = [np.empty((batch, WIDTH), dtype=np.int64) for _ in range(4)]
    wrong = []
    next_threads = 0
    def once(out, seed):
        order = np.random.default_rng(seed).integers(0, TOTAL, batch)
        store.get_batch("x", out, order)
        if not np.array_equal(out, made(1, order, WIDTH)):
            wrong.append(order)
    while time.monotonic() < until:
        order = rng.integers(0, TOTAL, batch)
        store.get_batch("x", out, order)
        rows += batch
        if rows % (batch * 16) == 0 and not np.array_equal(out, made(1, order, WIDTH)):
            wrong.append(order)
        if time.monotonic() > next_threads:
            next_threads = time.monotonic() + 1
            threads = [threading.Thread(target=once, args=(b, rows + i))
                       for i, b in enumerate(buffers)]
            [t.start() for t in threads]
            [t.join() for t in threads]
            rows += 4 * batch
    assert not wrong, len(wrong)
    return rows
"""

VISITORS = """
import random

def visitor(tell, dir, how):
    global store
    extra(dir)
    tell("in")
    for _ in range(20):
        read(np.random.randint(0, TOTAL, 50), WIDTH)
    if how == "killed":
        while True:
            read(np.random.randint(0, TOTAL, 50), WIDTH)
    if how == "freed":
        store.free()
    tell("done")

def visits(dir, seconds):
    # Extras come, read and go: freed, just ended, or killed while they read.
    until, n = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        how = ("freed", "ended", "killed")[n % 3]
        child = Child(visitor, dir, how)
        try:
            heard = child.hear()
            assert heard == "in", heard
            if how == "killed":
                time.sleep(random.uniform(0, 0.05))
            else:
                heard = child.hear()
                assert heard == "done", heard
        finally:
            child.end()
        n += 1
        time.sleep(0.05)
    return n
"""


def define(total: int) -> str:
    """The figures that both programs use."""
    return f"\nWIDTH = {WIDTH}\nTOTAL = {total}\n"


@pytest.fixture
def hands() -> Iterator[Crew]:
    with crew() as one:
        yield one


class Watch:
    """Memory, descriptors and threads of members, over time."""

    def __init__(self, members: dict[str, Member]) -> None:
        self.pids = {name: member.pid for name, member in members.items()}
        self.first: dict[str, tuple[int, int, int]] = {}
        self.last: dict[str, tuple[int, int, int]] = {}

    def look(self) -> dict[str, tuple[int, int, int]]:
        """The most of a few looks: connections come and go."""
        seen: dict[str, tuple[int, int, int]] = {}
        for _ in range(5):
            for name, pid in self.pids.items():
                now = (rss_kib(pid), descriptors(pid), len(tasks(pid)))
                seen[name] = tuple(map(max, now, seen.get(name, now)))  # type: ignore
            time.sleep(0.1)
        return seen

    def check(self, growth: float) -> None:
        """Nothing has grown since `first`, memory by less than `growth` of itself."""
        for name, (rss, fds, threads) in self.first.items():
            rss_now, fds_now, threads_now = self.last[name]
            print(
                f"\n{name}: {rss} -> {rss_now} KiB, {fds} -> {fds_now} descriptors,"
                f" {threads} -> {threads_now} threads"
            )
        for name, (rss, fds, threads) in self.first.items():
            rss_now, fds_now, threads_now = self.last[name]
            assert rss_now < rss * (1 + growth) + 3072, name
            assert fds_now <= fds + 6, name
            assert threads_now <= threads + 5, name


@pytest.mark.long
@pytest.mark.parametrize("network", ["tcp", "ofi:tcp;ofi_rxm"])
def test_rows_while_members_come_and_go(
    hands: Crew, tmp_path: Path, network: str, long_seconds: float
) -> None:
    directory = str(tmp_path / "h")
    mapped = {"DDSTORE_FABRIC": network}
    far = mapped | {"DDSTORE_SHM": "0"}
    cores = hands.hire_many(2, env=mapped)
    outcomes = attempt(
        cores,
        [f"core({directory!r}, {r}, 2, rows={ROWS}, width={WIDTH})" for r in range(2)],
    )
    if network != "tcp" and isinstance(outcomes[0], MemberError):
        pytest.skip(f"optional: no {network} here: {outcomes[0]}")
    assert not any(isinstance(o, Exception) for o in outcomes), outcomes
    total = 2 * ROWS
    readers = [hands.hire(env=env) for env in (mapped, far)]
    for reader in readers:
        reader.run(READER + define(total))
        reader.run(f"extra({directory!r})")
    visitors = [
        hands.hire(env=env, prelude=NURSERY + VISITORS + define(total))
        for env in (mapped, far)
    ]
    for member in visitors:
        member.ready()
    watch = Watch(
        {
            "core 0": cores[0],
            "core 1": cores[1],
            "mapping reader": readers[0],
            f"{network} reader": readers[1],
        }
    )
    begun = time.monotonic()
    for reader in readers:
        reader.ask(f"soak({long_seconds})")
    for member in visitors:
        member.ask(f"visits({directory!r}, {long_seconds})")
    time.sleep(long_seconds * 0.4)
    watch.first = watch.look()
    time.sleep(max(0, long_seconds - (time.monotonic() - begun) - 1.5))
    watch.last = watch.look()
    rows = [reader.answer(long_seconds + 60) for reader in readers]
    came = sum(member.answer(60) for member in visitors)
    took = time.monotonic() - begun
    print(
        f"\n{network}: {rows[0]:,} rows by mapping and {rows[1]:,} over the network in"
        f" {took:.0f} s beside {came} visits"
    )
    # A provider touches its own pools one by one until all are in use, for a minute or
    # so: its processes still grow.
    watch.check(growth=0.1 if network != "tcp" and long_seconds < 100 else 0.03)
    assert came > long_seconds / 4
    assert sum(rows) > 10_000 * long_seconds
    assert len(os.listdir(directory)) < 10


@pytest.mark.long
def test_stores_come_and_go_in_one_process(
    hands: Crew, tmp_path: Path, long_seconds: float
) -> None:
    """Two members open, fill, read and free one store after another."""
    members = hands.hire_many(2, env={"DDSTORE_FABRIC": "tcp"})
    cycle = """
def cycles(dir, rank, seconds):
    n, until = 0, None
    while True:
        core(dir, rank, 2, run=n + 1, exchange_ns=f"c{{n}}", name=f"v{{n % 7}}")
        assert read(range(128), name=f"v{{n % 7}}") == n + 1
        now = np.array([[time.monotonic()]])
        store.add("clock", now)  # a barrier, and rank 0's clock decides for both
        store.get("clock", now, 0)
        until = until or now[0, 0] + seconds
        store.add("end", np.zeros(1))
        store.free()
        n += 1
        if now[0, 0] > until:
            return n
cycles({dir!r}, {rank}, {seconds})
"""
    directory = str(tmp_path / "h")
    watch = Watch({f"rank {r}": member for r, member in enumerate(members)})
    for rank, member in enumerate(members):
        member.ask(cycle.format(dir=directory, rank=rank, seconds=long_seconds))
    time.sleep(long_seconds * 0.4)
    watch.first = watch.look()
    time.sleep(long_seconds * 0.6 - 2.5)
    watch.last = watch.look()
    counts = [member.answer(long_seconds + 60) for member in members]
    left = sorted(os.listdir(directory))
    print(f"\n{counts[0]} stores, {len(left)} files are left: {left[:6]}")
    assert counts[0] == counts[1]
    watch.check(growth=0.03)
    assert len(left) < 10
