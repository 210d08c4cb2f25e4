"""Members that sleep, hang, are stopped or killed while others read from them."""

from __future__ import annotations

import functools
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from fault_support import (
    Crew,
    Member,
    MemberError,
    attempt,
    cpu_nanoseconds,
    crew,
    wait_until,
)

FABRICS = ["mapping", "tcp", "ofi:tcp;ofi_rxm", "ofi:sockets"]
NETWORKS = FABRICS[1:]
Test = TypeVar("Test", bound=Callable[..., None])


def settings_of(fabric: str) -> dict[str, str]:
    """The environment under which all reads between processes take that path."""
    if fabric == "mapping":
        return {"DDSTORE_FABRIC": "tcp"}
    return {"DDSTORE_FABRIC": fabric, "DDSTORE_SHM": "0"}


@functools.cache
def trouble_with(fabric: str) -> str:
    """Why the fabric can't be used here; "" if it can."""
    with crew() as c:
        member = c.hire(env=settings_of(fabric))
        try:
            member.run(
                "import tempfile\n"
                "PyDDStore(None, method=1, rank=0, size=1,"
                " handshake_dir=tempfile.mkdtemp()).free()"
            )
        except MemberError as exc:
            return exc.text
    return ""


def on(*quick: str) -> Callable[[Test], Test]:
    """Runs a test on these paths, and in long runs (--long-seconds) on all others too
    that it can run on."""

    def mark(test: Test) -> Test:
        test.quick = quick  # type: ignore[attr-defined]
        return test

    return mark


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The paths of a test that takes `fabric` or `network`."""
    for fixture, every in (("fabric", FABRICS), ("network", NETWORKS)):
        if fixture in metafunc.fixturenames:
            quick = list(metafunc.function.quick)
            params: list[Any] = quick[:]
            if float(metafunc.config.getoption("--long-seconds")) >= 60:
                params += [
                    pytest.param(f, marks=pytest.mark.long)
                    for f in every
                    if f not in quick
                ]
            metafunc.parametrize(fixture, params, indirect=True)


@pytest.fixture
def fabric(request: pytest.FixtureRequest) -> str:
    return usable(request.param)


@pytest.fixture
def network(request: pytest.FixtureRequest) -> str:
    return usable(request.param)


def usable(fabric: str) -> str:
    """The fabric, or a skip."""
    if fabric.startswith("ofi:") and (why := trouble_with(fabric)):
        pytest.skip(f"optional: libfabric here doesn't serve {fabric}: {why}")
    return fabric


@pytest.fixture
def hands() -> Iterator[Crew]:
    with crew() as one:
        yield one


def told(member: Member, key: str) -> dict[str, Any]:
    """What a member's loop has to say."""
    answer: dict[str, Any] = member.run("told()")[key]
    return answer


# ---- members that don't run while they are read from ---------------------------------

TIMED_READS = """
out = np.empty((1, 384), dtype=np.int64)
times = []
until = time.monotonic() + {seconds}
row = 0
while time.monotonic() < until:
    begun = time.perf_counter()
    store.get("x", out, {first} + row % 64)
    times.append(time.perf_counter() - begun)
    assert out[0, 0] == 10**12 + ({first} + row % 64) * 1000, out[0, 0]
    row += 1
times.sort()
{{"n": len(times), "p50": times[len(times) // 2], "p99": times[len(times) * 99 // 100],
 "max": times[-1]}}
"""


def show(what: str, figures: dict[str, float]) -> None:
    """One line of latencies, for who runs pytest with -s."""
    print(
        f"\n{what}: {figures['n']:.0f} reads, p50 {figures['p50'] * 1e3:.3f} ms,"
        f" p99 {figures['p99'] * 1e3:.3f} ms, longest {figures['max'] * 1e3:.1f} ms"
    )


