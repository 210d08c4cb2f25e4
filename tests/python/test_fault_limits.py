"""Too little of something: shared memory, disk, descriptors, locked memory, memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from fault_support import (
    NURSERY,
    Crew,
    MemberError,
    attempt,
    crew,
    together,
    wait_until,
)

TCP = {"DDSTORE_FABRIC": "tcp", "DDSTORE_SHM": "0", "DDSTORE_READ_TIMEOUT_S": "5"}


@pytest.fixture
def hands() -> Iterator[Crew]:
    with crew() as one:
        yield one


def inside(script: str) -> list[str]:
    """A start in mounts of its own, after a line of shell."""
    if os.geteuid() != 0:
        pytest.skip("mounts of one's own need root")
    return ["unshare", "--mount", "sh", "-c", f'{script} && exec "$0" "$@"']


def limited(script: str) -> list[str]:
    """A start under a limit."""
    return ["sh", "-c", f'{script} && exec "$0" "$@"']


@pytest.mark.timeout(60)
@pytest.mark.parametrize("shm", ["1", "0"])
def test_small_dev_shm_does_not_matter(hands: Crew, tmp_path: Path, shm: str) -> None:
    prefix = inside("mount -t tmpfs -o size=1m none /dev/shm")
    env = TCP | {"DDSTORE_SHM": shm}
    members = hands.core(
        tmp_path / "h", 2, env=env, prefix=prefix, more={"rows": 512, "width": 4096}
    )
    assert members[0].run("os.statvfs('/dev/shm').f_blocks * 4096") == 1 << 20
    assert members[0].run("read(range(0, 1024, 7), 4096)") == 1


# ---- a full disk ---------------------------------------------------------------------

FULL = """
def fill(path):
    # To the last byte.
    with open(path, "wb", buffering=0) as f:
        try:
            while True:
                f.write(bytes(4096))
        except OSError:
            pass

def core_on_full(tell, dir, rank, filled_before):
    if filled_before and rank == 0:
        fill(dir + "/filler")
    global store
    store = PyDDStore(None, method=2, handshake_dir=dir, rank=rank, size=2)
    store.add("x", made(1, np.arange(rank * 16, (rank + 1) * 16)))
    tell(read(range(32)))
    if rank == 0:
        fill(dir + "/filler")
    store.add("y", made(2, np.arange(rank * 16, (rank + 1) * 16)))
    tell(read(range(32), name="y"))
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("when", ["before", "after"])
def test_full_disk_is_named(hands: Crew, tmp_path: Path, when: str) -> None:
    directory = tmp_path / "small"
    directory.mkdir(mode=0o700)
    member = hands.hire(
        prefix=inside(f"mount -t tmpfs -o size=256k,mode=700 none '{directory}'"),
        prelude=NURSERY + FULL,
        env={"DDSTORE_HANDSHAKE_TIMEOUT_S": "6"},
    )
    begun = time.monotonic()
    told = member.run(
        f"both = [Child(core_on_full, {str(directory)!r}, r, {when == 'before'})"
        " for r in range(2)]\n"
        f"told = [[c.hear() for _ in range({1 if when == 'before' else 2})]"
        " for c in both]\n"
        "end_all(both)\n"
        "told"
    )
    print(f"\n{time.monotonic() - begun:.1f} s: {told}")
    if when == "after":
        assert [t.pop(0) for t in told] == [1, 1]
    texts = [text for [(_, text)] in told]
    assert any("No space left" in text for text in texts)
    assert any(str(directory) in text for text in texts)


# ---- few descriptors -----------------------------------------------------------------


