"""Core ranks on two hosts and extra members on either: the right interface, rows small
and large, cables that are cut, hosts that die."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np
import pytest
from fault_support import Member, MemberError, attempt, together, wait_until
from sklearn.datasets import load_digits

Host = Any  # of conftest.py
Net = Any

DEMO = Path(__file__).parents[2] / "examples" / "demo_digits.py"
TCP = {"DDSTORE_FABRIC": "tcp", "DDSTORE_READ_TIMEOUT_S": "5"}


def start(
    net: Net, hosts: list[Host], meeting: str, env: dict[str, str], more: str = ""
) -> list[Member]:
    """One core rank a host."""
    members = [net.member(host, env) for host in hosts]
    codes = [f"core({meeting!r}, {r}, {len(hosts)}{more})" for r in range(len(hosts))]
    together(members, codes)
    return members


def path_to(member: Member, rank: int) -> dict[str, Any]:
    """How a member reaches a rank."""
    peer: dict[str, Any] = member.run("store.transports()")[rank]
    return peer


@pytest.mark.timeout(60)
@pytest.mark.parametrize("fabric", ["auto", "tcp", "ofi:tcp;ofi_rxm", "ofi:sockets"])
def test_rows_travel_between_hosts(
    net: Net, pair: tuple[Host, Host], meeting: str, fabric: str
) -> None:
    env = TCP | {"DDSTORE_FABRIC": fabric}
    cores = [net.member(host, env) for host in pair]
    outcomes = attempt(
        cores, [f"core({meeting!r}, {r}, 2, width=384)" for r in range(2)]
    )
    if fabric.startswith("ofi:") and isinstance(outcomes[0], MemberError):
        pytest.skip(f"optional: libfabric here doesn't serve {fabric}: {outcomes[0]}")
    assert not any(isinstance(o, Exception) for o in outcomes), outcomes
    big = 'store.add("big", made(1, [4 * {r} + i for i in range(4)], 131072))'
    together(cores, [big.format(r=r) for r in range(2)])
    extras = [net.member(host, env) for host in pair]
    for member in extras:
        member.run(f"extra({meeting!r}); store.join('big')")
    for i, member in enumerate([*cores, *extras]):
        assert member.run("read(range(128), 384)") == 1
        assert member.run("read(range(128), 384, how='get')") == 1
        assert member.run("read(range(8), 131072, 'big')") == 1
        far, near = path_to(member, 1 - i % 2), path_to(member, i % 2)
        print(f"\n{fabric}: {far}\n{near}")
        assert far["path"] == ("rdma" if fabric.startswith("ofi:") else "tcp")
        assert near["path"] in ("self", "local")
        assert far["host"] == ("beta", "alpha")[i % 2]


READ_IN_CHILD = """
child = os.fork()
if child == 0:
    store = store.fork_reader()
    os._exit(0 if read(range(128), 384) == 1 else 1)
os.waitpid(child, 0)[1]
"""


@pytest.mark.timeout(60)
def test_readers_on_both_hosts(net: Net, pair: tuple[Host, Host], meeting: str) -> None:
    """In forked children, and of a pickle that went to the other host."""
    cores = start(net, list(pair), meeting, TCP, ", width=384")
    for i, core in enumerate(cores):
        assert core.run(READ_IN_CHILD) == 0
        data = core.run("import pickle; pickle.dumps(store).hex()")
        reader = net.member(pair[1 - i], TCP)
        reader.run(f"import pickle; store = pickle.loads(bytes.fromhex({data!r}))")
        assert reader.run("read(range(128), 384)") == 1
        assert path_to(reader, i)["path"] == "tcp"
        assert path_to(reader, 1 - i)["path"] == "local"
        assert reader.run(READ_IN_CHILD) == 0
        assert reader.run("store.core_alive()") is True


@pytest.mark.timeout(120)
def test_demo_runs_across_hosts(
    pair: tuple[Host, Host], meeting: str, tmp_path: Path
) -> None:
    """The demo's own processes: two core ranks a host, the extra one on the second."""
    source = tmp_path / "digits.npy"
    np.save(source, load_digits().data.astype(np.float32))
    env = {"PATH": os.environ["PATH"], "DDSTORE_HANDSHAKE_DIR": meeting}
    env |= {"DDSTORE_SIZE": "4", "DDSTORE_RUN_ID": tmp_path.name}
    places = [
        ("core", pair[0]),
        ("core", pair[0]),
        ("core", pair[1]),
        ("core", pair[1]),
    ]
    places.append(("extra", pair[1]))
    processes = []
    for rank, (part, host) in enumerate(places):
        words = [sys.executable, str(DEMO), part, source, tmp_path / part]
        if part == "core":
            env["DDSTORE_RANK"] = str(rank)
        processes.append(subprocess.Popen([*host.prefix, *words], env=env, stdin=PIPE))
    try:
        assert processes[4].wait(100) == 0
        for process in processes:
            process.communicate(timeout=20)
        assert [process.returncode for process in processes] == [0] * 5
    finally:
        for process in processes:
            process.kill()
    rows = [one["rows"] for one in json.loads((tmp_path / "core").read_text())]
    extra = json.loads((tmp_path / "extra").read_text())
    assert rows == [20 * 1797] * 4
    assert extra["epoch"]["rows"] == 1797
    assert [p["path"] for p in extra["peers"]] == ["tcp", "tcp", "local", "local"]
    assert [p["host"] for p in extra["peers"]] == ["alpha"] * 2 + ["beta"] * 2