@on("tcp", "ofi:tcp;ofi_rxm", "ofi:sockets")
@pytest.mark.timeout(60)
def test_sleeping_and_gil_holding_cores_serve(
    hands: Crew, tmp_path: Path, network: str
) -> None:
    env = settings_of(network)
    cores = hands.core(tmp_path / "h", 2, env=env, more={"width": 384})
    reader = hands.hire(env=env)
    reader.run(f"extra({str(tmp_path / 'h')!r})")
    cores[0].ask("time.sleep(8)")
    cores[1].ask("import ctypes; ctypes.PyDLL(None).usleep(8_000_000)")
    time.sleep(0.2)
    for rank, what in enumerate(["sleeps in Python", "holds the GIL in C"]):
        figures = reader.run(TIMED_READS.format(seconds=1, first=64 * rank))
        show(f"{network}, 3 KB from a core that {what}", figures)
        assert figures["n"] > 20
        assert figures["p99"] < 0.1


@pytest.mark.timeout(90)
def test_idle_and_waiting_members_use_no_cpu(hands: Crew, tmp_path: Path) -> None:
    watched: dict[str, Member] = {}
    for fabric in FABRICS:
        if fabric.startswith("ofi:") and trouble_with(fabric):
            continue
        env = settings_of(fabric)
        directory = tmp_path / f"h{len(watched)}"
        cores = hands.core(directory, 2, env=env)
        reader, waiting = hands.hire_many(2, env=env)
        reader.run(f"extra({str(directory)!r}); read(range(128))")
        waiting.ask(f"extra({str(directory)!r}, 'later')")
        watched |= {
            f"core on {fabric}": cores[1],
            f"core that is asked on {fabric}": cores[0],
            f"extra on {fabric}": reader,
            f"extra waiting in join on {fabric}": waiting,
        }
    for rank, member in enumerate(hands.hire_many(2)):
        member.ask(f"core({str(tmp_path / f'w{rank}')!r}, {rank}, 2)")
        watched[f"rank {rank} waiting to meet"] = member
    time.sleep(2)  # back-offs have to grow
    before = {what: cpu_nanoseconds(m.pid) for what, m in watched.items()}
    begun = time.monotonic()
    time.sleep(5)
    span = time.monotonic() - begun
    share = {
        what: (cpu_nanoseconds(m.pid) - before[what]) / 1e7 / span
        for what, m in watched.items()
    }
    print("\n" + "\n".join(f"{w}: {s:.3f} % of a core" for w, s in share.items()))
    assert all(s < 0.5 for s in share.values()), share


BIG = 4 << 20  # elements of int64 a row: 32 MB


@on("tcp", "ofi:tcp;ofi_rxm")
@pytest.mark.timeout(90)
def test_reader_that_stops_in_mid_answer_slows_no_other(
    hands: Crew, tmp_path: Path, network: str
) -> None:
    env = settings_of(network)
    directory = str(tmp_path / "h")
    core = hands.core(tmp_path / "h", 1, env=env, more={"width": 384})[0]
    core.run(f'store.add("big", np.ones((2, {BIG}), dtype=np.int64))')
    slow, quick = hands.hire_many(2, env=env)
    slow.run(f"extra({directory!r}, 'big')")
    quick.run(f"extra({directory!r})")
    before = quick.run(TIMED_READS.format(seconds=1, first=0))
    slow.run(
        "def again():\n"
        "    global done\n"
        f"    out = np.empty((1, {BIG}), dtype=np.int64)\n"
        "    done = 0\n"
        "    while True:\n"
        "        store.get('big', out, done % 2)\n"
        "        done += 1\n"
        "threading.Thread(target=again, daemon=True).start()"
    )
    wait_until(lambda: slow.run("done") > 0)
    slow.stop()
    time.sleep(0.2)
    during = quick.run(TIMED_READS.format(seconds=2, first=0))
    show(f"{network}, alone", before)
    show(f"{network}, beside a reader that stopped", during)
    assert during["p99"] < 0.1
    slow.signal(signal.SIGCONT)
    wait_until(lambda: slow.run("done") > 2)


# ---- members that are killed ---------------------------------------------------------

WITHIN_S = {"mapping": 1.0, "tcp": 1.0}
SLACK_S = 3.0  # for a loaded machine


def start_readers(hands: Crew, directory: Path, env: dict[str, str]) -> list[Member]:
    """Two extras with a loop on each of three ranks, and one over all of them."""
    readers = hands.hire_many(2, env=env)
    for reader in readers:
        reader.run(f"extra({str(directory)!r})")
        reader.run("[loop(str(r), 64 * r, 64 * r + 64) for r in range(3)]")
        reader.run("loop('all', 0, 192, count=30)")
    for reader in readers:
        for key in "012":
            wait_until(lambda r=reader, k=key: told(r, k)["reads"] > 20)
    return readers


