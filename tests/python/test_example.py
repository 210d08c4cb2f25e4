"""examples/elastic on this machine, without Slurm: a core by `ddstore run`, extra
members beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "elastic"
LIMIT_S = 60
pytest.importorskip("sklearn", reason="optional: scikit-learn isn't installed")


def environment() -> dict[str, str]:
    """Programs find the files beside them; nothing of Slurm."""
    foreign = ("SLURM_", "DDSTORE_", "PYTHONSAFEPATH")
    env = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    return env | {"DDSTORE_HANDSHAKE_TIMEOUT_S": "40"}


def start(name: str, *words: str, **env: str) -> subprocess.Popen[str]:
    """One of the example's programs; a number is that of processes."""
    launcher = [sys.executable]
    if name == "core.py":
        ddstore = Path(sys.executable).with_name("ddstore")
        launcher = [str(ddstore), "run", "-n", "2"]
    command = [*launcher, str(EXAMPLE / name), *words]
    return subprocess.Popen(
        command,
        env=environment() | env,
        stdout=PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(process: subprocess.Popen[str], code: int = 0) -> str:
    """Waits for a program; what it has printed."""
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == code, output
    return output


def test_without_slurm(tmp_path: Path) -> None:
    """An extra member that is there before the core, and ends with it; one that can't
    write its results; one that comes too late."""
    run = tmp_path / "run"
    first = start("extra.py", str(run), "--epochs=0", "--every=0.2")
    core = start("core.py", str(run), "--gib=0.001")
    second = start("extra.py", str(run), "--epochs=3", "--batch=100")
    try:
        output = end(second)
        assert "done; epochs: 3, rows: 12,582, all right" in output
        assert "ranks by path: local 0-1" in output
        time.sleep(0.5)
        (run / "stop").touch()
        output = end(first)
        assert "stopped; " in output
        assert " rows/s, " in output
        assert "MB/s with checks" in output
        assert "extra members: 2; " in end(core)
    finally:
        for process in (first, second, core):
            process.kill()
    (run / "stop").unlink()
    late = start("extra.py", str(run), "--wait=0.1")
    assert "no core came: no living core group" in end(late, 3)
    table = end(start("summary.py", str(run)))
    assert [word for word in ("stopped", "done", "no core") if word in table] == [
        "stopped", "done", "no core"
    ]  # fmt: skip


def test_results_on_a_full_disk(tmp_path: Path) -> None:
    """The message comes once and the reading goes on; torn lines are passed over."""
    code = """
import sys
from pathlib import Path
from results import Results, read_all
run = Path(sys.argv[1])
line = {"member": "a", "began": 1, "state": "reading", "rows": 1}
good = Results(run, "a")
good.write(line)
with open(good.path, "a") as file:
    file.write('{"member": "a", "ro')
assert [one["rows"] for one in read_all(run)] == [1]
good.torn = True
good.write(line | {"rows": 2})
assert [one["rows"] for one in read_all(run)] == [2]
full = Results(run, "b")
full.path.symlink_to("/dev/full")
full.write(line)
full.write(line)
print("goes on")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=EXAMPLE,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done
    assert len(lines) == 2
    assert "No space left on device; the work goes on without it" in lines[0]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--help"], 0, "submit.sh [OPTION...] RUN"),
        ([], 2, "submit.sh [OPTION...] RUN"),
        (["--extras"], 2, "--extras needs a value"),
        (["--nonsense=1", "run"], 2, "there is no option --nonsense"),
        (["--extras=x", "run"], 2, "is no number"),
        (["a", "b"], 2, "one RUN, not a and b"),
    ],
)
def test_submit(words: list[str], code: int, says: str) -> None:
    done = subprocess.run(
        ["bash", str(EXAMPLE / "submit.sh"), *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == code
    assert says in (done.stderr if code else done.stdout)
