"""Exceptions, free(), and the ends of stores, threads and interpreters."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from members import Member, Members, environment, raises

import pyddstore
from pyddstore import (
    DDStoreError,
    FabricError,
    HandshakeTimeout,
    PeerLostError,
    StoreClosedError,
)

# ---- importing -----------------------------------------------------------------------


def test_a_checkout_is_no_package(tmp_path: Any) -> None:
    """Python that is started where the sources are says so."""
    package = tmp_path / "pyddstore"
    package.mkdir()
    shutil.copy(pyddstore.__file__, package)
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    end = subprocess.run(
        [sys.executable, "-c", "import pyddstore"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert f"ImportError: {package} is not built: it is a checkout" in end.stderr


# ---- exceptions ----------------------------------------------------------------------


def test_exceptions() -> None:
    assert DDStoreError.__bases__ == (RuntimeError,)
    for kind, code in [
        (PeerLostError, -7),
        (StoreClosedError, -8),
        (FabricError, -9),
        (HandshakeTimeout, -10),
    ]:
        assert issubclass(kind, DDStoreError)
        assert kind.code == code
        exc = kind("rank 3 on host a")
        assert exc.code == code
        assert str(exc) == "rank 3 on host a"
        again = pickle.loads(pickle.dumps(exc))
        assert (type(again), str(again), again.code) == (kind, str(exc), code)
    assert issubclass(HandshakeTimeout, TimeoutError)
    assert not issubclass(PeerLostError, TimeoutError)
    exc = DDStoreError("x")
    exc.code = -12
    assert pickle.loads(pickle.dumps(exc)).code == -12


def test_the_store_is_usable_after_errors(store: Any) -> None:
    store.add("x", np.arange(4))
    out = np.zeros(4, int)
    for call, error in [
        (lambda: store.get("y", out), KeyError),
        (lambda: store.get("x", out, 1), IndexError),
        (lambda: store.get("x", out[::2]), ValueError),
        (lambda: store.get("x", out.astype(float)), TypeError),
        (lambda: store.add("x", out), ValueError),
        (lambda: store.init("z", 2**44, 1), MemoryError),
        (lambda: store.join("x"), ValueError),
    ]:
        with pytest.raises(error):
            call()
        out[...] = -1
        store.get("x", out)
        assert list(out) == [0, 1, 2, 3]


# ---- free ----------------------------------------------------------------------------


def test_use_after_free(store: Any, tmp_path: Any) -> None:
    store.add("x", np.arange(4))
    out = np.zeros(4, int)
    store.register_recv("x", out)
    extra = pyddstore.PyDDStore(None, method=2, handshake_dir=str(tmp_path / "h"))
    store.free()
    extra.free()
    uses: list[Any] = [
        lambda s: s.add("y", out),
        lambda s: s.init("y", 1, 1),
        lambda s: s.update("x", out, 0),
        lambda s: s.get("x", out),
        lambda s: s.get("nothing", out),
        lambda s: s.get_batch("x", out, [0, 1, 2, 3]),
        lambda s: s.register_recv("x", out),
        lambda s: s.unregister_recv("x", out),
        lambda s: s.get_profile("x"),
        lambda s: s.join("x"),
        lambda s: s.names(),
        lambda s: s.info("x"),
        lambda s: s.dtype("x"),
        lambda s: s.view("x"),
        lambda s: s.nbytes,
        lambda s: s.transports(),
        lambda s: s.core_alive(),
        lambda s: s.epoch_begin(),
        lambda s: s.epoch_end(),
        lambda s: s.__enter__(),
    ]
    for one in (store, extra):
        for number, use in enumerate(uses):
            with pytest.raises(StoreClosedError) as caught:
                use(one)
            assert caught.value.code == -8, number
        assert "freed" in repr(one)
        one.free()
        one.free()
        with pytest.raises(ValueError, match="opened before"):
            one.__init__(None, method=2, handshake_dir=str(tmp_path / "h"))


def test_context_manager(tmp_path: Any) -> None:
    store = pyddstore.PyDDStore(
        None, method=1, handshake_dir=str(tmp_path / "h"), rank=0, size=1
    )

    def use() -> None:
        with store as same:
            assert same is store
            store.add("x", np.arange(4))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
    with pytest.raises(StoreClosedError):
        store.names()


def test_free_after_a_failed_constructor(tmp_path: Any) -> None:
    """As a client's __del__ does it."""
    for arguments in [
        {"method": 7},
        {"method": 0, "rank": 0, "size": 1},
        {"method": 1, "rank": 0, "size": 1, "handshake_dir": "/proc/nothing"},
    ]:
        store = pyddstore.PyDDStore.__new__(pyddstore.PyDDStore)
        with pytest.raises((ValueError, DDStoreError)):
            store.__init__(None, **({"handshake_dir": str(tmp_path)} | arguments))
        store.free()
        repr(store)
        with pytest.raises(StoreClosedError):
            store.names()
    for store in (pyddstore.PyDDStore.__new__(pyddstore.PyDDStore) for _ in range(2)):
        with pytest.raises(StoreClosedError):
            store.add("x", np.zeros(3))
        store.free()
        assert store.size == 0


