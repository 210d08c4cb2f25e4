"""Extra members: they join a running core group, read, and see it end."""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import Any

import numpy as np
import pytest
from members import Member, Members, raises

import pyddstore
from pyddstore import HandshakeTimeout, PeerLostError, StoreClosedError

PATHS = [
    pytest.param({}, id="mapped"),
    pytest.param({"DDSTORE_SHM": "0", "DDSTORE_FABRIC": "tcp"}, id="tcp"),
]


def rows_of(rank: int, run: int = 1) -> Any:
    """Five rows of three that tell run, rank, row and place."""
    return 1000 * run + 100 * rank + np.arange(15.0).reshape(5, 3)


def core(m: Member, run: int = 1, end: str = "end", late: bool = False) -> None:
    """A core rank: serves until it is told to end."""
    if late:
        m.wait("start")
    store = m.store(method=2)
    store.add("x", rows_of(m.rank, run))
    store.init("made", 2, 4, 4)
    store.view("made")[...] = m.rank
    store.add("none", np.zeros((0, 2), np.int8))
    m.mark(f"serving{run}.{m.rank}")
    m.wait(end)
    store.free()
    m.mark(f"ended.{m.rank}")
    m.wait("over")


def check(store: Any, ranks: int, run: int = 1) -> None:
    """Reads all rows of x, by get and by get_batch."""
    want = np.concatenate([rows_of(rank, run) for rank in range(ranks)])
    out = np.zeros_like(want)
    for rank in range(ranks):
        store.get("x", out[5 * rank : 5 * rank + 5], 5 * rank)
    assert np.array_equal(out, want)
    order = np.random.default_rng(0).permutation(len(want))
    store.get_batch("x", out, order)
    assert np.array_equal(out, want[order])


def read(m: Member, ranks: int, sign: str = "") -> None:
    """Joins and reads everything that the core group has."""
    store = m.extra()
    assert (store.rank, store.size, store.method) == (-1, 0, 2)
    assert repr(store) == "<PyDDStore method 2, extra, variables: none>"
    assert store.names() == []
    assert store.transports() == []
    raises(KeyError, "'x'", "none", call=lambda: store.info("x"))
    raises(ValueError, "joined", call=store.core_alive)
    if sign:
        m.mark(sign)
    store.join("x")
    assert store.info("x") == (5 * ranks, 3, 8)
    assert store.dtype("x") == np.float64
    assert store.size == ranks
    store.join("x")
    assert store.names() == ["x"]
    assert store.core_alive() is True
    check(store, ranks)
    store.join("made")
    assert store.info("made") == (2 * ranks, 4, 4)
    assert store.dtype("made") is None
    for rank in range(ranks):
        m.wait(f"serving1.{rank}")  # only then it is filled
    out = np.zeros((2 * ranks, 4), np.int32)
    store.get_batch("made", out, range(2 * ranks))
    assert np.array_equal(out, np.repeat(np.arange(ranks), 8).reshape(-1, 4))
    store.join("none")
    assert store.info("none") == (0, 2, 1)
    store.get("none", np.zeros((0, 2), np.int8))
    pool = np.zeros((8, 3))
    store.register_recv("x", pool)
    store.get_batch("x", pool[:4], [0, 1, 2, 0])
    store.unregister_recv("x", pool)
    assert [peer["rank"] for peer in store.transports()] == list(range(ranks))
    assert set(store.get_profile("x")) >= {"calls", "rows_local"}
    for call in (
        lambda: store.add("y", np.zeros(3)),
        lambda: store.init("y", 1, 1),
        lambda: store.update("x", np.zeros((1, 3)), 0),
        lambda: store.view("x"),
    ):
        raises(ValueError, "extra member", call=call)
    for name in ("", "a\0", "n" * 1025, "\udc80"):
        raises(ValueError, "name", call=lambda name=name: store.join(name))
    raises(TypeError, "name", call=lambda: store.join(7))
    store.free()


