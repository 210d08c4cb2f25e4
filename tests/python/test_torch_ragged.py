"""Ragged fields: samples whose first dimension differs."""

from __future__ import annotations

import pickle
import weakref
from typing import Any

import numpy as np
import pytest
from members import Member, Members, raises

pytest.importorskip("torch", reason="optional: torch is not installed")

import torch
from torch.utils.data import Subset
from torch_support import Source, graph, same

from pyddstore.torch import (
    DistDataset,
    DistDatasetReader,
    Ragged,
    RaggedRows,
)


def dataset(m: Member, source: Any, name: str = "ds", **more: Any) -> DistDataset:
    given = {"rank": m.rank, "size": m.size, "handshake_dir": m.dir}
    return DistDataset(source, name, **(given | more))


def read_graphs(ds: Any, count: int) -> None:
    for i in range(-count, count):
        same(ds[i], graph(i % count))
    random = np.random.default_rng(1)
    for n in (0, 1, 5, 40):
        wanted = random.integers(-count, count, n).tolist() if count else []
        samples = ds.__getitems__(wanted)
        same(samples, [graph(i % count) for i in wanted])
        rows = ds.read_rows(wanted)
        for key in ("x", "edges"):
            assert type(rows[key]) is RaggedRows
            values, offsets = rows[key]
            assert len(offsets) == len(wanted) + 1
            for k in range(len(wanted)):
                same(values[offsets[k] : offsets[k + 1]], samples[k][key])
    for bad in (count, -count - 1):
        raises(IndexError, f"{count} samples", call=lambda b=bad: ds[b])
        raises(IndexError, f"{count} samples", call=lambda b=bad: ds.__getitems__([b]))


def graphs(m: Member, method: int, chunk_size: int | None) -> None:
    for number, count in enumerate((11, 2)):
        source = Source(count, graph)
        name = f"graphs{number}"
        more = {"method": method, "chunk_size": chunk_size}
        with dataset(m, source, name, ragged=True, **more) as ds:
            assert ds.shapes == {"x": (None, 3), "edges": (None, 2), "y": ()}
            # Without chunks each sample is read once, but for the first.
            mine = count // m.size + (m.rank < count % m.size)
            times = 2 if chunk_size else 1
            assert len(source.asked) == times * mine + bool(mine)
            read_graphs(ds, count)
            if method == 2:
                with DistDatasetReader(name, m.dir) as reader:
                    read_graphs(reader, count)
            m.meet(f"read {number}")
    with dataset(m, Source(3, graph), fields=["y", Ragged("edges")]) as ds:
        assert ds.shapes == {"edges": (None, 2), "y": ()}
        names = ["ds/edges/offsets", "ds/edges", "ds/y"]
        assert ds.ddstore.names() == names
        same(ds[2], {k: v for k, v in graph(2).items() if k != "x"})
        m.meet("read")
    with dataset(m, Source(0, graph), ragged=True) as ds:
        assert ds.__getitems__([]) == []


def test_chunks_of_one_keep_no_samples(tmp_path: Any) -> None:
    alive: list[weakref.ref[Any]] = []

    def make(i: int) -> Any:
        assert sum(one() is not None for one in alive) <= 2, f"at sample {i}"
        array = np.full((i % 5, 2), i)
        alive.append(weakref.ref(array))
        return array

    with DistDataset(
        Source(30, make), "ds", rank=0, size=1, handshake_dir=str(tmp_path / "h"),
        ragged=True, chunk_size=1,
    ) as ds:  # fmt: skip
        same([ds[7], ds[29]], [np.full((2, 2), 7), np.full((4, 2), 29)])


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize(("method", "chunk_size"), [(1, None), (2, 2)])
def test_graphs(
    members: Members, size: int, method: int, chunk_size: int | None
) -> None:
    members(size, graphs, method=method, chunk_size=chunk_size)


def other_ways(m: Member) -> None:
    with dataset(m, Source(6, graph), ragged=["x", "edges"]) as ds:
        read_graphs(ds, 6)
        m.meet("read")


@pytest.mark.parametrize(
    "env", [{"DDSTORE_BATCH_GET": "0"}, {"DDSTORE_SHM": "0", "DDSTORE_FABRIC": "tcp"}]
)
def test_other_ways(members: Members, env: dict[str, str]) -> None:
    members(2, other_ways, env)


