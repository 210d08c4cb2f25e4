"""What `ddstore bench` measures: the parts, each run in processes of its own.

A part is measured from Python (pyddstore.bench_parts), and from C by the program
ddstore_bench of the checkout where that has been built: the wheel doesn't hold it.
Both print a figure a line, as JSON. pyddstore.bench_report says what a figure is.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

Result = dict[str, Any]
PROGRAM = "ddstore_bench"
COPY_LOOP = "ddstore_bench_copy.so"
LIMIT_S = 90.0  # of one program and part

PARTS = {
    "path1": "rows mapped from a member on this host",
    "path2": "rows read over libfabric (from C only)",
    "path3": "rows read over TCP",
    "threads": "two threads that read one variable",
}
FROM_PYTHON = ("path1", "path3", "threads")


def run(
    parts: Sequence[str] = (),
    quick: bool = False,
    programs: str | os.PathLike[str] | None = None,
) -> list[Result]:
    """Measures the parts, or all of them, and returns their figures.

    quick: fewer and shorter rounds. programs: the directory of the C programs; by
    default build/bench of the checkout, if that is found. Raises ValueError for a part
    that isn't there.
    """
    for part in parts:
        if part not in PARTS:
            raise ValueError(f"no part is called {part}; there are: {', '.join(PARTS)}")
    where = find_programs(programs)
    results: list[Result] = []
    for part in parts or PARTS:
        results += from_c(part, quick, where)
        if part in FROM_PYTHON:
            results += from_python(part, quick, where)
    return results


def find_programs(named: str | os.PathLike[str] | None = None) -> pathlib.Path | None:
    """The directory that holds the C programs: the one named, else build/bench of the
    working directory or of the checkout that this package or its venv lies in."""
    if named is not None:
        if not (pathlib.Path(named) / PROGRAM).exists():
            raise ValueError(f"{os.fspath(named)} holds no {PROGRAM}")
        return pathlib.Path(named).resolve()
    package = pathlib.Path(__file__).resolve().parent
    for base in (pathlib.Path.cwd(), package.parent, pathlib.Path(sys.prefix).parent):
        for directory in (base / "build" / "bench", base / "bench"):
            if os.access(directory / PROGRAM, os.X_OK):
                return directory.resolve()
    return None


def environment() -> dict[str, str]:
    """This environment without the library's settings but for those that say where
    things are, with paths that hold from any directory."""
    kept = ("DDSTORE_LIBFABRIC", "DDSTORE_LOG")
    env = {
        name: value
        for name, value in os.environ.items()
        if name in kept or not (name.startswith("DDSTORE_") or name == "FABRIC_IFACE")
    }
    env["PYTHONSAFEPATH"] = "1"
    if env.get("PYTHONPATH"):
        paths = env["PYTHONPATH"].split(os.pathsep)
        env["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths))
    return env


def from_c(part: str, quick: bool, where: pathlib.Path | None) -> list[Result]:
    """The figures of the C program."""
    if where is None:
        return [empty(f"{part} (C)", f"not measured: {PROGRAM} isn't built here")]
    command = [str(where / PROGRAM), "--json", part]
    return figures(f"{part} (C)", command + ["--quick"] * quick)


def from_python(part: str, quick: bool, where: pathlib.Path | None) -> list[Result]:
    """The figures of Python code."""
    command = [sys.executable, "-m", "pyddstore.bench_parts", part]
    if where is not None and (where / COPY_LOOP).exists():
        command += ["--copy-loop", str(where / COPY_LOOP)]
    return figures(f"{part} (Python)", command + ["--quick"] * quick)


def figures(name: str, command: list[str]) -> list[Result]:
    """What a program prints. It, and all that it starts, is gone afterwards; a program
    that fails or is late adds a result that says so."""
    limit = LIMIT_S
    with (
        tempfile.TemporaryFile() as said,
        tempfile.TemporaryFile() as complaints,
        tempfile.TemporaryDirectory(prefix="ddstore-bench-") as scratch,
    ):
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=complaints,
            env=environment() | {"TMPDIR": scratch},
            cwd="/",
            start_new_session=True,
        )
        late = False
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        complaints.seek(0)
        lines = said.read().decode().splitlines()
        text = complaints.read().decode(errors="replace").strip()
    results: list[Result] = [json.loads(line) for line in lines if line[:1] == "{"]
    if late:
        results.append(failed(name, f"ended after {limit:g} s"))
    elif process.returncode:
        reason = text.splitlines()[-1] if text else "it said nothing"
        code = process.returncode
        results.append(failed(name, f"failed with code {code}: {reason[:300]}"))
    return results


def empty(name: str, note: str) -> Result:
    """A result of nothing measured."""
    return {
        "name": name,
        "value": None,
        "unit": "",
        "reference": None,
        "ratio": None,
        "budget": None,
        "ok": None,
        "note": note,
    }


def failed(name: str, note: str) -> Result:
    """A result of a program that didn't come to its end."""
    return empty(name, note) | {"ok": False}
