"""The SPANK plugin under a program that plays slurmstepd: directories, values and
options. Every call succeeds, whatever is asked."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest
from spank_build import HOSTS
from spank_node import (
    BATCH,
    DIR,
    MAP,
    NAMELESS,
    NIC_MAP,
    OTHER,
    USER,
    Node,
    owned,
    read,
)

# ---- as it should be -----------------------------------------------------------------


def test_a_step_and_the_jobs_end(node: Node) -> None:
    told = node.step("--env", "MINE=1")
    path = node.base / "7"
    assert told.env == {
        "MINE": "1",
        DIR: str(path),
        NIC_MAP: MAP,
        "DDSTORE_SPANK_SET": f"7:n7:{DIR},{NIC_MAP}",
    }
    assert told.logs == []
    assert told.left == (0, 0)
    there = path.lstat()
    assert (stat.S_IMODE(there.st_mode), there.st_uid, there.st_gid) == (
        *(0o700, USER),
        USER,
    )
    assert stat.S_IMODE(node.state.lstat().st_mode) & 0o77 == 0
    (path / "deep" / "er").mkdir(parents=True)
    (path / "deep" / "er" / "file").touch()
    (path / "link").symlink_to("/etc")
    for one in (path / "deep", path / "deep" / "er"):
        os.chown(one, USER, USER)
    assert node.epilog("--job", "8").logs == []  # another job's
    assert path.exists()
    assert node.epilog().logs == []
    assert node.all() == set()
    assert {one.name for one in node.state.iterdir()} == {"nic_map", "nic_map.lock"}


def test_the_first_node_notes(node: Node) -> None:
    told = node.step("--node", "1")
    assert told.env[DIR] == f"{node.base}/7"
    node.epilog()
    assert "7" in node.all()


def test_batch_script_and_its_restart(node: Node) -> None:
    """Slurm 22.05 tells the restart count only in the task."""
    words = ("--step", str(BATCH), "--task", "SLURM_RESTART_COUNT=2")
    told = node.step(*words)
    assert told.env[DIR] == f"{node.base}/7.2"
    (node.base / "7").mkdir()  # another run's: its marker is of another restart
    os.chown(node.base / "7", USER, USER)
    assert node.epilog().logs == []
    assert node.all() == {"7"}
    assert node.step("--step", str(BATCH)).env[DIR] == f"{node.base}/7"
    # Submitted by a job that was requeued.
    told = node.step("--step", str(BATCH), "--env", "SLURM_RESTART_COUNT=3")
    assert told.env[DIR] == f"{node.base}/7"
    assert "SLURM_RESTART_COUNT" not in told.env


def test_a_step_of_the_second_run(node: Node) -> None:
    told = node.step("--env", "SLURM_RESTART_COUNT=1")
    assert told.env[DIR] == f"{node.base}/7.1"
    node.epilog()
    assert node.all() == set()


def test_components_share_the_first_ones(node: Node) -> None:
    words = [f"SLURM_JOB_ID_HET_GROUP_{i}={7 + i}" for i in range(3)]
    env = [word for one in words for word in ("--env", one)]
    told = node.step("--job", "9", *env)
    assert told.env[DIR] == f"{node.base}/7"
    assert told.env["DDSTORE_SPANK_SET"].startswith("7:n7:")
    node.epilog("--job", "9")
    assert node.all() == set()
    # A job that one of them has submitted.
    assert node.step("--job", "20", *env).env[DIR] == f"{node.base}/20"


@pytest.mark.parametrize(
    ("args", "words", "values"),
    [
        (("enable=opt-in",), (), set()),
        (("enable=opt-in",), ("--option", "ddstore"), {DIR, NIC_MAP}),
        (("enable=opt-in",), ("--option", "ddstore="), {DIR, NIC_MAP}),
        (("enable=opt-in",), ("--option", "ddstore=(null)"), {DIR, NIC_MAP}),
        (("enable=opt-in",), ("--option", "ddstore=yes"), {DIR, NIC_MAP}),
        (("enable=opt-in",), ("--option", "ddstore-join=5"), {DIR, NIC_MAP}),
        ((), ("--option", "ddstore=no"), set()),
        ((), ("--option", "ddstore=no", "--option", "ddstore-join=5"), set()),
        (("map=no",), (), {DIR}),
    ],
)
def test_who_gets_it(
    node: Node, args: tuple[str, ...], words: tuple[str, ...], values: set[str]
) -> None:
    told = node.step(*words, args=args)
    assert set(told.env) - {"DDSTORE_SPANK_SET"} == values
    assert ("DDSTORE_SPANK_SET" in told.env) == bool(values)


def test_templates(node: Node) -> None:
    told = node.step(args=(f"dir={node.base}/%u/%j/100%%/",))
    assert told.env[DIR] == f"{node.base}/nobody/7/100%/7"
    option = f"ddstore-dir={node.base}/own-%j"
    assert node.step("--option", option).env[DIR] == f"{node.base}/own-7/7"
    node.epilog()
    assert node.all() == {"nobody", "nobody/7", "nobody/7/100%", "own-7"}


def test_a_user_without_a_name(node: Node) -> None:
    node.base.chmod(0o777)
    told = node.step("--uid", str(NAMELESS), args=(f"dir={node.base}/%u",))
    assert told.env[DIR] == f"{node.base}/{NAMELESS}/7"
    node.epilog()  # a job of that number, but not of that user
    assert (node.base / str(NAMELESS)).exists()


def test_long_paths(node: Node) -> None:
    """As long as a path may be, in parts; one part is too long."""
    deep = "/".join(["d" * 100] * 4)
    told = node.step("--option", f"ddstore-dir={node.base}/{deep}")
    assert told.env[DIR] == f"{node.base}/{deep}/7"
    node.epilog()
    assert not (node.base / deep / "7").exists()
    before = node.all()
    told = node.step("--option", f"ddstore-dir={node.base}/{'d' * 300}")
    assert "File name too long" in told.error
    assert DIR not in told.env
    told = node.step("--option", f"ddstore-dir=/{'d/' * 2100}")
    assert "--ddstore-dir" in told.error
    assert DIR not in told.env
    assert node.all() == before


def test_large_environment(node: Node) -> None:
    env = [w for i in range(40) for w in ("--env", f"V{i}={'x' * 50_000}")]
    told = node.step(*env)
    assert told.env[DIR] == f"{node.base}/7"
    assert len(told.env) == 43


def test_beside_busy_threads(node: Node) -> None:
    """As slurmstepd may have some: their locks don't hold up the children."""
    node.program = node.program.with_name(Path(HOSTS[1]).name)
    for _ in range(20):
        told = node.step("--busy", "4", args=("timeout_ms=1900",))
        assert told.env[DIR] == f"{node.base}/7"
        assert (told.error, told.left) == ("", (0, 0))
        (node.state / "nic_map").unlink()


