"""Variables: their names, init, update, view, and what is told of them."""

from __future__ import annotations

import gc
import os
import pathlib
from typing import Any

import numpy as np
import pytest
from members import Member, Members, raises

import pyddstore

# ---- names ---------------------------------------------------------------------------

NAMES = [
    "a/b",
    "a_b",
    "a.b",
    "A_b",
    "a b",
    "a%2Fb",
    "../up",
    "/absolute",
    ".",
    "..",
    ".hidden",
    "-",
    "x.bin",
    "x",
    "x\n",
    "tab\t",
    "grüße",
    "名前",
    "🌍",
    "e\u0301",
    "\u00e9",
    "\u202e",
    "con",
    "n" * 200,
    "n" * 201,
    "n" * 1024,
    "n" * 1023 + "m",
    "é" * 512,
]


def use_names(m: Member) -> None:
    """All names are distinct, in the store, on disk and for an extra member."""
    if m.rank == 0:
        store = m.store(method=2, rank=0, size=1)
        for i, name in enumerate(NAMES):
            store.add(name, np.array([i]))
        assert store.names() == NAMES
    m.meet("added")
    if m.rank == 1:
        store = m.extra()
        for name in NAMES:
            store.join(name)
        assert store.names() == NAMES
    for i, name in enumerate(NAMES):
        out = np.zeros(1, int)
        store.get(name, out)
        assert out[0] == i, name
    files = set(os.listdir(m.dir))
    for name in ("x", "a_b", "A_b", "con", "-", "n" * 200):
        assert f"{name}.bin" in files, name
    records = [file for file in files if file.endswith(".bin")]
    assert len(records) == len(NAMES), sorted(files)
    assert all(len(os.fsencode(file)) <= 255 for file in records)
    m.meet("read")


def test_names(members: Members) -> None:
    members(2, use_names)


class Text(str):
    """A subclass of str is a name like any other."""

    def __str__(self) -> str:
        return "something else"


def test_names_that_are_refused(store: Any) -> None:
    for name in ("", "a\0b", "\0", "\udc80", "\ud83d", "n" * 1025, "é" * 513):
        with pytest.raises(ValueError, match="name"):
            store.add(name, np.zeros(2))
        with pytest.raises(ValueError, match="name"):
            store.init(name, 2, 1)
    for name in (None, 5, b"x", ["x"]):
        with pytest.raises(TypeError, match="name"):
            store.add(name, np.zeros(2))
    for kind in (Text, np.str_):
        store.add(kind(kind.__name__), np.zeros(2))
    assert store.names() == ["Text", "str_"]
    assert [type(name) for name in store.names()] == [str, str]


def test_unknown_names(store: Any) -> None:
    out = np.zeros(1)
    with pytest.raises(KeyError, match=r"'x'.*none"):
        store.get("x", out)
    store.add("first", out)
    store.add("second", out)
    calls: list[Any] = [
        lambda name: store.get(name, out),
        lambda name: store.get_batch(name, out, [0]),
        lambda name: store.update(name, out, 0),
        lambda name: store.view(name),
        lambda name: store.info(name),
        lambda name: store.dtype(name),
        lambda name: store.register_recv(name, out),
        lambda name: store.unregister_recv(name, out),
        lambda name: store.get_profile(name),
    ]
    for call in calls:
        for name in ("First", "firs", "", "first ", b"first", None, 3):
            with pytest.raises(KeyError) as caught:
                call(name)
            assert repr(name) in caught.value.args[0]
            assert "first" in caught.value.args[0]
            assert "second" in caught.value.args[0]


def test_adding_twice(store: Any) -> None:
    store.add("x", np.arange(3))
    for call in (
        lambda: store.add("x", np.arange(5)),
        lambda: store.add("x", np.arange(3)),
        lambda: store.init("x", 3, 1),
    ):
        with pytest.raises(ValueError, match=r"x.*exists"):
            call()
    out = np.zeros(3, int)
    store.get("x", out)
    assert list(out) == [0, 1, 2]
    assert store.names() == ["x"]


# ---- init and update -----------------------------------------------------------------


