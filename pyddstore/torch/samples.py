"""What a sample is made of: its container, its fields, and the bytes they become."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from .._core import dtype_of_text, dtype_text

Key = str | int

# How a field's values come back.
TENSOR, ARRAY, RECARRAY, SCALAR = "tensor", "array", "recarray", "scalar"
PYTHON: dict[type, tuple[str, np.dtype[Any]]] = {
    bool: ("bool", np.dtype(np.bool_)),
    int: ("int", np.dtype(np.int64)),
    float: ("float", np.dtype(np.float64)),
}
SINGLE = "single"
CONTAINERS: dict[str, type] = {"tuple": tuple, "list": list, "dict": dict}

_ENCODE = "pass encode= (and decode=), which make tensors, arrays or numbers of it"


class Nature(NamedTuple):
    """What all samples agree on in a field. shape: of one sample."""

    kind: str
    dtype: Any  # torch.dtype of a tensor, else numpy.dtype
    shape: tuple[int, ...]


class RaggedRows(NamedTuple):
    """A ragged field of several samples. values: ``(rows of all samples, *shape)``;
    offsets: int64 (samples + 1,); sample i is values[offsets[i]:offsets[i + 1]]."""

    values: Any
    offsets: Any


class Ragged(NamedTuple):
    """Among ``fields=``: a field whose first dimension differs in samples."""

    key: Key


def nature(value: Any) -> Nature:
    """Kind, dtype and shape of a value. TypeError: it can't be a field."""
    kind = type(value)
    if kind in PYTHON:
        return Nature(*PYTHON[kind], ())
    if isinstance(value, torch.Tensor):
        return _tensor_nature(value)
    if isinstance(value, np.generic):
        return Nature(SCALAR, _stored(value.dtype), ())
    if isinstance(value, np.ndarray):
        if kind not in (np.ndarray, np.recarray, np.memmap):
            raise TypeError(f"{kind.__name__} is no plain array: {_ENCODE}")
        name = RECARRAY if kind is np.recarray else ARRAY
        return Nature(name, _stored(value.dtype), value.shape)
    what = "a container inside a sample" if kind in (tuple, list, dict) else "no field"
    raise TypeError(f"{kind.__name__} is {what}: {_ENCODE}")


def _tensor_nature(value: torch.Tensor) -> Nature:
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(f"{type(value).__name__} is no plain tensor: {_ENCODE}")
    if value.device.type != "cpu":
        raise RuntimeError(
            f"a tensor on {value.device} can't be read here: this build serves host "
            "memory only; copy it to the host first (tensor.cpu())"
        )
    if value.layout != torch.strided or value.is_quantized:
        raise TypeError(f"a tensor of layout {value.layout} is no field: {_ENCODE}")
    return Nature(TENSOR, value.dtype, tuple(value.shape))