# ---- which interface -----------------------------------------------------------------


@pytest.mark.timeout(60)
def test_named_interface_is_taken(
    net: Net, pair: tuple[Host, Host], meeting: str
) -> None:
    net.join(*pair, name="hsn2", addresses=("10.98.0.1/24", "10.98.0.2/24"))
    members = start(net, list(pair), meeting, TCP | {"FABRIC_IFACE": "cxi2"})
    assert members[0].run("read(range(128))") == 1
    peers = members[0].run(
        "[s for s in open('/proc/net/tcp').read().split() if s.startswith('0200620A:')]"
    )
    assert peers  # 10.98.0.2


@pytest.mark.timeout(60)
def test_wrong_interface_lists_the_candidates(
    net: Net, pair: tuple[Host, Host], meeting: str
) -> None:
    good = net.member(pair[0], TCP)
    bad = net.member(pair[1], TCP | {"FABRIC_IFACE": "hsn7"})
    begun = time.monotonic()
    outcomes = attempt([good, bad], [f"core({meeting!r}, {r}, 2)" for r in range(2)])
    print(f"\n{time.monotonic() - begun:.1f} s: {outcomes}")
    for outcome in outcomes:
        assert isinstance(outcome, MemberError)
        assert outcome.kind == "FabricError"
        for word in ("hsn7", "eth0", "docker0", "lo"):
            assert word in outcome.text
    assert "rank 1" in outcomes[0].text


@pytest.mark.timeout(60)
def test_host_with_loopback_alone_is_named(net: Net, meeting: str) -> None:
    a, b = net.host("alpha"), net.host("beta")
    members = [net.member(host, TCP) for host in (a, b)]
    begun = time.monotonic()
    outcomes = attempt(members, [f"core({meeting!r}, {r}, 2)" for r in range(2)])
    took = time.monotonic() - begun
    print(f"\n{took:.1f} s: {outcomes}")
    assert took < 20
    for outcome in outcomes:
        assert isinstance(outcome, MemberError), outcome
        assert outcome.kind in ("FabricError", "PeerLostError")
        assert "loopback" in outcome.text


@pytest.mark.timeout(60)
def test_loopback_serves_members_of_one_host(net: Net, meeting: str) -> None:
    a = net.host("alpha")
    env = TCP | {"DDSTORE_SHM": "0"}
    members = start(net, [a, a], meeting, env)
    assert members[0].run("read(range(128))") == 1
    assert path_to(members[0], 1)["path"] == "tcp"


@pytest.mark.timeout(60)
def test_docker0_serves_where_it_is_the_only_way(net: Net, meeting: str) -> None:
    a, b = net.host("alpha"), net.host("beta")
    net.join(a, b, name="docker0", addresses=("172.17.0.2/16", "172.17.0.3/16"))
    members = start(net, [a, b], meeting, TCP)
    assert members[0].run("read(range(128))") == 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize("fabric", ["tcp", "ofi:tcp;ofi_rxm"])
def test_ipv6_alone_is_enough(net: Net, meeting: str, fabric: str) -> None:
    a, b = net.host("alpha"), net.host("beta")
    net.join(a, b, addresses=("fd00:99::1/64", "fd00:99::2/64"))
    env = TCP | {"DDSTORE_FABRIC": fabric}
    members = [net.member(host, env) for host in (a, b)]
    outcomes = attempt(members, [f"core({meeting!r}, {r}, 2)" for r in range(2)])
    if fabric != "tcp" and isinstance(outcomes[0], MemberError):
        pytest.skip(f"optional: no {fabric} here: {outcomes[0]}")
    assert not any(isinstance(o, Exception) for o in outcomes), outcomes
    reader = net.member(b, env)
    reader.run(f"extra({meeting!r})")
    for member in (*members, reader):
        assert member.run("read(range(128))") == 1


