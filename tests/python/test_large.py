"""Rows past 2^31 and 2^32, large rows in small pieces, descriptors in short supply."""

from __future__ import annotations

import functools
import resource
from typing import Any

import numpy as np
import pytest
from members import Member, Members, raises

ROWS = 2**32 + 5000


def pattern(first: int, n: int) -> Any:
    """Byte i of the variable, for i from first on."""
    i = np.arange(first, first + n, dtype=np.uint64)
    i = (i ^ (i >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15)
    return (i >> np.uint64(56)).astype(np.uint8)


def use_many_rows(m: Member, shards: list[int]) -> None:
    """A 1-D variable of bytes; its borders and some places are written and read."""
    store = m.store(method=2)
    mine = shards[m.rank]
    start = sum(shards[: m.rank])
    store.init("x", mine, 1)
    assert store.info("x") == (ROWS, 1, 1)
    assert store.nbytes == ROWS
    view = store.view("x")
    assert view.shape == (mine, 1)
    places = [0, 2**31 - 500, 2**31, 2**32 - 500, 2**32, ROWS - 1000, shards[0] - 500]
    for place in places:
        first, last = max(place, start), min(place + 1000, start + mine)
        if first < last:
            part = pattern(first, last - first)
            if place % 1000:
                store.update("x", part, first - start)
            else:
                view[first - start : last - start, 0] = part
    del view
    m.meet("written")
    for place in places:
        want = pattern(place, 1000)
        out = np.zeros(1000, np.uint8)
        store.get_batch("x", out, np.arange(place, place + 1000))
        assert np.array_equal(out, want), place
        cut = min(max(shards[0] - place, 0), 1000)
        out[...] = 0
        store.get("x", out[:cut], place)
        store.get("x", out[cut:], place + cut)
        assert np.array_equal(out, want), place
    order = np.array([ROWS - 1, 0, 2**31, 2**32 - 1, 2**32, 2**31 - 1, 5], np.uint64)
    out = np.zeros(7, np.uint8)
    store.get_batch("x", out, order)
    assert list(out) == [pattern(int(i), 1)[0] for i in order]
    for bad in (ROWS, -1, 2**32 + 2**31):
        read = functools.partial(store.get, "x", out[:1], bad)
        raises(IndexError, str(bad), str(ROWS), call=read)
    m.meet("read")
    store.free()


def available() -> int:
    with open("/proc/meminfo") as f:
        for line in f:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


@pytest.mark.parametrize("shm", ["1", "0"])
@pytest.mark.timeout(110)
def test_rows_past_32_bits(members: Members, shm: str) -> None:
    """One shard above 4 GiB where all is mapped, two shards across the borders else."""
    if available() < 8 * 2**30:
        pytest.skip("optional: less than 8 GiB of memory are free")
    shards = [2**32 + 600, 4400] if shm == "1" else [2**31 + 250, 2**31 + 4750]
    members(
        2,
        use_many_rows,
        {"DDSTORE_SHM": shm, "DDSTORE_FABRIC": "tcp"},
        limit_s=100,
        shards=shards,
    )


def large_rows(m: Member, width: int) -> None:
    store = m.store()
    rows = np.random.default_rng(m.rank).integers(0, 256, (3, width), np.uint8)
    store.add("x", rows)
    m.meet("added")
    other = 1 - m.rank
    want = np.random.default_rng(other).integers(0, 256, (3, width), np.uint8)
    out = np.zeros((3, width), np.uint8)
    store.get("x", out, 3 * other)
    assert np.array_equal(out, want)
    out[...] = 0
    store.get_batch("x", out, [3 * other + 2, 3 * other, 3 * other + 2])
    assert np.array_equal(out, want[[2, 0, 2]])
    out[...] = 0
    store.get_batch("x", out[:2], [3 * m.rank + 1, 3 * other + 1])
    assert np.array_equal(out[:2], [rows[1], want[1]])
    store.register_recv("x", out)
    store.get("x", out[1:2], 3 * other)
    assert np.array_equal(out[1], want[0])
    m.meet("done")


@pytest.mark.parametrize("piece", ["4096", "1000", "1G"])
@pytest.mark.parametrize("fabric", ["tcp", "ofi:tcp;ofi_rxm"])
def test_rows_larger_than_a_read(members: Members, fabric: str, piece: str) -> None:
    env = {
        "DDSTORE_SHM": "0",
        "DDSTORE_FABRIC": fabric,
        "DDSTORE_MAX_READ_BYTES": piece,
    }
    if fabric != "tcp":
        try:
            members.start(open_alone, env=env).result()
        except AssertionError as exc:
            pytest.skip(f"optional: {fabric} can't be used here: {exc}")
    members(2, large_rows, env, width=3_000_001)


def open_alone(m: Member) -> None:
    m.store(rank=0, size=1, handshake_dir=m.dir + "-alone").free()


def huge_rows(m: Member) -> None:
    """A row of 512 MB, filled in place and read into place."""
    store = m.store()
    store.init("x", 1 if m.rank == 0 else 0, 2**27, 4)
    if m.rank == 0:
        row = store.view("x")[0]
        row[:: 2**20] = np.arange(128)
        row[-1] = 77
    m.meet("filled")
    if m.rank == 1:
        out = np.empty((1, 2**27), np.float32)
        store.get("x", out, 0)
        assert np.array_equal(out.view(np.uint32)[0, :: 2**20], np.arange(128))
        assert out.view(np.uint32)[0, -1] == 77
    m.meet("read")
    store.free()


@pytest.mark.parametrize("shm", ["1", "0"])
def test_rows_of_512_megabytes(members: Members, shm: str) -> None:
    if available() < 3 * 2**30:
        pytest.skip("optional: less than 3 GiB of memory are free")
    members(2, huge_rows, {"DDSTORE_SHM": shm, "DDSTORE_FABRIC": "tcp"})


def few_files(m: Member) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
    stores = [m.store() for _ in range(3)]
    for store in stores:
        store.add("x", np.arange(4) + 4 * m.rank)
    out = np.zeros(4, int)
    for store in stores:
        for rank in range(m.size):
            store.get("x", out, 4 * rank)
            assert list(out) == list(range(4 * rank, 4 * rank + 4))
    m.meet("done")


def test_small_limits(members: Members) -> None:
    members(4, few_files)
