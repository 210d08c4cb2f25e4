"""Loading a source: each rank's share, checked and written into the store's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..store import PyDDStore
from .group import Meeting, named
from .samples import Field, Key, Ragged, Structure, structure_of

Encode = Callable[[Any], Any]
Lengths = dict[Key, NDArray[np.int64]]


def variable(name: str, key: Key) -> str:
    """The variable of a field."""
    return f"{name}/{key}"


def offsets_variable(name: str, key: Key) -> str:
    """The variable that says where samples of a ragged field lie: int64 (2,) a sample,
    first row and number of rows."""
    return f"{name}/{key}/offsets"


def share_of(total: int, rank: int, size: int) -> range:
    """A rank's contiguous samples; the first ranks have one more where it doesn't go
    up."""
    each, more = divmod(total, size)
    first = rank * each + min(rank, more)
    return range(first, first + each + (rank < more))


class Share:
    """The samples of one rank, a chunk at a time."""

    def __init__(
        self, source: Any, indices: range, encode: Encode | None, chunk_size: int | None
    ) -> None:
        self.source, self.indices, self.encode = source, indices, encode
        self._step = chunk_size or 1
        self._chunked = chunk_size is not None
        self._many = getattr(source, "__getitems__", None) if chunk_size else None
        self._kept: list[tuple[int, Any]] | None = None

    def keep(self) -> None:
        """The next reading keeps its samples for the one after it."""
        self._kept = []

    def first(self) -> Any:
        """The first sample."""
        return self._encoded(self.indices[0], self._chunk(self.indices[:1])[0])

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """(index, sample) of all. Holds on to no sample that was handed out."""
        if self._kept:
            kept, self._kept = self._kept[::-1], None
            while kept:
                yield kept.pop()
            return
        for at in range(0, len(self.indices), self._step):
            wanted = self.indices[at : at + self._step]
            chunk = self._chunk(wanted)[::-1]
            for i in wanted:
                if self._kept is None:
                    yield i, self._encoded(i, chunk.pop())
                else:
                    self._kept.append((i, self._encoded(i, chunk.pop())))
                    yield self._kept[-1]

    def _chunk(self, wanted: range) -> list[Any]:
        if self._many is not None:
            try:
                chunk = list(self._many(list(wanted)))
            except Exception as exc:
                where = f"samples {wanted[0]} to {wanted[-1]}"
                raise named(where, exc) from exc
            if len(chunk) != len(wanted):
                raise ValueError(
                    f"samples {wanted[0]} to {wanted[-1]}: the source's __getitems__ "
                    f"returned {len(chunk)} for {len(wanted)}"
                )
            return chunk
        chunk = []
        for i in wanted:
            try:
                chunk.append(self.source[i])
            except Exception as exc:
                raise named(f"sample {i}", exc) from exc
        return chunk

    def _encoded(self, i: int, sample: Any) -> Any:
        if self.encode is None:
            return sample
        try:
            return self.encode(sample)
        except Exception as exc:
            raise named(f"sample {i}: encode", exc) from exc


@dataclass
class Plan:
    """What all ranks agree to store. lengths: rows of this rank's samples, by field;
    starts: where this rank's rows begin."""

    structure: Structure
    lengths: Lengths
    starts: dict[Key, int]


def plan(
    share: Share,
    meeting: Meeting,
    fields: Sequence[Key | Ragged] | None,
    ragged: bool | Sequence[Key],
) -> Plan:
    """The structure of all samples. Collective; a rank without samples takes the
    others'. No samples at all: no fields."""
    declared = [] if isinstance(ragged, bool) else ragged

    def first() -> Structure | None:
        if not share.indices:
            return None
        sample = share.first()
        try:
            return structure_of(sample, fields, declared)
        except Exception as exc:
            raise named(f"sample {share.indices[0]}", exc) from exc

    found = [one for one in meeting.agree(first) if one is not None]
    if not found:
        return Plan(Structure("tuple", ()), {}, {})
    return _with_lengths(share, meeting, found[0], ragged is True)


