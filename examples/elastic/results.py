"""Result lines: each member appends what it has done so far to a file of its own in
RUN/results. The last line of a file is what counts."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TAIL_BYTES = 1 << 18  # the last line of a file is shorter
SILENT_S = 60.0  # extra members write every 10 s
ENDED = ("done", "stopped", "cancelled", "failed", "no core")


def say(text: str) -> None:
    """A line for the terminal or the job's log, whose disk may be full."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


def host() -> str:
    """This host's name, without its domain."""
    return os.uname().nodename.partition(".")[0]


def name() -> str:
    """What a member is called: job and task under Slurm, else host and process."""
    job, task = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_PROCID")
    if not job or not task or not os.environ.get("SLURM_STEP_ID"):
        return f"{host()}-{os.getpid()}"
    return f"{job}.{task}"


class Results:
    """The file of one member. A disk that is full costs lines, not the run."""

    def __init__(self, run: Path, member: str) -> None:
        # A job that is requeued keeps its number.
        own = f"-{host()}-{os.getpid()}"
        self.path = run / "results" / f"{member.removesuffix(own)}{own}.jsonl"
        self.torn = self.failed = False

    def write(self, line: Mapping[str, Any]) -> None:
        """Appends a line, by one call, so that a signal doesn't tear it."""
        text = json.dumps({**line, "time": time.time()}) + "\n"
        data = (b"\n" if self.torn else b"") + text.encode()
        try:
            self.path.parent.mkdir(exist_ok=True)
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                written = os.write(fd, data)
            finally:
                os.close(fd)
            self.torn = written < len(data)
        except OSError as exc:
            if not self.failed:
                why = exc.strerror or exc
                say(f"can't write {self.path}: {why}; the work goes on without it")
            self.failed = True


def last_line(path: Path) -> dict[str, Any] | None:
    """The last whole line of a file."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return None
    for text in reversed(lines):
        with contextlib.suppress(ValueError):
            line = json.loads(text)
            if isinstance(line, dict) and "member" in line:
                return line
    return None


def read_all(run: Path, since: float = 0) -> list[dict[str, Any]]:
    """The last lines of all members, the oldest member first; since: of those that
    have written after this time."""
    lines = [last_line(path) for path in (run / "results").glob("*.jsonl")]
    found = [line for line in lines if line is not None and line["time"] >= since]
    return sorted(found, key=lambda line: float(line["began"]))


def silent_s(line: Mapping[str, Any]) -> float:
    """How long a member that hasn't told its end has been silent; 0: not for long."""
    silent = time.time() - float(line["time"])
    return silent if line["state"] not in ENDED and silent > SILENT_S else 0
