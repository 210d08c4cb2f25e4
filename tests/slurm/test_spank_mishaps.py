"""Mishaps of the SPANK plugin that a real cluster can't be given: every call succeeds,
all of a step within 2 s, the reason is told, and nothing is made elsewhere."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from spank_node import (
    DIR,
    LIMIT_MS,
    MAP,
    NIC_MAP,
    OTHER,
    TOPOLOGY,
    USER,
    Node,
    owned,
    plant,
    read,
)

# ---- the map -------------------------------------------------------------------------


def test_map_once_a_boot(node: Node) -> None:
    node.step()
    node.xml = TOPOLOGY / "two_by_four.xml"
    assert node.step().env[NIC_MAP] == MAP
    kept = node.state / "nic_map"
    text = kept.read_text()
    kept.write_text(text.replace("boot ", "boot 0"))
    other = node.step().env[NIC_MAP]
    assert other != MAP
    for damaged in (text[:-2], "", "end\n", text.replace(MAP, "x=9-"), "\0" * 4000):
        kept.write_text(damaged)
        assert node.step().env[NIC_MAP] == other
    kept.write_text(text.replace(MAP, f"{MAP};{'x' * 20_000}=9"))
    assert node.step().env[NIC_MAP] == other
    kept.unlink()
    kept.mkdir()
    told = node.step()
    assert told.env[NIC_MAP] == other
    assert "nic_map can't be kept" in told.error


def test_two_steps_at_once_find_one_map(node: Node, spank_program: Path) -> None:
    count = node.folder / "count"
    steps = [
        subprocess.Popen(
            node.words("step", "--mishap", "slow-map", "--step", str(i)),
            env=node.environment(COUNT=str(count)),
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(3)
    ]
    for step in steps:
        told = read(step.communicate(timeout=20)[0])
        assert told.env[NIC_MAP] == MAP
        assert told.env[DIR] == f"{node.base}/7"
        assert told.ms < LIMIT_MS
    assert count.read_text() == "x"


def test_no_nics(node: Node) -> None:
    """Not an error."""
    node.xml = node.folder / "none.xml"
    node.xml.write_text(
        (TOPOLOGY / "one_nic.xml").read_text().replace("enp129s0", "x0")
    )
    told = node.step()
    assert (told.error, told.logs) == ("", [])
    assert told.env["DDSTORE_SPANK_SET"] == f"7:n7:{DIR}"


def test_hwloc_fails(node: Node) -> None:
    node.xml = node.folder / "garbage.xml"
    node.xml.write_text("<garbage>")
    for _ in range(3):
        told = node.step()
        assert "HWLOC_XMLFILE" in told.error
        assert any("HWLOC_XMLFILE" in log for log in told.logs)
        assert told.env[DIR] == f"{node.base}/7"
        assert NIC_MAP not in told.env
    assert "not tried for again" in node.step().error
    (node.state / "nic_map").unlink()
    node.xml = TOPOLOGY / "one_nic.xml"
    assert node.step().env[NIC_MAP] == MAP


def test_hwloc_hangs(node: Node) -> None:
    """Three steps wait for it, then none."""
    node.xml = node.folder / "fifo"
    os.mkfifo(node.xml)
    for _ in range(3):
        told = node.step()
        assert "preparing a step took more than" in told.error
        assert told.error in told.logs[0]
        assert 500 < told.ms < LIMIT_MS
        assert told.env[DIR] == f"{node.base}/7"
    told = node.step()
    assert "it took too long or crashed" in told.error
    assert told.ms < 500
    assert told.left == (0, 0)


@pytest.mark.parametrize("timeout_ms", [10, 100, 1900])
def test_time_limit_of_the_site(node: Node, timeout_ms: int) -> None:
    told = node.step("--mishap", "hang-map", args=(f"timeout_ms={timeout_ms}",))
    assert timeout_ms * 0.6 < told.ms < timeout_ms + 300
    assert "took more than" in told.error


def test_the_helper_crashes(node: Node) -> None:
    told = node.step("--mishap", "crash-map")
    assert "preparing a step crashed (signal 11)" in told.error
    assert told.env[DIR] == f"{node.base}/7"
    assert told.left == (0, 0)


def test_the_map_is_too_long(node: Node) -> None:
    told = node.step("--mishap", "long-map")
    assert "more than the 16384 that are passed on" in told.error
    assert NIC_MAP not in told.env


def test_the_helper_has_nothing_of_its_parent(node: Node) -> None:
    """Standard ones, the answer's, the lock's and the state's, and what looks."""
    told = node.step("--mishap", "look-around")
    assert "descriptors 9, uid 0, handler 0, blocked 0" in told.error


# ---- the state -----------------------------------------------------------------------