@pytest.mark.timeout(90)
def test_few_descriptors_are_named_in_add(hands: Crew, tmp_path: Path) -> None:
    prefix = limited("ulimit -n 64")
    members = hands.core(tmp_path / "h", 2, env=TCP, prefix=prefix)
    many = (
        "names = []\n"
        "for i in range(200):\n"
        "    store.add(f'v{i}', made(1, np.arange(4)))\n"
        "    names.append(i)\n"
    )
    outcomes = attempt(members, [many] * 2)
    print(f"\n{outcomes}")
    for outcome in outcomes:
        assert isinstance(outcome, MemberError)
        assert "ulimit -n" in outcome.text
    n = members[0].run("len(names)")
    assert n > 20
    for member in members:
        assert member.run("read(range(128))") == 1
        assert member.run("read(range(8), name='v0') if 0 else 1") == 1
    again = 'store.update("x", made(1, np.arange({f}, {f} + 64)), 0)'
    together(members, [again.format(f=64 * r) for r in range(2)])


@pytest.mark.timeout(90)
@pytest.mark.parametrize("who", ["core", "reader"])
def test_few_descriptors_and_many_connections(
    hands: Crew, tmp_path: Path, who: str
) -> None:
    """A hundred threads that read at once where only some can be connected."""
    few = limited("ulimit -n 64")
    core = hands.core(tmp_path / "h", 1, env=TCP, prefix=few if who == "core" else ())[
        0
    ]
    reader = hands.hire(env=TCP, prefix=few if who == "reader" else ())
    reader.run(f"extra({str(tmp_path / 'h')!r}); read(range(64))")
    reader.run(
        "def once():\n"
        "    out = np.empty((1, 4), dtype=np.int64)\n"
        "    gate.wait()\n"
        "    try:\n"
        "        for i in range(50):\n"
        "            store.get('x', out, i)\n"
        "            assert out[0, 0] == made(1, [i])[0, 0]\n"
        "        done.append(None)\n"
        "    except Exception as exc:\n"
        "        done.append(f'{type(exc).__name__}: {exc}')\n"
        "done = []\n"
        "gate = threading.Barrier(100)\n"
        "threads = [threading.Thread(target=once, daemon=True) for _ in range(100)]\n"
        "[t.start() for t in threads]"
    )
    wait_until(lambda: reader.run("len(done)") == 100, 60)
    failures = reader.run("[d for d in done if d]")
    print(f"\n{who}: {len(failures)} of 100 threads failed, e.g. {failures[:1]}")
    for failure in failures:
        assert "ulimit -n" in failure
        assert "nobody listens" not in failure
    assert reader.run("store.transports()")[0]["state"] == "alive"
    assert reader.run("read(range(64))") == 1
    assert core.run("read(range(64))") == 1


@pytest.mark.timeout(90)
def test_many_readers_connect_at_once(hands: Crew, tmp_path: Path) -> None:
    """More than the server lets in unproven at a time."""
    env = TCP | {"DDSTORE_READ_TIMEOUT_S": "20"}
    hands.core(tmp_path / "h", 1, env=env)
    reader = hands.hire(env=env)
    reader.run(f"extra({str(tmp_path / 'h')!r})")
    reader.run(
        "def once():\n"
        "    out = np.empty((1, 4), dtype=np.int64)\n"
        "    gate.wait()\n"
        "    try:\n"
        "        store.get('x', out, 5)\n"
        "        done.append(None)\n"
        "    except Exception as exc:\n"
        "        done.append(f'{type(exc).__name__}: {exc}')\n"
        "done = []\n"
        "gate = threading.Barrier(600)\n"
        "threading.stack_size(128 << 10)\n"
        "threads = [threading.Thread(target=once, daemon=True) for _ in range(600)]\n"
        "[t.start() for t in threads]"
    )
    wait_until(lambda: reader.run("len(done)") == 600, 60)
    assert reader.run("[d for d in done if d][:3]") == []


# ---- little memory that may be locked ------------------------------------------------


