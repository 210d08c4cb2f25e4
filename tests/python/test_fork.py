"""fork_reader(): in forked, forkserver and spawned children, and in one process."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pathlib
import pickle
import signal
import sys
import threading
import time
import traceback
from typing import Any

import fork_child
import numpy as np
import pytest
from fork_child import all_rows, in_fork, misuse, read_all, read_reader, rows_of
from members import Member, Members, raises, wait_for

import pyddstore
from pyddstore import HandshakeTimeout, PeerLostError, StoreClosedError

TCP = {"DDSTORE_FABRIC": "tcp", "DDSTORE_SHM": "0", "DDSTORE_READ_TIMEOUT_S": "10"}
MAPPED = TCP | {"DDSTORE_SHM": "1"}


def opened(m: Member, **more: Any) -> Any:
    store = m.store(**more)
    store.add("x", rows_of(m.rank))
    return store


def check(told: Any, ranks: int, paths: set[str], who: tuple[int, int, int]) -> None:
    assert isinstance(told, dict), told
    assert np.array_equal(told["rows"], all_rows(ranks))
    assert (told["names"], told["dtype"]) == (["x"], np.float64)
    assert (told["alive"], told["paths"], told["who"]) == (True, paths, who)
    assert not told["modules"]


def by_multiprocessing(store: Any, kind: str) -> Any:
    context = multiprocessing.get_context(kind)
    ours, theirs = context.Pipe()
    child = context.Process(target=fork_child.send_report, args=(store, theirs))
    child.start()
    assert ours.poll(40)
    told = ours.recv()
    child.join(20)
    assert child.exitcode == 0
    return told


def read_in_children(m: Member, kinds: list[str], path: str) -> None:
    for method in (1, 2):
        store = opened(m, method=method)
        for kind in kinds:
            told = by_multiprocessing(store, kind)
            check(told, m.size, {path}, (m.rank, m.size, method))
            assert told["pid"] != os.getpid()
        told = in_fork(read_reader, store)
        check(told, m.size, {path}, (m.rank, m.size, method))
        assert np.array_equal(read_all(store), all_rows(m.size))
        if method == 2 and m.rank == 0:
            with m.extra() as extra:
                extra.join("x")
                for kind in kinds:
                    told = by_multiprocessing(extra, kind)
                    check(told, m.size, {path}, (-1, m.size, 2))
                check(in_fork(read_reader, extra), m.size, {path}, (-1, m.size, 2))
        m.meet(f"done{method}")
        store.free()


@pytest.mark.parametrize("env", [MAPPED, TCP], ids=["mapped", "tcp"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_readers_in_children(members: Members, size: int, env: dict[str, str]) -> None:
    kinds = ["fork", "forkserver", "spawn"] if size == 2 else ["fork"]
    path = "local" if env is MAPPED else "tcp"
    members(size, read_in_children, env, kinds=kinds, path=path)


def use_by_mistake(m: Member) -> None:
    store = opened(m)
    before = store.transports()
    for said in in_fork(misuse, store):
        assert "parent process: in a forked child use fork_reader()" in said
    view = store.view("x")
    assert np.array_equal(in_fork(lambda: view.copy()), rows_of(m.rank))
    assert np.array_equal(read_all(store), all_rows(m.size))
    assert store.transports() == before
    m.meet("done")
    store.free()


@pytest.mark.parametrize("env", [MAPPED, TCP], ids=["mapped", "tcp"])
def test_use_of_the_parents_store(members: Members, env: dict[str, str]) -> None:
    members(2, use_by_mistake, env)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def end_badly(m: Member) -> None:
    """Children that exit, raise, are killed, and that free and drop everything."""
    store = opened(m)
    reader = store.fork_reader()
    read_all(store)
    m.meet("read")
    had = descriptors()
    for turn in range(20):
        child = os.fork()
        if child == 0:
            if turn % 5 == 0:
                os._exit(3)
            if turn % 5 == 1:  # ends as an interpreter does, like turn 3
                own = store.fork_reader()
                read_all(own)
                raise RuntimeError("as it happens")
            if turn % 5 == 2:
                own = store.fork_reader()
                while True:
                    read_all(own)
            if turn % 5 == 3:
                store.free()
                reader.free()
                del store, reader
                gc.collect()
                sys.exit(0)
            own = store.fork_reader()
            read_all(own)
            os._exit(0)  # without a free()
        if turn % 5 == 2:
            time.sleep(0.1)
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert np.array_equal(read_all(store), all_rows(m.size))
    assert np.array_equal(read_all(reader), all_rows(m.size))
    m.meet("done")
    # What served the children's readers, here and there, is gone.
    wait_for(lambda: descriptors() <= had, 10, "connections to be closed")
    m.meet("looked")
    store.free()


@pytest.mark.parametrize("env", [MAPPED, TCP], ids=["mapped", "tcp"])
def test_children_that_end_badly(members: Members, env: dict[str, str]) -> None:
    members(2, end_badly, env)


def read_until_it_ends(store: Any, started: str) -> tuple[str, str, float]:
    """How a reader's reads of rank 1 end. rank 0's go on."""
    with store.fork_reader() as reader:
        read_all(reader)
        pathlib.Path(started).touch()
        begun, out = time.monotonic(), np.zeros((1, 3))
        while time.monotonic() < begun + 40:
            try:
                reader.get("x", out, fork_child.ROWS + 1)
            except pyddstore.DDStoreError as exc:
                told = type(exc).__name__, str(exc)
                reader.get("x", out, 1)
                return *told, time.time()
        raise AssertionError("nothing happened")


def parent_of_reader(m: Member) -> Any:
    store = m.extra()
    store.join("x")
    return in_fork(read_until_it_ends, store, str(m.signs / "reading"))


def serve(m: Member) -> None:
    store = opened(m, method=2)
    m.mark(f"open{m.rank}")
    if m.rank == 1:
        m.wait("free")
        store.free()
    m.wait("over", 50)


@pytest.mark.parametrize("env", [MAPPED, TCP], ids=["mapped", "tcp"])
@pytest.mark.parametrize("how", ["killed", "freed"])
def test_the_core_ends_while_children_read(
    members: Members, how: str, env: dict[str, str]
) -> None:
    core = [members.start(serve, rank, 2, env) for rank in range(2)]
    members.wait("open1")
    parent = members.start(parent_of_reader, env=env)
    members.wait("reading")
    begun = time.time()
    if how == "killed":
        core[1].signal(signal.SIGKILL)
    else:
        members.mark("free")
    kind, text, ended = parent.result()
    wanted = PeerLostError if how == "killed" else StoreClosedError
    assert (kind, text[:6]) == (wanted.__name__, "rank 1"), text
    assert ended - begun < 8
    members.mark("over")
    core[0].result()


def outlive(m: Member) -> None:
    store = opened(m, method=2)
    m.meet("open")
    if m.rank == 1 and os.fork() == 0:
        import ctypes

        ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)  # outlives its parent
        reader = store.fork_reader()
        read_all(reader)
        m.mark("child")
        m.wait("over", 40)
        os._exit(0)
    m.wait("over", 50)


def see_the_death(m: Member) -> float:
    store = m.extra()
    store.join("x")
    read_all(store)
    m.mark("read")
    m.wait("killed")
    begun = time.monotonic()

    def read() -> None:  # rows that are mapped may be read until the death is noticed
        while time.monotonic() < begun + 10:
            read_all(store)

    raises(PeerLostError, "rank 1", call=read)
    return time.monotonic() - begun


@pytest.mark.parametrize("env", [MAPPED, TCP], ids=["mapped", "tcp"])
def test_a_child_outlives_its_parent(members: Members, env: dict[str, str]) -> None:
    core = [members.start(outlive, rank, 2, env) for rank in range(2)]
    members.wait("child")
    extra = members.start(see_the_death, env=env)
    members.wait("read")
    core[1].signal(signal.SIGKILL)
    core[1].ended()
    members.mark("killed")
    assert extra.result() < 5
    members.mark("over")
    core[0].result()


def grandchild(store: Any) -> Any:
    with store.fork_reader() as reader:
        told = in_fork(read_reader, reader)
        assert np.array_equal(told["rows"], read_all(reader))
    return in_fork(read_reader, store)  # of the grandparent's


def fork_from_thread(store: Any, told: list[Any]) -> None:
    told.append(in_fork(read_reader, store))


def nest_and_fork_from_threads(m: Member) -> None:
    store = opened(m)
    assert np.array_equal(in_fork(grandchild, store)["rows"], all_rows(m.size))
    told: list[Any] = []
    for _ in range(3):
        thread = threading.Thread(target=fork_from_thread, args=(store, told))
        thread.start()
        thread.join(40)
    assert len(told) == 3
    for one in told:
        assert np.array_equal(one["rows"], all_rows(m.size))
    m.meet("done")
    store.free()


@pytest.mark.parametrize("env", [MAPPED, TCP], ids=["mapped", "tcp"])
def test_nested_forks_and_forks_from_threads(
    members: Members, env: dict[str, str]
) -> None:
    members(2, nest_and_fork_from_threads, env)


def fork_beside_add(m: Member) -> None:
    store = opened(m)
    if m.rank == 0:
        adding = threading.Thread(target=store.add, args=("y", rows_of(0)))
        adding.start()
        time.sleep(0.1)
        for _ in range(5):
            told = in_fork(read_reader, store)
            assert np.array_equal(told["rows"], all_rows(m.size))
            assert told["names"] == ["x"]
        m.mark("forked")
        adding.join(40)
    else:
        m.wait("forked")
        store.add("y", rows_of(1))
    told = in_fork(lambda: store.fork_reader().names())
    assert told == ["x", "y"]
    m.meet("done")
    store.free()


def test_a_fork_beside_add(members: Members) -> None:
    members(2, fork_beside_add, MAPPED)


def glance(store: Any) -> bool:
    raises(pyddstore.DDStoreError, "fork_reader()", call=lambda: store.info("x"))
    with store.fork_reader() as reader:
        return bool(reader.info("x")[0] == read_all(reader).shape[0])


def end_somehow(store: Any, turn: int) -> None:
    """A forked child's ways to end, after misuse of the store or none."""
    signal.alarm(50)
    if turn % 4 == 0:
        os._exit(3)
    try:
        raises(pyddstore.DDStoreError, "fork_reader()", call=lambda: read_all(store))
        store.free()
    except BaseException:
        traceback.print_exc()
        os._exit(99)
    if turn % 4 == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if turn % 20 == 2:
        raise RuntimeError("as it happens")  # ends as an interpreter does
    os._exit(0)


