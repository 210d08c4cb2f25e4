"""DistDataset: what comes back, from whom, and who may read it."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import pickle
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest
from members import Member, Members, environment, raises

pytest.importorskip("torch", reason="optional: torch is not installed")

import torch
from torch.utils.data import ConcatDataset, Subset, random_split
from torch_support import Many, Source, every_kind, graph, pair, same

import pyddstore
from pyddstore import _core
from pyddstore.torch import DistDataset, DistDatasetReader


def dataset(m: Member, source: Any, name: str = "ds", **more: Any) -> DistDataset:
    more = {"rank": m.rank, "size": m.size, "handshake_dir": m.dir} | more
    return DistDataset(source, name, **more)


def read_it_all(ds: Any, count: int, make: Any = every_kind) -> None:
    """Every way to read samples."""
    assert len(ds) == ds.len() == count
    for i in range(-count, count):
        same(ds[i], make(i % count), f"ds[{i}]")
    if count:
        same(ds.get(count - 1), make(count - 1))
        same(ds[np.int64(0)], make(0))
    random = np.random.default_rng(0)
    for n in (0, 1, 3, 17):
        wanted = random.integers(-count, count, n).tolist() if count else []
        got = ds.__getitems__(wanted)
        assert type(got) is list
        assert len(got) == len(wanted)
        for i, one in zip(wanted, got, strict=True):
            same(one, make(i % count), f"{n} of them, {i}")
        same(ds.__getitems__(np.array(wanted, int)), got)
        same(ds.__getitems__(torch.tensor(wanted, dtype=torch.int64)), got)
    for bad in (count, -count - 1, 2**40, -(2**70)):
        raises(IndexError, str(bad), f"{count} samples", call=lambda b=bad: ds[b])
        raises(IndexError, str(bad), call=lambda b=bad: ds.__getitems__([b]))
    for bad in (1.0, "1", None, slice(2)):
        raises(TypeError, call=lambda b=bad: ds[b])
        raises(TypeError, call=lambda b=bad: ds.__getitems__([b]))


def all_ways(m: Member, method: int) -> None:
    for number, count in enumerate((10, 2, 0)):
        source = Source(count)
        with dataset(m, source, f"ds{number}", method=method) as ds:
            each, more = divmod(count, m.size)
            mine = each + (m.rank < more)
            # Its share, and the first sample once more to learn the structure.
            assert len(source.asked) == mine + bool(mine)
            assert ds.ddstore.method == method
            read_it_all(ds, count)
            m.meet(f"read {number}")


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("method", [1, 2])
def test_all_kinds_from_all_ranks(members: Members, size: int, method: int) -> None:
    members(size, all_ways, method=method)


def one_by_one(m: Member) -> None:
    with dataset(m, Source(5)) as ds:
        read_it_all(ds, 5)
        m.meet("read")


@pytest.mark.parametrize(
    "env",
    [
        {"DDSTORE_BATCH_GET": "0"},
        {"DDSTORE_SHM": "0", "DDSTORE_FABRIC": "tcp"},
        {"DDSTORE_SHM": "0", "DDSTORE_FABRIC": "tcp", "DDSTORE_BATCH_GET": "0"},
    ],
)
def test_other_ways(members: Members, env: dict[str, str]) -> None:
    members(2, one_by_one, env)


def calls_of(ds: DistDataset, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Notes the reads of a dataset's store from now on: call, variable and rows."""
    made: list[Any] = []
    kind = type(ds.ddstore)

    def note(call: str, of_rows: int) -> None:
        whole = getattr(kind, call)

        def noted(store: Any, name: str, *given: Any) -> Any:
            made.append((call, name, len(given[of_rows])))
            return whole(store, name, *given)

        monkeypatch.setattr(kind, call, noted)

    note("get_batch", 1)
    note("_get_runs", 1)
    note("get", 0)
    return made


