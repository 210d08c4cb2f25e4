"""Collective calls: what is wrong on one rank is an error on all, and soon."""

from __future__ import annotations

import functools
import threading
import time
from typing import Any

import numpy as np
import pytest
from members import Member, Members, raises

import pyddstore

SOON_S = 5.0


class Raising:
    """A source that can't be read."""

    def __init__(self, exc: Exception) -> None:
        self.exc = exc

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise self.exc


class Unreadable:
    """Something without rows."""


def good_add(store: Any, name: str) -> None:
    store.add(name, np.ones((2, 3)))


def good_init(store: Any, name: str) -> None:
    store.init(name, 2, 3, 8)


# By name: the exception on all ranks, words of its message, what rank 1 does meanwhile.
BAD: dict[str, tuple[type[Exception], list[str], Any]] = {
    "object dtype": (
        TypeError,
        ["rank 1", "objects"],
        lambda s, n: s.add(n, np.zeros((2, 3), object)),
    ),
    "other dtype": (
        TypeError,
        ["rank 1", "rank 0", "<f8", "<f4"],
        lambda s, n: s.add(n, np.ones((2, 3), np.float32)),
    ),
    "other byte order": (
        TypeError,
        ["rank 1", "<f8", ">f8"],
        lambda s, n: s.add(n, np.ones((2, 3), ">f8")),
    ),
    "other disp": (
        ValueError,
        ["rank 1", "rank 0", "4", "3"],
        lambda s, n: s.add(n, np.ones((2, 4))),
    ),
    "other name": (
        ValueError,
        ["rank 1", "rank 0", "another"],
        lambda s, n: s.add("another", np.ones((2, 3))),
    ),
    "init, not add": (
        TypeError,
        ["rank 1", "<f8"],
        lambda s, n: s.init(n, 2, 3, 8),
    ),
    "no dimension": (
        ValueError,
        ["rank 1", "dimension"],
        lambda s, n: s.add(n, np.float64(1)),
    ),
    "no array": (
        TypeError,
        ["rank 1"],
        lambda s, n: s.add(n, Unreadable()),
    ),
    "unreadable buffer": (
        ValueError,
        ["rank 1", "released"],
        lambda s, n: s.add(n, released()),
    ),
    "raising __array__": (
        ValueError,
        ["rank 1", "ZeroDivisionError", "by zero"],
        lambda s, n: s.add(n, Raising(ZeroDivisionError("by zero"))),
    ),
    "MemoryError": (
        MemoryError,
        ["rank 1", "no room"],
        lambda s, n: s.add(n, Raising(MemoryError("no room"))),
    ),
    "no text": (
        TypeError,
        ["rank 1", "text"],
        lambda s, n: s.add(3, np.ones((2, 3))),
    ),
    "empty name": (
        ValueError,
        ["rank 1", "1 to 1,024"],
        lambda s, n: s.add("", np.ones((2, 3))),
    ),
    "long name": (
        ValueError,
        ["rank 1", "1 to 1,024"],
        lambda s, n: s.add("n" * 1025, np.ones((2, 3))),
    ),
    "surrogate": (
        ValueError,
        ["rank 1", "UTF-8"],
        lambda s, n: s.add("\udc80", np.ones((2, 3))),
    ),
    "NUL": (
        ValueError,
        ["rank 1", "NUL"],
        lambda s, n: s.add("a\0b", np.ones((2, 3))),
    ),
    "known name": (
        ValueError,
        ["rank 1", "first", "exists"],
        lambda s, n: s.add("first", np.ones((2, 3))),
    ),
    "negative rows": (
        ValueError,
        ["rank 1", "nrows is -1"],
        lambda s, n: s.init(n, -1, 3, 8),
    ),
    "too many rows": (
        ValueError,
        ["rank 1", "too large"],
        lambda s, n: s.init(n, 2**62, 3, 8),
    ),
    "no memory": (
        MemoryError,
        ["ranks of this host", "needs", "free", "limit"],
        lambda s, n: s.init(n, 2**41, 3, 8),
    ),
}


def released() -> memoryview:
    view = memoryview(bytearray(8))
    view.release()
    return view


def do_wrong(m: Member) -> None:
    """One rank after another does something wrong; the store works on."""
    store = m.store(method=2)
    good_add(store, "first")
    for number, (what, (error, words, call)) in enumerate(BAD.items()):
        # dtype and disp have to agree for it to come to "no memory".
        mine = good_init if what == "no memory" else good_add
        begun = time.monotonic()
        do = functools.partial(call if m.rank == 1 else mine, store, f"x{number}")
        exc = raises(error, *words, call=do)
        assert type(exc) is error, f"{what}: {exc!r}"
        assert time.monotonic() - begun < SOON_S, what
        if number % 4 == 0:
            good_add(store, f"y{number}")
            out = np.zeros((2, 3))
            store.get(f"y{number}", out, 2 * (m.size - 1 - m.rank))
            assert out.all()
    out = np.zeros((2, 3))
    store.get("first", out, 2)
    assert out.all()
    assert [name for name in store.names() if name[0] == "x"] == []
    m.meet("done")