def check_ends(children: dict[int, int]) -> None:
    """That they ended as end_somehow() does."""
    while children:
        turn, child = children.popitem()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status == {0: 3, 1: -signal.SIGKILL}.get(turn % 4, 0), (turn, status)


def fork_beside_reads(m: Member) -> None:
    store = opened(m)
    over = threading.Event()
    failed: list[BaseException] = []

    def read_on(own: Any) -> None:
        try:
            while not over.is_set():
                assert np.array_equal(read_all(own), all_rows(m.size))
        except BaseException as exc:
            failed.append(exc)

    threads = [
        threading.Thread(
            target=read_on, args=(store if n % 2 else store.fork_reader(),)
        )
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    sys.setswitchinterval(0.0005)  # a fork waits for threads that hold the interpreter
    children: dict[int, int] = {}
    for turn in range(500 if m.rank == 0 else 100):
        if turn % 25 == 0:
            assert in_fork(glance, store)
            check_ends(children)
            assert not failed, failed
            continue
        children[turn] = os.fork()
        if children[turn] == 0:
            end_somehow(store, turn)
    check_ends(children)
    over.set()
    for thread in threads:
        thread.join(30)
    assert not failed, failed
    m.meet("done")
    store.free()


@pytest.mark.parametrize("env", [MAPPED, TCP], ids=["mapped", "tcp"])
def test_forks_beside_reads(members: Members, env: dict[str, str]) -> None:
    members(2, fork_beside_reads, env)


# ---- in one process ------------------------------------------------------------------


def use_reader(m: Member) -> None:
    store = opened(m)
    reader = store.fork_reader()
    assert isinstance(reader, pyddstore.PyDDStore)
    assert np.array_equal(read_all(reader), all_rows(m.size))
    out = np.zeros((4, 3))
    reader.register_recv("x", out)
    reader.get_batch("x", out[1:3], [7, 0])
    assert np.array_equal(out[1:3], all_rows(m.size)[[7, 0]])
    reader.unregister_recv("x", out)
    reader.register_recv("x", out)
    for call in (
        lambda: reader.add("y", out),
        lambda: reader.init("y", 1, 1),
        lambda: reader.update("x", out, 0),
        lambda: reader.view("x"),
        lambda: reader.join("x"),
    ):
        raises(ValueError, "reader", call=call)
    raises(KeyError, "x", call=lambda: reader.get("y", out))
    raises(IndexError, call=lambda: reader.get("x", out, 2 * fork_child.ROWS - 1))
    raises(TypeError, "<f4", call=lambda: reader.get("x", np.zeros((1, 3), "f4")))
    m.meet("read")
    store.update("x", rows_of(m.rank) + 100, 0)
    m.meet("updated")
    assert np.array_equal(read_all(reader), all_rows(m.size) + 100)
    store.add("y", np.zeros((2, 1)))
    assert reader.names() == ["x"]
    assert store.fork_reader().names() == ["x", "y"]
    reader.free()
    reader.free()
    raises(StoreClosedError, call=lambda: reader.get("x", out))
    raises(StoreClosedError, call=reader.fork_reader)
    assert np.array_equal(read_all(store), all_rows(m.size) + 100)
    other = store.fork_reader()
    m.meet("done")
    store.free()
    raises(StoreClosedError, call=store.fork_reader)
    raises(StoreClosedError, call=lambda: pickle.dumps(store))
    raises(StoreClosedError, f"rank {m.rank}", call=lambda: read_own(other, m.rank))
    m.meet("freed")


def read_own(reader: Any, rank: int) -> None:
    reader.get("x", np.zeros((1, 3)), rank * fork_child.ROWS)


@pytest.mark.parametrize("env", [MAPPED, TCP], ids=["mapped", "tcp"])
def test_a_reader_in_the_same_process(members: Members, env: dict[str, str]) -> None:
    members(2, use_reader, env)


def read_by_threads(m: Member) -> None:
    store = opened(m)
    failed: list[BaseException] = []

    def read(count: int) -> None:
        try:
            with store.fork_reader() as reader:
                for _ in range(count):
                    assert np.array_equal(read_all(reader), all_rows(m.size))
        except BaseException as exc:
            failed.append(exc)

    threads = [threading.Thread(target=read, args=(100,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert not failed, failed
    m.meet("done")
    store.free()


@pytest.mark.parametrize("env", [MAPPED, TCP], ids=["mapped", "tcp"])
def test_one_reader_a_thread(members: Members, env: dict[str, str]) -> None:
    members(2, read_by_threads, env)


def resident_kb() -> int:
    text = pathlib.Path("/proc/self/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0])


def rounds(store: Any) -> tuple[int, int]:
    """How many descriptors and KiB 200 readers leave behind."""
    before = (0, 0)
    for turn in range(220):
        if turn == 20:
            gc.collect()
            before = descriptors(), resident_kb()
        with store.fork_reader() as reader:
            read_all(reader)
    gc.collect()
    return descriptors() - before[0], resident_kb() - before[1]


def leave_nothing(m: Member) -> None:
    store = opened(m)
    if m.rank == 0:  # the other one has connections of these readers, for a while
        for fds, kb in (rounds(store), in_fork(rounds, store)):
            assert fds == 0
            assert kb < 2048
    m.meet("done")
    store.free()


@pytest.mark.parametrize("env", [MAPPED, TCP], ids=["mapped", "tcp"])
def test_200_readers_leave_nothing(members: Members, env: dict[str, str]) -> None:
    members(2, leave_nothing, env)


def test_pickles(store: Any) -> None:
    store.add("x", rows_of(0))
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pickle.loads(pickle.dumps(store, protocol)) as reader:
            assert np.array_equal(read_all(reader), rows_of(0))
            with copy.deepcopy(reader) as other:
                assert np.array_equal(read_all(other), rows_of(0))
    data = pickle.dumps(store)
    for at in range(len(data) // 2, len(data) // 2 + 20):
        bad = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(ValueError, match="damaged"):
            pickle.loads(bad)


def test_an_empty_store(store: Any) -> None:
    with store.fork_reader() as reader:
        assert (reader.names(), reader.size, reader.core_alive()) == ([], 1, True)
        with pytest.raises(KeyError):
            reader.get("x", np.zeros(1))


def test_an_extra_that_joined_nothing(tmp_path: pathlib.Path) -> None:
    with (
        pyddstore.PyDDStore(None, method=2, handshake_dir=str(tmp_path)) as extra,
        extra.fork_reader() as reader,
    ):
        assert (reader.names(), reader.rank, reader.size) == ([], -1, 0)
        with pytest.raises(ValueError, match="joined"):
            reader.core_alive()


def test_a_nic_map_goes_along(tmp_path: pathlib.Path) -> None:
    """It is checked where the reader opens, as it was for its store."""
    with pyddstore.PyDDStore(
        None, method=1, handshake_dir=str(tmp_path / "h"), rank=0, size=1,
        nic_map="lo=0-8191",
    ) as store:  # fmt: skip
        function, arguments = store.__reduce__()
        assert arguments[2] == "lo=0-8191"
        with pytest.raises(ValueError, match="DDSTORE_NIC_MAP"):
            function(arguments[0], 1, "no map")


def fork_in_handler(m: Member) -> None:
    """A signal's handler forks while the library waits: the child doesn't wait on."""
    parent, children = os.getpid(), []
    signal.signal(signal.SIGALRM, lambda *_: children.append(os.fork()))
    store = m.extra()
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    told = raises(pyddstore.DDStoreError, call=lambda: store.join("x"))
    if os.getpid() != parent:
        os._exit(0 if "forked" in str(told) else 1)
    assert isinstance(told, HandshakeTimeout)
    assert [os.waitpid(child, 0)[1] for child in children] == [0]


def test_a_fork_in_a_handler(members: Members) -> None:
    env = MAPPED | {"DDSTORE_HANDSHAKE_TIMEOUT_S": "2"}
    members.start(fork_in_handler, env=env).result()


def wait_in_parent(m: Member) -> None:
    """A signal that arrives in a child right after it was forked is the child's."""
    store = opened(m)
    for _ in range(30):
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        os.kill(child, signal.SIGTERM)
        wait_for(lambda pid=child: os.waitpid(pid, os.WNOHANG)[0], 10, "the child")
        assert np.array_equal(read_all(store), all_rows(m.size))
    m.meet("done")
    store.free()


def test_sigterm_to_children(members: Members) -> None:
    members(1, wait_in_parent, MAPPED)