def only_one_rank_differs(m: Member) -> None:
    """What is ragged is agreed on by all; only the last sample differs."""
    source = Source(5, lambda i: (np.zeros(3 + (i == 4)), torch.zeros(2, i // 9)))
    with dataset(m, source, ragged=True) as ds:
        assert ds.shapes == ((None,), (2, 0))
        same(ds.__getitems__([4, 0]), [source.make(4), source.make(0)])
        m.meet("read")
    words = ["rank ", "sample 4", "field 0"]
    wide = Source(5, lambda i: (np.zeros((2 + i, 2 + (i == 4))),))
    raises(ValueError, *words, "(3,)", call=lambda: dataset(m, wide, ragged=True))
    flat = Source(5, lambda i: (np.zeros(3 + i) if i < 4 else np.array(1.0),))
    raises(ValueError, *words, "dimension", call=lambda: dataset(m, flat, ragged=True))
    mixed = Source(5, lambda i: (np.zeros(3 + i, "f4" if i == 4 else "f8"),))
    raises(TypeError, *words, "float32", call=lambda: dataset(m, mixed, ragged=True))

    class Changing(Source):
        def __getitem__(self, i: int) -> Any:
            self.asked.append(i)
            return np.zeros(len(self.asked))

    raises(ValueError, "rank 0: sample", "before",
           call=lambda: dataset(m, Changing(5), ragged=True, chunk_size=2))  # fmt: skip


def test_agreement(members: Members) -> None:
    members(3, only_one_rank_differs)


@pytest.fixture
def here(tmp_path: Any) -> Any:
    made = []

    def make(source: Any, **more: Any) -> DistDataset:
        given: dict[str, Any] = {"rank": 0, "size": 1}
        given["handshake_dir"] = str(tmp_path / "h")
        made.append(DistDataset(source, "ds", **given, **more))
        return made[-1]

    yield make
    for one in made:
        one.free()


def test_kinds(here: Any) -> None:
    def make(i: int) -> Any:
        random = np.random.default_rng(i)
        n = int(random.integers(0, 4))
        pairs = np.zeros(n, [("a", "i4"), ("b", "f8")])
        pairs["a"] = i
        return [
            torch.full((n,), i, dtype=torch.bfloat16),
            torch.zeros(n, 0),
            pairs,
            pairs.view(np.recarray),
            np.full((n, 2, 2), i, ">i2"),
            np.array(["ab"] * n, "U2"),
        ]

    ds = here(Source(9, make), ragged=True)
    for i in range(9):
        same(ds[i], make(i))
    same(ds.__getitems__(range(9)), [make(i) for i in range(9)])


def test_pickles_of_any_length(here: Any) -> None:
    things = [{"number": i, "text": "x" * i} for i in range(20)]
    ds = here(
        things,
        encode=lambda one: np.frombuffer(pickle.dumps(one), np.uint8),
        decode=lambda stored, i: pickle.loads(stored) | {"index": i},
        ragged=[0],
    )
    want = [one | {"index": i} for i, one in enumerate(things)]
    assert [ds[i] for i in range(20)] == want
    assert Subset(ds, [3, 1]).__getitems__([0, 1]) == [want[3], want[1]]


def test_buffers(here: Any) -> None:
    ds = here(Source(11, graph), ragged=True)
    bufs = ds.alloc(3)
    longest = max(graph(i)["x"].shape[0] for i in range(11))
    assert bufs["x"].values.shape == (3 * longest, 3)
    samples = ds.__getitems__([7, 7, 2], out=bufs)
    same(samples, [graph(7), graph(7), graph(2)])
    end = bufs["x"].values.data_ptr() + bufs["x"].values.nbytes
    assert bufs["x"].values.data_ptr() <= samples[2]["x"].data_ptr() < end
    rows = ds.read_rows([1], out=bufs)
    assert bufs["x"].offsets[1] == rows["x"].offsets[1] == graph(1)["x"].shape[0]
    with pytest.raises(ValueError, match="3 samples"):
        ds.read_rows([0] * 4, out=bufs)
    ds.release(bufs)


def test_taken_name(here: Any) -> None:
    source = [{"x": np.zeros(i), "x/offsets": i} for i in range(3)]
    with pytest.raises(ValueError, match="x/offsets"):
        here(source, ragged=True)
