"""Which elements a variable may have, and what may be a source or a destination."""

from __future__ import annotations

import array
import ctypes
import mmap
import pathlib
from typing import Any

import numpy as np
import pytest
from members import Member, Members, raises

NESTED = np.dtype([("id", "<i4"), ("at", [("x", "<f8"), ("y", ">f4", (2, 3))])])
ALIGNED = np.dtype([("flag", "i1"), ("value", "f8"), ("tail", "u2")], align=True)
SHUFFLED = np.dtype(
    {"names": ["b", "a"], "formats": ["<f8", "<i4"], "offsets": [8, 0], "itemsize": 24}
)
SHUFFLED_NEST = np.dtype([("in", SHUFFLED), ("out", "S3")])
TITLED = np.dtype([(("a title", "name"), "<i4")])

DTYPES: list[Any] = [
    "?",
    *(f"{order}{kind}" for kind in ("i1", "u1") for order in "|"),
    *(
        f"{order}{kind}{width}"
        for kind in "iu"
        for width in (2, 4, 8)
        for order in "<>"
    ),
    *(f"{order}f{width}" for width in (2, 4, 8) for order in "<>"),
    *(f"{order}c{width}" for width in (8, 16) for order in "<>"),
    np.dtype(np.longdouble).str,
    np.dtype(np.clongdouble).str,
    "S1",
    "S17",
    "<U3",
    "V5",
    "<M8[ns]",
    ">M8[D]",
    "<M8[25s]",
    "<m8[us]",
    "<m8",
    NESTED,
    ALIGNED,
    SHUFFLED,
    SHUFFLED_NEST,
    TITLED,
]


def values(dtype: Any, rows: int, seed: int) -> np.ndarray[Any, Any]:
    """Rows of (2, 3) elements of that dtype with arbitrary valid bytes."""
    dtype = np.dtype(dtype)
    made = np.zeros((rows, 2, 3), dtype)
    if dtype.names is not None or dtype.kind in "SV":
        numbers = np.random.default_rng(seed).integers(1, 100, made.nbytes, np.uint8)
        return np.frombuffer(numbers.tobytes(), dtype).reshape(made.shape)
    numbers = np.random.default_rng(seed).integers(0, 100, made.shape)
    made[...] = (
        numbers.astype(str) if dtype.kind == "U" else numbers.astype(np.int64)
    ).astype(dtype)
    return made


def same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Equal to the byte; but long doubles have bytes that mean nothing."""
    return np.array_equal(a, b) if a.dtype.kind in "fc" else a.tobytes() == b.tobytes()


def read_all_dtypes(m: Member) -> None:
    """Every rank's rows of every dtype, one by one, in a run and in a batch."""
    store = m.store()
    for number, dtype in enumerate(DTYPES):
        name, total = str(number), 3 * m.size
        store.add(name, values(dtype, 3, 10 * number + m.rank))
        parts = [values(dtype, 3, 10 * number + r).tobytes() for r in range(m.size)]
        want = np.frombuffer(b"".join(parts), dtype).reshape(total, 2, 3)
        got = np.empty((total, 2, 3), dtype)
        for rank in range(m.size):
            store.get(name, got[3 * rank : 3 * rank + 3], 3 * rank)
        assert same(got, want), dtype
        order = np.arange(total)[::-1]
        store.get_batch(name, got, order)
        assert all(same(got[i], want[row]) for i, row in enumerate(order)), dtype
        assert store.dtype(name) == np.dtype(dtype), (store.dtype(name), dtype)
        assert store.info(name) == (total, 6, np.dtype(dtype).itemsize)
        mine = store.view(name)
        assert mine.dtype == np.dtype(dtype)
        assert same(mine, want[3 * m.rank : 3 * m.rank + 3]), dtype
    m.meet("read")


@pytest.mark.parametrize("shm", ["1", "0"])
def test_every_dtype_from_every_rank(members: Members, shm: str) -> None:
    members(2, read_all_dtypes, {"DDSTORE_SHM": shm, "DDSTORE_FABRIC": "tcp"})


@pytest.mark.parametrize("dtype", [object, [("a", "i4"), ("o", object)], "T"])
def test_objects_are_refused(store: Any, dtype: Any) -> None:
    if dtype == "T":
        if not hasattr(np.dtypes, "StringDType"):
            pytest.skip("optional: this NumPy has no StringDType")
        dtype = np.dtypes.StringDType()
    with pytest.raises(TypeError, match=r"(?s)objects.*|.*rank 0"):
        store.add("x", np.zeros((2, 2), dtype))
    store.add("x", np.arange(4))
    with pytest.raises(TypeError, match=r"int64|<i8"):
        store.get("x", np.zeros(2, dtype), 0)
    store.init("bytes", 4, 1, 8)
    with pytest.raises(TypeError, match="objects"):
        store.get("bytes", np.zeros(2, object), 0)


