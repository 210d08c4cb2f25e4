"""What get and get_batch read: rows, indices, ranges, shards, and their errors."""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pytest
from members import Member, Members, raises

ROWS = 10


@pytest.fixture
def rows(store: Any) -> Any:
    """A store whose variable x has ten rows of 2; element 2 i + j in row i, place j."""
    store.add("x", np.arange(2 * ROWS).reshape(ROWS, 2))
    return store


def read_one(store: Any, start: Any) -> int:
    out = np.full((1, 2), -1)
    store.get("x", out, start)
    return int(out[0, 0]) // 2


def read_some(store: Any, indices: Any, n: int) -> list[int]:
    out = np.full((n, 2), -1)
    store.get_batch("x", out, indices)
    assert not n or np.array_equal(out[:, 1], out[:, 0] + 1)
    return [int(value) // 2 for value in out[:, 0]]


# ---- start ---------------------------------------------------------------------------


def test_start(rows: Any) -> None:
    out = np.zeros((1, 2), int)
    rows.get("x", out)
    assert out[0, 1] == 1
    rows.get("x", out, start=3)
    assert out[0, 1] == 7
    rows.get(name="x", arr=out, start=4)
    assert out[0, 1] == 9
    kinds: list[Any] = [int, np.int8, np.uint8, np.int32, np.int64, np.uint64]
    for kind in [*kinds, np.longlong, np.intp, np.array]:
        assert read_one(rows, kind(7)) == 7


@pytest.mark.parametrize("start", [-1, ROWS, ROWS + 1, 2**31, 2**62, 2**63 - 1])
def test_start_out_of_range(rows: Any, start: int) -> None:
    for value in (start, np.int64(start)):
        with pytest.raises(IndexError, match=rf"{start}\b.*\b10 rows"):
            read_one(rows, value)
    assert read_one(rows, 0) == 0


@pytest.mark.parametrize("start", [2**63, -(2**63), -(2**63) - 1, 10**30, -(10**30)])
def test_start_beyond_64_bits(rows: Any, start: int) -> None:
    with pytest.raises(IndexError, match=rf"{start}\b.*\b10 rows"):
        read_one(rows, start)
    if 0 < start < 2**64:
        with pytest.raises(IndexError, match="10 rows"):
            read_one(rows, np.uint64(start))


@pytest.mark.parametrize(
    "start",
    [1.0, np.float64(1), "1", None, True, False, np.True_, [1], 1j, decimal.Decimal(1)],
)
def test_start_is_an_integer(rows: Any, start: Any) -> None:
    with pytest.raises(TypeError):
        read_one(rows, start)


def test_range_of_rows(rows: Any) -> None:
    out = np.zeros((ROWS + 1, 2), int)
    for first in range(ROWS + 1):
        for last in range(first, ROWS + 1):
            out[...] = -1
            rows.get("x", out[: last - first], first)
            want = np.arange(2 * first, 2 * last).reshape(-1, 2)
            assert np.array_equal(out[: last - first], want)
            assert (out[last - first :] == -1).all()
    for first, n in [(0, ROWS + 1), (5, 6), (ROWS, 1), (-1, 0), (ROWS + 1, 0)]:
        with pytest.raises(IndexError, match=rf"{first}\b.*10 rows"):
            rows.get("x", out[:n], first)


# ---- indices -------------------------------------------------------------------------


def test_indices(rows: Any) -> None:
    for indices in [
        [3, 1, 2],
        (3, 1, 2),
        [np.int64(3), 1, np.uint64(2)],
        [np.uint8(3), np.int32(1), np.int16(2)],
        np.array([3, 1, 2]),
        np.array([3, 1, 2], np.int32),
        np.array([3, 1, 2], np.uint64),
        np.array([3, 1, 2], np.uint8),
        np.array([3, 1, 2], ">i8"),
        np.array([3, 1, 2], np.longlong),
        np.array([9, 3, 1, 2, 9])[1:4],
        np.array([3, 0, 1, 0, 2])[::2],
        np.array([2, 1, 3])[::-1],
        np.array([3, 1, 2], object),
    ]:
        assert read_some(rows, indices, 3) == [3, 1, 2], indices
    readonly = np.array([3, 1, 2])
    readonly.flags.writeable = False
    assert read_some(rows, readonly, 3) == [3, 1, 2]
    for span in (range(10), range(9, -1, -1), range(1, 8, 3), range(5, 5)):
        assert read_some(rows, span, len(span)) == list(span)
    repeats = [4] * 100 + [0, 9] * 50
    assert read_some(rows, repeats, 200) == repeats
    for nothing in ([], (), range(0), np.zeros(0), np.zeros(0, np.int32)):
        assert read_some(rows, nothing, 0) == []
    unaligned = np.frombuffer(b"?" + np.array([3, 1, 2]).tobytes(), np.int64, 3, 1)
    assert read_some(rows, unaligned, 3) == [3, 1, 2]


@pytest.mark.parametrize(
    "indices",
    [
        [1.0, 2.0],
        (0.5, 1),
        [True, False],
        ["1", "2"],
        [None, 1],
        [1.5, 2**70],
        np.array([1.0, 2.0]),
        np.array([True, False]),
        np.array(["a", "b"]),
        np.array([1, 2], "<m8[s]"),
    ],
)
def test_indices_are_integers(rows: Any, indices: Any) -> None:
    with pytest.raises(TypeError):
        read_some(rows, indices, 2)


def test_indices_have_one_dimension_and_their_rows(rows: Any) -> None:
    for bad in (3, np.array(3), [[1, 2], [3, 4]], np.zeros((2, 1), int), iter([1, 2])):
        with pytest.raises(ValueError, match="dimension"):
            read_some(rows, bad, 2)
    for indices, n in [([1, 2], 3), ([1, 2], 1), ([], 1), (range(10**18), 2)]:
        with pytest.raises(ValueError, match=rf"{n} rows"):
            read_some(rows, indices, n)
    with pytest.raises(ValueError, match="2 rows"):
        read_some(rows, range(10**30), 2)


def test_all_indices_are_checked_first(rows: Any) -> None:
    big = 10**30
    for bad, value in [
        ([1, ROWS], ROWS),
        ([-1, 1], -1),
        ([1, 2**63], 2**63),
        ([-(2**63) - 1, 1], -(2**63) - 1),
        ([big, 1], big),
        ((1, -big), -big),
        (np.array([1, 2**63], np.uint64), 2**63),
        (np.array([1, 2**64 - 1], np.uint64), 2**64 - 1),
        (np.array([1, -1], np.int8), -1),
        (range(9, 11), 10),
        (range(-1, 1), -1),
        (range(2**63, 2**63 + 2), 2**63),
        (range(0, 2 * big, big), big),
    ]:
        out = np.full((2, 2), -7)
        with pytest.raises(IndexError) as caught:
            rows.get_batch("x", out, bad)
        assert str(value) in str(caught.value), bad
        assert "10 rows" in str(caught.value), bad
        assert (out == -7).all(), bad


# ---- rows of no bytes, no rows, very many rows ---------------------------------------


def test_no_rows_and_no_bytes(store: Any) -> None:
    store.add("none", np.zeros((0, 3), np.float32))
    assert store.info("none") == (0, 3, 4)
    store.get("none", np.zeros((0, 3), np.float32), 0)
    store.get_batch("none", np.zeros((0, 3), np.float32), [])
    for call in (
        lambda: store.get("none", np.zeros((1, 3), np.float32), 0),
        lambda: store.get("none", np.zeros((0, 3), np.float32), 1),
        lambda: store.get_batch("none", np.zeros((1, 3), np.float32), [0]),
    ):
        with pytest.raises(IndexError, match="0 rows"):
            call()
    store.add("thin", np.zeros((5, 0, 2), np.int16))
    assert store.info("thin") == (5, 0, 2)
    store.get("thin", np.zeros((5, 0), np.int16), 0)
    store.get("thin", np.zeros((2, 3, 0), np.int16), 3)
    store.get_batch("thin", np.zeros((3, 0), np.int16), [4, 0, 4])
    with pytest.raises(IndexError, match="5 rows"):
        store.get("thin", np.zeros((2, 0), np.int16), 4)
    with pytest.raises(IndexError, match="5 rows"):
        store.get_batch("thin", np.zeros((1, 0), np.int16), [5])
    store.init("later", 0, 4, 8)
    store.init("empty", 3, 0)
    store.update("empty", np.zeros((2, 0), np.uint8), 1)
    assert store.view("empty").shape == (3, 0)
    assert store.view("later").shape == (0, 4)


def million(m: Member) -> None:
    """A million rows of one byte are one transfer."""
    import time

    store = m.store()
    mine = np.random.default_rng(m.rank).integers(0, 256, 2**20, np.uint8)
    store.add("x", mine)
    out = np.zeros(2**20, np.uint8)
    for rank in range(m.size):
        want = np.random.default_rng(rank).integers(0, 256, 2**20, np.uint8)
        store.get("x", out, rank * 2**20)
        times = []
        for _ in range(5):
            out[...] = 0
            begun = time.perf_counter()
            store.get("x", out, rank * 2**20)
            times.append(time.perf_counter() - begun)
            assert np.array_equal(out, want)
        assert min(times) < 0.05, times
        out[...] = 0
        order = np.random.default_rng(9).permutation(2**20)
        store.get_batch("x", out, order + rank * 2**20)
        assert np.array_equal(out, want[order])
    m.meet("done")


@pytest.mark.parametrize("shm", ["1", "0"])
def test_a_million_rows_of_a_byte(members: Members, shm: str) -> None:
    members(2, million, {"DDSTORE_SHM": shm, "DDSTORE_FABRIC": "tcp"})


# ---- shards --------------------------------------------------------------------------


def shards(m: Member, counts: list[int], shape: list[int]) -> None:
    """Rows of several ranks, some of which may have none."""
    store = m.store()
    total, starts = sum(counts), np.cumsum([0, *counts])
    disp = int(np.prod(shape, dtype=int))
    whole = np.arange(total * disp, dtype=np.float64).reshape(total, *shape)
    mine = whole[starts[m.rank] : starts[m.rank + 1]]
    if not len(mine):  # what such a rank says of its rows counts for nothing
        mine = np.zeros((0, 17), np.int8)
    store.add("x", mine)
    assert store.info("x") == (total, disp, 8), store.info("x")
    assert store.view("x").shape[0] == counts[m.rank]

    for rank, count in enumerate(counts):
        first, last = int(starts[rank]), int(starts[rank + 1])
        for begin in range(first, last):
            for end in range(begin, last + 1):
                out = np.full((end - begin, *shape), -1.0)
                store.get("x", out, begin)
                assert np.array_equal(out, whole[begin:end])
        if count and last < total:
            out = np.full((2, *shape), -1.0)
            raises(
                ValueError,
                f"row {last}",
                "boundary",
                call=lambda out=out, at=last - 1: store.get("x", out, at),
            )
            assert (out == -1).all()
    for start in range(total + 1):
        store.get("x", np.zeros((0, *shape)), start)
    raises(
        IndexError,
        str(total + 1),
        f"{total} rows",
        call=lambda: store.get("x", np.zeros((0, *shape)), total + 1),
    )
    random = np.random.default_rng(m.rank)
    for n in (0, 1, 5, 300):
        indices = random.integers(0, total, n) if total else np.zeros(0, int)
        out = np.full((len(indices), *shape), -1.0)
        store.get_batch("x", out, indices)
        assert np.array_equal(out, whole[indices])
    m.meet("done")


@pytest.mark.parametrize("shm", ["1", "0"])
@pytest.mark.parametrize(
    ("counts", "shape"),
    [
        ([3, 1, 4], [2, 3]),
        ([0, 3, 0, 2], [5]),
        ([4, 0, 0], []),
        ([0, 0], [7]),
    ],
)
def test_shards(
    members: Members, counts: list[int], shape: list[int], shm: str
) -> None:
    env = {"DDSTORE_SHM": shm, "DDSTORE_FABRIC": "tcp"}
    if not any(counts):
        members(len(counts), no_rows_at_all, env)
    else:
        members(len(counts), shards, env, counts=counts, shape=shape)


def no_rows_at_all(m: Member) -> None:
    """Where no rank has rows, none is at odds with another."""
    store = m.store()
    store.add("x", np.zeros((0, 3 + m.rank), [np.int8, np.float64][m.rank]))
    assert store.info("x")[0] == 0
    store.get("x", np.zeros((0, 3 + m.rank), store.dtype("x")), 0)
    store.get_batch("x", np.zeros((0, 99), store.dtype("x")), [])
    raises(
        IndexError,
        "0 rows",
        call=lambda: store.get_batch("x", np.zeros((1, 3), store.dtype("x")), [0]),
    )
    m.meet("done")