def test_one_call_a_field(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = here(Source(9, pair))
    graphs = here(Source(9, graph), "g", ragged=["edges"], fields=["edges", "y"])
    monkeypatch.setenv("DDSTORE_BATCH_GET", "0")
    single = here(Source(9, pair), "s")
    made = calls_of(ds, monkeypatch)
    same(ds.__getitems__([5, 0, 5]), [pair(5), pair(0), pair(5)])
    assert made == [("get_batch", "ds/0", 3), ("get_batch", "ds/1", 3)]
    made.clear()
    Subset(ds, [3, 1, 2, 0]).__getitems__([0, 3])
    ds.read_rows([1, 2, 3], [1])
    assert made == [
        ("get_batch", "ds/0", 2), ("get_batch", "ds/1", 2), ("get_batch", "ds/1", 3),
    ]  # fmt: skip
    made.clear()
    graphs.__getitems__([7, 1, 4, 7])
    assert made == [
        ("get_batch", "g/edges/offsets", 4), ("_get_runs", "g/edges", 4),
        ("get_batch", "g/y", 4),
    ]  # fmt: skip
    made.clear()
    same(single.__getitems__([5, 0, 5]), [pair(5), pair(0), pair(5)])
    assert made == [("get", "s/0", 1)] * 3 + [("get", "s/1", 1)] * 3


def test_samples_alive(here: Any) -> None:
    """While a chunk is loaded, no more than it and two others are kept."""
    alive: list[weakref.ref[Any]] = []
    most = 0

    def make(i: int) -> Any:
        nonlocal most
        array = np.full((3, 2), i)
        alive.append(weakref.ref(array))
        most = max(most, sum(one() is not None for one in alive))
        return array

    for kind in (Source, Many):
        ds = here(kind(30, make), chunk_size=4)
        same(ds[29], np.full((3, 2), 29))
        assert 4 <= most <= 6
        most = 0
        alive.clear()


@pytest.fixture
def here(tmp_path: pathlib.Path) -> Any:
    """Makes datasets of one rank in this process."""
    made = []

    def make(source: Any, name: str = "ds", **more: Any) -> DistDataset:
        given = {"rank": 0, "size": 1, "handshake_dir": str(tmp_path / "h")}
        made.append(DistDataset(source, name, **(given | more)))
        return made[-1]

    yield make
    for one in made:
        one.free()


CONTAINERS = {
    "single tensor": lambda i: torch.full((2,), i),
    "single int": lambda i: i,
    "single array": lambda i: np.full(3, i),
    "tuple": lambda i: (i, np.float64(i)),
    "list": lambda i: [torch.tensor([i]), i],
    "tuple of one": lambda i: (i,),
    "integer keys": lambda i: {5: i, 2: float(i)},
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_containers(here: Any, container: str) -> None:
    make = CONTAINERS[container]
    ds = here(Source(6, make))
    read_it_all(ds, 6, make)
    sample = make(0)
    keys = list(sample) if isinstance(sample, dict) else [0]
    if isinstance(sample, tuple | list):
        keys = list(range(len(sample)))
    assert list(ds.read_rows([0])) == list(ds.alloc(1)) == keys
    assert ds.ddstore.names() == [f"ds/{key}" for key in keys]


def test_shapes_and_dtypes(here: Any) -> None:
    ds = here(Source(2, lambda i: {"x": torch.zeros(2, 3), "n": i, "a": np.zeros(1)}))
    assert ds.shapes == {"x": (2, 3), "n": (), "a": (1,)}
    assert ds.dtypes == {"x": torch.float32, "n": np.dtype(int), "a": np.dtype(float)}
    assert here(Source(2, pair)).shapes == ((4,), ())
    single = here(Source(2, float))
    assert single.shapes == ()
    assert single.dtypes == np.dtype(float)


def test_strange_sources(here: Any) -> None:
    tensor = torch.arange(12.0).reshape(6, 2)
    read_it_all(here(tensor), 6, lambda i: torch.tensor([2.0 * i, 2 * i + 1]))
    read_it_all(here([7, 8, 9]), 3, lambda i: 7 + i)
    ds = here(Source(3, lambda i: torch.zeros(2, 4).t()[i : i + 1].requires_grad_()))
    assert ds[1].shape == (1, 2)
    assert not ds[1].requires_grad
    other_order = here([{"a": 1, "b": 2.0}, {"b": 3.0, "a": 4}])
    assert other_order[1] == {"a": 4, "b": 3.0}
    conj = here([torch.tensor([1 + 2j]).conj(), torch.tensor([3 + 4j])])
    assert conj[0].item() == 1 - 2j


def test_subsets(here: Any) -> None:
    ds, more = here(Source(10, pair)), here(Source(4, pair), "more")
    subset = Subset(ds, [3, 9, 0, -1])
    same(subset.__getitems__([1, 0, 3]), [pair(9), pair(3), pair(9)])
    same(Subset(subset, [2]).__getitems__([0, 0]), [pair(0), pair(0)])
    parts = random_split(ds, [6, 4], torch.Generator().manual_seed(1))
    for part in parts:
        for i in range(len(part)):
            same(part[i], pair(part.indices[i]))
            same(part.__getitems__([i])[0], part[i])
    assert subset.__getitems__([]) == []
    both = ConcatDataset([ds, more])
    same([both[i] for i in (9, 10, 13)], [pair(9), pair(0), pair(3)])


def test_encode_decode_fields(here: Any) -> None:
    texts = [f"text {i}" for i in range(5)]

    def encode(text: str) -> Any:
        return np.frombuffer(text.encode(), np.uint8)

    def decode(stored: Any, index: int) -> tuple[str, int]:
        return stored.tobytes().decode(), index

    ds = here(texts, encode=encode, decode=decode)
    want = [(text, i) for i, text in enumerate(texts)]
    assert [ds[i] for i in range(-5, 5)] == want + want
    assert ds.__getitems__([-1, 0]) == [want[4], want[0]]
    assert ds.read_rows([1])[0].tobytes() == b"text 1"

    ds = here(Source(4), fields=["text", "int"])
    same(ds[3], {k: v for k, v in every_kind(3).items() if k in ("text", "int")})
    assert list(ds[0]) == ["text", "int"]
    ds = here(Source(4, pair), fields=[1])
    assert ds[3] == (3,)
    assert list(ds.read_rows([0])) == [1]
    with pytest.raises(KeyError, match=r"'nothing'.*'text'"):
        here(Source(4), fields=["int", "nothing"])
    for bad in ([], ["int", "int"]):
        with pytest.raises(ValueError, match="fields"):
            here(Source(4), fields=bad)
    with pytest.raises(ValueError, match="encode"):
        here(Source(4), fields=["int"], encode=str)
    with pytest.raises(TypeError, match="list of keys"):
        here(Source(4), fields="int")


def test_chunks(here: Any) -> None:
    source = Many(10)
    ds = here(source, chunk_size=4)
    assert source.chunks[-3:] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert source.asked == []
    read_it_all(ds, 10)
    read_it_all(here(Source(10), chunk_size=100), 10)
    for bad in (0, -1, "2"):
        with pytest.raises(ValueError, match="chunk_size"):
            here(source, chunk_size=bad)


def test_rows_and_buffers(here: Any) -> None:
    ds = here(Source(8))
    wanted = [5, 0, -1, 5]
    samples = [every_kind(i % 8) for i in wanted]
    rows = ds.read_rows(wanted)
    assert list(rows) == list(samples[0])
    for key, batch in rows.items():
        assert batch.shape == (4, *ds.shapes[key])
        assert isinstance(batch, torch.Tensor if "tensor" in key else object)
        for n, sample in enumerate(samples):
            assert np.array_equal(tensor_bytes(batch[n]), tensor_bytes(sample[key]))
    assert list(ds.read_rows(wanted, ["int", "float tensor"])) == [
        "float tensor",
        "int",
    ]
    with pytest.raises(KeyError, match="nothing"):
        ds.read_rows(wanted, ["nothing"])

    bufs = ds.alloc(4, ["int", "float"])
    assert {k: b.shape for k, b in bufs.items()} == {"int": (4,), "float": (4,)}
    got = ds.read_rows([1, 2], ["int"], out=bufs)
    assert np.shares_memory(got["int"], bufs["int"])
    assert bufs["int"][:2].tolist() == [1 - 2**62, 2 - 2**62]
    with pytest.raises(ValueError, match="4 samples, not 5"):
        ds.read_rows(range(5), ["int"], out=bufs)
    with pytest.raises(KeyError, match="text"):
        ds.read_rows([1], ["text"], out=bufs)
    ds.release(bufs)
    for bad in (bufs, {}, None):
        with pytest.raises(ValueError, match="registered"):
            ds.release(bad)
    with pytest.raises(KeyError, match="nothing"):
        ds.alloc(2, ["nothing"])
    with pytest.raises(ValueError, match="-1"):
        ds.alloc(-1)
    whole = ds.alloc(3)
    samples = ds.__getitems__([1, 2], out=whole)
    same(samples, [every_kind(1), every_kind(2)])
    ds.__getitems__([3], out=whole)
    same(samples[0]["float tensor"], every_kind(3)["float tensor"])
    with pytest.raises(ValueError, match="3 samples"):
        ds.__getitems__([0] * 4, out=whole)
    ds.release(whole)
    assert ds.alloc(0)["int"].shape == (0,)


def tensor_bytes(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.contiguous().view(-1).view(torch.uint8).numpy()
    return np.asarray(value)


def test_after_free(here: Any) -> None:
    ds = here(Source(3, pair))
    bufs = ds.alloc(2)
    ds.free()
    ds.free()
    assert len(ds) == 3
    for call in (lambda: ds[0], lambda: ds.__getitems__([0]), lambda: ds.ddstore,
                 lambda: ds.alloc(1), lambda: pickle.dumps(ds)):  # fmt: skip
        with pytest.raises(pyddstore.StoreClosedError):
            call()
    ds.release(bufs)
    assert "freed" in repr(ds)


def widths(m: Member) -> list[int]:
    source = Source(7, pair)
    with dataset(m, source, ddstore_width=2) as ds:
        assert ds.ddstore.size == min(2, m.size - m.rank // 2 * 2)
        read_it_all(ds, 7, pair)
        hosts = {peer["rank"] for peer in ds.ddstore.transports()}
        assert len(hosts) == ds.ddstore.size
        m.meet("read")
    return sorted(set(source.asked))


@pytest.mark.parametrize("size", [3, 4])
def test_ddstore_width(members: Members, size: int) -> None:
    asked = members(size, widths)
    alone = [list(range(7))] if size == 3 else [[0, 1, 2, 3], [4, 5, 6]]
    assert asked == [[0, 1, 2, 3], [4, 5, 6], *alone]


def test_release_by_another_dataset(here: Any) -> None:
    one, other = here(Source(3, pair), "a"), here(Source(3, pair), "b")
    buffers = one.alloc(2)
    with pytest.raises(ValueError, match="of the dataset 'a'"):
        other.release(buffers)
    one.release(buffers)


def test_default_device(here: Any) -> None:
    """Samples are in host memory, whatever the device that new tensors are made on."""
    ds = here(Source(5))
    with torch.device("meta"):
        one, many, column = ds[1], ds.__getitems__([4, 0]), ds.read_rows([2, 3])
        buffers = ds.alloc(2)
        ds.__getitems__([3, 3], out=buffers)
    same(one, every_kind(1))
    same(many, [every_kind(4), every_kind(0)])
    for key, want in every_kind(2).items():
        if isinstance(want, torch.Tensor):
            same(column[key][0], want)
            same(buffers[key][0], every_kind(3)[key])
    ds.release(buffers)


def test_arguments(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    good = Source(3, pair)
    with pytest.raises(ValueError, match="ddstore_width and method 2"):
        here(good, ddstore_width=1, method=2)
    for given, words in [
        ({"ddstore_width": 0}, "ddstore_width"),
        ({"method": 3}, "method is 3"),
        ({"method": 0}, "MPI communicator"),
        ({"rank": None}, "both"),
        ({"name": ""}, "name"),
        ({"name": 3}, "name"),
    ]:
        with pytest.raises(ValueError, match=words):
            here(good, **given)
    for device in ("cuda", "cuda:1", torch.device("meta")):
        for which in ("device", "add_device"):
            with pytest.raises(RuntimeError, match=f"{which}={device}.*host memory"):
                here(good, **{which: device})
    assert here(good, device="cpu", add_device=torch.device("cpu"))[1][1] == 1
    monkeypatch.setenv("DDSTORE_METHOD", "2")
    assert here(good).ddstore.method == 2
    assert here(good, method=1).ddstore.method == 1
    monkeypatch.setenv("DDSTORE_METHOD", "0")
    with pytest.raises(ValueError, match="MPI communicator"):
        here(good)


def over_filecomm(m: Member) -> None:
    with pyddstore.FileComm(m.dir, m.rank, m.size, "app") as comm:
        with DistDataset(Source(5), "a", comm, method=2) as one:
            with DistDataset(Source(4), "b", comm) as two:
                with DistDataset(Source(3), "a", comm, ddstore_width=1) as three:
                    read_it_all(three, 3)
                read_it_all(one, 5)
                read_it_all(two, 4)
                assert os.path.exists(os.path.join(m.dir, "a.meta.json"))
                comm.barrier()
        comm.barrier()


def test_filecomm(members: Members) -> None:
    members(3, over_filecomm)


def two_directories(m: Member) -> None:
    with pyddstore.FileComm(m.dir, m.rank, m.size, "app") as comm:

        def make(handshake_dir: str | None) -> DistDataset:
            return DistDataset(Source(4), "ds", comm, 2, handshake_dir=handshake_dir)

        other = m.dir + "-other"
        raises(ValueError, "rank 0: ", other, m.dir, call=lambda: make(other))
        mine = other if m.rank else None
        raises(ValueError, "rank 1: ", other, m.dir, call=lambda: make(mine))
        with make(os.path.join(m.dir, ".")) as ds:
            assert ds[3]["int"] == every_kind(3)["int"]
            comm.barrier()
        assert not os.path.exists(other)


def test_filecomm_and_another_directory(members: Members) -> None:
    members(2, two_directories)


class Alone:
    """A FileComm of one rank, which meets through no directory."""

    def __init__(self, dir: str | None, rank: int, size: int, ns: str) -> None:
        assert (dir, rank, size) == (None, 0, 1)

    def allgather(self, obj: Any) -> list[Any]:
        return [obj]

    def close(self) -> None:
        pass


@pytest.mark.parametrize("how", ["argument", "environment", "default"])
def test_where_pmi2_publishes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Where ranks meet without a directory, method 2 still has one."""
    from pyddstore.torch import group

    monkeypatch.setattr(group, "FileComm", Alone)
    monkeypatch.setattr(group, "_place", lambda *given: None)
    monkeypatch.setenv("DDSTORE_RANK", "0")
    monkeypatch.setenv("DDSTORE_SIZE", "1")
    monkeypatch.chdir(tmp_path)
    if how == "environment":
        monkeypatch.setenv("DDSTORE_HANDSHAKE_DIR", "environment")
    given = how if how == "argument" else None
    with DistDataset(Source(3, pair), "ds", method=2, handshake_dir=given):
        place = "ddstore_hs" if how == "default" else how
        assert os.listdir() == [place]
        assert os.path.exists(os.path.join(place, "ds.meta.json"))
        with DistDatasetReader("ds", given) as reader:
            same(reader[2], pair(2))


PROGRAM = """
import sys, os
sys.path[:0] = sys.argv[1:]
from torch_support import Source, pair, same
from pyddstore import FileComm
from pyddstore.torch import DistDataset
with DistDataset(Source(5, pair), "ds") as ds:
    same([ds[i] for i in range(5)], [pair(i) for i in range(5)])
    assert ds.ddstore.size == 2 and ds.ddstore.method == 1
    with FileComm.from_env(os.environ.get("DDSTORE_HANDSHAKE_DIR", "ddstore_hs")) as c:
        c.barrier()
print("good")
"""


@pytest.mark.parametrize("named", [True, False])
def test_launcher_and_default_directory(tmp_path: pathlib.Path, named: bool) -> None:
    env = environment(DDSTORE_HANDSHAKE_DIR=str(tmp_path / "named")) if named else None
    both = []
    for rank in range(2):
        own = (env or environment()) | {"DDSTORE_RANK": str(rank), "DDSTORE_SIZE": "2"}
        command = [sys.executable, "-c", PROGRAM, os.path.dirname(__file__)]
        both.append(subprocess.Popen(command, cwd=tmp_path, env=own, text=True,
                                     stdout=subprocess.PIPE))  # fmt: skip
    assert [one.communicate(timeout=60)[0] for one in both] == ["good\n"] * 2
    assert os.listdir(tmp_path) == ["named" if named else "ddstore_hs"]


def core(m: Member, method: int = 2) -> None:
    with dataset(m, Source(5), "train", method=2) as ds, \
            dataset(m, Source(0), "none", method=2), \
            dataset(m, Source(4, pair), "a b/c.d", method=2):  # fmt: skip
        m.mark(f"up {m.rank}")
        m.wait("done")
        assert len(ds) == 5
    m.meet("freed")
    left = [name for name in os.listdir(m.dir) if name.endswith("json")]
    assert left == []


def extra(m: Member) -> None:
    with DistDatasetReader("train", m.dir) as ds:
        read_it_all(ds, 5)
        bufs = ds.alloc(2)
        ds.__getitems__([0, 1], out=bufs)
        ds.release(bufs)
    with DistDatasetReader("none", m.dir, n_core=3) as ds:
        read_it_all(ds, 0)
    with DistDatasetReader("a b/c.d", m.dir, decode=lambda s, i: (s[1], i)) as ds:
        got = [ds[i] for i in range(-2, 2)]
        assert got == [(2, 2), (3, 3), (0, 0), (1, 1)], got
    raises(ValueError, "2", "3", call=lambda: DistDatasetReader("train", m.dir, 2))
    raises(RuntimeError, "cuda", call=lambda: DistDatasetReader("a", device="cuda"))


def test_reader(members: Members) -> None:
    """One comes before the core, one later."""
    early = members.start(extra)
    group = [members.start(core, rank, 3) for rank in range(3)]
    for rank in range(3):
        members.wait(f"up {rank}")
    late = members.start(extra, env={"DDSTORE_SHM": "0"})
    files = sorted(f for f in os.listdir(members.dir) if f.endswith(".meta.json"))
    assert files == ["a%20b%2Fc.d.meta.json", "none.meta.json", "train.meta.json"]
    path = pathlib.Path(members.dir, "train.meta.json")
    assert path.stat().st_mode & 0o777 == 0o600
    meta = json.loads(path.read_text())
    assert meta["total"] == 5
    assert meta["structure"] == "dict"
    assert meta["fields"] == [described(*one) for one in every_kind(0).items()]
    early.result()
    late.result()
    members.mark("done")
    for one in group:
        one.result()


def described(key: str, value: Any) -> dict[str, Any]:
    """What the file says of a field with this value."""
    kinds: dict[type, str] = {bool: "bool", int: "int", float: "float"}
    kinds |= {torch.Tensor: "tensor", np.recarray: "recarray", np.ndarray: "array"}
    dtype = value.dtype if hasattr(value, "dtype") else np.dtype(type(value))
    record = isinstance(dtype, np.dtype) and dtype.type is np.record
    text = str(dtype) if type(value) is torch.Tensor else _core.dtype_text(dtype)
    return {
        "key": key, "kind": kinds.get(type(value), "scalar"), "dtype": text,
        "record": record, "shape": list(np.shape(value)), "ragged": False, "longest": 0,
    }  # fmt: skip


def test_file_comes_before_the_records(
    here: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = []
    for call in ("init", "add"):

        def noted(store: Any, name: str, *given: Any, whole: Any) -> None:
            there.append(sorted(os.listdir(tmp_path / "h")))
            whole(store, name, *given)

        whole = getattr(pyddstore.PyDDStore, call)
        noting = functools.partialmethod(noted, whole=whole)
        monkeypatch.setattr(pyddstore.PyDDStore, call, noting)
    here(Source(5, graph), method=2, ragged=["x", "edges"])
    assert len(there) == 6  # three fields, offsets of two, and the run's token
    assert "ds.meta.json" in there[0]
    assert not any(name.endswith(".bin") for name in there[0])
    assert any(name.endswith(".bin") for name in os.listdir(tmp_path / "h"))


def test_argument_and_environment(
    here: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of handshake_dir and n_core."""
    monkeypatch.setenv("DDSTORE_HANDSHAKE_DIR", str(tmp_path / "elsewhere"))
    here(Source(3, pair), method=2)
    assert os.listdir(tmp_path) == ["h"]
    with DistDatasetReader("ds", str(tmp_path / "h")) as reader:
        same(reader[2], pair(2))
    monkeypatch.setenv("DDSTORE_HANDSHAKE_TIMEOUT_S", "0.3")
    with pytest.raises(pyddstore.HandshakeTimeout, match="elsewhere"):
        DistDatasetReader("ds")
    monkeypatch.setenv("DDSTORE_HANDSHAKE_TIMEOUT_S", "30")
    monkeypatch.setenv("DDSTORE_HANDSHAKE_DIR", str(tmp_path / "h"))
    with DistDatasetReader("ds", tmp_path / "h", 1) as reader:
        same(reader[1], pair(1))
    monkeypatch.setenv("DDSTORE_N_CORE", "3")
    with pytest.raises(ValueError, match=r"\b3\b.*\b1\b|\b1\b.*\b3\b"):
        DistDatasetReader("ds")
    with DistDatasetReader("ds", n_core=1) as reader:
        same(reader[1], pair(1))


def stale_core(m: Member, dtype: str) -> None:
    source = Source(4, lambda i: np.full(2, i, dtype))
    with dataset(m, source, method=2) as ds:
        m.mark(f"up {dtype}")
        m.wait(f"done {dtype}")
        assert len(ds) == 4


def stale_reader(m: Member, dtype: str) -> None:
    with DistDatasetReader("ds", m.dir) as ds:
        same(ds[3], np.full(2, 3, dtype))


def test_description_of_a_killed_run(members: Members) -> None:
    """A run of the same shapes and other dtypes isn't mistaken for it."""
    first = members.start(stale_core, 0, 1, dtype="<i4")
    members.wait("up <i4")
    first.signal(9)
    first.ended()
    reader = members.start(stale_reader, dtype="<f4")
    second = members.start(stale_core, 0, 1, dtype="<f4")
    reader.result()
    members.mark("done <f4")
    second.result()


def test_reader_without_a_core(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDSTORE_HANDSHAKE_TIMEOUT_S", "0.3")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pyddstore.HandshakeTimeout, match="ddstore_hs"):
        DistDatasetReader("nothing")


def loads_a_large_share(m: Member) -> tuple[float, float]:
    rows = 100  # of 4 MiB

    class Large(Source):
        def __getitem__(self, i: int) -> Any:
            return np.full((1024, 1024), i, np.float32)

    def resident(key: str) -> float:
        with open("/proc/self/status") as file:
            line = next(line for line in file if line.startswith(key))
        return int(line.split()[1]) / 1024

    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = resident("VmRSS")
    with dataset(m, Large(rows), chunk_size=1) as ds:
        most = resident("VmHWM")
        assert ds[99][7, 7] == 99
    return before, most


def test_memory(members: Members) -> None:
    before, most = members(1, loads_a_large_share)[0]
    print(f"{before:.0f} MiB before, {most:.0f} MiB at most")
    assert 400 < most - before < 470


def test_import_is_light() -> None:
    code = (
        "import pyddstore, sys; assert not {'torch', 'mpi4py'} & set(sys.modules);"
        "import pyddstore.torch; assert 'mpi4py' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
