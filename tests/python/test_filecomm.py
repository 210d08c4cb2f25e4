"""FileComm: collectives through files, and the launch that from_env reads."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from members import LAUNCHERS, Member, Members, environment, raises

import pyddstore
from pyddstore import DDStoreError, FileComm, HandshakeTimeout, StoreClosedError


def test_alone(tmp_path: Any) -> None:
    """A group of one waits for nobody and makes no crowd of files."""
    comm = FileComm(str(tmp_path / "h"), 0, 1, "alone")
    assert (comm.rank, comm.size, comm.ns) == (0, 1, "alone")
    assert comm.dir == str(tmp_path / "h")
    assert "rank=0, size=1, ns='alone'" in repr(comm)
    begun = time.monotonic()
    for i in range(200):
        assert comm.allgather({"i": i}) == [{"i": i}]
        assert comm.barrier() is None
    assert time.monotonic() - begun < 20
    assert sum(len(files) for _, _, files in os.walk(tmp_path)) < 10
    comm.close()
    comm.close()
    for call in (comm.barrier, lambda: comm.allgather(1)):
        with pytest.raises(StoreClosedError):
            call()
    with FileComm(tmp_path / "h", 0, 1, "alone") as again:  # type: ignore[arg-type]
        again.barrier()
    with pytest.raises(StoreClosedError):
        again.barrier()


def gather(m: Member) -> None:
    comm = FileComm(m.dir, m.rank, m.size, "app")
    assert (comm.rank, comm.size) == (m.rank, m.size)
    everything: list[Any] = [
        None,
        m.rank,
        "text" * m.rank,
        b"",
        {"rank": m.rank, "nested": [1, (2, 3)]},
        b"x" * (m.rank * 300_000),
        raises,
    ]
    for thing in everything:
        got = comm.allgather(thing)
        assert len(got) == m.size
        assert got[m.rank] == thing
    assert comm.allgather(m.rank * 2) == [0, 2, 4]
    assert comm.allgather(b"x" * (m.rank * 1000)) == [
        b"x" * (1000 * r) for r in range(3)
    ]
    for turn in range(20):
        (m.signs / f"turn{turn}.{m.rank}").touch()
        comm.barrier()
        for rank in range(m.size):
            assert (m.signs / f"turn{turn}.{rank}").exists()
        comm.barrier()
    # An object that can't be sent is an error on all, and the group goes on.
    bad = threading.Lock() if m.rank == 1 else "good"
    raises(TypeError, "rank 1", "lock", call=lambda: comm.allgather(bad))
    assert comm.allgather(m.rank) == [0, 1, 2]
    other = FileComm(m.dir, m.rank, m.size, "other")
    store = m.store()
    assert other.allgather("o") == ["o"] * 3
    assert comm.allgather("c") == ["c"] * 3
    store.free()
    other.close()
    comm.barrier()
    if m.rank == 0:
        assert sum(len(files) for _, _, files in os.walk(m.dir)) < 20
    m.meet("done")


def test_gather_and_barrier(members: Members) -> None:
    members(3, gather)


def refuse_fourth(m: Member) -> None:
    """Ranks of another size, twice the same rank, a missing rank: no group."""
    begun = time.monotonic()
    exc = raises(
        HandshakeTimeout,
        *("rank 2", "namespace", m.dir),
        call=lambda: FileComm(m.dir, m.rank, 3, "absent"),
    )
    assert isinstance(exc, TimeoutError)
    assert 0.9 < time.monotonic() - begun < 10


def test_absent_rank(members: Members) -> None:
    members(2, refuse_fourth, {"DDSTORE_HANDSHAKE_TIMEOUT_S": "1"})


def close_while_waiting(m: Member) -> None:
    comm = FileComm(m.dir, m.rank, m.size, "c")
    if m.rank == 1:
        m.wait("closed")
        return
    ended: list[Any] = []

    def wait() -> None:
        try:
            comm.barrier()
        except BaseException as exc:
            ended.append(exc)

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    begun = time.monotonic()
    comm.close()
    for thread in threads:
        thread.join(5)
    assert time.monotonic() - begun < 2
    assert [type(exc) for exc in ended] == [StoreClosedError] * 2
    m.mark("closed")


def test_close_ends_waits(members: Members) -> None:
    members(2, close_while_waiting)


def test_arguments(tmp_path: Any) -> None:
    there = str(tmp_path / "h")
    for rank, size in [(1, 1), (-1, 1), (0, 0), (0, -1), (0, 2**31), (2**40, 2**41)]:
        with pytest.raises(ValueError, match=f"rank={rank}, size={size}"):
            FileComm(there, rank, size, "x")
    for rank, size in [("0", 1), (0.0, 1), (None, 1), (0, None)]:
        with pytest.raises(TypeError):
            FileComm(there, rank, size, "x")  # type: ignore[arg-type]
    for ns in ("", "a.b", "a/b", "a\0b", "n" * 101, "\udc80"):
        with pytest.raises(ValueError):
            FileComm(there, 0, 1, ns)
    for ns in (None, 3, b"x"):
        with pytest.raises(TypeError):
            FileComm(there, 0, 1, ns)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="NUL"):
        FileComm("a\0b", 0, 1, "x")
    with FileComm(there, 0, 1, "n" * 100) as comm:
        comm.barrier()


def use_a_name_twice(m: Member) -> None:
    """Every rank is told at once; the groups that are there go on."""
    comm = FileComm(m.dir, m.rank, m.size, "s0")
    begun = time.monotonic()
    raises(ValueError, f"rank {m.rank}", "'s0'", "FileComm", call=m.store)
    store = m.store()  # by now the default is s1
    raises(
        ValueError,
        *(f"rank {m.rank}", "'s1'", "PyDDStore"),
        call=lambda: FileComm(m.dir + "/../exchange", m.rank, m.size, "s1"),
    )
    assert time.monotonic() - begun < 5
    store.add("x", np.zeros(2))
    comm.barrier()
    store.free()
    with FileComm(m.dir, m.rank, m.size, "s1") as again:
        again.barrier()
    comm.barrier()
    comm.close()
    m.store(exchange_ns="s0").free()


def test_a_namespace_used_twice(members: Members) -> None:
    members(2, use_a_name_twice)


# ---- directories ---------------------------------------------------------------------


def test_a_directory_is_made(tmp_path: Any) -> None:
    old = os.umask(0)
    try:
        FileComm(str(tmp_path / "made"), 0, 1, "x").close()
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "made")
    FileComm(str(tmp_path / "link"), 0, 1, "x").close()
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    FileComm(str(tmp_path / "sticky"), 0, 1, "x").close()


def test_directories_that_are_refused(tmp_path: Any) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "group").mkdir()
    (tmp_path / "group").chmod(0o770)
    names = ["file", "file/below", "missing/below", "open", "group", "n" * 300]
    if os.geteuid() == 0:
        (tmp_path / "foreign").mkdir(0o755)
        os.chown(tmp_path / "foreign", 4321, 4321)
        names.append("foreign")
    begun = time.monotonic()
    for name in names:
        with pytest.raises(DDStoreError) as caught:
            FileComm(str(tmp_path / name), 0, 1, "x")
        assert str(tmp_path / name) in str(caught.value), name
        assert not isinstance(caught.value, HandshakeTimeout)
        with pytest.raises(DDStoreError) as caught:
            pyddstore.PyDDStore(
                None, method=2, handshake_dir=tmp_path / name, rank=0, size=1
            )
        assert str(tmp_path / name) in str(caught.value), name
    assert time.monotonic() - begun < 5


READ_ONLY = """
import os, sys
import pyddstore
os.setresgid(4321, 4321, 4321)
os.setresuid(4321, 4321, 4321)
try:
    pyddstore.FileComm(sys.argv[1], 0, 1, "x")
