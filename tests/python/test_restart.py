"""Directories that hold what earlier runs left, and groups that meet in one of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_support import NURSERY, Crew, Member, MemberError, crew, together

SCENES = (
    NURSERY
    + """
import contextlib, glob, random

ROWS = 16  # of a rank

def core_child(tell, dir, rank, size, run, names, more):
    global store
    store = PyDDStore(None, method=2, handshake_dir=dir, rank=rank, size=size, **more)
    for name in names:
        store.add(name, made(run, np.arange(rank * ROWS, (rank + 1) * ROWS)))
    tell("ready")
    for name in names:
        tell(read(range(size * ROWS), name=name))
    time.sleep(60)

def extra_child(tell, dir, size, name):
    extra(dir, name)
    tell(read(range(size * ROWS), name=name))

def steady_child(tell, dir, size):
    # Joins again whenever its core is lost, and tells every run that it reads.
    global store
    store = PyDDStore(None, method=2, handshake_dir=dir)
    last = None
    while True:
        try:
            store.join("x")
            while True:
                run = read(range(size * ROWS))
                if run != last:
                    last = run
                    tell(run)
                time.sleep(0.001)
        except (pyddstore.PeerLostError, pyddstore.StoreClosedError):
            tell("lost")

def cores_of(dir, run, size=2, names=("x",), more={}, **env):
    return [Child(core_child, dir, r, size, run, names, more, **env)
            for r in range(size)]

def expect(child, *wanted):
    for what in wanted:
        heard = child.hear()
        assert heard == what, (heard, wanted)

def restarts(dir, first, count, how):
    env = {"DDSTORE_SHM": "1" if how == "mapping" else "0", "DDSTORE_FABRIC": "tcp"}
    steady = Child(steady_child, dir, 2, **env)
    try:
        for run in range(first, first + count):
            early = Child(extra_child, dir, 2, "x", **env)
            cores = cores_of(dir, run, **env)
            during = Child(extra_child, dir, 2, "x", **env)
            try:
                for core in cores:
                    expect(core, "ready", run)
                late = Child(extra_child, dir, 2, "x", **env)
                for one in (early, during, late):
                    expect(one, run, None)
                expect(steady, run)
            finally:
                end_all([*cores, early, during])
            late.end()
            expect(steady, "lost")
    finally:
        steady.end()
    return count
"""
)


@pytest.fixture
def nursery() -> Iterator[Member]:
    with crew() as hands:
        member = hands.hire(prelude=SCENES, env={"DDSTORE_FABRIC": "tcp"})
        member.ready()
        yield member


@pytest.fixture
def hands() -> Iterator[Crew]:
    with crew() as one:
        yield one


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["mapping", "tcp"])
def test_fifty_restarts_in_one_directory(
    nursery: Member, tmp_path: Path, how: str
) -> None:
    directory = str(tmp_path / "h")
    assert nursery.run(f"restarts({directory!r}, 1, 50, {how!r})", 110) == 50
    left = sorted(p.name for p in (tmp_path / "h").rglob("*"))
    print(f"\n{how}: {len(left)} files are left: {left[:12]}")
    assert len(left) < 40


# ---- two groups in one directory -----------------------------------------------------

TWO_GROUPS = """
def outcome(child):
    # The run that it read, or why not.
    heard = child.hear(25)
    return child.hear(25) if heard == "ready" else heard

def two_groups(dir, rounds, ids, gap_ms, leave=False):
    told = []
    for i in range(rounds):
        place = f"{dir}{'' if leave else i}"
        if leave:
            old = cores_of(place, 1000 + i)
            for one in old:
                expect(one, "ready")
            end_all(old)
        groups = []
        begun = time.monotonic()
        for g, run in enumerate((2 * i + 1, 2 * i + 2)):
            env = {"DDSTORE_RUN_ID": f"launch{run}"} if ids else {}
            groups.append(cores_of(place, run, **env))
            if gap_ms < 0 and g == 0:  # the first has met and serves
                for one in groups[0]:
                    expect(one, "ready")
            time.sleep(random.uniform(0, max(gap_ms, 0)) / 1000)
        everyone = [one for group in groups for one in group]
        try:
            outcomes = [[outcome(one) for one in group] for group in groups]
        finally:
            end_all(everyone)
        told.append({"outcomes": outcomes, "took": time.monotonic() - begun,
                     "pids": [[one.pid for one in group] for group in groups],
                     "runs": [2 * i + 1, 2 * i + 2]})
    return told