@pytest.mark.timeout(60)
def test_dead_interface_beside_the_right_one_costs_a_moment(
    net: Net, pair: tuple[Host, Host], meeting: str
) -> None:
    """A second network that leads nowhere, of no telling name, listed before eth0."""
    for host, address in zip(pair, ("10.1.0.1/24", "10.2.0.1/24"), strict=True):
        net.dead(host, "aaa0", address)
        host.ip("route", "add", "default", "via", address[:-4] + "9", "dev", "aaa0")
    members = start(net, list(pair), meeting, TCP)
    begun = time.monotonic()
    assert members[0].run("read(range(128))") == 1
    took = time.monotonic() - begun
    print(f"\nthe first read took {took:.2f} s")
    assert took < 5


# ---- cables and hosts that fail ------------------------------------------------------


def read_from_far(
    net: Net, pair: tuple[Host, Host], meeting: str, timeout_s: int, fabric: str
) -> tuple[list[Member], Member]:
    """A core on both hosts; a loop on alpha that reads beta's rows, one its own."""
    env = TCP | {"DDSTORE_READ_TIMEOUT_S": str(timeout_s), "DDSTORE_FABRIC": fabric}
    members = [net.member(host, env) for host in pair]
    outcomes = attempt(members, [f"core({meeting!r}, {r}, 2)" for r in range(2)])
    if fabric != "tcp" and isinstance(outcomes[0], MemberError):
        pytest.skip(f"optional: no {fabric} here: {outcomes[0]}")
    assert not any(isinstance(o, Exception) for o in outcomes), outcomes
    reader = net.member(pair[0], env)
    reader.run(f"extra({meeting!r}); loop('far', 64, 128); loop('near', 0, 64)")
    for key in ("far", "near"):
        wait_until(lambda k=key: reader.run("told()")[k]["reads"] > 50)
    return members, reader


def set_link(pair: tuple[Host, Host], what: str) -> None:
    """Cuts the cable or mends it, at beta's end."""
    pair[1].ip("link", "set", "eth0", what)


@pytest.mark.timeout(90)
@pytest.mark.parametrize("fabric", ["tcp", "ofi:tcp;ofi_rxm"])
def test_cable_out_for_three_seconds_costs_at_most_the_deadline(
    net: Net, pair: tuple[Host, Host], meeting: str, fabric: str
) -> None:
    _, reader = read_from_far(net, pair, meeting, 15, fabric)
    set_link(pair, "down")
    time.sleep(3)
    before = reader.run("told()")["far"]["reads"]
    set_link(pair, "up")
    begun = time.monotonic()
    wait_until(lambda: reader.run("told()")["far"]["reads"] > before + 20, 20)
    far = reader.run("told()")["far"]
    print(
        f"\n{fabric}: reads go on {time.monotonic() - begun:.1f} s after the cable is"
        f" back; the longest took {far['longest']:.1f} s"
    )
    assert far["error"] is None
    assert far["longest"] < 16
    assert reader.run("end_loops()")["near"]["error"] is None


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("what", "fabric"),
    [
        ("cable", "tcp"),
        ("cable", "ofi:tcp;ofi_rxm"),
        ("cable", "ofi:sockets"),
        ("host", "tcp"),
        ("host", "ofi:tcp;ofi_rxm"),
    ],
)
def test_cable_out_for_good_or_host_dead_is_told_by_the_deadline(
    net: Net, pair: tuple[Host, Host], meeting: str, what: str, fabric: str
) -> None:
    members, reader = read_from_far(net, pair, meeting, 5, fabric)
    when = time.monotonic()
    if what == "cable":
        set_link(pair, "down")
    else:
        pair[1].kill()
    members[0].ask("begun = time.monotonic(); read(range(64, 128))")
    with pytest.raises(MemberError) as caught:  # its first read from there
        members[0].answer(30)
    assert caught.value.kind == "PeerLostError"
    took = members[0].run("time.monotonic() - begun")
    print(f"\n{fabric}, {what}, first contact: {took:.2f} s")
    assert took < 5 + 3
    wait_until(lambda: not reader.run("told()")["far"]["alive"], 30)
    told = reader.run("told()")
    took = told["far"]["failed_at"] - when
    print(f"\n{fabric}, {what}: {took:.2f} s: {told['far']['error'][1]}")
    kind, text = told["far"]["error"]
    assert kind == "PeerLostError"
    assert "rank 1" in text
    assert "beta" in text
    assert took < 5 + 3
    assert told["near"]["alive"]
    assert told["near"]["error"] is None
    assert members[0].run("read(range(64))") == 1