def check_loss(readers: list[Member], fabric: str, killed: float) -> None:
    """Those who read rank 1 learn of its end, the others read on."""
    limit = WITHIN_S.get(fabric, 5.0)
    for reader in readers:
        wait_until(lambda r=reader: not told(r, "1")["alive"], 30)
        wait_until(lambda r=reader: not told(r, "all")["alive"], 30)
        for key in ("1", "all"):
            loss = told(reader, key)
            took = loss["failed_at"] - killed
            print(f"\n{fabric}, loop {key}: {took:.3f} s: {loss['error'][1]}")
            assert loss["error"][0] == "PeerLostError", loss
            assert "rank 1" in loss["error"][1]
            assert reader.run("socket.gethostname()") in loss["error"][1]
            assert took < limit + SLACK_S
    reads = [[told(r, k)["reads"] for k in "02"] for r in readers]
    time.sleep(1)
    for reader, before in zip(readers, reads, strict=True):
        for key, n in zip("02", before, strict=True):
            now = told(reader, key)
            print(f"\n{fabric}: loop {key}: {now['reads'] - n} reads in 1 s, {now}")
            assert now["alive"]
            assert now["wrong"] == 0
            assert now["error"] is None
            assert now["reads"] > n
            assert now["longest"] < 3
        with pytest.raises(MemberError) as caught:
            reader.run("read([64])")
        assert caught.value.kind == "PeerLostError"
        assert "rank 1" in caught.value.text
        assert reader.run("read([0, 63, 128, 191])") == 1
        assert reader.run("store.transports()")[1]["state"] == "lost"
        assert reader.run("store.core_alive()") is False


@on("mapping", "tcp", "ofi:tcp;ofi_rxm", "ofi:sockets")
@pytest.mark.timeout(90)
def test_killed_core_is_lost_and_the_others_go_on(
    hands: Crew, tmp_path: Path, fabric: str
) -> None:
    env = settings_of(fabric) | {"DDSTORE_READ_TIMEOUT_S": "5"}
    cores = hands.core(tmp_path / "h", 3, env=env)
    readers = start_readers(hands, tmp_path / "h", env)
    check_loss(readers, fabric, cores[1].kill())


@on("mapping", "tcp")
@pytest.mark.timeout(90)
def test_core_killed_with_living_children(
    hands: Crew, tmp_path: Path, fabric: str
) -> None:
    env = settings_of(fabric) | {"DDSTORE_READ_TIMEOUT_S": "5"}
    cores = hands.core(tmp_path / "h", 3, env=env)
    readers = start_readers(hands, tmp_path / "h", env)
    below = cores[1].run(
        "def child():\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        time.sleep(40)\n"
        "        os._exit(0)\n"
        "    return pid\n"
        "[child() for _ in range(2)]"
    )
    try:
        check_loss(readers, fabric, cores[1].kill())
        assert all(Path(f"/proc/{pid}").exists() for pid in below)
    finally:
        for pid in below:
            Member.end(pid)


@on("mapping", "tcp")
@pytest.mark.timeout(60)
def test_whole_core_killed_is_told_at_once(
    hands: Crew, tmp_path: Path, fabric: str
) -> None:
    env = settings_of(fabric) | {"DDSTORE_READ_TIMEOUT_S": "5"}
    cores = hands.core(tmp_path / "h", 2, env=env)
    reader = hands.hire(env=env)
    reader.run(f"extra({str(tmp_path / 'h')!r}); read(range(128))")
    for core in cores:
        core.kill()
    with pytest.raises(MemberError) as caught:
        wait_until(lambda: reader.run("read(range(128))", 20) and None)
    assert caught.value.kind == "PeerLostError"
    assert reader.run("store.core_alive()", 10) is False