def start_core(members: Members, ranks: int, env: dict[str, str], **more: Any) -> Any:
    group = [members.start(core, r, ranks, env, **more) for r in range(ranks)]
    if "late" not in more:
        for rank in range(ranks):
            members.wait(f"serving{more.get('run', 1)}.{rank}")
    return group


def end_core(members: Members, group: Any) -> None:
    members.mark("end")
    members.mark("over")
    for process in group:
        process.result()


@pytest.mark.parametrize("env", PATHS)
def test_before_and_after_the_core(members: Members, env: dict[str, str]) -> None:
    """Extras that come first wait; they come and go while the core runs."""
    early = members.start(read, env=env, ranks=2, sign="waiting")
    members.wait("waiting")
    time.sleep(0.2)
    assert not os.path.exists(members.dir)  # the core makes it
    group = start_core(members, 2, env)
    early.result()
    for process in [members.start(read, env=env, ranks=2) for _ in range(2)]:
        process.result()
    end_core(members, group)


def expect(m: Member) -> None:
    """n_core is compared with the record."""
    for wrong in (1, 3):
        with m.extra(n_core=wrong) as store:
            raises(
                ValueError, f"n_core is {wrong}", "2", call=lambda s=store: s.join("x")
            )
            assert store.names() == []
    for right in (0, 2):
        with m.extra(n_core=right) as store:
            store.join("x")
            check(store, 2)
    os.environ["DDSTORE_HANDSHAKE_DIR"] = m.dir
    with pyddstore.PyDDStore(None, 2) as store:
        store.join("x")
        check(store, 2)
    os.environ["DDSTORE_HANDSHAKE_TIMEOUT_S"] = "0.5"
    with m.extra() as store:
        begun = time.monotonic()
        exc = raises(
            HandshakeTimeout,
            "nothing.bin",
            m.dir,
            "0.5 s",
            call=lambda: store.join("nothing"),
        )
        assert 0.4 < time.monotonic() - begun < 5
        assert exc.code == -10
        raises(HandshakeTimeout, "X", call=lambda: store.join("X"))
        store.join("x")
        check(store, 2)
    with m.extra(handshake_dir=m.dir + "-typo") as store:
        raises(
            HandshakeTimeout, "-typo", "isn't there", call=lambda s=store: s.join("x")
        )


def test_what_an_extra_expects(members: Members) -> None:
    group = start_core(members, 2, {})
    members.start(expect).result()
    end_core(members, group)


# ---- the core group ends -------------------------------------------------------------