def test_groups_are_not_pickled(tmp_path: Any) -> None:
    group = pyddstore.FileComm(str(tmp_path / "c"), 0, 1, "c")
    with pytest.raises(TypeError, match="another process"):
        pickle.dumps(group)


def test_memory_goes_with_the_store(tmp_path: Any) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def one(i: int) -> None:
        store = pyddstore.PyDDStore(
            None, method=1 + i % 2, handshake_dir=str(tmp_path / "h"), rank=0, size=1
        )
        store.add("x", np.zeros(2**20))
        store.register_recv("x", np.zeros(10))
        view = store.view("x")
        if i % 3:
            store.free()
        del store, view

    for i in range(4):
        one(i)
    gc.collect()
    before, open_before = resident(), descriptors()
    for i in range(12):
        one(i)
    gc.collect()
    assert resident() - before < 8 * 2**20
    assert descriptors() - open_before <= 2


def resident() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096


def test_no_references_leak(store: Any) -> None:
    store.add("x", np.arange(20).reshape(10, 2))
    out, indices, source = (
        np.zeros((2, 2), int),
        np.array([1, 2]),
        np.zeros((1, 2), int),
    )
    bad = np.zeros((2, 2))

    def all_calls() -> None:
        store.get("x", out, 1)
        store.get_batch("x", out, indices)
        store.get_batch("x", out, [1, 2])
        store.update("x", source, 0)
        store.view("x")
        store.info("x")
        store.transports()
        store.get_profile("x")
        for call in (
            lambda: store.get("x", bad, 1),
            lambda: store.get("x", out, 99),
            lambda: store.get("y", out),
            lambda: store.get_batch("x", out, [1, 99]),
            lambda: store.update("x", source, 99),
            lambda: store.add("x", source),
        ):
            with pytest.raises((TypeError, IndexError, KeyError, ValueError)):
                call()

    objects = (out, indices, source, bad, out.dtype, bad.dtype)
    all_calls()
    gc.collect()
    before = [sys.getrefcount(thing) for thing in objects]
    blocks = sys.getallocatedblocks()
    for _ in range(50):
        all_calls()
    gc.collect()
    after = [sys.getrefcount(thing) for thing in objects]
    assert all(b - a < 5 for a, b in zip(before, after, strict=True)), (before, after)
    assert sys.getallocatedblocks() - blocks < 200


# ---- the end of the interpreter ------------------------------------------------------

ENDS = {
    "never freed": "",
    "freed by __del__": """
class Data:
    def __init__(self, store):
        self.store = store
    def __del__(self):
        self.store.free()
data = Data(store)
""",
    "freed by atexit": """
import atexit
atexit.register(store.free)
""",
    "in a cycle": """
loop = [store]
loop.append(loop)
del store
""",
    "view only": """
view = store.view("x")
del store
""",
    "in a module": """
import sys, types
sys.modules["keeper"] = types.ModuleType("keeper")
sys.modules["keeper"].store = store
""",
    "daemon thread reads": """
import threading
def read():
    out = np.zeros(4)
    while True:
        store.get("x", out)
threading.Thread(target=read, daemon=True).start()
import time
time.sleep(0.1)
""",
    "thread reads on": """
import threading, time
def read():
    out = np.zeros(4)
    for _ in range(100):
        store.get("x", out)
        time.sleep(0.001)
threading.Thread(target=read).start()
""",
    "sys.exit": """
import sys
sys.exit(0)
""",
    "opened by __del__": """
class Late:
    def __del__(self, make=PyDDStore, dir=dir):
        make(None, method=1, handshake_dir=dir, rank=0, size=1).free()
late = Late()
""",
    "logging at the end": """
import os
os.environ["DDSTORE_LOG"] = "debug"
other = PyDDStore(None, method=2, handshake_dir=dir, rank=0, size=1)
other.add("y", np.zeros(3))
""",
}

