"""WindowedDataset and row_of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from members import Member, Members

pytest.importorskip("torch", reason="optional: torch is not installed")

import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torch_support import Source, pair, same

from pyddstore.torch import DistDataset, WindowedDataset, row_of

COUNT = 23


def stacked(rows: list[int]) -> tuple[Any, Any]:
    samples = [pair(i) for i in rows]
    return torch.stack([s[0] for s in samples]), np.array([s[1] for s in samples])


@pytest.fixture
def ds(tmp_path: Any) -> Any:
    with DistDataset(
        Source(COUNT, pair), "ds", rank=0, size=1, handshake_dir=str(tmp_path / "h")
    ) as one:
        yield one


@pytest.mark.parametrize("window", [1, 3, 23])
@pytest.mark.parametrize("stride", [1, 4])
@pytest.mark.parametrize("dilation", [1, 3])
def test_windows(ds: Any, window: int, stride: int, dilation: int) -> None:
    windows = WindowedDataset(ds, window, stride, dilation)
    want = [
        list(range(s, s + (window - 1) * dilation + 1, dilation))
        for s in range(0, COUNT, stride)
        if s + (window - 1) * dilation < COUNT
    ]
    assert len(windows) == len(want)
    for i in range(-len(want), len(want)):
        same(windows[i], stacked(want[i]))
    both = [0, -1, 0] if want else []
    same(windows.__getitems__(both), [stacked(want[i]) for i in both])
    for bad in (len(want), -len(want) - 1):
        with pytest.raises(IndexError, match=str(bad)):
            windows[bad]
        with pytest.raises(IndexError):
            windows.__getitems__([bad])


def test_starts_and_fields(ds: Any) -> None:
    starts = [7, 0, 7, 20]
    windows = WindowedDataset(ds, 3, starts=starts, fields=[1])
    assert [list(one[0]) for one in windows] == [
        [s, s + 1, s + 2] for s in starts
    ]  # fmt: skip
    same(windows[0], (np.array([7, 8, 9]),))
    assert len(WindowedDataset(ds, 3, starts=[])) == 0
    assert len(WindowedDataset(ds, 3, starts=torch.tensor([1, 2]))) == 2
    assert len(WindowedDataset(ds, 3, starts=np.array([1], np.uint64))) == 1
    for bad in ([0, 21], [-1], [2**40], np.array([23])):
        with pytest.raises(IndexError, match="window"):
            WindowedDataset(ds, 3, starts=bad)
    with pytest.raises(IndexError, match="rows 19 to 23"):
        WindowedDataset(ds, 3, dilation=2, starts=[18, 19])
    for given in ({"window": 0}, {"stride": 0}, {"dilation": -1}):
        with pytest.raises(ValueError, match=next(iter(given))):
            WindowedDataset(ds, **({"window": 2} | given))
    with pytest.raises(KeyError, match="nothing"):
        WindowedDataset(ds, 2, fields=["nothing"])
    with pytest.raises(ValueError, match="one field at least"):
        WindowedDataset(ds, 2, fields=[])


def test_one_read_a_batch(ds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = WindowedDataset(ds, 4, stride=2)
    calls = []
    whole = ds._read

    def read(rows: Any, *more: Any) -> Any:
        calls.append(len(rows))
        return whole(rows, *more)

    monkeypatch.setattr(ds, "_read", read)
    loader = DataLoader(Subset(windows, [3, 1, 0]), batch_size=2)
    batches = list(loader)
    assert calls == [8, 4]
    assert batches[0][0].shape == (2, 4, 4)
    assert batches[0][1].tolist() == [[6, 7, 8, 9], [2, 3, 4, 5]]


def test_buffers(ds: Any) -> None:
    windows = WindowedDataset(ds, 4)
    bufs = windows.alloc(2)
    assert bufs[0].shape == (8, 4)
    got = windows.__getitems__([5, 1], out=bufs)
    same(got, [stacked([5, 6, 7, 8]), stacked([1, 2, 3, 4])])
    with pytest.raises(ValueError, match="8 samples"):
        windows.__getitems__([0, 1, 2], out=bufs)
    windows.release(bufs)
    with pytest.raises(ValueError, match="registered"):
        windows.release(bufs)


def test_ragged_fields(tmp_path: Any) -> None:
    source = Source(5, lambda i: {"x": np.zeros(i), "n": i})
    with DistDataset(source, "ds", rank=0, size=1, handshake_dir=str(tmp_path / "h"),
                     ragged=True) as ds:  # fmt: skip
        with pytest.raises(ValueError, match="'x' is ragged"):
            WindowedDataset(ds, 2)
        assert WindowedDataset(ds, 2, fields=["n"])[3]["n"].tolist() == [3, 4]


def across_ranks(m: Member) -> None:
    given = {"rank": m.rank, "size": m.size, "handshake_dir": m.dir}
    with DistDataset(Source(COUNT, pair), "ds", **given) as ds:
        windows = WindowedDataset(ds, 5, dilation=2)
        want = [stacked(list(range(s, s + 9, 2))) for s in range(COUNT - 8)]
        same(windows.__getitems__(range(len(windows))), want)
        same([windows[i] for i in range(len(windows))], want)
        m.meet("read")


@pytest.mark.parametrize("size", [3, 4])
def test_windows_across_ranks(members: Members, size: int) -> None:
    members(size, across_ranks)


def test_row_of() -> None:
    concat = ConcatDataset([range(3), range(10, 12), range(20, 21)])
    rows = [row_of(concat, s, i) for s, n in enumerate((3, 2, 1)) for i in range(n)]
    assert rows == list(range(6))
    assert [concat[i] for i in rows] == [0, 1, 2, 10, 11, 20]
    for bad in ((3, 0), (-1, 0), (0, 3), (1, 2), (1, -1), (2, 1)):
        with pytest.raises(IndexError):
            row_of(concat, *bad)
    with pytest.raises(TypeError):
        row_of(concat, 1.0, 0)