def read_on(store: Any, start: int, limit_s: float = 2) -> None:
    """Reads a row of a rank that has gone, which is seen soon, but maybe not by the
    next read."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        store.get("x", np.zeros((1, 3)), start)


def see_closing(m: Member) -> None:
    store = m.extra()
    store.join("x")
    check(store, 2)
    m.mark("read")
    m.wait("ended.0")
    m.wait("ended.1")
    for rank in (0, 1):
        begun = time.monotonic()
        exc = raises(
            StoreClosedError,
            f"rank {rank}",
            call=lambda rank=rank: read_on(store, 5 * rank),
        )
        assert exc.code == -8
        assert time.monotonic() - begun < 2
    raises(
        StoreClosedError,
        "rank",
        call=lambda: store.get_batch("x", np.zeros((2, 3)), [0, 9]),
    )
    assert store.core_alive() is False
    raises(KeyError, call=lambda: store.get("y", np.zeros(1)))
    m.mark("over")


@pytest.mark.parametrize("env", PATHS)
def test_the_core_closes(members: Members, env: dict[str, str]) -> None:
    group = start_core(members, 2, env)
    extra = members.start(see_closing, env=env)
    members.wait("read")
    members.mark("end")
    extra.result()
    for process in group:
        process.result()


def see_killed(m: Member) -> None:
    store = m.extra()
    store.join("x")
    check(store, 3)
    victim = store.transports()[1]
    out = np.zeros((1, 3))
    os.kill(victim["pid"], signal.SIGKILL)
    killed = time.monotonic()

    def read() -> None:
        while time.monotonic() < killed + 5:
            store.get("x", out, 7)

    exc = raises(PeerLostError, "rank 1", socket.gethostname(), call=read)
    assert time.monotonic() - killed < 1
    assert exc.code == -7
    for start in (0, 4, 10, 14):  # the others serve on
        store.get("x", out, start)
        assert out[0, 0] == rows_of(start // 5)[start % 5, 0]
    raises(
        PeerLostError,
        "rank 1",
        call=lambda: store.get_batch("x", np.zeros((2, 3)), [0, 5]),
    )
    store.get_batch("x", np.zeros((2, 3)), [0, 10])
    assert store.core_alive() is False
    states = [peer["state"] for peer in store.transports()]
    assert states == ["alive", "lost", "alive"], states


@pytest.mark.parametrize("env", PATHS)
def test_a_core_is_killed(members: Members, env: dict[str, str]) -> None:
    group = start_core(members, 3, env)
    members.start(see_killed, env=env).result()
    members.mark("end")
    members.mark("over")
    assert group[1].ended() == -signal.SIGKILL
    for process in (group[0], group[2]):
        process.result()


def read_runs(m: Member) -> None:
    """One extra that joins again after each restart of the core."""
    store = m.extra()
    for run in (1, 2, 3):
        m.wait(f"serving{run}.0")
        m.wait(f"serving{run}.1")
        store.join("x")
        check(store, 2, run)
        assert store.core_alive() is True
        m.mark(f"read{run}")
        m.wait(f"gone{run}")
        if run < 3:
            kind = PeerLostError if run == 1 else StoreClosedError
            raises(kind, "rank 1", call=lambda: read_on(store, 7))
    assert store.names() == ["x"]


@pytest.mark.parametrize("env", PATHS)
def test_join_again_after_a_restart(members: Members, env: dict[str, str]) -> None:
    extra = members.start(read_runs, env=env)
    for run in (1, 2, 3):
        group = start_core(members, 2, env, run=run, end=f"end{run}")
        members.wait(f"read{run}")
        if run == 1:  # without a word, records and claim left behind
            for process in group:
                process.signal(signal.SIGKILL)
                process.ended()
        else:
            members.mark(f"end{run}")
            members.mark("over")
            for process in group:
                process.result()
        members.mark(f"gone{run}")
    extra.result()


def join_a_dying_run(m: Member) -> None:
    store = m.extra()
    store.join("x")
    check(store, 3, 1)
    m.mark("read1")
    m.wait("killed")
    raises(PeerLostError, "rank 1", call=lambda: read_on(store, 7))
    exc = raises(HandshakeTimeout, "lost rank 1", call=lambda: store.join("x"))
    assert "x.bin is of a run that has lost" in str(exc)
    store.get("x", np.zeros((1, 3)), 2)  # what was joined before goes on
    m.mark("waited")
    m.wait("serving2.0")
    m.wait("serving2.1")
    store.join("x")
    check(store, 2, 2)


@pytest.mark.parametrize("env", PATHS)
def test_a_run_that_has_lost_a_rank(members: Members, env: dict[str, str]) -> None:
    """It isn't joined: a whole one may follow."""
    group = start_core(members, 3, env, end="end1")
    short = env | {"DDSTORE_HANDSHAKE_TIMEOUT_S": "3"}
    extra = members.start(join_a_dying_run, env=short)
    members.wait("read1")
    group[1].signal(signal.SIGKILL)
    group[1].ended()
    members.mark("killed")
    members.wait("waited")
    for process in group:
        process.signal(signal.SIGKILL)
        process.ended()
    second = start_core(members, 2, env, run=2, end="end2")
    extra.result()
    members.mark("end2")
    members.mark("over")
    for process in second:
        process.result()


def test_nobody_serves_any_more(members: Members) -> None:
    """The record of a killed run is no variable."""
    group = start_core(members, 2, {})
    for process in group:
        process.signal(signal.SIGKILL)
        process.ended()
    assert os.path.exists(os.path.join(members.dir, "x.bin"))
    members.start(see_nothing, env={"DDSTORE_HANDSHAKE_TIMEOUT_S": "1"}).result()


