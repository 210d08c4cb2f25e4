"""Many threads that read, and cores whose Python is busy."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from members import Member, Members

PATHS = [
    pytest.param({}, id="mapped"),
    pytest.param({"DDSTORE_SHM": "0", "DDSTORE_FABRIC": "tcp"}, id="tcp"),
]
ROWS, WIDTH = 500, 6


def rows_of(rank: int, name: int) -> Any:
    first = 10**6 * name + 10**5 * rank
    return first + np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH)


def read_in_threads(m: Member) -> None:
    store = m.store()
    whole = []
    for name in range(3):
        store.add(f"x{name}", rows_of(m.rank, name))
        whole.append(np.concatenate([rows_of(r, name) for r in range(m.size)]))
    total = ROWS * m.size
    begun = time.monotonic()

    def read(thread: int) -> int:
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[thread % len(cpus)]})
        random = np.random.default_rng(1000 * m.rank + thread)
        one, some = np.zeros((1, WIDTH), int), np.zeros((40, WIDTH), int)
        turns = 0
        while time.monotonic() < begun + 1.0:
            name = int(random.integers(3))
            row = int(random.integers(total))
            store.get(f"x{name}", one, row)
            assert np.array_equal(one[0], whole[name][row])
            indices = random.integers(0, total, 40)
            store.get_batch(f"x{name}", some, indices)
            assert np.array_equal(some, whole[name][indices])
            turns += 1
        return turns

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(read, range(6)))
    # What isn't a read may run beside reads.
    stop = threading.Event()

    def use(call: Any) -> None:
        while not stop.is_set():
            call()

    out = np.zeros((1, WIDTH), int)
    calls = [
        lambda: store.get("x0", np.zeros((1, WIDTH), int), ROWS * (1 - m.rank)),
        lambda: store.update("x1", rows_of(m.rank, 1)[:1], 0),
        lambda: store.view("x1")[0],
        lambda: store.transports(),
        lambda: store.info("x2"),
        lambda: store.get_profile("x2"),
        lambda: (store.register_recv("x0", out), store.get("x0", out, ROWS)),
    ]
    threads = [threading.Thread(target=use, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    time.sleep(0.7)
    stop.set()
    for thread in threads:
        thread.join()
    m.meet("done")


@pytest.mark.parametrize("env", PATHS)
def test_threads(members: Members, env: dict[str, str]) -> None:
    members(2, read_in_threads, env)


def many_short_threads(m: Member) -> None:
    """Threads that come and go leave nothing behind."""
    store = m.store()
    store.add("x", np.arange(10.0) + 10 * m.rank)

    def read() -> None:
        out = np.zeros(10)
        store.get("x", out, 10 * (1 - m.rank))
        assert out[9] == 10 * (1 - m.rank) + 9

    def burst() -> None:
        for _ in range(10):
            threads = [threading.Thread(target=read) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    burst()
    before = files()
    burst()
    # Connections are as many as threads met in reading, 20 each way at most, not 200.
    assert files() <= before + 60, (before, files())
    m.meet("done")


@pytest.mark.parametrize("env", PATHS)
def test_threads_come_and_go(members: Members, env: dict[str, str]) -> None:
    members(2, many_short_threads, env)


def busy_core(m: Member) -> None:
    """Rank 0 sleeps in Python, then holds the GIL in C; rank 1 reads from it."""
    store = m.store()
    store.add("x", np.arange(384.0 * 64).reshape(64, 384) + m.rank)
    out, batch = np.zeros((1, 384)), np.zeros((16, 384))
    store.get("x", out, 64 * (1 - m.rank))
    m.meet("begin")
    for what in ("sleep", "GIL"):
        if m.rank == 0:
            m.mark(f"busy.{what}")
            if what == "sleep":
                time.sleep(1.5)
            else:
                ctypes.PyDLL(None).usleep(1_500_000)
            continue
        m.wait(f"busy.{what}")
        time.sleep(0.1)
        times = []
        until = time.monotonic() + 0.9
        while time.monotonic() < until:
            for row in range(64):
                begun = time.perf_counter()
                store.get("x", out, row)
                times.append(time.perf_counter() - begun)
                assert out[0, 0] == 384 * row
            store.get_batch("x", batch, range(16))
        assert np.percentile(times, 50) < 0.005, np.percentile(times, 50)
    m.meet("done")


@pytest.mark.parametrize("env", PATHS)
def test_busy_cores_serve(members: Members, env: dict[str, str]) -> None:
    members(2, busy_core, env)


def gil_is_free(m: Member) -> float:
    """While a read waits for the network another thread of this process runs."""
    store = m.store()
    store.add("x", np.zeros((64, 2**20), np.uint8))
    m.meet("added")
    if m.rank == 0:
        m.wait("done.1")
        m.mark("done.0")
        return 0.0
    counted = [0]
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    out = np.zeros((64, 2**20), np.uint8)
    longest = 0.0
    for _ in range(5):
        before, begun = counted[0], time.monotonic()
        store.get("x", out, 0)
        longest = max(longest, (counted[0] - before) / (time.monotonic() - begun))
    stop.set()
    thread.join()
    m.mark("done.1")
    return longest


def test_reads_release_the_gil(members: Members) -> None:
    env = {"DDSTORE_SHM": "0", "DDSTORE_FABRIC": "tcp"}
    assert members(2, gil_is_free, env)[1] > 1000