BEGIN = """
import sys, numpy as np
from pyddstore import PyDDStore
dir = sys.argv[1]
store = PyDDStore(None, method=1, handshake_dir=dir, rank=0, size=1)
store.add("x", np.arange(4.0))
"""


@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_the_interpreter(tmp_path: Any, end: str) -> None:
    begun = time.monotonic()
    run = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", BEGIN + ENDS[end], tmp_path / "h"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert run.returncode == 0, run.stderr
    assert "Error" not in run.stderr, run.stderr
    assert "Exception" not in run.stderr, run.stderr
    assert time.monotonic() - begun < 10


WAITING_DAEMON = """
import os, signal, sys, threading, time, numpy as np
from pyddstore import PyDDStore
extra = PyDDStore(None, method=2, handshake_dir=sys.argv[1])
extra.join("x")
pid = extra.transports()[0]["pid"]
os.kill(pid, signal.SIGSTOP)
def read():
    extra.get("x", np.zeros(4))
threading.Thread(target=read, daemon=True).start()
time.sleep(0.5)
"""


def serve(m: Member) -> None:
    store = m.store(method=2)
    store.add("x", np.arange(4.0))
    m.mark("serving")
    m.wait("end")


def test_the_end_while_a_daemon_thread_waits(members: Members, tmp_path: Any) -> None:
    """The interpreter ends, although a read waits for a member that is stopped."""
    env = {"DDSTORE_SHM": "0", "DDSTORE_FABRIC": "tcp"}
    core = members.start(serve, 0, 1, env)
    members.wait("serving")
    begun = time.monotonic()
    run = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", WAITING_DAEMON, members.dir],
        cwd=tmp_path,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=30,
    )
    core.popen.send_signal(18)
    assert run.returncode == 0, run.stderr
    assert time.monotonic() - begun < 10
    members.mark("end")
    core.result()


# ---- free while others use it --------------------------------------------------------


def read_on(store: Any, outcomes: list[Any]) -> None:
    out = np.zeros((8, 4), int)
    try:
        while True:
            rows = np.random.default_rng().integers(0, 2000, 8)
            store.get_batch("x", out, rows)
            assert np.array_equal(out[:, 0], 4 * rows)
    except BaseException as exc:
        outcomes.append(exc)


def free_beside_reads(m: Member) -> None:
    """Reads of other threads end with StoreClosedError or rows, whatever the moment."""
    for turn in range(5):
        store = m.store(exchange_ns=f"turn{turn}")
        store.add("x", np.arange(4000).reshape(1000, 4) + 4000 * m.rank)
        m.meet(f"added{turn}")
        outcomes: list[Any] = []

        threads = [
            threading.Thread(target=read_on, args=(store, outcomes)) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        if m.rank == 0:
            store.free()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert {type(end) for end in outcomes} == {StoreClosedError}, outcomes
        if m.rank == 1:
            assert all("rank 0" in str(end) for end in outcomes), outcomes
            out = np.zeros((1, 4), int)
            store.get("x", out, 1000)  # its own rows are still there
            store.free()
        m.meet(f"freed{turn}")


@pytest.mark.parametrize("shm", ["1", "0"])
def test_free_beside_reads(members: Members, shm: str) -> None:
    members(2, free_beside_reads, {"DDSTORE_SHM": shm, "DDSTORE_FABRIC": "tcp"})


def use_in_child(m: Member) -> None:
    store = m.store()
    store.add("x", np.arange(4))
    comm = pyddstore.FileComm(m.dir, m.rank, m.size, "comm")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for call in (
                lambda: store.get("x", np.zeros(4, int)),
                lambda: store.add("y", np.zeros(4, int)),
                lambda: comm.barrier(),
            ):
                raises(DDStoreError, "child", call=call)
            store.free()
            fresh = pyddstore.PyDDStore(
                None, method=1, rank=0, size=1, handshake_dir=m.dir + "-child"
            )
            fresh.add("x", np.arange(3))
            fresh.get("x", np.zeros(3, int))
            fresh.free()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    out = np.zeros(4, int)
    store.get("x", out)
    assert out[3] == 3


def test_use_in_a_forked_child(members: Members) -> None:
    members(1, use_in_child)