@on("mapping", "tcp", "ofi:tcp;ofi_rxm")
@pytest.mark.timeout(60)
def test_freed_core_is_told_from_a_lost_one(
    hands: Crew, tmp_path: Path, fabric: str
) -> None:
    env = settings_of(fabric) | {"DDSTORE_READ_TIMEOUT_S": "5"}
    cores = hands.core(tmp_path / "h", 3, env=env)
    readers = start_readers(hands, tmp_path / "h", env)
    cores[1].run("store.free()")
    for reader in readers:
        wait_until(lambda r=reader: not told(r, "1")["alive"], 30)
        loss = told(reader, "1")
        print(f"\n{fabric}: {loss['error']}")
        assert loss["error"][0] == "StoreClosedError", loss
        assert "rank 1" in loss["error"][1]
        assert told(reader, "0")["alive"]
        assert reader.run("read([0, 63, 128, 191])") == 1


@on("tcp", "ofi:tcp;ofi_rxm")
@pytest.mark.timeout(60)
def test_stopped_core_that_goes_on_loses_nothing(
    hands: Crew, tmp_path: Path, fabric: str
) -> None:
    env = settings_of(fabric) | {"DDSTORE_READ_TIMEOUT_S": "20"}
    cores = hands.core(tmp_path / "h", 3, env=env)
    readers = start_readers(hands, tmp_path / "h", env)
    fresh = hands.hire(env=env)
    fresh.run(f"extra({str(tmp_path / 'h')!r})")
    cores[1].stop()
    stuck = [told(r, "1")["reads"] for r in readers]
    fresh.ask("read(range(192))")  # its first contact with the stopped one
    time.sleep(3)
    cores[1].signal(signal.SIGCONT)
    assert fresh.answer(30) == 1
    for reader, n in zip(readers, stuck, strict=True):
        wait_until(lambda r=reader, n=n: told(r, "1")["reads"] > n + 20, 30)
        for key, loop in reader.run("end_loops()").items():
            assert loop["error"] is None, (key, loop)
            assert loop["wrong"] == 0


@on("tcp", "ofi:tcp;ofi_rxm")
@pytest.mark.timeout(60)
def test_stopped_core_is_lost_at_the_deadline(
    hands: Crew, tmp_path: Path, network: str
) -> None:
    env = settings_of(network) | {"DDSTORE_READ_TIMEOUT_S": "2"}
    cores = hands.core(tmp_path / "h", 2, env=env)
    reader = hands.hire(env=env)
    reader.run(f"extra({str(tmp_path / 'h')!r}); read(range(128))")
    cores[1].stop()
    begun = time.monotonic()
    with pytest.raises(MemberError) as caught:
        reader.run("read(range(128))")
    took = time.monotonic() - begun
    print(f"\n{network}: {took:.2f} s: {caught.value.text}")
    assert caught.value.kind == "PeerLostError"
    assert "rank 1" in caught.value.text
    assert "DDSTORE_READ_TIMEOUT_S" in caught.value.text
    assert 1.5 < took < 2 + SLACK_S
    assert reader.run("read(range(64))") == 1


@on("tcp", "ofi:tcp;ofi_rxm", "ofi:sockets")
@pytest.mark.timeout(60)
def test_interrupt_ends_a_read(hands: Crew, tmp_path: Path, network: str) -> None:
    env = settings_of(network)
    cores = hands.core(tmp_path / "h", 2, env=env)
    reader = hands.hire(env=env)
    reader.run(f"extra({str(tmp_path / 'h')!r}); read(range(128))")
    cores[1].stop()
    reader.ask("read([64])")
    time.sleep(0.5)
    reader.signal(signal.SIGINT)
    with pytest.raises(MemberError) as caught:
        reader.answer(10)
    assert caught.value.kind == "KeyboardInterrupt"
    cores[1].signal(signal.SIGCONT)
    assert reader.run("read(range(128))") == 1


@pytest.mark.timeout(60)
def test_core_killed_in_a_collective_fails_the_others(
    hands: Crew, tmp_path: Path
) -> None:
    cores = hands.core(tmp_path / "h", 3)
    cores[2].kill()
    begun = time.monotonic()
    outcomes = attempt(cores[:2], ['store.add("y", np.zeros(3))'] * 2, 30)
    print(f"\n{time.monotonic() - begun:.2f} s: {[str(o) for o in outcomes]}")
    for outcome in outcomes:
        assert isinstance(outcome, MemberError)
        assert outcome.kind == "PeerLostError"
        assert "rank 2" in outcome.text
    assert cores[0].run("read(range(128))") == 1
