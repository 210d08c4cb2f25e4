"""NIC maps: the command `ddstore nic-map`, and stores that are given a map."""

from __future__ import annotations

import os
import pathlib
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from members import environment

from pyddstore import _core

TOPOLOGY = pathlib.Path(__file__).parents[1] / "c" / "topology"
LIMIT_S = 30.0
ROW = re.compile(r"^ *(\d+) +(\d+|\?) +(\S+) +(\d+|\?) +(\w+) *$")
OWN = sorted(os.sched_getaffinity(0))

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def have_hwloc() -> bool:
    """Whether this build and machine can look for NICs."""
    try:
        _core.NicMap(pattern="no-such-nic")
    except _core.FabricError:
        return True
    except RuntimeError:
        return False
    return True


@pytest.fixture
def nic_map(tmp_path: pathlib.Path) -> Command:
    """Runs `ddstore nic-map ARGUMENTS...` on a machine that tests/c/topology describes,
    on some of this machine's CPUs."""
    if not have_hwloc():
        pytest.skip("optional: there is no hwloc")

    def run(
        machine: str, *args: str, cpus: Any = (), **env: str
    ) -> subprocess.CompletedProcess[str]:
        program = (
            f"import os; os.sched_setaffinity(0, {set(cpus or OWN)}); "
            "from pyddstore.cli import main; main()"
        )
        file = machine if "/" in machine else str(TOPOLOGY / f"{machine}.xml")
        return subprocess.run(
            [sys.executable, "-c", program, "nic-map", *args],
            env=environment(**{"HWLOC_XMLFILE": file, **env}),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            cwd=tmp_path,
        )

    return run


def rows(done: subprocess.CompletedProcess[str]) -> list[tuple[str, ...]]:
    """The rows of the table that was printed."""
    assert (done.returncode, done.stderr) == (0, "")
    found = map(ROW.match, done.stdout.splitlines())
    return [match.groups() for match in found if match]


# ---- the command ----


