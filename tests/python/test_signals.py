"""Ctrl-C and other signals while a call waits."""

from __future__ import annotations

import functools
import gc
import os
import signal
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
from members import Member, Members, raises, wait_for

import pyddstore

NETWORKS = [
    pytest.param({"DDSTORE_SHM": "0", "DDSTORE_FABRIC": "tcp"}, id="tcp"),
    pytest.param({"DDSTORE_SHM": "0", "DDSTORE_FABRIC": "ofi:tcp;ofi_rxm"}, id="ofi"),
]
ROWS = 4


def serve(m: Member) -> None:
    store = m.store(method=2)
    store.add("x", np.arange(ROWS * 512.0).reshape(ROWS, 512) + 10000 * m.rank)
    m.mark(f"serving.{m.rank}")
    m.wait("end", 100)


def stop_process(pid: int) -> None:
    """All threads of it, which takes a moment."""
    os.kill(pid, signal.SIGSTOP)

    def stopped() -> bool:
        states = []
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/stat") as f:
                states.append(f.read().rsplit(")", 1)[1].split()[0])
        return set(states) == {"T"}

    wait_for(stopped, 5, "a process to stop")


def interrupted_after(seconds: float, call: Any, number: int = signal.SIGINT) -> float:
    """How long after the signal the call raised KeyboardInterrupt."""
    sent: list[float] = []

    def send() -> None:
        time.sleep(seconds)
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)

    threading.Thread(target=send).start()
    raises(KeyboardInterrupt, call=call)
    ended = time.monotonic()
    assert sent, "it was raised too early"
    return ended - sent[0]


class Watched(np.ndarray[Any, Any]):
    """An array whose end is noticed."""


def interrupt_reads(m: Member) -> None:
    store = m.extra()
    store.join("x")
    out, batch = np.zeros((1, 512)), np.zeros((3, 512))
    for start in (0, ROWS):
        store.get("x", out, start)
    pids = [peer["pid"] for peer in store.transports()]
    calls = [
        lambda: store.get("x", out, 1),
        lambda: store.get_batch("x", batch, [0, ROWS, 1]),
    ]
    for number, call in enumerate(calls):
        stop_process(pids[0])
        late = interrupted_after(0.3, call)
        assert late < 1, late
        # The other core is read meanwhile, and this one when it goes on.
        store.get("x", out, ROWS + 1)
        assert out[0, 0] == 10000 + 512
        os.kill(pids[0], signal.SIGCONT)
        store.get("x", out, number)
        assert out[0, 0] == 512 * number
        store.get_batch("x", batch, [0, ROWS, 1])
        assert batch[:, 0].tolist() == [0, 10000, 512]

    # By RDMA bytes may come late: such a destination is never given to others.
    late_out = np.zeros((1, 512)).view(Watched)
    end = weakref.ref(late_out)
    stop_process(pids[0])
    interrupted_after(0.2, functools.partial(store.get, "x", late_out, 1))
    os.kill(pids[0], signal.SIGCONT)
    del late_out
    gc.collect()
    assert (end() is None) is (os.environ["DDSTORE_FABRIC"] == "tcp")

    # A handler that raises something else; one that raises nothing; other threads.
    def stop(number: int, frame: Any) -> None:
        raise LookupError("from the handler")

    counted: list[int] = []
    signal.signal(signal.SIGUSR1, stop)
    signal.signal(signal.SIGUSR2, lambda number, frame: counted.append(number))
    stop_process(pids[0])
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR2)).start()
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    raises(LookupError, "from the handler", call=calls[0])
    assert counted == [signal.SIGUSR2]

    outcomes: list[Any] = []

    def read() -> None:
        row = np.zeros((1, 512))
        try:
            store.get("x", row, 2)
            outcomes.append(float(row[0, 0]))
        except BaseException as exc:
            outcomes.append(exc)

    thread = threading.Thread(target=read)
    thread.start()
    assert interrupted_after(0.2, lambda: time.sleep(5)) < 1  # Python's own wait
    assert not outcomes
    os.kill(pids[0], signal.SIGCONT)
    thread.join(20)
    assert outcomes == [1024.0]
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    m.mark("end")