def test_init(store: Any) -> None:
    store.init("x", 4, 3, 2)
    assert store.info("x") == (4, 3, 2)
    out = np.full((4, 3), 7, np.uint16)
    store.get("x", out)
    assert not out.any()
    store.init(name="y", nrows=np.int64(2), disp=np.uint8(5))
    assert store.info("y") == (2, 5, 1)
    for arguments in [
        (-1, 1),
        (2, -1),
        (2, 1, 0),
        (2, 1, -4),
        (2, 1, 2**32),
        (2, 2**63),
    ]:
        with pytest.raises(ValueError, match="rank 0"):
            store.init("z", *arguments)
    for arguments in [(1.0, 1), ("2", 1), (2, None), (2, 1, 4.0)]:
        with pytest.raises(TypeError, match="rank 0"):
            store.init("z", *arguments)
    with pytest.raises(ValueError, match="too large"):
        store.init("z", 2**62, 2**20, 8)
    with pytest.raises(MemoryError, match=r"z.*needs .* MiB.*are free.*limit"):
        store.init("z", 2**44, 1, 1)
    store.init("z", 1, 1)
    assert store.names() == ["x", "y", "z"]


def test_update(store: Any) -> None:
    store.init("x", 6, 2, 4)
    want = np.zeros((6, 2), np.float32)

    def check() -> None:
        out = np.full((6, 2), -1, np.float32)
        store.get("x", out)
        assert np.array_equal(out, want)

    for offset, rows in [(0, 1), (5, 1), (2, 3), (0, 6), (6, 0), (0, 0)]:
        block = np.random.default_rng(rows).random((rows, 2)).astype(np.float32)
        store.update("x", block, np.int64(offset))
        want[offset : offset + rows] = block
        check()
    store.update("x", want[::-1][:2], 1)  # not contiguous
    want[1:3] = want[::-1][:2].copy()
    check()
    store.update("x", np.zeros((1, 1, 2), np.float32), offset=3)
    want[3] = 0
    check()
    for offset, rows in [(5, 2), (6, 1), (0, 7), (7, 0), (-1, 1), (-1, 0), (2**63, 1)]:
        with pytest.raises(IndexError) as caught:
            store.update("x", np.ones((rows, 2), np.float32), offset)
        assert str(offset) in str(caught.value)
        assert "6" in str(caught.value)
        check()
    for bad, error in [
        (np.ones(2, np.float32), ValueError),
        (np.ones((1, 3), np.float32), ValueError),
        (np.ones((1, 2)), TypeError),
        (np.float32(1), ValueError),
    ]:
        with pytest.raises(error):
            store.update("x", bad, 0)
        check()
    for offset in (1.0, None, "0", True):
        with pytest.raises(TypeError):
            store.update("x", np.ones((1, 2), np.float32), offset)


def test_update_of_added_rows(store: Any) -> None:
    rows = np.arange(6.0).reshape(3, 2)
    store.add("x", rows)
    store.update("x", np.full((1, 2), 9.0), 1)
    assert rows[1, 0] == 2  # add() has copied them
    assert store.view("x").tolist() == [[0, 1], [9, 9], [4, 5]]
    # Of its own rows, which overlap.
    store.update("x", store.view("x")[:2], 1)
    assert store.view("x").tolist() == [[0, 1], [0, 1], [9, 9]]
    with pytest.raises(TypeError, match=r"<f8.*<f4"):
        store.update("x", np.zeros((1, 2), np.float32), 0)


def update_and_read(m: Member) -> None:
    """Each rank overwrites its own rows; the others see it after a barrier."""
    store = m.store()
    store.init("x", 2 + m.rank, 4, 8)
    starts = [0, 2, 5, 9]
    for turn in range(3):
        for row in range(2 + m.rank):
            block = np.full(4, 100 * turn + 10 * m.rank + row, np.float64)
            store.update("x", block.reshape(1, -1), row)
        m.meet(f"written{turn}")
        out = np.zeros((9, 4))
        store.get_batch("x", out, range(9))
        want = [100 * turn + 10 * r + row for r in range(3) for row in range(2 + r)]
        assert np.array_equal(out, np.repeat(want, 4).reshape(9, 4)), out
        m.meet(f"read{turn}")
    # The offset is in this rank's own rows, not among all.
    raises(
        IndexError,
        f"{2 + m.rank} rows",
        call=lambda: store.update("x", np.zeros((1, 4)), starts[m.rank] + 2 + m.rank),
    )
    m.meet("done")


@pytest.mark.parametrize("shm", ["1", "0"])
def test_updates_are_seen(members: Members, shm: str) -> None:
    members(3, update_and_read, {"DDSTORE_SHM": shm, "DDSTORE_FABRIC": "tcp"})


# ---- view ----------------------------------------------------------------------------


