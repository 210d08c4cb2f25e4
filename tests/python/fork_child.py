"""What processes do that were forked or spawned by a member: importable there.

Each function is given a store, or what it was pickled as, and returns what it found.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

import pyddstore

ROWS = 6  # of each rank
ORDER = np.random.default_rng(0).permutation(4 * ROWS)  # the import is not for children


def rows_of(rank: int) -> np.ndarray[Any, Any]:
    """The rows that a rank adds."""
    first = rank * ROWS * 3
    return np.arange(first, first + ROWS * 3, dtype=np.float64).reshape(ROWS, 3)


def all_rows(ranks: int) -> np.ndarray[Any, Any]:
    return np.concatenate([rows_of(rank) for rank in range(ranks)])


def read_all(store: Any, name: str = "x") -> np.ndarray[Any, Any]:
    """All rows, by get and by get_batch, which must agree."""
    total, disp, itemsize = store.info(name)
    assert (disp, itemsize) == (3, 8)
    one = np.zeros((total, 3))
    for first in range(0, total, ROWS):
        store.get(name, one[first : first + ROWS], first)
    many = np.zeros((total, 3))
    order = ORDER[total > ORDER]
    store.get_batch(name, many, order)
    assert np.array_equal(many, one[order])
    return one


def report(store: Any) -> dict[str, Any]:
    """What a reader in another process sees."""
    return {
        "rows": read_all(store),
        "names": store.names(),
        "dtype": store.dtype("x"),
        "alive": store.core_alive(),
        "paths": {one["path"] for one in store.transports()},
        "who": (store.rank, store.size, store.method),
        "modules": {"torch", "mpi4py"} & set(sys.modules),
        "pid": os.getpid(),
    }


def send_report(store: Any, pipe: Any) -> None:
    """For multiprocessing. A forked child has the parent's store itself."""
    try:
        if store._inherited():
            store = store.fork_reader()
        pipe.send(report(store))
    except BaseException:
        pipe.send(traceback.format_exc())


class Rows:
    """A dataset whose workers open a reader of their own on first use."""

    def __init__(self, store: Any) -> None:
        self.store, self.rows = store, store.info("x")[0]
        self.pid = os.getpid()

    def __len__(self) -> int:
        return int(self.rows)

    def __getitem__(self, i: int) -> np.ndarray[Any, Any]:
        if self.pid != os.getpid():
            self.store, self.pid = self.store.fork_reader(), os.getpid()
        out = np.zeros((1, 3))
        self.store.get("x", out, i)
        return out[0]


def in_fork(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function returns in a forked child; fails with the child's traceback."""
    import multiprocessing

    ours, theirs = multiprocessing.Pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(50)
        try:
            theirs.send((True, function(*arguments)))
        except BaseException:
            theirs.send((False, traceback.format_exc()))
        finally:
            os._exit(0)
    theirs.close()
    good, value = ours.recv()
    assert os.waitpid(child, 0)[1] == 0
    assert good, value
    return value


def read_reader(store: Any) -> dict[str, Any]:
    with store.fork_reader() as reader:
        return report(reader)


def misuse(store: Any) -> list[str]:
    """What using the parent's store says, call by call."""
    out = np.zeros((1, 3))
    calls: list[Callable[[], Any]] = [
        lambda: store.add("y", out),
        lambda: store.init("y", 1, 1),
        lambda: store.join("x"),
        lambda: store.update("x", out, 0),
        lambda: store.view("x"),
        lambda: store.get("x", out),
        lambda: store.get("no such", out),
        lambda: store.get_batch("x", out, [0]),
        lambda: store.register_recv("x", out),
        lambda: store.unregister_recv("x", out),
        lambda: store.get_profile("x"),
        lambda: store.info("x"),
        lambda: store.dtype("x"),
        lambda: store.names(),
        lambda: store.nbytes,
        lambda: store.transports(),
        lambda: store.core_alive(),
        lambda: store.epoch_begin(),
        lambda: store.epoch_end(),
        lambda: store.__enter__(),
    ]
    said = []
    for call in calls:
        try:
            said.append(f"returned {call()!r}")
        except pyddstore.DDStoreError as exc:
            said.append(str(exc))
    assert "parent" in repr(store)
    store.free()
    store.free()
    return said