# ---- whose value ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # The user's are kept.
        ({DIR: "/mine"}, {DIR: "/mine", NIC_MAP: MAP}),
        ({NIC_MAP: "x=0"}, {DIR: "{base}/7", NIC_MAP: "x=0"}),
        ({DIR: "", NIC_MAP: ""}, {DIR: "{base}/7", NIC_MAP: MAP}),
        # The plugin's are set anew, of another node or job.
        (
            {DIR: "{base}/7", NIC_MAP: "x=0", "SET": f"7:n1:{DIR},{NIC_MAP}"},
            {DIR: "{base}/7", NIC_MAP: MAP},
        ),
        (
            {DIR: "/old/6", NIC_MAP: "x=0", "SET": f"6:n1:{DIR},{NIC_MAP}"},
            {DIR: "{base}/7", NIC_MAP: MAP},
        ),
        # Or go, where there is no new one.
        (
            {"DDSTORE_N_CORE": "4", "SET": "6:n1:DDSTORE_N_CORE", "ERROR": "old"},
            {DIR: "{base}/7", NIC_MAP: MAP},
        ),
        # One that isn't listed is the user's, beside others that are.
        (
            {DIR: "/mine", NIC_MAP: "x=0", "SET": f"6:n1:{NIC_MAP}"},
            {DIR: "/mine", NIC_MAP: MAP},
        ),
        # Of this very job, and changed by its script.
        (
            {DIR: "/mine", NIC_MAP: "x=0", "SET": f"7:n1:{DIR},{NIC_MAP}"},
            {DIR: "/mine", NIC_MAP: MAP},
        ),
        # Names that are no variables of the plugin's stay out of it.
        (
            {"SET": "6:n1:PATH,FOO", "FOO": "1"},
            {"FOO": "1", DIR: "{base}/7", NIC_MAP: MAP},
        ),
        ({"SET": "x" * 600}, {DIR: "{base}/7", NIC_MAP: MAP}),
    ],
)
def test_whose_value(node: Node, before: dict[str, str], after: dict[str, str]) -> None:
    names = {"SET": "DDSTORE_SPANK_SET", "ERROR": "DDSTORE_SPANK_ERROR"}
    words = [
        word
        for name, value in before.items()
        for word in ("--env", f"{names.get(name, name)}={value.format(base=node.base)}")
    ]
    told = node.step(*words)
    set_now = told.env.pop("DDSTORE_SPANK_SET")
    assert told.env == {k: v.format(base=node.base) for k, v in after.items()}
    listed = set_now.removeprefix("7:n7:").split(",")
    mine = {name for name, value in before.items() if after.get(name) == value}
    assert set(listed) == set(after) - (mine - {DIR} if "{" in after[DIR] else mine)
    if after[DIR] == "/mine":
        assert node.all() == set()


