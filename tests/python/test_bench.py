"""The benchmarks run, and what they say makes sense; how fast anything is, isn't asked
here."""

from __future__ import annotations

import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from pyddstore import bench_report, benchmarks

Result = dict[str, Any]
KEYS = {"name", "value", "unit", "reference", "ratio", "budget", "ok", "note"}


def programs() -> pathlib.Path:
    where = benchmarks.find_programs()
    if where is None:
        pytest.skip("optional: the C programs are not built in build/bench")
    return where


def check_sane(results: list[Result]) -> list[Result]:
    """Checks figures, measured or not, and returns the measured ones."""
    for result in results:
        assert set(result) >= KEYS
        assert isinstance(result["note"], str)
    measured = [result for result in results if result["value"] is not None]
    for result in measured:
        for key in ("value", "ratio", "ratio_low", "ratio_high", "reference_value"):
            assert 0 < result[key] < math.inf, result
        assert result["ratio_low"] <= result["ratio"] <= result["ratio_high"]
        assert result["unit"] in ("us", "MB/s", "x")
        assert result["unit"] in result["reference"]
        if result["budget"] is None:
            assert result["ok"] is None
        else:
            assert result["budget"][:3] in ("<= ", ">= ")
            assert result["ok"] is not None or "VOID" in result["note"]
    assert json.loads(bench_report.as_json(results))["results"] == results
    return measured


@pytest.mark.parametrize("part", benchmarks.FROM_PYTHON)
def test_from_python(part: str) -> None:
    where = benchmarks.find_programs()
    results = benchmarks.from_python(part, quick=True, where=where)
    assert not [r["note"] for r in results if r["value"] is None and r["ok"] is False]
    measured = check_sane(results)
    least = {"path1": 6, "path3": 4, "threads": 1}[part]
    assert len(measured) >= (least if len(os.sched_getaffinity(0)) > 1 else 0)


@pytest.mark.parametrize("part", benchmarks.PARTS)
def test_from_c(part: str) -> None:
    results = benchmarks.from_c(part, quick=True, where=programs())
    assert not [r["note"] for r in results if r["value"] is None and r["ok"] is False]
    measured = check_sane(results)
    if part in ("path1", "path3"):
        assert len(measured) >= 4


def test_table_of_c(tmp_path: pathlib.Path) -> None:
    """Without --json the program prints a table, and leaves nothing behind."""
    program = programs() / benchmarks.PROGRAM
    done = subprocess.run(
        [program, "--quick", "--no-pin", "path1"],
        env=benchmarks.environment() | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "get_batch 128 x 3 KB" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_usage_of_c() -> None:
    program = programs() / benchmarks.PROGRAM
    done = subprocess.run([program, "nonsense"], capture_output=True, text=True)
    assert done.returncode == 2
    for part in benchmarks.PARTS:
        assert part in done.stderr


def processes_with(text: str) -> list[int]:
    """The processes whose environment holds this text."""
    found = []
    for directory in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (directory / "environ").read_bytes():
                found.append(int(directory.name))
        except OSError:
            continue
    return found


def test_interrupted_c(tmp_path: pathlib.Path) -> None:
    """A signal ends the members too."""
    process = subprocess.Popen(
        [programs() / benchmarks.PROGRAM, "--quick", "path1"],
        env=benchmarks.environment() | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline()  # the members are there
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 128 + signal.SIGINT
    process.stdout.close()
    until = time.monotonic() + 10
    while left := processes_with(str(tmp_path)):
        assert time.monotonic() < until, left
        time.sleep(0.05)


def test_unknown_part() -> None:
    with pytest.raises(
        ValueError, match="no part is called nonsense; there are: path1"
    ):
        benchmarks.run(["path1", "nonsense"])


def test_programs_elsewhere(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="holds no ddstore_bench"):
        benchmarks.find_programs(tmp_path)


def test_without_programs() -> None:
    """As in an installed wheel: the C parts are left out and say so."""
    results = benchmarks.from_c("path2", quick=True, where=None)
    assert check_sane(results) == []
    assert "isn't built" in results[0]["note"]
    assert results[0]["ok"] is None


def test_program_that_fails() -> None:
    code = "import sys; print('{\"name\": 1}'); sys.exit('no such luck')"
    results = benchmarks.figures("part", [sys.executable, "-c", code])
    assert results[0] == {"name": 1}
    assert results[1]["ok"] is False
    assert "no such luck" in results[1]["note"]


def test_program_that_is_late(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """It is ended, and what it started too."""
    monkeypatch.setattr(benchmarks, "LIMIT_S", 2.0)
    pid_file = tmp_path / "pid"
    code = (
        "import pathlib, subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        f"pathlib.Path({str(pid_file)!r}).write_text(str(child.pid))\n"
        "child.wait()\n"
    )
    begun = time.monotonic()
    results = benchmarks.figures("part", [sys.executable, "-c", code])
    assert time.monotonic() - begun < 30
    assert [result["ok"] for result in results] == [False]
    assert "ended after 2 s" in results[0]["note"]
    pid = int(pid_file.read_text())
    for _ in range(100):  # its new parent collects it
        if not pathlib.Path(f"/proc/{pid}").exists():
            break
        if "State:\tZ" in pathlib.Path(f"/proc/{pid}/status").read_text():
            break
        time.sleep(0.05)
    else:
        raise AssertionError("the child of the late program lives on")