except pyddstore.DDStoreError as exc:
    assert sys.argv[1] in str(exc), exc
else:
    sys.exit("it was accepted")
"""


def test_a_directory_without_the_right_to_write(tmp_path: Any) -> None:
    if os.geteuid() != 0:
        (tmp_path / "closed").mkdir(0o500)
        with pytest.raises(DDStoreError, match="closed"):
            FileComm(str(tmp_path / "closed"), 0, 1, "x")
        return
    (tmp_path / "closed").mkdir(0o500)
    os.chown(tmp_path / "closed", 4321, 4321)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(folder.stat().st_mode | 0o055)
    run = subprocess.run(
        [sys.executable, "-c", READ_ONLY, tmp_path / "closed"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert run.returncode == 0, run.stderr


# ---- from_env ------------------------------------------------------------------------


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> pytest.MonkeyPatch:
    for name in list(os.environ):
        if name.startswith(LAUNCHERS) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return monkeypatch


def test_from_env(clean: pytest.MonkeyPatch, tmp_path: Any) -> None:
    make: list[Any] = [
        lambda: FileComm.from_env(str(tmp_path / "h")),
        lambda: pyddstore.PyDDStore.from_env(handshake_dir=str(tmp_path / "h")),
    ]
    for one in make:
        with pytest.raises(RuntimeError, match="ddstore run"):
            one()
    clean.setenv("DDSTORE_RANK", "0")
    clean.setenv("DDSTORE_SIZE", "1")
    with FileComm.from_env(str(tmp_path / "h")) as comm:
        assert (comm.rank, comm.size, comm.ns) == (0, 1, "s0")
    with pytest.raises(ValueError, match="DDSTORE_HANDSHAKE_DIR"):
        FileComm.from_env()
    clean.setenv("DDSTORE_HANDSHAKE_DIR", str(tmp_path / "given"))
    with FileComm.from_env(ns="mine") as comm:
        assert (comm.dir, comm.ns) == (str(tmp_path / "given"), "mine")
    for method in (1, 2):
        with pyddstore.PyDDStore.from_env(method=method) as store:
            assert (store.method, store.rank, store.size) == (method, 0, 1)
    with pyddstore.PyDDStore.from_env() as store:
        assert store.method == 1
    for rank, size, words in [
        ("1", "1", "DDSTORE_RANK=1 and DDSTORE_SIZE=1"),
        ("0", "", "DDSTORE_SIZE"),
        ("", "4", "DDSTORE_RANK"),
        ("two", "4", "DDSTORE_RANK=two"),
        ("0", "many", "DDSTORE_SIZE=many"),
        ("-1", "2", "DDSTORE_RANK"),
    ]:
        clean.setenv("DDSTORE_RANK", rank)
        clean.setenv("DDSTORE_SIZE", size)
        for one in make:
            with pytest.raises(ValueError, match=words):
                one()


def launched(m: Member) -> list[Any]:
    comm = FileComm.from_env(ns="app")
    store = pyddstore.PyDDStore.from_env(method=2)
    return comm.allgather((store.rank, store.size))


def test_from_env_of_a_group(members: Members) -> None:
    env = [
        {
            "DDSTORE_RANK": str(rank),
            "DDSTORE_SIZE": "2",
            "DDSTORE_HANDSHAKE_DIR": members.dir,
            "SLURM_PROCID": "7",  # is not asked
            "RANK": "5",
        }
        for rank in range(2)
    ]
    assert members(2, launched, env) == [[(0, 2), (1, 2)]] * 2