def _stored(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.hasobject:
        raise TypeError(f"dtype {dtype} holds Python objects: {_ENCODE}")
    if dtype.itemsize == 0:
        raise TypeError(f"dtype {dtype} has no bytes: {_ENCODE}")
    return dtype


def tensor_array(tensor: torch.Tensor) -> NDArray[Any]:
    """A CPU tensor's memory as an array; of unsigned integers, where NumPy has no such
    dtype."""
    dtype = _numpy_of(tensor.dtype)
    if dtype is None:
        tensor = tensor.view(_WORDS[tensor.element_size()][0])
    return cast(NDArray[Any], tensor.numpy())


_WORDS: dict[int, tuple[Any, np.dtype[Any]]] = {
    1: (torch.uint8, np.dtype("u1")),
    2: (torch.int16, np.dtype("i2")),
    4: (torch.int32, np.dtype("i4")),
    8: (torch.int64, np.dtype("i8")),
}
_known: dict[torch.dtype, np.dtype[Any] | None] = {}


def _numpy_of(dtype: torch.dtype) -> np.dtype[Any] | None:
    if dtype not in _known:
        try:
            _known[dtype] = torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
        except (TypeError, RuntimeError):
            _known[dtype] = None
    return _known[dtype]


@dataclass(frozen=True)
class Field:
    """One field of all samples. shape: of a sample, of a ragged one without the first
    dimension. longest: rows of the longest sample of a ragged field."""

    key: Key
    kind: str
    dtype: Any
    shape: tuple[int, ...]
    ragged: bool = False
    longest: int = 0

    @property
    def stored(self) -> np.dtype[Any]:
        """The dtype of its rows in the store."""
        if self.kind != TENSOR:
            return self.dtype  # type: ignore[no-any-return]
        known = _numpy_of(self.dtype)
        if known is None:
            return _WORDS[self.dtype.itemsize][1]
        return known

    @property
    def disp(self) -> int:
        """Elements a row."""
        return int(np.prod(self.shape, dtype=np.int64))

    def empty(self, rows: int) -> Any:
        """A batch to be filled: ``(rows, *shape)``."""
        if self.kind == TENSOR:
            return torch.empty((rows, *self.shape), dtype=self.dtype, device="cpu")
        return np.empty((rows, *self.shape), self.dtype)

    def check(self, value: Any) -> None:
        """ValueError or TypeError unless the value is like the field's others."""
        found = nature(value)
        shape = found.shape[1:] if self.ragged else found.shape
        if self.ragged and not found.shape:
            raise ValueError("no dimensions, and a ragged field needs one")
        for what, mine, theirs, kind in (
            ("kind", found.kind, self.kind, TypeError),
            ("dtype", found.dtype, self.dtype, TypeError),
            ("shape", shape, self.shape, ValueError),
        ):
            if mine != theirs:
                if self.ragged and what == "shape":
                    what = "shape after the first dimension"
                raise kind(f"{what} {mine}, not {theirs}")

    def array(self, value: Any) -> NDArray[Any]:
        """A value as an array of the stored dtype, which may share its memory."""
        if self.kind == TENSOR:
            value = value.detach().resolve_conj().resolve_neg().contiguous()
            return tensor_array(value)
        try:
            return np.asarray(value, self.dtype)
        except OverflowError:
            raise ValueError(f"{value} doesn't fit 64 bits") from None

    def split(self, batch: Any, rows: int) -> Sequence[Any]:
        """The batch's values, one a sample, which share its memory where they can."""
        if self.kind == TENSOR:
            return batch.unbind(0)  # type: ignore[no-any-return]
        if self.kind == SCALAR:
            return list(batch)
        if self.kind == ARRAY:
            return list(batch) if self.shape else [batch[i, ...] for i in range(rows)]
        if self.kind == RECARRAY:
            return [batch[i, ...].view(np.recarray) for i in range(rows)]
        return batch.tolist()  # type: ignore[no-any-return]

    def runs(self, ragged: RaggedRows) -> list[Any]:
        """A ragged batch's values, one a sample, which share its memory."""
        values = ragged.values
        if self.kind == TENSOR:
            lengths = ragged.offsets.diff().tolist()
            return list(values.split(lengths)) if lengths else []
        ends = ragged.offsets.tolist()
        if self.kind == RECARRAY:
            values = values.view(np.recarray)
        return [values[a:b] for a, b in pairwise(ends)]


def _entries(container: str, sample: Any) -> dict[Key, Any]:
    if container == SINGLE:
        return {0: sample}
    return sample if container == "dict" else dict(enumerate(sample))


@dataclass(frozen=True)
class Structure:
    """What every sample looks like. container: "single", "tuple", "list" or "dict";
    whole: the fields are all that a sample has; else others were left out."""

    container: str
    fields: tuple[Field, ...]
    whole: bool = True

    @property
    def keys(self) -> list[Key]:
        """The fields' keys, in the sample's order."""
        return [field.key for field in self.fields]

    def chosen(self, keys: Iterable[Key] | None) -> tuple[Field, ...]:
        """The fields of these keys, in the sample's order; KeyError: no such field."""
        if keys is None:
            return self.fields
        wanted = [keys] if isinstance(keys, str | int) else list(keys)
        for key in wanted:
            if key not in self.keys:
                raise KeyError(f"no field {key!r}; known: {self.keys}")
        return tuple(field for field in self.fields if field.key in wanted)

    def parts(self, sample: Any) -> list[Any]:
        """The values of the fields, in order, unchecked themselves."""
        name = container_of(sample)
        if name != self.container:
            raise TypeError(f"it is {name}, not {self.container}")
        if name == SINGLE:
            return [sample]
        entries = _entries(name, sample)
        missing = [key for key in self.keys if key not in entries]
        more = [key for key in entries if key not in self.keys] if self.whole else []
        if missing or more:
            said = [f"no field {key!r}" for key in missing]
            said += [f"another field {key!r}" for key in more]
            raise ValueError(", ".join(said))
        return [entries[key] for key in self.keys]

    def build(self, values: Sequence[Any]) -> Any:
        """A sample, or anything of its structure, with these in place of the fields."""
        if self.container == SINGLE:
            return values[0]
        if self.container == "dict":
            return dict(zip(self.keys, values, strict=True))
        return CONTAINERS[self.container](values)

    def samples(self, columns: Sequence[Sequence[Any]], rows: int) -> list[Any]:
        """Samples of the fields' lists of values."""
        if self.container == SINGLE:
            return list(columns[0])
        if self.container == "dict":
            made: list[dict[Key, Any]] = [{} for _ in range(rows)]
            for key, column in zip(self.keys, columns, strict=True):
                for one, value in zip(made, column, strict=True):
                    one[key] = value
            return made
        if self.container == "list":
            return [list(one) for one in zip(*columns, strict=True)]
        return list(zip(*columns, strict=True))

    def picked(self, fields: tuple[Field, ...]) -> Structure:
        """The same with some of the fields."""
        return replace(self, fields=fields, whole=fields == self.fields and self.whole)

    @property
    def shapes(self) -> Any:
        """Shapes in the sample's structure; a ragged first dimension is None."""
        return self.build(
            [(None, *f.shape) if f.ragged else f.shape for f in self.fields]
        )

    @property
    def dtypes(self) -> Any:
        """dtypes in the sample's structure: torch's of tensors, else NumPy's."""
        return self.build([field.dtype for field in self.fields])


def container_of(sample: Any) -> str:
    """The name of a sample's container."""
    kind = type(sample)
    if kind in (tuple, list, dict):
        return kind.__name__
    if isinstance(sample, tuple | list | dict):
        raise TypeError(f"{kind.__name__} is no plain tuple, list or dict: {_ENCODE}")
    return SINGLE


def structure_of(
    sample: Any, fields: Sequence[Key | Ragged] | None, ragged: Iterable[Key]
) -> Structure:
    """The structure of all samples, as the first one shows it."""
    container = container_of(sample)
    entries = _entries(container, sample)
    if not entries:
        raise TypeError(f"an empty {container} holds no field: {_ENCODE}")
    ragged = set(ragged)
    keys = list(entries)
    for key in keys:
        if type(key) not in (str, int):
            raise TypeError(f"a field's key is text or an integer, not {key!r}")
    if len({str(key) for key in keys}) < len(keys):
        raise ValueError(f"keys {keys} aren't distinct as text")
    if fields is not None:
        wanted = [f.key if isinstance(f, Ragged) else f for f in fields]
        ragged |= {f.key for f in fields if isinstance(f, Ragged)}
        keys = [key for key in keys if key in wanted]
        if not wanted or len(set(wanted)) < len(wanted):
            raise ValueError(f"fields={wanted}: give each field once, and one at least")
        _known_keys(wanted, entries)
    _known_keys(ragged, entries)
    found = []
    for key in keys:
        try:
            found.append(_field(key, nature(entries[key]), key in ragged))
        except (TypeError, ValueError, RuntimeError) as exc:
            raise type(exc)(f"field {key!r}: {exc}") from exc
    return Structure(container, tuple(found), len(found) == len(entries))


def _known_keys(wanted: Iterable[Key], entries: dict[Key, Any]) -> None:
    for key in wanted:
        if key not in entries:
            raise KeyError(f"no field {key!r}; known: {list(entries)}")


def _field(key: Key, found: Nature, ragged: bool) -> Field:
    if ragged and not found.shape:
        raise ValueError("a ragged field needs one dimension at least")
    shape = found.shape[1:] if ragged else found.shape
    return Field(key, found.kind, found.dtype, shape, ragged)


# ---- as text -------------------------------------------------------------------------


def field_to_json(field: Field) -> dict[str, Any]:
    """What describes a field in a JSON file."""
    dtype = str(field.dtype) if field.kind == TENSOR else dtype_text(field.dtype)
    record = field.kind != TENSOR and field.dtype.type is np.record
    return {
        "key": field.key, "kind": field.kind, "dtype": dtype, "record": record,
        "shape": list(field.shape), "ragged": field.ragged, "longest": field.longest,
    }  # fmt: skip


def field_of_json(one: dict[str, Any]) -> Field:
    """The field again; ValueError: there is no such dtype here."""
    text = str(one["dtype"])
    dtype: Any
    if one["kind"] == TENSOR:
        dtype = getattr(torch, text.removeprefix("torch."), None)
    else:
        dtype = dtype_of_text(text)
        if dtype is not None and one["record"]:
            dtype = np.dtype((np.record, dtype))
    if dtype is None:
        raise ValueError(f"field {one['key']!r}: dtype {text} isn't known here")
    shape, ragged, longest = tuple(one["shape"]), one["ragged"], one["longest"]
    return Field(one["key"], one["kind"], dtype, shape, ragged, longest)