def spoil(node: Node, how: str) -> tuple[str, ...]:
    """Makes the state unusable; words for the program."""
    if how == "file":
        node.state.write_text("")
    elif how == "foreign":
        node.state.mkdir()
        os.chown(node.state, USER, USER)
    elif how == "open to all":
        node.state.mkdir()
        node.state.chmod(0o777)
    elif how == "link":
        (node.folder / "elsewhere").mkdir()
        node.state.symlink_to("elsewhere")
    elif how == "nowhere":
        node.state = node.folder / "no" / "parent"
    return ("--mishap", "full") if how == "full" else ()


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("file", "can't be opened: Not a directory"),
        ("foreign", "is not root's"),
        ("open to all", "may be written by others"),
        ("link", "can't be opened"),
        ("nowhere", "can't be made: No such file or directory"),
        ("full", "can't be kept: No space left on device"),
    ],
)
def test_no_state(node: Node, how: str, reason: str) -> None:
    """The step gets all it should, and is told what will be missing."""
    told = node.step(*spoil(node, how))
    assert reason in told.error
    assert "nobody will remove the job's directory" in told.error
    assert told.env[DIR] == f"{node.base}/7"
    assert told.env[NIC_MAP] == MAP
    if how == "link":
        assert list((node.folder / "elsewhere").iterdir()) == []
    if how == "full":
        assert not [one for one in node.state.iterdir() if one.name.startswith(".")]
    node.epilog()
    assert "7" in node.all()


# ---- the directory -------------------------------------------------------------------


def foreign_parent(node: Node) -> None:
    os.chown(node.base, 0, 0)


def job_link(node: Node) -> None:
    node.base.chmod(0o1777)
    plant(node.base / "7", node.folder / "victim", OTHER)


def own_link(node: Node) -> None:
    plant(node.base / "7", node.folder / "victim", USER)


def base_link(node: Node) -> None:
    node.base.rmdir()
    owned(node.folder / "shared", 0, 0o1777)
    plant(node.folder / "shared" / "base", node.folder / "victim", OTHER)
    node.base = node.folder / "shared" / "base" / "x"


def base_dir(node: Node) -> None:
    node.base.rmdir()
    owned(node.folder / "shared", 0, 0o1777)
    node.base = node.folder / "shared" / "base"
    owned(node.base, OTHER, 0o777)


def loop(node: Node) -> None:
    node.base.rmdir()
    node.base.symlink_to("base")


def foreign_dir(node: Node) -> None:
    owned(node.base / "7", OTHER, 0o777)


def open_dir(node: Node) -> None:
    owned(node.base / "7", USER, 0o777)


def job_file(node: Node) -> None:
    (node.base / "7").touch()


def base_file(node: Node) -> None:
    node.base.rmdir()
    node.base.touch()


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (foreign_parent, "can't be made: Permission denied"),
        (job_link, "is no directory but a symbolic link or a file"),
        (own_link, "is no directory but a symbolic link or a file"),
        (base_link, "'base' is a symbolic link of another user"),
        (base_dir, "'base' is a directory of another user"),
        (loop, "'base' is a symbolic link that can't be followed"),
        (foreign_dir, f"belongs to another user (uid {OTHER})"),
        (open_dir, "may be written by others (mode 777)"),
        (job_file, "is no directory but a symbolic link or a file"),
        (base_file, "'base' is not a directory"),
    ],
)
def test_no_directory(node: Node, prepare: Callable[[Node], None], reason: str) -> None:
    owned(node.folder / "victim", USER)
    prepare(node)
    told = node.step()
    assert reason in told.error
    assert any(reason in log for log in told.logs)
    assert DIR not in told.env
    assert told.env["DDSTORE_SPANK_SET"] == f"7:n7:{NIC_MAP}"
    assert list((node.folder / "victim").iterdir()) == []
    there = node.all() if prepare not in (base_link, loop, base_file) else set()
    node.epilog()
    assert there <= {"7"}
    assert there == (node.all() if there else set())
    assert list((node.folder / "victim").iterdir()) == []


def test_links_of_root_and_of_the_user(node: Node) -> None:
    owned(node.folder / "real", 0)
    owned(node.folder / "real" / "user", USER)
    plant(node.folder / "by-root", node.folder / "real", 0)
    plant(node.folder / "real" / "user" / "by-user", Path("../user/sub"), USER)
    path = node.folder / "by-root" / "user" / "by-user"
    told = node.step("--option", f"ddstore-dir={path}")
    assert "'sub'" not in told.error
    assert told.env[DIR] == f"{path}/7"
    assert (node.folder / "real" / "user" / "sub" / "7").is_dir()
    node.epilog()
    assert list((node.folder / "real" / "user" / "sub").iterdir()) == []


def test_a_directory_that_becomes_anothers(node: Node) -> None:
    """As file systems do that know no user but one."""
    told = node.step("--mishap", "squash", "--uid", "0")
    assert "belongs to another user (uid 65533)" in told.error
    assert DIR not in told.env
    assert node.all() == set()