def test_wrong_dtype_names_both(store: Any) -> None:
    """Nothing is cast: neither width, sign, kind nor byte order."""
    store.add("x", np.arange(8, dtype="<i4"))
    for other in ("<i8", "<u4", "<f4", ">i4", "S4", "V4", "<M8[s]", [("a", "<i4")]):
        dst = np.zeros(2, other)
        with pytest.raises(TypeError) as caught:
            store.get("x", dst, 0)
        assert "<i4" in str(caught.value), other
        named = np.dtype(other).str if isinstance(other, str) else "('a', '<i4')"
        assert named in str(caught.value), other
        assert dst.tobytes() == bytes(dst.nbytes)
        with pytest.raises(TypeError):
            store.get_batch("x", dst, [0, 1])
        with pytest.raises(TypeError):
            store.update("x", dst, 0)
        with pytest.raises(TypeError):
            store.register_recv("x", dst)
    store.add("t", np.zeros(3, "<M8[ns]"))
    with pytest.raises(TypeError, match=r"<M8\[ns\].*<M8\[us\]"):
        store.get("t", np.zeros(3, "<M8[us]"))
    store.add("s", np.zeros(3, "S5"))
    with pytest.raises(TypeError, match=r"\|S5.*\|S6"):
        store.get("s", np.zeros(3, "S6"))


def test_same_elements_by_another_name(store: Any) -> None:
    """What counts is the layout: C types, aligned flags, order of names."""
    store.add("x", np.arange(3, dtype=np.int64))
    dst = np.zeros(3, np.longlong)
    store.get("x", dst)
    assert list(dst) == [0, 1, 2]
    rows = np.zeros(3, ALIGNED)
    rows["value"] = [1, 2, 3]
    store.add("aligned", rows)
    fields: Any = ALIGNED.fields
    same = np.dtype(
        {
            "names": list(ALIGNED.names or ()),
            "formats": [f[0] for f in fields.values()],
            "offsets": [f[1] for f in fields.values()],
            "itemsize": ALIGNED.itemsize,
        }
    )
    out = np.zeros(3, same)
    store.get("aligned", out)
    assert list(out["value"]) == [1, 2, 3]
    with pytest.raises(TypeError):
        store.get("aligned", np.zeros(3, [("f", "i1"), ("v", "f8"), ("t", "u2")]))


def test_untyped_bytes_take_any_dtype_of_that_size(store: Any) -> None:
    store.init("x", 6, 2, 4)
    assert store.dtype("x") is None
    store.update("x", np.arange(12, dtype=np.float32).reshape(6, 2), 0)
    for dtype in ("<f4", ">f4", "<i4", "S4", "V4", [("a", "<i2"), ("b", "<u2")]):
        out = np.zeros((6, 2), dtype)
        store.get("x", out)
        assert out.tobytes() == np.arange(12, dtype=np.float32).tobytes()
        store.update("x", out, 0)
    for dtype in ("<f8", "u1", "<M8[s]"):
        with pytest.raises(TypeError, match="4 bytes"):
            store.get("x", np.zeros((6, 2), dtype))
        with pytest.raises(TypeError, match="4 bytes"):
            store.update("x", np.zeros((6, 2), dtype), 0)


def test_items_of_no_bytes(store: Any) -> None:
    store.add("void", np.zeros(3, "V0"))
    store.add("fields", np.zeros(3, np.dtype([])))
    out = np.zeros(2, "V0")
    store.get("void", out, 1)
    store.get_batch("fields", np.zeros(4, np.dtype([])), [0, 1, 2, 0])
    assert store.info("void") == (3, 1, 0)
    assert store.view("void").shape == (3,)
    with pytest.raises(IndexError):
        store.get("void", out, 2)


# ---- sources -------------------------------------------------------------------------


