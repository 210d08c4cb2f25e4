"""DistDataset: a source's samples, loaded by all ranks and read by any of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _core
from ..filecomm import FileComm
from ..store import PyDDStore
from . import record
from .group import Meeting, Part, directory_of, is_mpi, meet
from .load import Encode, Share, plan, share_of, store_rows, variable
from .rows import Decode, Rows
from .samples import Key, Ragged, Structure


def _setting(name: str) -> tuple[str, bool]:
    """A setting's value, and whether it was given."""
    row = next(row for row in _core.settings() if row["name"] == name)
    if row["bad"]:
        raise ValueError(f"{name}={row['value']}: give {row['allowed']}")
    return str(row["value"]), row["origin"] != "default"


def check_device(name: str, device: Any) -> None:
    """RuntimeError for memory that this build doesn't serve."""
    if device is not None and str(device).partition(":")[0] != "cpu":
        raise RuntimeError(
            f"{name}={device}: this build serves host memory only; move batches there "
            "by tensor.to(), with pin_memory=True"
        )


class DistDataset(Rows):
    """A map-style dataset whose samples lie in the memory of all ranks.

    source: anything with ``len()`` and ``[i]``, the same on all ranks. Each rank loads
    its contiguous share of it; every rank reads every sample. A sample is one field,
    or a tuple, list or dict of fields; a field is a tensor, array, NumPy scalar, bool,
    int, float or structured record, of one shape and dtype in all samples, and comes
    back as it was. name: that of the dataset in its store; field k is the variable
    "name/k".

    comm: an mpi4py communicator or a FileComm; or rank and size; with neither, what the
    launcher says. method: DDSTORE_METHOD by default, else 0 over MPI and 1 without.
    handshake_dir: that of a FileComm, which no other may be given beside; else
    DDSTORE_HANDSHAKE_DIR by default, else ./ddstore_hs. ddstore_width: so many ranks in
    a row form a store of their own, with all samples; not with method 2. device,
    add_device: None or "cpu".

    encode(sample): what is stored in its place; decode(stored, index): what is
    returned. fields: keys of those that are kept, of which Ragged(key) may differ in
    their first dimension; not with encode. ragged: keys of such fields, or True to
    find them out. chunk_size: samples that are loaded at a time, by the source's
    ``__getitems__`` where it has one; peak memory is the share and one chunk. Without
    it samples are loaded one by one, and those with ragged fields all kept until they
    are stored.

    Creating one is collective. What is wrong on one rank raises on all, and the message
    names rank, sample and field.
    """

    def __init__(
        self,
        source: Any,
        name: str,
        comm: Any = None,
        ddstore_width: int | None = None,
        device: Any = None,
        add_device: Any = None,
        method: int | None = None,
        handshake_dir: str | os.PathLike[str] | None = None,
        chunk_size: int | None = None,
        encode: Encode | None = None,
        decode: Decode | None = None,
        fields: Sequence[Key | Ragged] | None = None,
        *,
        ragged: bool | Sequence[Key] = False,
        rank: int | None = None,
        size: int | None = None,
    ) -> None:
        place = None if handshake_dir is None else os.fspath(handshake_dir)
        self._meta: tuple[str, record.Record] | None = None
        self._writer = os.getpid()  # a forked child leaves the file alone
        whole = meet(comm, rank, size, place)
        try:

            def settled() -> dict[str, Any]:
                check_device("device", device)
                check_device("add_device", add_device)
                _check(name, ddstore_width, chunk_size, encode, fields, ragged)
                _check_place(comm, place)
                chosen = _method(method, comm)
                if ddstore_width is not None and chosen == 2:
                    raise ValueError("ddstore_width and method 2 exclude each other")
                return {
                    "name": name, "method": chosen, "ddstore_width": ddstore_width,
                    "fields": _keys(fields), "ragged": _keys(ragged),
                }  # fmt: skip

            whole.same(settings := whole.agree(settled)[whole.rank])
            part: Meeting = whole
            if ddstore_width is not None:
                part = Part(whole, ddstore_width)
            try:
                share = _share(source, part, encode, chunk_size)
                method = settings["method"]
                self._load(part, share, name, method, decode, fields, ragged)
            finally:
                if part is not whole:
                    part.close()
        finally:
            whole.close()

    def _load(
        self, part: Meeting, share: Share, name: str, method: int,
        decode: Decode | None, fields: Any, ragged: Any,
    ) -> None:  # fmt: skip
        total = len(share.source)
        agreed = plan(share, part, fields, ragged)
        store = part.open_store(method)
        try:
            token = ""
            if method == 2:
                token = self._publish(part, name, agreed.structure, total)
            store_rows(store, name, share, part, agreed)
            if token:  # its variable says that the rows are there
                mine = bytes.fromhex(token) if part.rank == 0 else b""
                rows = np.frombuffer(mine, np.uint8).reshape(-1, 16)
                store.add(record.token_variable(name), rows)
        except BaseException:
            if self._meta is not None:
                record.remove(*self._meta)
            if method != 0:  # free() waits for the others, who may never come
                store.free()
            raise
        super().__init__(store, name, agreed.structure, total, decode)

    def _publish(
        self, part: Meeting, name: str, structure: Structure, total: int
    ) -> str:
        """Method 2: what readers need to know, before the variables. Returns the token
        of this run."""
        token = str(part.allgather(record.new_token())[0])
        written = record.Record(name, structure, total, token)

        def write() -> None:
            if part.rank == 0:
                record.write(part.place, written)

        part.agree(write)
        if part.rank == 0:
            self._meta = part.place, written
        return token

    def free(self) -> None:
        """Frees the store, or this process's reader. Local on methods 1 and 2: what
        this rank holds is gone for the others, so meet them before. Collective on
        method 0. Twice does nothing."""
        if self._meta is not None and self._writer == os.getpid():
            record.remove(*self._meta)
        self._meta = None
        super().free()

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_meta": None}