def test_view_of_added_rows(store: Any) -> None:
    rows = np.arange(24, dtype=">i2").reshape(4, 3, 2)
    store.add("x", rows)
    view = store.view("x")
    assert np.array_equal(view, rows)
    assert view.dtype == rows.dtype
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    with pytest.raises(ValueError):
        view.flags.writeable = True
    store.update("x", rows[:1], 3)
    assert np.array_equal(view[3], rows[0])  # it is no copy


def test_view_of_initialised_rows(store: Any) -> None:
    for itemsize, dtype in [(1, "u1"), (2, "u2"), (4, "u4"), (8, "u8"), (3, "V3")]:
        name = f"x{itemsize}"
        store.init(name, 5, 2, itemsize)
        view = store.view(name)
        assert (view.shape, view.dtype) == ((5, 2), np.dtype(dtype))
        assert view.flags.writeable
        assert view.flags.c_contiguous
        assert view.flags.aligned
    filled = store.view("x4").view(np.float32)
    filled[...] = np.arange(10).reshape(5, 2)
    out = np.zeros((5, 2), np.float32)
    store.get("x4", out)
    assert np.array_equal(out, filled)
    store.get("x4", filled[1:4], 0)  # into its own rows
    assert filled[:, 0].tolist() == [0, 0, 2, 4, 8]


def test_views_outlive_the_store(tmp_path: pathlib.Path) -> None:
    store = pyddstore.PyDDStore(
        None, method=1, handshake_dir=str(tmp_path / "h"), rank=0, size=1
    )
    store.init("x", 1000, 1000)
    store.add("y", np.arange(1000))
    view, part = store.view("x"), store.view("y")[500:]
    view[...] = 3
    store.free()
    view[0] = 4
    assert (view[1:] == 3).all()
    del store
    gc.collect()
    assert (view[0] == 4).all()
    assert (view[1:] == 3).all()
    assert part[0] == 500
    before = mapped()
    del view, part
    gc.collect()
    assert before - mapped() >= 900_000


