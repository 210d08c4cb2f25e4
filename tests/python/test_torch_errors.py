"""Samples that can't be stored: an error on every rank, which names what is wrong."""

from __future__ import annotations

import builtins
import collections
import time
from typing import Any

import numpy as np
import pytest
from members import Member, Members, raises

pytest.importorskip("torch", reason="optional: torch is not installed")

import torch
from torch_support import Source, pair, same

from pyddstore import PyDDStore
from pyddstore.torch import DistDataset, Ragged

SOON_S = 15.0  # the machine may be loaded
COUNT = 7


class Mine:
    """No field."""


def good(i: int) -> dict[str, Any]:
    return {"x": torch.zeros(2, 3), "n": i, "a": np.zeros(2, np.int32)}


class Odd(Exception):
    """An exception of the user's own."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(one, other)


# What one sample is like, the exception on all ranks, and words of its message.
BAD: dict[str, tuple[Any, type[Exception], list[str]]] = {
    "dtype": (
        good(1) | {"x": torch.zeros(2, 3, dtype=torch.float64)},
        TypeError, ["'x'", "dtype", "torch.float64", "torch.float32"],
    ),
    "byte order": (
        good(1) | {"a": np.zeros(2, ">i4")}, TypeError, ["'a'", ">i4", "int32"],
    ),
    "shape": (
        good(1) | {"x": torch.zeros(2, 4)}, ValueError, ["'x'", "(2, 4)", "(2, 3)"],
    ),
    "dimensions": (
        good(1) | {"x": torch.zeros(2, 3, 1)}, ValueError, ["'x'", "(2, 3, 1)"],
    ),
    "kind": (good(1) | {"x": np.zeros((2, 3), "f4")}, TypeError,
             ["'x'", "kind", "array", "tensor"]),
    "number": (good(1) | {"n": 1.0}, TypeError, ["'n'", "float", "int"]),
    "bool": (good(1) | {"n": True}, TypeError, ["'n'", "bool", "int"]),
    "none": (good(1) | {"n": None}, TypeError, ["'n'", "NoneType", "encode="]),
    "text": (good(1) | {"n": "1"}, TypeError, ["'n'", "str", "encode="]),
    "nested": (good(1) | {"n": [1]}, TypeError, ["'n'", "list", "encode="]),
    "object": (good(1) | {"n": Mine()}, TypeError, ["'n'", "Mine", "encode="]),
    "objects": (good(1) | {"a": np.array([None, 1])}, TypeError, ["'a'", "encode="]),
    "masked": (
        good(1) | {"a": np.ma.zeros(2, "i4")}, TypeError, ["'a'", "Masked", "encode="],
    ),
    "sparse": (
        good(1) | {"x": torch.eye(3).to_sparse()}, TypeError, ["'x'", "encode="],
    ),
    "device": (
        good(1) | {"x": torch.zeros(2, 3, device="meta")},
        RuntimeError, ["'x'", "meta", "host memory"],
    ),
    "large number": (
        good(1) | {"n": 2**63}, ValueError, ["'n'", str(2**63), "64 bits"],
    ),
    "missing field": (
        {k: v for k, v in good(1).items() if k != "n"}, ValueError, ["no field 'n'"],
    ),
    "another field": (good(1) | {"m": 1}, ValueError, ["another field 'm'"]),
    "another key": (
        {"x": good(1)["x"], "n": 1, "b": 2}, ValueError, ["no field 'a'", "field 'b'"],
    ),
    "container": ((good(1)["x"], 1), TypeError, ["tuple", "dict"]),
    "subclass": (
        collections.OrderedDict(good(1)), TypeError, ["OrderedDict", "encode="],
    ),
    "exception": (ZeroDivisionError("by zero"), ZeroDivisionError, ["by zero"]),
    "missing key": (KeyError("gone"), KeyError, ["gone"]),
    "own exception": (Odd(1, 2), RuntimeError, ["Odd", "(1, 2)"]),
    "end of something": (StopIteration(), RuntimeError, ["StopIteration"]),
    "several exceptions": (
        getattr(builtins, "ExceptionGroup", Odd)("both", [ValueError()]),
        RuntimeError, ["both"],
    ),
}  # fmt: skip


class With(Source):
    """One sample is of another sort."""

    def __init__(self, at: int, sample: Any, count: int = COUNT) -> None:
        super().__init__(count, good)
        self.at, self.sample = at, sample

    def __getitem__(self, i: int) -> Any:
        if i != self.at:
            return super().__getitem__(i)
        if isinstance(self.sample, Exception):
            raise self.sample
        return self.sample


def dataset(m: Member, source: Any, name: str = "ds", **more: Any) -> DistDataset:
    given = {"rank": m.rank, "size": m.size, "handshake_dir": m.dir}
    return DistDataset(source, name, **(given | more))


def bad_samples(m: Member) -> None:
    for number, (what, (sample, kind, words)) in enumerate(BAD.items()):
        at = number % COUNT
        names = [f"sample {at}"]
        if at == 0 and what not in ("exception", "missing key", "own exception"):
            # The first sample is what the others are compared with.
            at, names = 1, ["sample 1"]
        began = time.monotonic()
        exc = raises(
            kind, "rank ", *names, *words,
            call=lambda at=at, sample=sample: dataset(m, With(at, sample)),
        )  # fmt: skip
        assert type(exc) is kind, (what, exc)
        assert time.monotonic() - began < SOON_S, what
    with dataset(m, Source(COUNT, good)) as ds:
        same(ds[3], good(3))
        m.meet("read")


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_bad_samples(members: Members, size: int) -> None:
    members(size, bad_samples)


def bad_arguments(m: Member) -> None:
    """One rank gives something else."""
    me = m.rank == m.size - 1
    source = Source(COUNT, good)
    cases: list[tuple[type[Exception], list[str], Any, dict[str, Any]]] = [
        (ValueError, ["name", "'other'", "'ds'"], source, {"name": "other"}),
        (ValueError, ["method", "2", "1"], source, {"method": 2}),
        (ValueError, ["len(source)", "6", "7"], Source(6, good), {}),
        (TypeError, ["rank 1", "int"], 5, {}),
        (ValueError, ["rank 1", "chunk_size"], source, {"chunk_size": 0}),
        (ValueError, ["fields", "'zz'", "None"], source, {"fields": ["zz"]}),
        (ValueError, ["fields", "Ragged"], source, {"fields": [Ragged("x")]}),
        (TypeError, ["rank 1", "int"], source, {"fields": 5}),
        (ValueError, ["ragged", "True", "False"], source, {"ragged": True}),
        (ValueError, ["ragged", "'x'", "False"], source, {"ragged": ["x"]}),
        (RuntimeError, ["rank 1", "cuda"], source, {"device": "cuda"}),
        (
            ValueError,
            ["'x'", "shape"],
            source,
            {"encode": lambda s: s | {"x": s["x"][:1]}},
        ),
        (RuntimeError, ["rank 1", "encode", "Odd"], source, {"encode": raise_odd}),
        (ValueError, ["ddstore_width"], source, {"ddstore_width": 1}),
    ]
    for kind, words, theirs, given in cases:
        call = (lambda t=theirs, g=given: dataset(m, t, **g)) if me else (
            lambda: dataset(m, source))  # fmt: skip
        began = time.monotonic()
        raises(kind, *words, call=call)
        assert time.monotonic() - began < SOON_S, words
    keys = ["x", "n"][:: -1 if me else 1]
    raises(KeyError, "'zz'", "'x'", call=lambda: dataset(m, source, fields=["zz"]))
    with dataset(m, source, fields=keys, ragged=keys[:0]) as ds:
        assert len(ds) == COUNT
        m.meet("read")


def raise_odd(sample: Any) -> Any:
    raise Odd(3, 4)


def test_bad_arguments(members: Members) -> None:
    members(2, bad_arguments)


def bad_in_one_part(m: Member) -> None:
    """With ddstore_width, all ranks hear of what is wrong in one part."""
    for bad, at in ((0, 0), (2, 0), (3, 6), (1, 5)):
        odd: Any = LookupError("unreadable") if m.rank == bad else good(at)
        began = time.monotonic()
        raises(
            LookupError, f"rank {bad}: sample {at}: unreadable",
            call=lambda at=at, odd=odd: dataset(m, With(at, odd), ddstore_width=2),
        )  # fmt: skip
        assert time.monotonic() - began < SOON_S
    init = PyDDStore.init

    def fail(*given: Any) -> None:
        raise MemoryError("no more")

    if m.rank == 3:
        PyDDStore.init = fail  # type: ignore[method-assign]
    call = lambda: dataset(m, Source(COUNT, good), ddstore_width=1)  # noqa: E731
    raises(MemoryError, "rank 3: no more", call=call)
    PyDDStore.init = init  # type: ignore[method-assign]
    with dataset(m, Source(COUNT, good), ddstore_width=3) as ds:
        same(ds[6], good(6))
        m.meet("read")


def test_bad_in_one_part(members: Members) -> None:
    members(4, bad_in_one_part)


def failures_in_public_means(m: Member) -> None:
    """With the caller's own FileComm, which lives on."""
    import pyddstore

    with pyddstore.FileComm(m.dir, m.rank, m.size, "app") as comm:
        for _ in range(3):
            raises(
                TypeError,
                "sample 5",
                "'n'",
                call=lambda: DistDataset(With(5, good(1) | {"n": None}), "ds", comm),
            )
            comm.barrier()
        with DistDataset(Source(COUNT, pair), "ds", comm) as ds:
            assert ds[6][1] == 6
            comm.barrier()