@pytest.mark.timeout(90)
def test_killed_process_of_another_host_is_told_at_once(
    net: Net, pair: tuple[Host, Host], meeting: str
) -> None:
    members, reader = read_from_far(net, pair, meeting, 20, "tcp")
    when = members[1].kill()
    wait_until(lambda: not reader.run("told()")["far"]["alive"], 30)
    far = reader.run("told()")["far"]
    print(f"\n{far['failed_at'] - when:.3f} s: {far['error']}")
    assert far["error"][0] == "PeerLostError"
    assert far["failed_at"] - when < 1 + 3


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["killed", "freed"])
@pytest.mark.parametrize("dead", [0, 1])
def test_collective_without_a_member_of_another_host_ends(
    net: Net, pair: tuple[Host, Host], meeting: str, dead: int, how: str
) -> None:
    members = start(net, list(pair), meeting, TCP)
    waiting = members[1 - dead]
    waiting.ask('store.add("y", np.zeros(3))')
    time.sleep(1)
    if how == "killed":
        members[dead].kill()
    else:
        members[dead].run("store.free()")
    when = time.monotonic()
    with pytest.raises(MemberError) as caught:
        waiting.answer(20)
    print(f"\n{time.monotonic() - when:.1f} s: {caught.value}")
    assert caught.value.kind in ("PeerLostError", "StoreClosedError")
    assert f"rank {dead}" in caught.value.text
    assert waiting.run(f"read(range({64 * (1 - dead)}, {64 * (2 - dead)}))") == 1


@pytest.mark.timeout(60)
def test_member_joins_although_the_cable_was_out(
    net: Net, pair: tuple[Host, Host], meeting: str
) -> None:
    members = start(net, list(pair), meeting, TCP)
    far = net.member(pair[1], TCP | {"DDSTORE_READ_TIMEOUT_S": "20"})
    far.ready()
    set_link(pair, "down")
    far.ask(f"extra({meeting!r}); read(range(128))")
    time.sleep(7)  # longer than a greeting waits
    set_link(pair, "up")
    assert far.answer(30) == 1
    assert members[0].run("read(range(128))") == 1


# ---- claims of another host ----------------------------------------------------------


@pytest.mark.timeout(90)
def test_claim_of_a_living_group_on_another_host(
    net: Net, pair: tuple[Host, Host], meeting: str
) -> None:
    start(net, [pair[0]], meeting, TCP)
    second = net.member(pair[1], TCP)
    begun = time.monotonic()
    with pytest.raises(MemberError) as caught:
        second.run(f"core({meeting!r}, 0, 1, run=2)")
    took = time.monotonic() - begun
    print(f"\n{took:.1f} s: {caught.value.text}")
    assert "alpha:" in caught.value.text
    assert took < 10


@pytest.mark.timeout(90)
def test_claim_of_a_dead_run_on_another_host(
    net: Net, pair: tuple[Host, Host], meeting: str
) -> None:
    first = start(net, list(pair), meeting, TCP)
    early = net.member(pair[1], TCP)
    early.run(f"extra({meeting!r})")
    for member in first:
        member.kill()
    begun = time.monotonic()
    again = [net.member(host, TCP) for host in reversed(pair)]
    extra = net.member(pair[0], TCP)
    extra.ready()
    extra.ask(f"extra({meeting!r}); read(range(128))")
    together(again, [f"core({meeting!r}, {r}, 2, run=2)" for r in range(2)], 60)
    print(f"\nthe second run met after {time.monotonic() - begun:.1f} s")
    assert extra.answer(30) == 2
    early.run("store.join('x')")
    assert early.run("read(range(128))") == 2


@pytest.mark.timeout(60)
def test_claim_of_a_stopped_group_on_another_host(
    net: Net, pair: tuple[Host, Host], meeting: str, long_seconds: float
) -> None:
    """What stands still counts as dead; when it goes on it must not publish."""
    if long_seconds < 60:
        pytest.skip("optional: 20 s long, runs with --long-seconds=60 and more")
    old = start(net, [pair[0]], meeting, TCP)[0]
    old.stop()
    new = net.member(pair[1], TCP)
    new.run(f"core({meeting!r}, 0, 1, run=2)", 40)
    old.signal(18)
    time.sleep(3)
    with pytest.raises(MemberError) as caught:
        old.run('store.add("y", made(1, range(64)))')
    print(f"\n{caught.value}")
    assert "beta:" in caught.value.text
    reader = net.member(pair[0], TCP)
    reader.run(f"extra({meeting!r})")
    assert reader.run("read(range(64))") == 2
    assert new.run("read(range(64))") == 2


def test_nothing_is_left(namespaces: None) -> None:
    """Runs last in this file: no namespace of this process is left."""
    import os
    import subprocess

    left = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True)
    assert f"ddt{os.getpid() % 100000:x}" not in left.stdout
    assert Path("/run/netns").exists()
