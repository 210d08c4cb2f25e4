"""The SPANK plugin under a program that plays slurmstepd (spank_host.c), with mishaps
that a real cluster can't be given: every call succeeds, all of a step within 2 s, the
reason is told, and nothing is made elsewhere."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from spank_build import HOSTS, built

TOPOLOGY = Path(__file__).parents[1] / "c" / "topology"
MAP = "enp129s0=0-7"  # of one_nic.xml
USER, OTHER = 65534, 65533
NAMELESS = 1987654321
BATCH = 0xFFFFFFFB
LIMIT_MS = 2000
DIR, NIC_MAP = "DDSTORE_HANDSHAKE_DIR", "DDSTORE_NIC_MAP"

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="slurmstepd is root's; so must be what plays it"
)


@dataclass
class Told:
    """What the program has printed."""

    env: dict[str, str] = field(default_factory=dict)
    logs: list[str] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)
    ms: float = -1
    left: tuple[int, int] = (-1, -1)

    @property
    def error(self) -> str:
        return self.env.get("DDSTORE_SPANK_ERROR", "")


def read(output: str) -> Told:
    told = Told()
    for line in output.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "env":
            name, _, value = rest.partition("=")
            told.env[name] = value
        elif kind == "log":
            told.logs.append(rest)
        elif kind == "rc":
            name, value = rest.split()
            told.calls[name] = int(value)
        elif kind == "ms":
            told.ms = float(rest)
        elif kind == "left":
            descriptors, children = rest.split()
            told.left = (int(descriptors), int(children))
    return told


class Node:
    """One node: its state, a directory of a user, and steps that run there."""

    def __init__(self, folder: Path, program: Path) -> None:
        self.folder, self.program = folder, program
        self.base = folder / "base"
        self.base.mkdir()
        os.chown(self.base, USER, USER)
        self.state = folder / "state"
        self.xml: str | Path = TOPOLOGY / "one_nic.xml"

    def words(self, kind: str, *words: str, args: tuple[str, ...] = ()) -> list[str]:
        args = (f"dir={self.base}", f"state={self.state}", "enable=always", *args)
        given = [word for arg in args for word in ("--arg", arg)]
        return [str(self.program), kind, *given, *words]

    def environment(self, **more: str) -> dict[str, str]:
        own = {"HWLOC_XMLFILE": str(self.xml), "SLURMD_NODENAME": "n7"}
        return {"PATH": os.environ["PATH"]} | own | more

    def run(self, kind: str, *words: str, args: tuple[str, ...] = ()) -> Told:
        """Whatever happens, this holds."""
        begun = time.monotonic()
        done = subprocess.run(
            self.words(kind, *words, args=args),
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done
        assert time.monotonic() - begun < 10
        told = read(done.stdout)
        assert set(told.calls.values()) == {0}
        assert told.ms < LIMIT_MS
        # The batch script's note stays open in slurmstepd.
        assert told.left[0] <= (str(BATCH) in words)
        return told

    def step(self, *words: str, args: tuple[str, ...] = ()) -> Told:
        return self.run("step", *words, args=args)

    def epilog(self, *words: str) -> Told:
        told = self.run("epilog", *words)
        assert told.env == {}
        return told

    def all(self) -> set[str]:
        """What there is in the user's directory."""
        return {str(path.relative_to(self.base)) for path in self.base.rglob("*")}


@pytest.fixture(scope="session")
def program() -> Path:
    return built() / HOSTS[0]


@pytest.fixture
def node(program: Path) -> Iterator[Node]:
    # Not below pytest's own directory, which other users can't search.
    with tempfile.TemporaryDirectory(prefix="ddstore-spank-") as name:
        Path(name).chmod(0o755)
        yield Node(Path(name), program)


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


def test_two_steps_at_once_find_one_map(node: Node, program: Path) -> None:
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
    assert timeout_ms * 0.6 < told.ms < timeout_ms + 100
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


def owned(path: Path, uid: int, mode: int = 0o755) -> None:
    path.mkdir()
    path.chmod(mode)
    os.chown(path, uid, uid)


def plant(path: Path, to: Path, uid: int) -> None:
    path.symlink_to(to)
    os.lchown(path, uid, uid)


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


@pytest.mark.parametrize("mishap", ["hang-make", "crash-make"])
def test_making_it_fails(node: Node, mishap: str) -> None:
    told = node.step("--mishap", mishap)
    assert "making the job's directory " in told.error
    assert DIR not in told.env
    assert told.env[NIC_MAP] == MAP


@pytest.mark.parametrize(
    "word", ["dir=relative", "dri=/x", "enable=sometimes", "map=", "timeout_ms=9", "timeout_ms=1901", "x"]
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


# ---- removal -------------------------------------------------------------------------


def gone(path: Path) -> None:
    (path / ".ddstore-spank").unlink()
    path.rmdir()


def replaced_by_link(path: Path) -> None:
    gone(path)
    plant(path, path.parent.parent / "victim", USER)


def without_marker(path: Path) -> None:
    (path / ".ddstore-spank").unlink()


def marker_is_a_link(path: Path) -> None:
    marker = path / ".ddstore-spank"
    marker.rename(path / "marker")
    marker.symlink_to("marker")


def parent_is_a_link(path: Path) -> None:
    os.chown(path.parent.parent, OTHER, OTHER)
    path.parent.rename(path.parent.parent / "moved")
    plant(path.parent, path.parent.parent / "victim", 65532)


@pytest.mark.parametrize(
    ("change", "log"),
    [
        (gone, ""),
        (replaced_by_link, "is no directory any more"),
        (without_marker, "is not the one that was made"),
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
    for damaged in (text[:-3], "", text.replace(f"uid {USER}", "uid 0"), "end\n"):
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