def _with_lengths(
    share: Share, meeting: Meeting, structure: Structure, find: bool
) -> Plan:
    """Measures the fields that are ragged, or with `find` may be."""
    loose = replace(
        structure,
        fields=tuple(
            replace(f, ragged=True, shape=f.shape[1:])
            if find and f.shape and not f.ragged
            else f
            for f in structure.fields
        ),
    )
    if not any(f.ragged for f in loose.fields):
        return Plan(structure, {}, {})
    if not share._chunked and share._many is None:
        share.keep()
    mine: Lengths = {}

    def measured() -> dict[Key, tuple[int, int, int]]:
        mine.update(_measured(share, loose))
        return {
            key: (int(n.min()), int(n.max()), int(n.sum()))
            for key, n in mine.items()
            if len(n)
        }

    everyone = meeting.agree(measured)
    fields, lengths, starts = [], {}, {}
    for tight, field in zip(structure.fields, loose.fields, strict=True):
        if not field.ragged:
            fields.append(field)
            continue
        key = field.key
        known = [one[key] for one in everyone if key in one]
        longest = max(most for _, most, _ in known)
        if not tight.ragged and longest == min(least for least, _, _ in known):
            fields.append(tight)
            continue
        fields.append(replace(field, longest=longest))
        lengths[key] = mine[key]
        before = everyone[: meeting.rank]
        starts[key] = sum(one[key][2] for one in before if key in one)
    whole = replace(structure, fields=tuple(fields))
    _check_keys(whole)
    return Plan(whole, lengths, starts)


def _check_keys(structure: Structure) -> None:
    for field in structure.fields:
        if field.ragged and f"{field.key}/offsets" in structure.keys:
            raise ValueError(
                f"fields {field.key!r} and '{field.key}/offsets': give one another name"
            )


def _measured(share: Share, structure: Structure) -> Lengths:
    ragged = [(n, f) for n, f in enumerate(structure.fields) if f.ragged]
    lengths = {field.key: np.zeros(len(share.indices), np.int64) for _, field in ragged}
    for row, (i, sample) in enumerate(share):
        values = _values(structure, i, sample)
        for n, field in ragged:
            _checked(field, i, values[n])
            lengths[field.key][row] = values[n].shape[0]
        del sample, values
    return lengths


def _values(structure: Structure, i: int, sample: Any) -> list[Any]:
    try:
        return structure.parts(sample)
    except Exception as exc:
        raise named(f"sample {i}", exc) from exc


def _checked(field: Field, i: int, value: Any) -> NDArray[Any]:
    try:
        field.check(value)
        return field.array(value)
    except Exception as exc:
        where = f"sample {i}, field {field.key!r}"
        raise named(where, exc) from exc


def store_rows(
    store: PyDDStore, name: str, share: Share, meeting: Meeting, plan: Plan
) -> None:
    """Makes the variables and fills them. Collective."""
    meeting.together(lambda: _make(store, name, share, plan))
    meeting.agree(lambda: _fill(store, name, share, plan))


def _make(store: PyDDStore, name: str, share: Share, plan: Plan) -> None:
    count = len(share.indices)
    for field in plan.structure.fields:
        rows = count
        if field.ragged:
            lengths = plan.lengths[field.key]
            rows = int(lengths.sum())
            where = np.empty((count, 2), np.int64)
            where[:, 1] = lengths
            where[:, 0] = plan.starts[field.key] + lengths.cumsum() - lengths
            store.add(offsets_variable(name, field.key), where)
        store.init(variable(name, field.key), rows, field.disp, field.stored.itemsize)


def _fill(store: PyDDStore, name: str, share: Share, plan: Plan) -> None:
    views, lengths = [], []
    for field in plan.structure.fields:
        view = store.view(variable(name, field.key)).view(field.stored)
        views.append(view.reshape(len(view), *field.shape))
        lengths.append(plan.lengths[field.key].tolist() if field.ragged else None)
    at = [0] * len(views)
    for row, (i, sample) in enumerate(share):
        values = _values(plan.structure, i, sample)
        for n, field in enumerate(plan.structure.fields):
            array = _checked(field, i, values[n])
            rows = lengths[n]
            if rows is None:
                views[n][row] = array
                continue
            if len(array) != rows[row]:
                raise ValueError(
                    f"sample {i}, field {field.key!r}: {len(array)} rows, and "
                    f"{rows[row]} when it was read before"
                )
            views[n][at[n] : at[n] + len(array)] = array
            at[n] += len(array)
        del sample, values, array
