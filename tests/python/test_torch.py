"""Tensors as sources, destinations and indices."""

from __future__ import annotations

import sys
import types
from typing import Any

import fork_child
import numpy as np
import pytest
from members import Member, Members

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

needs_torch = pytest.mark.skipif(
    torch is None, reason="optional: torch is not installed"
)


def load_by_workers(m: Member) -> None:
    from torch.utils.data import DataLoader

    store = m.store()
    store.add("x", fork_child.rows_of(m.rank))
    m.meet("added")
    rows: Any = fork_child.Rows(store)
    for kind in ("fork", "forkserver", "spawn"):
        loader = DataLoader(
            rows,
            4,
            num_workers=2,
            multiprocessing_context=kind,
            persistent_workers=True,
        )
        for _ in range(2):
            got = np.concatenate([batch.numpy() for batch in loader])
            assert np.array_equal(got, fork_child.all_rows(m.size)), kind
        del loader
    m.meet("done")
    store.free()


@needs_torch
def test_plain_dataloaders(members: Members) -> None:
    members(2, load_by_workers, {"DDSTORE_FABRIC": "tcp"}, limit_s=120)


@needs_torch
def test_tensors_of_all_dtypes(store: Any) -> None:
    for name in (
        *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
        *("bfloat16", "bool", "complex64", "complex128"),
    ):
        dtype = getattr(torch, name)
        rows = torch.arange(12).reshape(6, 2).to(dtype)
        store.add(name, rows)
        assert store.info(name) == (6, 2, rows.element_size())
        out = torch.zeros(6, 2, dtype=dtype)
        store.get(name, out)
        assert torch.equal(out, rows)
        store.get_batch(name, out[:3], torch.tensor([5, 0, 5]))
        assert torch.equal(out[:3], rows[[5, 0, 5]])
        if name != "bfloat16":
            array = np.zeros((6, 2), rows.numpy().dtype)
            store.get(name, array)
            assert np.array_equal(array, rows.numpy())
        store.update(name, rows[:1], 3)
        store.register_recv(name, out)
        store.get(name, out[2:4], 2)
        assert torch.equal(out[3], rows[0])
        store.unregister_recv(name, out)
    with pytest.raises(TypeError, match=r"bfloat16.*<f2"):
        store.get("bfloat16", torch.zeros(1, 2, dtype=torch.float16))
    with pytest.raises(TypeError, match=r"<f4.*bfloat16"):
        store.get("float32", torch.zeros(1, 2, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match=r"<f4.*<f8"):
        store.get("float32", torch.zeros(1, 2, dtype=torch.float64))


@needs_torch
def test_sources(store: Any) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    want = base.numpy()
    for name, source, rows in [
        ("transposed", base.T, want.T),
        ("strided", base[:, ::2], want[:, ::2]),
        ("expanded", base[:1].expand(5, 4), np.repeat(want[:1], 5, 0)),
        ("with gradient", base.clone().requires_grad_(), want),
        ("parameter", torch.nn.Parameter(base.clone()), want),
        ("3-D", base.reshape(3, 2, 2), want),
        ("conjugate", torch.complex(base, base).conj(), want - 1j * want),
    ]:
        store.add(name, source)
        got = np.empty(rows.shape, rows.dtype)
        if name == "conjugate":
            got = got.astype(np.complex64)
        store.get(name, got)
        assert np.array_equal(got, rows), name
    for bad, error in [
        (torch.tensor(3.0), ValueError),
        (torch.eye(3).to_sparse(), (TypeError, ValueError, RuntimeError)),
    ]:
        with pytest.raises(error, match="rank 0"):
            store.add("bad", bad)


@needs_torch
def test_destinations(store: Any) -> None:
    store.add("x", torch.arange(12.0).reshape(6, 2))
    pool = torch.zeros(10, 2)
    store.get("x", pool[2:8])
    assert pool[:, 0].tolist() == [0, 0, 0, 2, 4, 6, 8, 10, 0, 0]
    grad = torch.zeros(6, 2, requires_grad=True)
    store.get("x", grad)
    assert grad[5, 1] == 11
    pinned = torch.zeros(6, 1, 2)
    store.get("x", pinned)
    for bad, words in [
        (torch.zeros(2, 6).T, "contiguous"),
        (torch.zeros(6, 4)[:, ::2], "contiguous"),
        (torch.zeros(6), "2 elements"),
        (torch.zeros(6, 3), "2 elements"),
        (torch.tensor(0.0), "dimension"),
    ]:
        with pytest.raises(ValueError, match=words):
            store.get("x", bad)
    with pytest.raises(ValueError, match="5 rows"):
        store.get_batch("x", torch.zeros(5, 2), torch.arange(6))


@needs_torch
def test_indices(store: Any) -> None:
    store.add("x", np.arange(10))
    out = np.zeros(3, int)
    for dtype in (torch.uint8, torch.int16, torch.int32, torch.int64):
        store.get_batch("x", out, torch.tensor([3, 1, 2], dtype=dtype))
        assert list(out) == [3, 1, 2]
    store.get_batch("x", out, torch.arange(9)[::3])
    assert list(out) == [0, 3, 6]
    store.get_batch("x", out[:0], torch.empty(0))
    store.get("x", out[:1], torch.tensor(7))
    assert out[0] == 7
    store.get("x", out[:1], start=torch.tensor(4, dtype=torch.int32))
    assert out[0] == 4
    store.init("y", 3, 1, 8)
    store.update("y", torch.tensor([[5]]), torch.tensor(2))
    store.get_batch("y", out, [torch.tensor(2), 1, 2])
    assert list(out) == [5, 0, 5]
    for bad in (torch.zeros(3), torch.tensor([True, False, True])):
        with pytest.raises(TypeError):
            store.get_batch("x", out, bad)
    with pytest.raises(ValueError, match="dimension"):
        store.get_batch("x", out, torch.tensor([[1, 2, 3]]))
    with pytest.raises(IndexError, match=r"10\b.*10 rows"):
        store.get_batch("x", out, torch.tensor([1, 2, 10]))
    with pytest.raises(TypeError):
        store.get("x", out[:1], torch.tensor(1.0))


@needs_torch
def test_other_devices(store: Any) -> None:
    """The device that needs no hardware stands for those that do."""
    store.add("x", torch.zeros(2, 2))
    there = torch.zeros(2, 2, device="meta")
    refuse(store, there, "meta")


def refuse(store: Any, tensor: Any, device: str) -> None:
    for call in (
        lambda: store.add("y", tensor),
        lambda: store.get("x", tensor),
        lambda: store.get_batch("x", tensor, [0, 1]),
        lambda: store.update("x", tensor, 0),
        lambda: store.register_recv("x", tensor),
        lambda: store.unregister_recv("x", tensor),
    ):
        with pytest.raises(RuntimeError, match=f"{device}.*host memory only"):
            call()
    store.get("x", np.zeros((2, 2), np.float32))


def test_a_gpu_tensor(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch says of a tensor on a GPU, without either."""

    class Device:
        type = "cuda"

        def __str__(self) -> str:
            return "cuda:0"

    class Tensor:
        device = Device()

    fake = types.ModuleType("torch")
    fake.Tensor = Tensor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", fake)
    store.add("x", np.zeros((2, 2), np.float32))
    refuse(store, Tensor(), "cuda:0")
