"""ThreadDataLoader's threads: what they read ahead, how they fail, how they end."""

from __future__ import annotations

import os
import threading
import time
import traceback
from typing import Any

import pytest
from members import Member, Members

pytest.importorskip("torch", reason="optional: torch is not installed")

from loader_support import COUNT, Slow, loaded, no_threads_are_left, sample
from torch_support import Source, same

from pyddstore.torch import DistDataset, ThreadDataLoader


@pytest.fixture
def ds(tmp_path: Any) -> Any:
    yield from loaded(tmp_path)


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (1, 3), (2, 2), (3, None)])
def test_batches_in_flight(workers: int, prefetch: int | None) -> None:
    slow = Slow()
    loader = ThreadDataLoader(
        slow, batch_size=1, num_workers=workers, prefetch_factor=prefetch
    )
    ahead = workers * (prefetch or 2)

    def settled(want: int) -> None:
        until = time.monotonic() + 10
        while len(slow.begun) < want and time.monotonic() < until:
            time.sleep(0.002)
        time.sleep(0.05)
        assert len(slow.begun) == want

    batches = iter(loader)
    settled(ahead)
    for held in range(1, 6):
        next(batches)
        settled(ahead + held)
    del batches
    no_threads_are_left()


def test_separate_iterators(ds: Any) -> None:
    with ThreadDataLoader(
        ds, batch_size=5, num_workers=1, reuse_buffers=True
    ) as loader:
        one, other = iter(loader), iter(loader)
        assert one is not other
        first = next(one)
        same(next(other), first)
        second = next(one)
        same([second, *one], list(loader)[1:])
        assert next(one, None) is next(one, None) is None
        assert len(list(other)) == len(loader) - 1


class Failing(Slow):
    def __getitem__(self, i: int) -> int:
        if i % 10 == 3:
            self.give_up(i)
        return i

    def give_up(self, i: int) -> None:
        raise LookupError(f"sample {i} is bad")


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_exceptions(workers: int) -> None:
    batches = iter(ThreadDataLoader(Failing(30), batch_size=5, num_workers=workers))
    for n in range(6):
        if n % 2:
            assert next(batches).tolist() == list(range(5 * n, 5 * n + 5))
            continue
        with pytest.raises(LookupError, match=f"sample {5 * n + 3} is bad") as caught:
            next(batches)
        names = [frame.name for frame in traceback.extract_tb(caught.tb)]
        assert names[-1] == "give_up"
        assert "__getitem__" in names
    with pytest.raises(StopIteration):
        next(batches)


def test_exceptions_of_reads(ds: Any) -> None:
    for reuse in (False, True):
        with ThreadDataLoader(
            ds, batch_sampler=[[0], [COUNT], [1]], num_workers=1, reuse_buffers=reuse
        ) as loader:
            batches = iter(loader)
            assert next(batches)["int"] == 0
            with pytest.raises(IndexError, match=f"{COUNT} is out of range"):
                next(batches)
            assert next(batches)["int"] == 1


def test_timeout() -> None:
    slow = Slow()
    slow.gate.clear()
    batches = iter(ThreadDataLoader(slow, num_workers=1, timeout=0.2))
    with pytest.raises(RuntimeError, match=r"timed out after 0\.2 seconds"):
        next(batches)
    slow.gate.set()
    assert next(batches) == 0


def test_close_beside_a_waiting_next() -> None:
    slow = Slow()
    slow.gate.clear()
    loader = ThreadDataLoader(slow, num_workers=2)
    batches = iter(loader)
    ended = []
    waiting = threading.Thread(target=lambda: ended.append(next(batches, None)))
    closing = threading.Thread(target=loader.close)
    waiting.start()
    time.sleep(0.1)
    closing.start()
    time.sleep(0.1)
    slow.gate.set()
    for one in (waiting, closing):
        one.join(10)
        assert not one.is_alive()
    assert ended == [None]
    assert len(slow.begun) == 2
    no_threads_are_left()


def test_worker_init_fn() -> None:
    seen = []

    def begin(number: int) -> None:
        seen.append((number, threading.current_thread()))
        time.sleep(0.05)

    list(ThreadDataLoader(Slow(), num_workers=3, worker_init_fn=begin))
    assert sorted(n for n, _ in seen) == [0, 1, 2]
    assert len({thread for _, thread in seen}) == 3

    def bad(number: int) -> None:
        raise ZeroDivisionError("at the beginning")

    with pytest.raises(ZeroDivisionError, match="at the beginning"):
        next(iter(ThreadDataLoader(Slow(), num_workers=1, worker_init_fn=bad)))


def test_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = sorted(os.sched_getaffinity(0))

    def cpus(width: int, offset: int, workers: int) -> list[set[int]]:
        monkeypatch.setenv("DDSTORE_AFFINITY_WIDTH", str(width))
        monkeypatch.setenv("DDSTORE_AFFINITY_OFFSET", str(offset))
        seen = {}

        def begin(number: int) -> None:
            seen[number] = os.sched_getaffinity(0)
            time.sleep(0.05)

        list(ThreadDataLoader(Slow(), num_workers=workers, worker_init_fn=begin))
        assert os.sched_getaffinity(0) == set(allowed)
        return [seen[n] for n in range(workers)]

    n = len(allowed)
    assert cpus(0, 1, 2) == [set(allowed)] * 2
    assert cpus(1, 0, 2) == [{allowed[0]}, {allowed[1 % n]}]
    assert cpus(1, 1, 2) == [{allowed[1 % n]}, {allowed[2 % n]}]
    assert cpus(2 * n, 1, 1) == [set(allowed)]


def left_running(m: Member) -> None:
    """The process ends while an iterator lives and threads read."""
    ds = DistDataset(Source(COUNT, sample), "ds", rank=0, size=1, handshake_dir=m.dir)
    globals()["kept"] = [ds, iter(ThreadDataLoader(ds, num_workers=2, batch_size=3))]
    next(globals()["kept"][1])


def test_exit_while_reading(members: Members) -> None:
    members(1, left_running)