@pytest.mark.timeout(60)
@pytest.mark.parametrize("fabric", ["mapping", "tcp", "ofi:tcp;ofi_rxm"])
def test_little_locked_memory(hands: Crew, tmp_path: Path, fabric: str) -> None:
    env = {"DDSTORE_FABRIC": fabric, "DDSTORE_SHM": "0"}
    if fabric == "mapping":
        env = {"DDSTORE_FABRIC": "auto"}
    members = hands.hire_many(2, env=env, prefix=limited("ulimit -l 64"))
    outcomes = attempt(
        members,
        [f"core({str(tmp_path / 'h')!r}, {r}, 2, width=65536)" for r in range(2)],
    )
    if fabric.startswith("ofi:") and any(isinstance(o, Exception) for o in outcomes):
        pytest.skip(f"optional: no {fabric} here: {outcomes[0]}")
    assert members[0].run("read(range(0, 128, 5), 65536)") == 1


# ---- little memory -------------------------------------------------------------------


@pytest.mark.timeout(60)
def test_more_than_the_machine_has(hands: Crew, tmp_path: Path) -> None:
    members = hands.core(tmp_path / "h", 3)
    codes = [f"store.init('huge', {n}, 1024, 8)" for n in (1, 1 << 30, 1)]
    begun = time.monotonic()
    outcomes = attempt(members, codes)
    print(f"\n{time.monotonic() - begun:.1f} s: {outcomes}")
    for outcome in outcomes:
        assert isinstance(outcome, MemberError)
        assert outcome.kind == "MemoryError"
        assert "MiB" in outcome.text
        assert "limit" in outcome.text
        assert "free" in outcome.text
    together(members, ["store.init('huge', 4, 4, 8)"] * 3)
    for member in members:
        assert member.run("read(range(192))") == 1


@pytest.mark.timeout(60)
def test_sum_of_the_ranks_of_one_host_counts(hands: Crew, tmp_path: Path) -> None:
    """Each rank's part would fit alone, all of them don't: none takes any."""
    members = hands.core(tmp_path / "h", 3)
    free = next(
        int(line.split()[1])
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable")
    )
    rows = free // 2  # times 1,024 bytes: half of it a rank
    begun = time.monotonic()
    outcomes = attempt(members, [f"store.init('half', {rows}, 128, 8)"] * 3)
    print(f"\n{time.monotonic() - begun:.1f} s: {outcomes}")
    assert time.monotonic() - begun < 5
    for outcome in outcomes:
        assert isinstance(outcome, MemberError)
        assert outcome.kind == "MemoryError"
        assert "MiB" in outcome.text
    assert members[1].run("read(range(192))") == 1


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Path]:
    """A control group below this process's own, for 256 MiB."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        old = "memory" in kinds.split(",")
        if not old and kinds:
            continue
        root = Path("/sys/fs/cgroup/memory" if old else "/sys/fs/cgroup")
        one = root / path.strip("/") / f"ddt{os.getpid()}"
        limit = one / ("memory.limit_in_bytes" if old else "memory.max")
        try:
            one.mkdir()
        except OSError:
            continue
        try:
            limit.write_text(str(256 << 20))
            yield one
            return
        except OSError:
            continue
        finally:
            for _ in range(50):
                with suppress(OSError):
                    one.rmdir()
                    break
                time.sleep(0.1)
    pytest.skip("optional: no memory control group can be made here")


@pytest.mark.timeout(60)
def test_memory_limit_of_a_control_group(tmp_path: Path, group: Path) -> None:
    with crew() as hands:
        members = hands.core(tmp_path / "h", 2)
        for member in members:
            (group / "cgroup.procs").write_text(str(member.pid))
        outcomes = attempt(members, ["store.init('big', 200 << 10, 128, 8)"] * 2)
        print(f"\n{outcomes}")
        for outcome in outcomes:
            assert isinstance(outcome, MemberError)
            assert outcome.kind == "MemoryError"
            assert group.name in outcome.text
            assert "256.0 MiB" in outcome.text
        together(members, ["store.init('big', 20 << 10, 128, 8)"] * 2)
        assert members[0].run("read(range(128))") == 1
