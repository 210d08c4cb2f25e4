"""What `ddstore bench` makes of figures; not how they are measured."""

from __future__ import annotations

import json
import pathlib
import struct
import sys
import types
from typing import Any

import pytest
from click.testing import CliRunner

from pyddstore import bench_report, cli

RESULTS: list[dict[str, Any]] = [
    {
        "name": "batch [local]",
        "value": 14.2,
        "unit": "us",
        "reference": 12.1,
        "ratio": 1.17,
        "budget": 1.25,
        "ok": True,
        "note": "",
    },
    {
        "name": "speed",
        "value": 4230.0,
        "unit": "MB/s",
        "reference": "socket",
        "ratio": 0.8,
        "budget": ">= 0.85",
        "ok": False,
        "note": "one core",
    },
    {
        "name": "threads",
        "value": None,
        "unit": "",
        "reference": None,
        "ratio": None,
        "budget": None,
        "ok": None,
        "note": "needs two cores",
    },
]


def test_budgets_tell_their_direction() -> None:
    assert [bench_report.budget_text(row) for row in RESULTS] == [
        "≤ 1.25",
        "≥ 0.85",
        "",
    ]
    missed = RESULTS[0] | {"ratio": 1.3, "ok": False}
    assert bench_report.budget_text(missed) == "≤ 1.25"
    speed = RESULTS[1] | {"ratio": 0.9, "ok": True, "budget": 0.85}
    assert bench_report.budget_text(speed) == "≥ 0.85"


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    bench_report.show(RESULTS)
    text = capsys.readouterr().out
    for words in ("batch [local]", "14.2", "4,230", "missed", "needs two cores"):
        assert words in text
    assert text.endswith("bench: 1 of 2 budgets met\n")


def test_picture(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "bench.png"
    bench_report.plot(RESULTS, str(file))
    head = file.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    assert width > 1000
    assert height > 250


def test_picture_of_nothing(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    bench_report.plot([], str(tmp_path / "empty.png"))
    assert (tmp_path / "empty.png").stat().st_size > 0


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], bool]]:
    """Puts figures made up here in the place of measured ones; returns the calls."""
    calls: list[tuple[list[str], bool]] = []

    def run(parts: list[str], quick: bool) -> list[dict[str, Any]]:
        calls.append((parts, quick))
        if parts == ["nonsense"]:
            raise ValueError("no part is called nonsense; there are: path1, path3")
        return RESULTS if not parts else RESULTS[:1]

    module = types.ModuleType("pyddstore.benchmarks")
    module.run = run  # type: ignore[attr-defined]
    import pyddstore

    monkeypatch.setitem(sys.modules, "pyddstore.benchmarks", module)
    monkeypatch.setattr(pyddstore, "benchmarks", module, raising=False)
    return calls


def test_command(
    benchmarks: list[tuple[list[str], bool]], tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "bench.json"
    done = CliRunner().invoke(cli.cli, ["bench", "--quick", "--json", str(file)])
    assert done.exit_code == 1, done.output  # a budget is missed
    assert benchmarks == [([], True)]
    record = json.loads(file.read_text())
    assert record["results"] == RESULTS
    assert record["machine"]
    done = CliRunner().invoke(cli.cli, ["bench", "path1"])
    assert (done.exit_code, benchmarks[-1]) == (0, (["path1"], False))


def test_unknown_part(benchmarks: list[tuple[list[str], bool]]) -> None:
    done = CliRunner().invoke(cli.cli, ["bench", "nonsense"])
    assert done.exit_code == 2
    assert "no part is called nonsense" in done.output


def test_json_to_standard_output(benchmarks: list[tuple[list[str], bool]]) -> None:
    done = CliRunner().invoke(cli.cli, ["bench", "--json", "-", "path1"])
    assert json.loads(done.output)["results"] == RESULTS[:1]


def test_plot_without_matplotlib(
    benchmarks: list[tuple[list[str], bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_report, "can_plot", lambda: False)
    done = CliRunner().invoke(cli.cli, ["bench", "--plot", "x.png"])
    assert done.exit_code == 2
    assert "pip install 'pyddstore[plot]'" in done.output
    assert benchmarks == []