def test_a_bad_argument_on_one_rank(members: Members) -> None:
    members(3, do_wrong)


def zero_rows_agree(m: Member) -> None:
    """Ranks without rows agree with anything."""
    store = m.store()
    store.add("x", np.ones((2, 3)) if m.rank == 1 else np.zeros((0,), np.int8))
    assert store.info("x") == (2, 3, 8)
    store.init("y", 2 * (m.rank == 0), 3 if m.rank == 0 else 99, 4)
    assert store.info("y") == (2, 3, 4)
    m.meet("done")


def test_ranks_without_rows(members: Members) -> None:
    members(3, zero_rows_agree)


# ---- opening -------------------------------------------------------------------------


def open_wrong(m: Member, words: list[str], error: str, more: dict[str, Any]) -> None:
    begun = time.monotonic()
    raises(
        {"DDStoreError": pyddstore.DDStoreError, "ValueError": ValueError}[error],
        *words,
        call=lambda: m.store(**({"method": 1} | (more if m.rank == 1 else {}))),
    )
    assert time.monotonic() - begun < SOON_S
    # The next store of each rank meets in the same namespace.
    store = m.store()
    store.add("x", np.zeros(3))
    m.meet("done")


@pytest.mark.parametrize(
    ("more", "words", "error"),
    [
        ({"method": 2}, ["rank 1", "method 2", "method 1"], "ValueError"),
        ({"method": 0}, ["rank 1", "method is 0"], "ValueError"),
        ({"method": 7}, ["rank 1", "method is"], "ValueError"),
    ],
)
def test_wrong_on_one_rank_at_opening(
    members: Members, more: dict[str, Any], words: list[str], error: str
) -> None:
    members(3, open_wrong, {}, words=words, error=error, more=more)


def open_under(m: Member, words: list[str], error: str) -> None:
    kinds: dict[str, type[Exception]] = {
        "ValueError": ValueError,
        "FabricError": pyddstore.FabricError,
    }
    begun = time.monotonic()
    raises(kinds[error], *words, call=m.store)
    assert time.monotonic() - begun < SOON_S


@pytest.mark.parametrize(
    ("settings", "words", "error"),
    [
        (
            ["DDSTORE_ALLTOALL_MAX_BYTES=2M", "DDSTORE_ALLTOALL_MAX_BYTES=1M"],
            ["rank 1", "DDSTORE_ALLTOALL_MAX_BYTES", "2097152", "1048576"],
            "ValueError",
        ),
        (
            ["DDSTORE_FABRIC=tcp", "DDSTORE_FABRIC=auto"],
            ["rank 1", "DDSTORE_FABRIC", "tcp", "auto"],
            "FabricError",
        ),
        (
            ["DDSTORE_SHM=1", "DDSTORE_SHM=2"],
            ["rank 1", "DDSTORE_SHM=2", "0 or 1"],
            "ValueError",
        ),
        (
            ["DDSTORE_PROFILE=0", "DDSTORE_READ_TIMEOUT_S=soon"],
            ["rank 1", "DDSTORE_READ_TIMEOUT_S=soon", "seconds"],
            "ValueError",
        ),
    ],
)
def test_settings_of_one_rank(
    members: Members, settings: list[str], words: list[str], error: str
) -> None:
    env = [dict([one.split("=", 1)]) for one in settings]
    members(2, open_under, env, words=words, error=error)


def wait_for_absent(m: Member) -> None:
    begun = time.monotonic()
    exc = raises(pyddstore.HandshakeTimeout, "1", "3", call=m.store)
    assert isinstance(exc, TimeoutError)
    assert exc.code == -10
    assert 1.5 < time.monotonic() - begun < 2 + SOON_S
    assert "rank" in str(exc)
    assert "DDSTORE_HANDSHAKE_TIMEOUT_S" in str(exc)
    assert m.dir in str(exc)


def test_absent_ranks_are_listed(members: Members) -> None:
    env = {"DDSTORE_HANDSHAKE_TIMEOUT_S": "2"}
    group = [members.start(wait_for_absent, r, 4, env) for r in (0, 2)]
    for process in group:
        process.result()


def leave_before_add(m: Member) -> None:
    """A rank that is gone doesn't answer: the others are told which."""
    store = m.store()
    store.add("x", np.arange(3) + 3 * m.rank)
    m.meet("added")
    if m.rank == 1:
        return
    raises(
        pyddstore.DDStoreError,
        "rank 1",
        call=lambda: store.add("y", np.arange(3)),
    )
    out = np.zeros(3, int)
    store.get("x", out)
    assert list(out) == [0, 1, 2]


def test_a_rank_that_left(members: Members) -> None:
    env = {"DDSTORE_HANDSHAKE_TIMEOUT_S": "3"}
    members(2, leave_before_add, env)