def test_filecomm_survives(members: Members) -> None:
    members(2, failures_in_public_means)


@pytest.mark.parametrize(
    ("sample", "kind", "words"),
    [
        ((), TypeError, "empty tuple.*encode="),
        ({}, TypeError, "empty dict"),
        ({1: 1, "1": 2}, ValueError, "distinct"),
        ({(1, 2): 1}, TypeError, "key"),
        ("text", TypeError, "str is no field.*encode="),
        (None, TypeError, "NoneType"),
        (([1], 2), TypeError, "field 0.*list is a container inside a sample"),
        (np.array(b""), None, ""),
        (np.zeros(2, "V0"), TypeError, "no bytes"),
        (2**63, ValueError, "64 bits"),
    ],
)
def test_first_samples(tmp_path: Any, sample: Any, kind: Any, words: str) -> None:
    given: dict[str, Any] = {"rank": 0, "size": 1, "handshake_dir": str(tmp_path / "h")}
    if kind is None:
        DistDataset([sample], "ds", **given).free()
        return
    with pytest.raises(kind, match=f"rank 0: sample 0.*{words}"):
        DistDataset([sample], "ds", **given)


def test_ragged_arguments(tmp_path: Any) -> None:
    given: dict[str, Any] = {"rank": 0, "size": 1, "handshake_dir": str(tmp_path / "h")}
    source = [{"x": np.zeros(2), "n": 1}, {"x": np.zeros(3), "n": 1}]
    for more, kind, words in [
        ({}, ValueError, "sample 1, field 'x': shape"),
        ({"ragged": ["n"]}, ValueError, "field 'n'.*dimension"),
        ({"ragged": ["y"]}, KeyError, "no field 'y'"),
        ({"ragged": "x"}, TypeError, "list of keys"),
        ({"fields": [Ragged("n")]}, ValueError, "field 'n'.*dimension"),
    ]:
        with pytest.raises(kind, match=words):
            DistDataset(source, "ds", **given, **more)