"""


def check_two(rounds: list[dict[str, Any]], host: str) -> tuple[int, int]:
    """Nobody reads another's rows, a group works as a whole or not at all, and who
    fails names a process of the other. Returns how often one and none worked."""
    one = none = 0
    for r in rounds:
        worked = 0
        assert r["took"] < 25, r
        for g, group in enumerate(r["outcomes"]):
            good = [o for o in group if isinstance(o, int)]
            assert all(o == r["runs"][g] for o in good), r
            assert len(good) in (0, len(group)), r
            worked += bool(good)
            for kind, text in (o for o in group if not isinstance(o, int)):
                assert kind in ("DDStoreError", "PeerLostError"), r
                others = r["pids"][1 - g]
                assert any(f"{host}:{pid}" in text for pid in others), (r, g)
        assert worked < 2, r
        one += worked == 1
        none += worked == 0
    return one, none


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("ids", "gap_ms", "rounds"),
    [(True, 0, 2), (False, 0, 5), (False, 100, 2), (False, -1, 1)],
    ids=["launches", "by-hand", "by-hand-soon", "by-hand-later"],
)
def test_two_groups_at_once_never_mix(
    nursery: Member, tmp_path: Path, ids: bool, gap_ms: int, rounds: int
) -> None:
    nursery.run(TWO_GROUPS)
    told = nursery.run(
        f"two_groups({str(tmp_path / 'h')!r}, {rounds}, {ids}, {gap_ms})", 110
    )
    one, none = check_two(told, nursery.run("socket.gethostname()"))
    print(f"\none group worked {one} times, none {none} times; e.g. {told[0]}")
    if ids:
        assert none == 0


@pytest.mark.timeout(120)
def test_two_restarts_at_the_same_moment(nursery: Member, tmp_path: Path) -> None:
    nursery.run(TWO_GROUPS)
    directory = str(tmp_path / "h")
    rounds = nursery.run(f"two_groups({directory!r}, 5, False, 5, leave=True)", 110)
    one, none = check_two(rounds, nursery.run("socket.gethostname()"))
    print(f"\none group worked {one} times, none {none} times; e.g. {rounds[0]}")
    assert nursery.run(f"restarts({directory!r}, 500, 2, 'mapping')", 60) == 2


# ---- killed while publishing ---------------------------------------------------------

KILLED = """
NAMES = tuple(f"v{i}" for i in range(12))

def read_all_child(tell, dir, size):
    # Joins what there is, of whatever run, and tells the runs of each whole variable.
    global store
    store = PyDDStore(None, method=2, handshake_dir=dir)
    for name in NAMES:
        for _ in range(100):
            try:
                store.join(name)
                tell(read(range(size * ROWS), name=name))
                break
            except (pyddstore.PeerLostError, pyddstore.StoreClosedError):
                pass

def killed_while_publishing(dir, rounds):
    # At random moments from the start on; each time a whole run follows.
    published = []
    for i in range(rounds):
        doomed = cores_of(dir, 2 * i + 1, names=NAMES)
        watcher = Child(read_all_child, dir, 2)
        time.sleep(random.uniform(0, 0.25))
        end_all(doomed)
        published.append(len(glob.glob(os.path.join(dir, "*.bin"))))
        whole = cores_of(dir, 2 * i + 2, names=NAMES)
        after = Child(read_all_child, dir, 2)
        try:
            for one in whole:
                expect(one, "ready", *[2 * i + 2] * len(NAMES))
            expect(after, *[2 * i + 2] * len(NAMES))
            while (heard := watcher.hear()) is not None:
                assert heard in (2 * i + 1, 2 * i + 2), heard
            assert watcher.told == sorted(watcher.told), watcher.told
        finally:
            end_all([*whole, watcher, after])
    return published
"""


@pytest.mark.timeout(120)
def test_core_killed_while_it_publishes(nursery: Member, tmp_path: Path) -> None:
    nursery.run(KILLED)
    published = nursery.run(
        f"killed_while_publishing({str(tmp_path / 'h')!r}, 12)", 110
    )
    print(f"\nrecords in the directory at the moment of death: {published}")


# ---- files that vanish ---------------------------------------------------------------


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", ["*.bin", "*"])
def test_files_deleted_while_the_core_runs(
    hands: Crew, tmp_path: Path, what: str
) -> None:
    directory = str(tmp_path / "h")
    cores = hands.core(tmp_path / "h", 2)
    old, new = hands.hire_many(2)
    old.run(f"extra({directory!r}); read(range(128))")
    old.run(
        f"import glob, shutil\n"
        f"for path in glob.glob({directory + '/' + what!r}):\n"
        f"    shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)"
    )
    assert old.run("read(range(128))") == 1
    if what == "*.bin":
        new.run(f"extra({directory!r}); read(range(128))")
        assert new.run("read(range(128))") == 1
    adds = [
        f'store.add("y", made(2, np.arange({64 * r}, {64 * (r + 1)})))'
        for r in range(2)
    ]
    together(cores, adds, 40)
    assert cores[0].run("read(range(128), name='y')") == 2
    for reader in (old, new):
        reader.run(f"extra({directory!r}, 'y')")
        assert reader.run("read(range(128), name='y')") == 2


@pytest.mark.timeout(60)
def test_directory_removed_while_the_core_runs(hands: Crew, tmp_path: Path) -> None:
    directory = str(tmp_path / "h")
    cores = hands.core(tmp_path / "h", 2, env={"DDSTORE_HANDSHAKE_TIMEOUT_S": "4"})
    reader = hands.hire()
    reader.run(f"extra({directory!r}); read(range(128))")
    reader.run(f"import shutil; shutil.rmtree({directory!r})")
    assert reader.run("read(range(128))") == 1
    for core in cores:
        core.ask('store.add("y", np.zeros(3))')
    for core in cores:
        with pytest.raises(MemberError) as caught:
            core.answer(30)
        print(f"\n{caught.value}")
        assert directory in caught.value.text
    assert cores[0].run("read(range(128))") == 1


@pytest.mark.timeout(60)
def test_namespace_can_be_taken_again_after_free(hands: Crew, tmp_path: Path) -> None:
    """Also where the freed store is still referred to."""
    members = hands.hire_many(2)
    again = (
        "kept = []\n"
        "for run in range(1, 4):\n"
        "    core({d!r}, {r}, 2, run=run, exchange_ns='mine')\n"
        "    assert read(range(128)) == run\n"
        "    store.add('done', np.zeros(1))\n"
        "    store.free()\n"
        "    kept.append(store)\n"
    )
    codes = [again.format(d=str(tmp_path / "h"), r=r) for r in range(2)]
    together(members, codes, 50)