def collect_from_two_threads(m: Member) -> None:
    """One collective call at a time: the second thread is told, the first goes on."""
    store = m.store()
    if m.rank == 1:
        m.wait("refused")
    else:
        first = threading.Thread(target=lambda: good_add(store, "x"))
        first.start()
        time.sleep(0.5)
        raises(
            pyddstore.DDStoreError,
            "another thread is in a collective call",
            call=lambda: good_add(store, "y"),
        )
        m.mark("refused")
        first.join()
    if m.rank == 1:
        good_add(store, "x")
    m.meet("added")
    good_add(store, "y")
    out = np.zeros((1, 3))
    store.get("y", out, 3)
    assert (out == 1).all()
    m.meet("read")


def test_collective_calls_from_two_threads(members: Members) -> None:
    members(2, collect_from_two_threads, {"DDSTORE_HANDSHAKE_TIMEOUT_S": "30"})


# ---- arguments that no other rank can know of ----------------------------------------


def test_constructor_arguments(tmp_path: Any) -> None:
    there = str(tmp_path / "h")
    make: Any = pyddstore.PyDDStore
    for arguments, error, words in [
        ({}, ValueError, "MPI"),
        ({"method": 1}, ValueError, "rank"),
        ({"method": 7}, ValueError, "method is 7"),
        ({"method": 1, "rank": 0}, ValueError, "size"),
        ({"method": 1, "size": 2}, ValueError, "rank"),
        ({"method": 2, "size": 2}, ValueError, "rank"),
        ({"method": 1, "rank": 2, "size": 2}, ValueError, "rank=2, size=2"),
        ({"method": 1, "rank": -1, "size": 2}, ValueError, "rank=-1"),
        ({"method": 1, "rank": 0, "size": -2}, ValueError, "size=-2"),
        ({"method": 1, "rank": 0, "size": 2**40}, ValueError, "size"),
        ({"method": 2, "rank": 0, "size": 2, "n_core": 3}, ValueError, "3"),
        ({"method": 2, "n_core": -1}, ValueError, "n_core=-1"),
        ({"method": "1", "rank": 0, "size": 1}, TypeError, ""),
        ({"method": 1.0, "rank": 0, "size": 1}, TypeError, ""),
        ({"method": 1, "rank": "0", "size": 1}, TypeError, ""),
        ({"method": 1, "rank": 0, "size": 1, "nic_map": 3}, TypeError, "nic_map"),
        ({"method": 1, "rank": 0, "size": 1, "exchange_ns": "a.b"}, ValueError, ""),
        ({"method": 1, "rank": 0, "size": 1, "exchange_ns": "a/b"}, ValueError, ""),
        ({"method": 1, "rank": 0, "size": 1, "exchange_ns": "a\0"}, ValueError, "NUL"),
        ({"method": 1, "rank": 0, "size": 1, "exchange_ns": "n" * 101}, ValueError, ""),
        ({"method": 1, "rank": 0, "size": 1, "exchange_ns": 7}, TypeError, ""),
        ({"method": 1, "rank": 0, "size": 1, "exchange_ns": b"n"}, TypeError, ""),
    ]:
        with pytest.raises(error, match=words or None):
            make(None, handshake_dir=there, **arguments)
    for method in () if pyddstore.HAVE_MPI else (0, 1, 2):  # else: tests/mpi
        with pytest.raises(RuntimeError, match="no MPI"):
            make(object(), method=method, handshake_dir=there, rank=0, size=1)
    with pytest.raises(ValueError, match="NUL"):
        make(None, method=1, handshake_dir="a\0b", rank=0, size=1)


def test_handshake_dir(tmp_path: Any, monkeypatch: Any) -> None:
    def make(dir: Any, method: int = 1) -> Any:
        return pyddstore.PyDDStore(
            None, method=method, handshake_dir=dir, rank=0, size=1
        )

    monkeypatch.delenv("DDSTORE_HANDSHAKE_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    for method in (1, 2):
        with pytest.raises(ValueError, match="DDSTORE_HANDSHAKE_DIR"):
            make("", method)
    with pytest.raises(ValueError, match="DDSTORE_HANDSHAKE_DIR"):
        pyddstore.PyDDStore(None, method=2)
    make("relative").free()
    assert (tmp_path / "relative").stat().st_mode & 0o7777 == 0o700
    make(tmp_path / "path").free()
    assert (tmp_path / "path").is_dir()
    make(b"bytes").free()
    make("./relative/../relative/sub/").free()
    assert (tmp_path / "relative" / "sub").is_dir()
    for name in ("environment", "e" * 200 + "/" + "n" * 200, "\udcff"):
        if "/" in name:
            (tmp_path / name).parent.mkdir()
        monkeypatch.setenv("DDSTORE_HANDSHAKE_DIR", str(tmp_path / name))
        make("", 2).free()
        assert (tmp_path / name).is_dir()
    make("argument").free()
    assert (tmp_path / "argument").is_dir()
    (tmp_path / "file").touch()
    for bad in ("file", "file/below", "missing/below", "n" * 300, "/proc/nothing"):
        for method in (1, 2):
            with pytest.raises((pyddstore.DDStoreError, ValueError)) as caught:
                make(bad, method)
            assert bad in str(caught.value)