def test_children_that_nobody_waits_for(node: Node) -> None:
    """Where slurmstepd ignores SIGCHLD, or another thread takes what it tells."""
    told = node.step("--mishap", "ignore-children")
    assert (told.error, told.logs) == ("", [])
    assert told.env[DIR] == f"{node.base}/7"
    assert node.epilog("--mishap", "ignore-children").logs == []
    assert node.all() == set()


@pytest.mark.parametrize("mishap", ["hang-make", "crash-make"])
def test_making_it_fails(node: Node, mishap: str) -> None:
    told = node.step("--mishap", mishap)
    assert "making the job's directory " in told.error
    assert DIR not in told.env
    assert told.env[NIC_MAP] == MAP


# ---- removal -------------------------------------------------------------------------


def gone(path: Path) -> None:
    (path / ".ddstore-spank").unlink()
    path.rmdir()


def replaced_by_link(path: Path) -> None:
    gone(path)
    plant(path, path.parent.parent / "victim", USER)


def without_marker(path: Path) -> None:
    (path / ".ddstore-spank").unlink()


def given_away(path: Path) -> None:
    os.chown(path, OTHER, OTHER)
    path.chmod(0o777)


def marker_is_a_link(path: Path) -> None:
    marker = path / ".ddstore-spank"
    marker.rename(path / "marker")
    marker.symlink_to("marker")


def parent_is_a_link(path: Path) -> None:
    path.parent.rename(path.parent.parent / "moved")
    plant(path.parent, path.parent.parent / "victim", OTHER)


@pytest.mark.parametrize(
    ("change", "log"),
    [
        (gone, ""),
        (replaced_by_link, "is no directory any more"),
        (without_marker, "is not the one that was made"),
        (given_away, "is not the one that was made"),
        (marker_is_a_link, "is not the one that was made"),
        (parent_is_a_link, "is a symbolic link of another user"),
    ],
)
def test_what_is_not_removed(
    node: Node, change: Callable[[Path], None], log: str
) -> None:
    owned(node.folder / "victim", USER)
    owned(node.folder / "victim" / "7", USER)
    for name in ("victim", "victim/7"):
        (node.folder / name / "precious").touch()
    node.step()
    change(node.base / "7")
    told = node.epilog()
    assert [log in one for one in told.logs] == [True] * bool(log)
    assert (node.folder / "victim" / "precious").exists()
    assert (node.folder / "victim" / "7" / "precious").exists()
    assert node.epilog().logs == []  # it is tried once


def test_a_file_that_the_user_may_not_remove(node: Node) -> None:
    """A later step finds what is left, and the job's next end removes it."""
    node.step()
    owned(node.base / "7" / "roots", 0, 0o755)
    (node.base / "7" / "roots" / "file").touch()
    assert any("can't be removed" in log for log in node.epilog().logs)
    assert "7/.ddstore-spank" in node.all()
    (node.base / "7" / "roots" / "file").unlink()
    node.step()
    assert node.epilog().logs == []
    assert node.all() == set()


@pytest.mark.parametrize(
    ("mishap", "log"),
    [("crash-remove", "crashed (signal 11)"), ("hang-remove", "took")],
)
def test_removing_it_fails(node: Node, mishap: str, log: str) -> None:
    node.step()
    told = node.epilog("--mishap", mishap)
    assert any(
        "removing the job's directory" in one and log in one for one in told.logs
    )
    assert "7" in node.all()


def test_two_directories_and_two_jobs(node: Node) -> None:
    option = ("--option", f"ddstore-dir={node.base}/sub")
    for words in ((), option, ("--job", "8"), ("--job", "8", *option)):
        node.step(*words)
    node.epilog("--job", "8")
    assert {one for one in node.all() if one.endswith(("7", "8"))} == {"7", "sub/7"}
    node.step("--step", "1")  # as the first, once more
    node.epilog()
    assert node.all() == {"sub"}


def test_notes_that_make_no_sense(node: Node) -> None:
    node.step()
    (note,) = node.state.glob("job-7-*")
    text = note.read_text()
    for damaged in (
        text[:-3],
        "",
        text.replace(f"uid {USER}", "uid 0"),
        "end\n",
        text.replace("gid", "x"),
    ):
        note.write_text(damaged)
        assert node.epilog().logs == []
        assert "7" in node.all()
    note.write_text(text.replace(f"base {node.base}", "base relative"))
    node.epilog()
    note.mkdir()
    node.epilog()
    assert "7" in node.all()


def test_a_directory_that_is_made_again(node: Node) -> None:
    node.step()
    gone(node.base / "7")
    assert node.step("--step", "1").env[DIR] == f"{node.base}/7"
    assert "7/.ddstore-spank" in node.all()