class HasArray:
    """Something that only says how it looks as an array."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.rows, dtype)


def contents(store: Any, name: str) -> Any:
    """All rows of a variable."""
    total, disp, _ = store.info(name)
    out = np.empty((total, disp), store.dtype(name))
    store.get(name, out)
    return out


def test_sources(store: Any, tmp_path: pathlib.Path) -> None:
    """Whatever has the buffer protocol or __array__; copied where it has to be."""
    base = np.arange(24, dtype=np.int32).reshape(4, 6)
    file = tmp_path / "rows.npy"
    np.save(file, base)
    mapping = mmap.mmap(-1, 16)
    mapping[:] = bytes(range(16))
    readonly = base.copy()
    readonly.flags.writeable = False
    unaligned = np.frombuffer(b"?" + base.tobytes(), np.int32, offset=1).reshape(4, 6)
    assert not unaligned.flags.aligned
    for name, source, want in [
        ("read-only", readonly, base),
        ("frombuffer", np.frombuffer(base.tobytes(), np.int32).reshape(4, 6), base),
        ("unaligned", unaligned, base),
        ("fortran", np.asfortranarray(base), base),
        ("strided", base[::2, 1::3], base[::2, 1::3]),
        ("reversed", base[::-1], base[::-1]),
        ("transposed", base.T, base.T),
        ("broadcast", np.broadcast_to(base[0], (5, 6)), np.tile(base[0], (5, 1))),
        ("memmap", np.load(file, mmap_mode="r"), base),
        ("matrix", base.view(np.matrix), base),
        ("3-D", base.reshape(4, 2, 3), base),
        ("1-D", base[0], base[0].reshape(6, 1)),
        ("list", base.tolist(), base.astype(np.int64)),
        ("__array__", HasArray(base), base),
        ("bytes", b"\x00\x01\xff", np.array([[0], [1], [255]], np.uint8)),
        ("bytearray", bytearray(b"ab"), np.array([[97], [98]], np.uint8)),
        ("memoryview", memoryview(base), base),
        ("array.array", array.array("d", [1, 2]), np.array([[1.0], [2.0]])),
        ("mmap", mapping, np.arange(16, dtype=np.uint8).reshape(16, 1)),
        ("ctypes", (ctypes.c_int16 * 3)(4, 5, 6), np.array([[4], [5], [6]], np.int16)),
    ]:
        store.add(name, source)
        assert store.dtype(name) == np.asarray(want).dtype, name
        assert np.array_equal(contents(store, name), want), name
    for source in (np.float64(3), 5, "text", {1, 2}, None):
        with pytest.raises((ValueError, TypeError), match="rank 0"):
            store.add("scalar", source)


def test_sources_may_die_after_the_call(store: Any) -> None:
    for i in range(3):
        store.add(f"x{i}", np.frombuffer(bytes([i]) * 1000, np.uint8))
    for i in range(3):
        assert set(contents(store, f"x{i}").ravel()) == {i}


# ---- destinations --------------------------------------------------------------------


def test_destinations(store: Any) -> None:
    """C-contiguous and writable, at any address; never a copy."""
    rows = np.arange(12, dtype=np.int32).reshape(6, 2)
    store.add("x", rows)
    memory = bytearray(8 * 6 + 3)
    for offset in (0, 1, 2, 3):
        out = np.frombuffer(memory, np.int32, 12, offset).reshape(6, 2)
        store.get("x", out)
        assert np.array_equal(out, rows)
        store.get_batch("x", out, range(5, -1, -1))
        assert np.array_equal(out, rows[::-1])
    for shape in [(6, 2), (6, 1, 2), (6, 2, 1, 1), (3, 2), (1, 2), (0, 2)]:
        out = np.zeros(shape, np.int32)
        store.get("x", out, 0)
        assert np.array_equal(out.reshape(-1, 2), rows[: shape[0]])
    # Slices of a larger array are written in place.
    pool = np.zeros((10, 2), np.int32)
    store.get("x", pool[2:8])
    assert np.array_equal(pool[2:8], rows)
    assert not pool[:2].any()
    assert not pool[8:].any()
    raw = bytearray(24)
    store.add("bytes", np.arange(24, dtype=np.uint8))
    store.get("bytes", raw)
    assert raw == bytes(range(24))
    store.get("bytes", memoryview(raw)[3:5], 20)
    assert raw[3:5] == bytes([20, 21])
    typed = array.array("i", [0] * 4)
    store.add("ints", np.arange(4, dtype=np.intc))
    store.get_batch("ints", typed, [3, 2, 1, 0])
    assert list(typed) == [3, 2, 1, 0]


def test_destinations_that_are_refused(store: Any) -> None:
    rows = np.arange(12, dtype=np.int32).reshape(6, 2)
    store.add("x", rows)
    readonly = np.zeros((6, 2), np.int32)
    readonly.flags.writeable = False
    wide = np.zeros((6, 4), np.int32)
    for out, error, words in [
        (readonly, ValueError, "read-only"),
        (np.frombuffer(bytes(48), np.int32).reshape(6, 2), ValueError, "read-only"),
        (np.broadcast_to(np.int32(0), (6, 2)), ValueError, "contiguous|read-only"),
        (wide[:, ::2], ValueError, "C-contiguous"),
        (wide[:, :2], ValueError, "C-contiguous"),
        (np.zeros((2, 6), np.int32).T, ValueError, "C-contiguous"),
        (np.zeros((12, 2), np.int32)[::2], ValueError, "C-contiguous"),
        (np.zeros((6, 2), np.int32)[::-1], ValueError, "C-contiguous"),
        (np.zeros(6, np.int32), ValueError, r"2 elements.*\(6,\)"),
        (np.zeros((6, 3), np.int32), ValueError, r"2 elements.*\(6, 3\)"),
        (np.zeros((6, 0), np.int32), ValueError, "2 elements"),
        (np.zeros((0,), np.int32), ValueError, "2 elements"),
        (np.array(0, np.int32), ValueError, "dimension"),
        ([[0, 0]] * 6, TypeError, "list"),
        (None, TypeError, "NoneType"),
        (np.int32(4), ValueError, "read-only"),
    ]:
        before = None if not isinstance(out, np.ndarray) else out.tobytes()
        with pytest.raises(error, match=words):
            store.get("x", out, 0)
        with pytest.raises(error, match=words):
            store.get_batch("x", out, range(6))
        assert before is None or out.tobytes() == before
    store.add("b", np.zeros(8, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        store.get("b", b"12345678")


class Gpu:
    """What a GPU array looks like from outside."""

    @property
    def __cuda_array_interface__(self) -> Any:
        return {}

    def __array__(self, *args: Any, **more: Any) -> Any:
        raise AssertionError("nobody copies it silently")


def test_gpu_memory_is_refused(store: Any) -> None:
    store.add("x", np.zeros((2, 2)))
    for call in (
        lambda: store.add("y", Gpu()),
        lambda: store.get("x", Gpu()),
        lambda: store.get_batch("x", Gpu(), [0]),
        lambda: store.update("x", Gpu(), 0),
        lambda: store.register_recv("x", Gpu()),
    ):
        with pytest.raises(RuntimeError, match=r"GPU.*host memory only"):
            call()
    store.add("y", np.zeros((2, 2)))


# ---- ml_dtypes -----------------------------------------------------------------------


def test_ml_dtypes(store: Any) -> None:
    ml = pytest.importorskip("ml_dtypes", reason="optional: ml_dtypes is not installed")
    for kind in (ml.bfloat16, ml.float8_e4m3fn):
        name = kind.__name__
        rows = np.arange(6).reshape(3, 2).astype(kind)
        store.add(name, rows)
        assert store.dtype(name) == np.dtype(kind)
        out = np.zeros((3, 2), kind)
        store.get(name, out)
        assert out.tobytes() == rows.tobytes()
        assert store.view(name).dtype == np.dtype(kind)
        other = np.zeros((3, 2), np.dtype(f"V{np.dtype(kind).itemsize}"))
        with pytest.raises(TypeError, match=name):
            store.get(name, other)
    with pytest.raises(TypeError, match=r"bfloat16.*<f2"):
        store.get("bfloat16", np.zeros((3, 2), np.float16))
    fields = np.dtype([("a", ml.bfloat16), ("b", "<i4")])
    store.add("fields", np.zeros(3, fields))
    assert store.dtype("fields") == fields
    store.get("fields", np.zeros(3, fields))
    with pytest.raises(TypeError, match="bfloat16"):
        store.get("fields", np.zeros(3, [("a", "V2"), ("b", "<i4")]))


def read_bfloat16(m: Member) -> None:
    """Without ml_dtypes rows of bfloat16 are still there, for whom has it or torch."""
    store = m.store()
    if m.rank == 0:
        import ml_dtypes

        store.add("x", np.ones((2, 2), ml_dtypes.bfloat16))
    else:
        import sys

        sys.modules["ml_dtypes"] = None  # type: ignore[assignment]
        store.add("x", np.zeros((0, 2), np.float32))
        assert store.dtype("x") is None
        raises(
            TypeError,
            "bfloat16",
            "<u2",
            call=lambda: store.get("x", np.zeros((2, 2), "<u2")),
        )
    m.meet("read")


def test_bfloat16_without_ml_dtypes(members: Members) -> None:
    pytest.importorskip("ml_dtypes", reason="optional: ml_dtypes is not installed")
    members(2, read_bfloat16)