def see_nothing(m: Member) -> None:
    with m.extra() as store:
        raises(HandshakeTimeout, "x.bin", "answer", call=lambda: store.join("x"))


def sweep(m: Member) -> None:
    """A user's script removes all records while the core runs."""
    store = m.extra()
    store.join("x")
    for file in os.listdir(m.dir):
        if file.endswith(".bin"):
            os.unlink(os.path.join(m.dir, file))
    check(store, 2)
    with m.extra() as other:
        begun = time.monotonic()
        other.join("x")
        other.join("made")
        assert time.monotonic() - begun < 5
        check(other, 2)
    assert store.core_alive()


def test_records_are_deleted(members: Members) -> None:
    group = start_core(members, 2, {})
    members.start(sweep).result()
    end_core(members, group)
    assert not [f for f in os.listdir(members.dir) if f.endswith(".bin")]


def test_the_core_waits_for_a_swept_directory(members: Members) -> None:
    """What an extra reads after *.bin was removed before the core even ran."""
    os.mkdir(members.dir, 0o700)
    for name in ("x.bin", "y.bin"):
        with open(os.path.join(members.dir, name), "wb") as f:
            f.write(b"left behind" * 100)
    early = members.start(read, ranks=2, sign="waiting")
    members.wait("waiting")
    group = start_core(members, 2, {})
    early.result()
    end_core(members, group)


# ---- waiting -------------------------------------------------------------------------


def wait_long(m: Member) -> str:
    """Says every 10 s what it waits for."""
    import logging

    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logging.getLogger("pyddstore").addHandler(Keep())
    store = m.extra()
    raises(HandshakeTimeout, "x.bin", call=lambda: store.join("x"))
    return "\n".join(lines)


def free_while_joining(m: Member) -> None:
    """free() in one thread ends the join of another."""
    import threading

    store = m.extra()
    ended: list[Any] = []

    def join() -> None:
        try:
            store.join("x")
        except BaseException as exc:
            ended.append(exc)

    thread = threading.Thread(target=join)
    thread.start()
    time.sleep(0.3)
    begun = time.monotonic()
    store.free()
    thread.join(5)
    assert time.monotonic() - begun < 2
    assert [type(exc) for exc in ended] == [StoreClosedError], ended


def test_waiting_is_told_and_can_be_ended(members: Members) -> None:
    os.mkdir(members.dir, 0o700)
    long = members.start(wait_long, env={"DDSTORE_HANDSHAKE_TIMEOUT_S": "10.5"})
    members.start(free_while_joining).result()
    lines = long.result()
    assert "x" in lines
    assert members.dir in lines
    assert "x.bin" in lines


def test_waiting_costs_nothing(members: Members) -> None:
    """An extra that waits, and a core that idles, use under 1 % of a CPU here (a test
    machine is noisy)."""
    group = start_core(members, 1, {})
    waiting = members.start(
        wait_long, env={"DDSTORE_HANDSHAKE_TIMEOUT_S": "30"}, dir=members.dir + "-other"
    )
    time.sleep(1)

    def cpu_s(process: Any) -> float:
        with open(f"/proc/{process.popen.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # group[0] polls for the test's sign every 5 ms itself, so it is not measured.
    before = cpu_s(waiting)
    time.sleep(2)
    assert cpu_s(waiting) - before <= 0.03
    waiting.popen.kill()
    end_core(members, group)


def keep_trying(m: Member, words: list[str]) -> None:
    """An extra whose directory is no directory."""
    raises(pyddstore.DDStoreError, *words, call=lambda: m.extra().join("x"))


def test_a_bad_directory_fails_at_once(members: Members, tmp_path: Any) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    processes = [
        members.start(keep_trying, dir=str(tmp_path / name), words=[name])
        for name in ("file", "open", "file/below")
    ]
    begun = time.monotonic()
    for process in processes:
        process.result()
    assert time.monotonic() - begun < 15