def _method(given: int | None, comm: Any) -> int:
    if given is None:
        value, set_there = _setting("DDSTORE_METHOD")
        given = int(value) if set_there else (0 if is_mpi(comm) else 1)
    if given not in (0, 1, 2):
        raise ValueError(f"method is {given}: give 0, 1 or 2")
    if given == 0 and not is_mpi(comm):
        raise ValueError("method 0 needs an MPI communicator: pass comm, or method=1")
    return int(given)


def _check(
    name: Any, width: Any, chunk_size: Any, encode: Any, fields: Any, ragged: Any
) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"name is {name!r}: give text")
    for what, number in (("ddstore_width", width), ("chunk_size", chunk_size)):
        if number is not None and (not isinstance(number, int) or number < 1):
            raise ValueError(f"{what} is {number!r}: give 1 or more")
    if encode is not None and fields is not None:
        raise ValueError("fields and encode exclude each other: encode can choose")
    for keys in (fields, ragged):
        if isinstance(keys, str):
            raise TypeError(f"give a list of keys, not {keys!r}")


def _check_place(comm: Any, place: str | None) -> None:
    """A FileComm's directory is the dataset's."""
    there = comm.dir if isinstance(comm, FileComm) else None
    if place and there and os.path.realpath(place) != os.path.realpath(there):
        raise ValueError(
            f"handshake_dir is {place}, and that of comm is {there}: leave one out"
        )


def _keys(given: Any) -> Any:
    """What fields= and ragged= say, in an order that doesn't matter."""
    if given is None or isinstance(given, bool):
        return given
    return sorted(given, key=repr)


def _share(
    source: Any, part: Meeting, encode: Encode | None, chunk_size: int | None
) -> Share:
    total = part.agree(lambda: len(source))[part.rank]
    part.same({"len(source)": total})
    return Share(source, share_of(total, part.rank, part.size), encode, chunk_size)


class DistDatasetReader(Rows):
    """The dataset that a running core job holds by method 2, read by a process outside.

    name, handshake_dir: as the core gave them. n_core: core ranks that are expected,
    DDSTORE_N_CORE by default; 0: as the records say. decode(stored, index): what is
    returned. Waits up to DDSTORE_HANDSHAKE_TIMEOUT_S for a core that is alive, else
    HandshakeTimeout. Local; free() leaves the core alone.
    """

    def __init__(
        self,
        name: str,
        handshake_dir: str | os.PathLike[str] | None = None,
        n_core: int | None = None,
        device: Any = None,
        decode: Decode | None = None,
    ) -> None:
        check_device("device", device)
        dir = directory_of(None if handshake_dir is None else os.fspath(handshake_dir))
        if n_core is None:
            n_core = int(_setting("DDSTORE_N_CORE")[0])
        store = PyDDStore(None, method=2, handshake_dir=dir, n_core=n_core)
        try:
            found = _joined(store, dir, name)
        except BaseException:
            store.free()
            raise
        super().__init__(store, name, found.structure, found.total, decode)


def _joined(store: PyDDStore, dir: str, name: str) -> record.Record:
    """Joins all variables of the dataset, once its file is of the run that serves."""
    import time

    from .load import offsets_variable

    until = time.monotonic() + float(_core.setting("DDSTORE_HANDSHAKE_TIMEOUT_S"))
    token = np.zeros((1, 16), np.uint8)
    while True:
        store.join(record.token_variable(name))
        store.get(record.token_variable(name), token, 0)
        found = record.read(dir, name)
        if found is not None and found.token == token.tobytes().hex():
            break
        if time.monotonic() > until:
            raise _core.HandshakeTimeout(
                f"dataset {name!r}: {record.path_of(dir, name)} is missing, or of "
                "another run than the one that serves"
            )
        time.sleep(0.05)
    for field in found.structure.fields:
        if field.ragged:
            store.join(offsets_variable(name, field.key))
        store.join(variable(name, field.key))
    return found