def test_two_sockets(nic_map: Command) -> None:
    table = rows(nic_map("two_by_four"))
    assert [int(row[0]) for row in table] == list(range(64))
    for cpu, numa, nic, nic_numa, how in table:
        core = int(cpu) % 32
        assert (numa, nic_numa, how) == (str(core // 16), str(core // 16), "exact")
        assert nic == f"hsn{core // 4}"


def test_four_domains(nic_map: Command) -> None:
    """Also CPUs that the job may not use; NICs stand at two of the domains."""
    table = rows(nic_map("four_domains"))
    assert len(table) == 32
    assert table[0] == ("0", "0", "ib1", "3", "package")
    assert table[7] == ("7", "1", "ib0", "1", "exact")
    assert table[8] == ("8", "2", "ib0", "1", "package")
    assert table[31] == ("31", "3", "ib1", "3", "exact")


def test_one_nic(nic_map: Command) -> None:
    table = rows(nic_map("one_nic"))
    assert [row[2] for row in table] == ["enp129s0"] * 8
    assert [row[4] for row in table] == ["distance"] * 4 + ["exact"] * 4


def test_unknown_places(nic_map: Command) -> None:
    assert rows(nic_map("guest"))[0] == ("0", "0", "eth2", "?", "anywhere")


@pytest.mark.parametrize(
    ("machine", "pattern", "value"),
    [
        ("four_domains", "", "ib0=4-11,20-27;ib1=0-3,12-19,28-31"),
        ("four_domains", "ib1", "ib1=0-31"),
        ("one_nic", "", "enp129s0=0-7"),
        ("guest", "", "eth2=0-3;eth10=4-7"),
        ("two_by_four", "hsn[04],x*", "hsn0=0-15,32-47;hsn4=16-31,48-63"),
    ],
)
def test_value(nic_map: Command, machine: str, pattern: str, value: str) -> None:
    """--env prints what DDSTORE_NIC_MAP takes, and nothing else."""
    more = ["-p", pattern] if pattern else []
    done = nic_map(machine, "--env", *more)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{value}\n", "")
    assert str(_core.NicMap(value)) == value


def test_one_cpu(nic_map: Command) -> None:
    for cpu, nic in (("0", "hsn0"), ("63", "hsn7"), ("37", "hsn1")):
        done = nic_map("two_by_four", cpu)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{nic}\n", "")
    done = nic_map("two_by_four", "64")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no CPU 64 (its last one is 63)" in done.stderr
    assert "Traceback" not in done.stderr


def test_allocated(nic_map: Command) -> None:
    cpu = OWN[-1]
    if cpu >= 64:
        pytest.skip("optional: the description has 64 CPUs")
    nic = f"hsn{cpu % 32 // 4}"
    done = nic_map("two_by_four", "--allocated", cpus=[cpu])
    assert [(row[0], row[2]) for row in rows(done)] == [(str(cpu), nic)]
    assert f"interfaces: {nic}\n" in done.stdout
    assert f"this process takes {nic}: it is near this process's CPUs" in done.stdout


def test_allocated_without_a_cpu_in_the_map(
    nic_map: Command, tmp_path: pathlib.Path
) -> None:
    """Of a machine with other CPUs than this one: NICs take turns, with a warning."""
    text = (TOPOLOGY / "guest.xml").read_text()
    for cpu in range(8):  # these CPUs have other numbers
        text = text.replace(f'"PU" os_index="{cpu}"', f'"PU" os_index="{cpu + 4000}"')
    mask = "0x000000ff"

    def shifted(match: re.Match[str]) -> str:
        return match[1] + match[2] + ",0x0" * 125 + '"'

    assert mask in text
    text = re.sub(r'(cpuset=")(0x[0-9a-f]+)"', shifted, text)
    other = tmp_path / "other.xml"
    other.write_text(text)
    done = nic_map(str(other), "--allocated", SLURM_LOCALID="3")
    assert done.returncode == 0, done.stderr
    assert "none of this process's CPUs is in the map" in done.stdout
    assert "takes eth10: one of 2 that take turns, by local rank 3" in done.stdout
    assert "none of this process's CPUs is in the NIC map: eth10" in done.stderr


def test_garbage(nic_map: Command, tmp_path: pathlib.Path) -> None:
    bad = tmp_path / "bad.xml"
    bad.write_text("<topology><object>")
    for file in (bad, tmp_path / "missing.xml"):
        done = nic_map(str(file))
        assert (done.returncode, done.stdout) == (1, "")
        assert "ddstore nic-map: hwloc can't" in done.stderr
        assert "HWLOC_XMLFILE" in done.stderr
        assert "Traceback" not in done.stderr


def test_no_nic(nic_map: Command) -> None:
    done = nic_map("one_nic", "-p", "hsn*")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no network interface of a PCI device has a name like hsn*" in done.stderr


@pytest.mark.parametrize(
    "args", [["-1"], ["x"], ["--env", "--allocated"], ["--env", "3"], ["-p"]]
)
def test_usage(nic_map: Command, args: list[str]) -> None:
    done = nic_map("one_nic", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Error: " in done.stderr


# ---- the map in Python ----


def test_map_of_a_text() -> None:
    nics = _core.NicMap("hsn1=1;hsn0=0,4")
    assert str(nics) == "hsn1=1;hsn0=0,4"
    given = {"numa": None, "nic_numa": None, "how": "given"}
    assert nics.cpus() == [
        {"cpu": 0, "nic": "hsn0", **given},
        {"cpu": 1, "nic": "hsn1", **given},
        {"cpu": 4, "nic": "hsn0", **given},
    ]
    assert _core.NicMap("hsn1=0-8191").choose() == (
        "hsn1",
        "it is near this process's CPUs",
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "character 1 (its end)"),
        ("hsn0=0-15,64-;hsn1=16", "character 14 (';hsn1=16')"),
        ("hsn0=0\0", "NUL"),
        ("hsn\udc80=x", "character"),
    ],
)
def test_malformed(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        _core.NicMap(text)


def test_no_pickle() -> None:
    with pytest.raises(TypeError, match="send its text"):
        pickle.dumps(_core.NicMap("a=0"))


# ---- stores ----

OPEN = """
import sys, pyddstore
for _ in range(2):
    pyddstore.PyDDStore(None, method=1, handshake_dir=sys.argv[1], rank=0, size=1,
                        {more}).free()
"""


def open_store(
    tmp_path: pathlib.Path, more: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    """A process that opens two stores, one after the other."""
    return subprocess.run(
        [sys.executable, "-c", OPEN.format(more=more), str(tmp_path / "h")],
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=tmp_path,
    )


def test_malformed_map_of_a_store(tmp_path: pathlib.Path) -> None:
    for more, env in (
        ("nic_map='lo=0-x'", {}),
        ("", {"DDSTORE_NIC_MAP": "lo=0-x"}),
        ("", {"DDSTORE_NIC_MAP": "lo=0-x", "FABRIC_IFACE": "lo"}),
        ("nic_map='lo=0-x'", {"DDSTORE_NIC_MAP": "lo=0"}),
    ):
        done = open_store(tmp_path, more, **env)
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        assert last.startswith("ValueError: "), last
        assert "DDSTORE_NIC_MAP" in last
        assert "character 6 ('x')" in last


def test_malformed_map_beside_an_open_store(store: Any, tmp_path: pathlib.Path) -> None:
    import pyddstore

    with pytest.raises(ValueError, match="character 4"):
        pyddstore.PyDDStore(
            None, method=1, handshake_dir=str(tmp_path / "h"), rank=0, size=1,
            exchange_ns="other", nic_map="lo=",
        )  # fmt: skip


def test_the_argument_wins(tmp_path: pathlib.Path) -> None:
    whole = "0-8191"
    done = open_store(tmp_path, DDSTORE_NIC_MAP=f"nosuch7={whole}")
    assert done.returncode == 0, done.stderr
    assert "nosuch7 for this process, but it can't be used" in done.stderr
    done = open_store(
        tmp_path, f"nic_map='lo={whole}'", DDSTORE_NIC_MAP=f"nosuch7={whole}"
    )
    assert (done.returncode, done.stderr) == (0, "")
    done = open_store(tmp_path, DDSTORE_NIC_MAP=f"nosuch7={whole}", FABRIC_IFACE="lo")
    assert (done.returncode, done.stderr) == (0, "")


def test_hwloc_is_not_loaded_without_need(tmp_path: pathlib.Path) -> None:
    """Neither for a map that is given, nor where there is no high-speed hardware."""
    settings = [{"DDSTORE_NIC_MAP": "lo=0-8191"}]
    if not any(map(os.path.exists, ("/sys/class/infiniband", "/sys/class/cxi"))):
        settings.append({})
    for env in settings:
        done = subprocess.run(
            [
                *[sys.executable, "-c"],
                OPEN.format(more="")
                + "print('libhwloc' in open('/proc/self/maps').read())",
                str(tmp_path / "h"),
            ],
            env=environment(**env),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            cwd=tmp_path,
        )
        assert (done.stdout, done.stderr) == ("False\n", "")


def test_info_tells_the_choice(tmp_path: pathlib.Path) -> None:
    for value, words in (
        ("lo=0-8191", "taken, it is near this process's CPUs"),
        ("lo=", "refused: DDSTORE_NIC_MAP"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "pyddstore.cli", "info"],
            env=environment(DDSTORE_NIC_MAP=value),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        assert words in done.stdout