@pytest.mark.parametrize("env", NETWORKS)
def test_reads_are_interrupted(members: Members, env: dict[str, str]) -> None:
    if env["DDSTORE_FABRIC"] != "tcp":
        try:
            members.start(open_alone, env=env).result()
        except AssertionError as exc:
            pytest.skip(f"optional: {env['DDSTORE_FABRIC']} can't be used here: {exc}")
    group = [members.start(serve, r, 2, env) for r in range(2)]
    for rank in range(2):
        members.wait(f"serving.{rank}")
    members.start(interrupt_reads, env=env).result()
    for process in group:
        process.result()


def open_alone(m: Member) -> None:
    m.store(rank=0, size=1, handshake_dir=m.dir + "-alone").free()


def interrupt_waits(m: Member) -> None:
    """Waiting for others: opening, join, FileComm; what was there before works on."""
    there = m.store(rank=0, size=1, exchange_ns="there")
    there.add("x", np.arange(3))
    for call in (
        lambda: m.store(rank=0, size=2, exchange_ns="core0"),
        lambda: m.store(rank=1, size=2, exchange_ns="core1"),
        lambda: m.extra().join("x"),
        lambda: pyddstore.FileComm(m.dir, 0, 2, "comm0"),
        lambda: pyddstore.FileComm(m.dir, 1, 2, "comm1"),
    ):
        late = interrupted_after(0.2, call)
        assert late < 1, late
        out = np.zeros(3, int)
        there.get("x", out)
        assert list(out) == [0, 1, 2]
    extra = m.extra()
    assert interrupted_after(0.2, lambda: extra.join("y")) < 1
    other = m.store(method=2, rank=0, size=1, exchange_ns="two")
    other.add("y", np.arange(3))
    extra.join("y")
    extra.get("y", out)
    with pyddstore.FileComm(m.dir, 0, 1, "alone") as comm:
        comm.barrier()


def test_waits_are_interrupted(members: Members) -> None:
    members.start(interrupt_waits).result()


def interrupt_collectives(m: Member) -> None:
    """An interrupted collective ends its group; rows that are there are read on."""
    comm = pyddstore.FileComm(m.dir, m.rank, m.size, "comm")
    store = m.store()
    store.add("x", np.arange(3) + 3 * m.rank)
    if m.rank == 1:
        m.mark("ready")
        m.wait("interrupted")
        return
    m.wait("ready")
    assert interrupted_after(0.2, comm.barrier) < 1
    raises(pyddstore.DDStoreError, "earlier", call=comm.barrier)
    assert interrupted_after(0.2, lambda: store.add("y", np.arange(3))) < 1
    raises(pyddstore.DDStoreError, "earlier", call=lambda: store.add("z", np.arange(3)))
    out = np.zeros(3, int)
    store.get("x", out, 3)
    assert list(out) == [3, 4, 5]
    assert store.names() == ["x"]
    m.mark("interrupted")


def test_collectives_are_interrupted(members: Members) -> None:
    members(2, interrupt_collectives)


def interrupt_short_reads(m: Member) -> None:
    """Signals that come between and within many short reads are never lost."""
    store = m.store(rank=0, size=1)
    store.add("x", np.arange(30.0).reshape(10, 3))
    out = np.zeros((1, 3))

    def read() -> None:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            for row in range(10):
                store.get("x", out, row)

    for _ in range(5):
        assert interrupted_after(0.05, read) < 1
    store.get("x", out, 3)
    assert out[0, 0] == 9


def test_short_reads_are_interrupted(members: Members) -> None:
    members.start(interrupt_short_reads).result()