def test_stale_values_go_when_it_is_off(node: Node) -> None:
    words = []
    for name, value in (
        (DIR, "/old/6"),
        (NIC_MAP, "x=0"),
        ("DDSTORE_SPANK_SET", f"6:n1:{DIR}"),
        ("DDSTORE_SPANK_ERROR", "old"),
    ):
        words += ["--env", f"{name}={value}"]
    assert node.step(*words, args=("enable=opt-in",)).env == {NIC_MAP: "x=0"}


# ---- arguments and options -----------------------------------------------------------


@pytest.mark.parametrize(
    "word",
    [
        "dir=relative",
        "dri=/x",
        "enable=sometimes",
        "map=",
        "timeout_ms=9",
        "timeout_ms=1901",
        "x",
    ],
)
def test_bad_arguments(node: Node, word: str) -> None:
    told = node.step(args=(word,))
    assert word in told.error
    assert any(word in log for log in told.logs)
    assert told.env[DIR] == f"{node.base}/7"


@pytest.mark.parametrize(
    "option",
    ["ddstore=maybe", "ddstore-dir=relative", "ddstore-dir=/a\nb", "ddstore-dir=/%q"],
)
def test_bad_options(node: Node, option: str) -> None:
    told = node.step("--option", option)
    value = option.split("=")[1].replace("\n", "?")
    assert value in told.error
    assert any(value in log for log in told.logs)
    assert DIR not in told.env
    assert node.all() == set()
    assert told.env[NIC_MAP] == MAP


def test_bad_arguments_are_logged(node: Node) -> None:
    """Also for steps that want nothing of it."""
    told = node.step(args=("x", "enable=opt-in"))
    assert told.env == {}
    assert ["plugstack.conf: x is not" in log for log in told.logs] == [True]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--option", "ddstore"], True),
        (["--option", "ddstore-join=5"], True),
        (["--arg", "enable=always"], False),
    ],
)
def test_no_place_for_it(node: Node, words: list[str], error: bool) -> None:
    """plugstack.conf names none: told to those who have asked for one."""
    done = subprocess.run(
        [str(node.program), "step", "--arg", f"state={node.state}", *words],
        env=node.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    told = read(done.stdout)
    assert ("plugstack.conf has no dir=" in told.error) == error
    assert told.env[NIC_MAP] == MAP
    assert DIR not in told.env


# ---- joining -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "path"),
    [
        ((), "5"),
        (("5",), "5"),
        (("5", "5.1", "5.10", "5.9", "5.x", "5.011", "55", "5.10.1"), "5.10"),
    ],
)
def test_join(node: Node, there: tuple[str, ...], path: str) -> None:
    for name in there:
        owned(node.base / name, USER, 0o700)
    words = ("--option", "ddstore-join=5.0", "--env", f"{DIR}=/mine")
    told = node.step(*words)
    assert (told.error, told.logs) == ("", [])
    assert told.env[DIR] == f"{node.base}/{path}"
    assert "DDSTORE_N_CORE" not in told.env
    assert node.all() == set(there)
    node.epilog()
    assert node.all() == set(there)


@pytest.mark.parametrize(
    "word", ["", "x", "5.", "5.x", "-1", "0", "99999999999", "5.1.2"]
)
def test_join_malformed(node: Node, word: str) -> None:
    told = node.step("--option", f"ddstore-join={word}")
    assert f"--ddstore-join={word}: give JOBID" in told.error
    assert DIR not in told.env


def test_join_another_users(node: Node) -> None:
    owned(node.base / "5", OTHER, 0o777)
    told = node.step("--option", "ddstore-join=5")
    assert f"belongs to another user (uid {OTHER})" in told.error
    assert DIR not in told.env