def mapped() -> int:
    """Bytes of shared memory that this process has mapped."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * 4096


# ---- what is told --------------------------------------------------------------------


def test_what_a_store_tells(store: Any) -> None:
    assert repr(store) == "<PyDDStore method 1, rank 0 of 1, variables: none>"
    assert (store.rank, store.size, store.method) == (0, 1, 1)
    assert store.names() == []
    assert store.nbytes == 0
    store.add("x", np.zeros((5, 3), np.int16))
    store.init("y", 4, 2, 8)
    assert repr(store) == "<PyDDStore method 1, rank 0 of 1, variables: x, y>"
    assert store.nbytes == 5 * 3 * 2 + 4 * 2 * 8
    assert store.info("x") == (5, 3, 2)
    assert all(type(value) is int for value in store.info("x"))
    (peer,) = store.transports()
    assert peer["rank"] == 0
    assert peer["pid"] == os.getpid()
    assert peer["path"] == "self"
    assert peer["state"] == "alive"
    assert peer["host"]
    assert set(peer) >= {"provider", "reason"}
    assert store.core_alive() is True
    assert store.epoch_begin() is None
    assert store.epoch_end() is None
    with pytest.raises(TypeError):
        len(store)


def tell(m: Member) -> list[Any]:
    store = m.store(method=2)
    store.add("x", np.zeros((m.rank + 1, 2)))
    assert store.nbytes == 6 * 2 * 8
    assert f"rank {m.rank} of 3" in repr(store)
    assert "method 2" in repr(store)
    m.meet("done")
    return [(p["rank"], p["path"], p["provider"]) for p in store.transports()]


@pytest.mark.parametrize(
    ("shm", "path"), [("1", ("local", "mapping")), ("0", ("tcp", "tcp"))]
)
def test_transports(members: Members, shm: str, path: tuple[str, str]) -> None:
    told = members(3, tell, {"DDSTORE_SHM": shm, "DDSTORE_FABRIC": "tcp"})
    for rank, peers in enumerate(told):
        assert [peer[0] for peer in peers] == [0, 1, 2]
        for other, *way in peers:
            assert way[0] == ("self" if other == rank else path[0])
            assert other == rank or tuple(way) == path


# ---- registered destinations and the profile -----------------------------------------


def test_registered_destinations(store: Any) -> None:
    store.add("x", np.arange(20.0).reshape(10, 2))
    pool = np.zeros((6, 2))
    assert store.register_recv("x", pool) is None
    store.register_recv("x", pool)  # nothing happens
    store.get_batch("x", pool[:3], [1, 2, 3])
    assert pool[:3, 0].tolist() == [2, 4, 6]
    other = np.zeros((6, 2))
    store.register_recv("x", other)
    for never in (np.zeros((6, 2)), pool[:3], pool[1:]):
        with pytest.raises(ValueError, match="not registered"):
            store.unregister_recv("x", never)
    store.unregister_recv("x", pool)
    with pytest.raises(ValueError, match="not registered"):
        store.unregister_recv("x", pool)
    store.get("x", pool)
    store.unregister_recv("x", other)
    readonly = np.zeros((6, 2))
    readonly.flags.writeable = False
    for bad, error in [
        (readonly, ValueError),
        (np.zeros((6, 4))[:, :2], ValueError),
        (np.zeros((6, 3)), ValueError),
        (np.zeros((6, 2), np.float32), TypeError),
        ([1, 2], TypeError),
    ]:
        with pytest.raises(error):
            store.register_recv("x", bad)
    for _ in range(100):
        store.register_recv("x", np.zeros((1, 2)))
    store.register_recv("x", np.zeros((0, 2)))


class Watched(np.ndarray[Any, Any]):
    """An array whose end is noticed."""


def test_registered_destinations_live_on(store: Any) -> None:
    """Until they are unregistered, or the store is freed."""
    import weakref

    store.add("x", np.zeros((2, 2)))
    kept = [np.zeros((2, 2)).view(Watched) for _ in range(2)]
    ends = [weakref.ref(array) for array in kept]
    for array in kept:
        store.register_recv("x", array)
    store.unregister_recv("x", kept[0])
    del kept, array
    gc.collect()
    assert ends[0]() is None
    assert ends[1]() is not None
    store.free()
    gc.collect()
    assert ends[1]() is None
    store = None


def test_a_registered_bytearray_keeps_its_size(store: Any) -> None:
    store.add("x", np.zeros(8, np.uint8))
    memory = bytearray(8)
    store.register_recv("x", memory)
    with pytest.raises(BufferError):
        memory.extend(b"1")
    store.unregister_recv("x", memory)
    memory.extend(b"1")


PROFILE = {
    *("calls", "rows", "bytes", "lock_wait", "mr", "mr_miss", "read", "cq"),
    *("rows_local", "rows_rdma", "rows_tcp", "rows_mpi"),
    *("py_gets", "py_get", "py_sync"),
}


def profile(m: Member) -> dict[str, Any]:
    store = m.store()
    store.add("x", np.arange(20.0).reshape(10, 2))
    store.add("y", np.arange(20.0).reshape(10, 2))
    other = 10 * (1 - m.rank)
    store.get("x", np.zeros((4, 2)), other)
    store.get_batch("x", np.zeros((3, 2)), [other, other + 1, other])
    store.get("y", np.zeros((1, 2)), 10 * m.rank)
    raises(IndexError, call=lambda: store.get("x", np.zeros((1, 2)), 99))
    m.meet("done")
    figures = {name: store.get_profile(name) for name in ("x", "y")}
    raises(KeyError, call=lambda: store.get_profile("z"))
    return figures


@pytest.mark.parametrize("shm", ["1", "0"])
def test_profile(members: Members, shm: str) -> None:
    env = {"DDSTORE_SHM": shm, "DDSTORE_FABRIC": "tcp", "DDSTORE_PROFILE": "1"}
    for figures in members(2, profile, env):
        x, y = figures["x"], figures["y"]
        assert set(x) == set(y) == PROFILE
        assert (x["calls"], x["rows"], x["bytes"]) == (2, 7, 7 * 16)
        way = {"1": "rows_local", "0": "rows_tcp"}[shm]
        assert {key: x[key] for key in PROFILE if key.startswith("rows_")} == {
            key: 7 if key == way else 0 for key in PROFILE if key.startswith("rows_")
        }
        assert (y["calls"], y["rows"], y["rows_local"]) == (1, 1, 1)
        assert x["py_gets"] == y["py_gets"] == 3
        assert x["py_get"] == y["py_get"] > 0
        assert 0 < x["read"] + x["cq"] <= x["py_get"] < 10
        assert x["py_sync"] == x["mr"] == x["mr_miss"] == 0


def test_no_profile(members: Members) -> None:
    for figures in members(2, profile):
        assert set(figures["x"]) == PROFILE
        assert not any(figures["x"].values())
