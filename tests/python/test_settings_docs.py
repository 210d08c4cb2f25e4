"""docs/settings.md is what the library's table of settings makes it."""

from __future__ import annotations

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_settings_page_is_up_to_date(tmp_path: pathlib.Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "gen-settings-docs", "--check"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_every_setting_is_on_the_page() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    table = (ROOT / "libddstore" / "src" / "settings.def").read_text(encoding="utf-8")
    names = [
        line.split('"')[1] for line in table.splitlines() if line.startswith("SETTING(")
    ]
    assert len(names) > 10
    for name in names:
        assert page.count(f"| `{name}` |") == 1, name
