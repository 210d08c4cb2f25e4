"""examples/elastic on the cluster: extra jobs that come before the core and later, and
are cancelled; a core that is requeued, and one that is cancelled."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from cluster import Jobs

EXAMPLE = Path(__file__).parents[2] / "examples" / "elastic"
ROWS = 8388  # of --gib=0.002


def submit(jobs: Jobs, *words: str) -> list[str]:
    """Runs submit.sh as it is; numbers of the jobs."""
    run = jobs.folder / "run"
    script = str(EXAMPLE / "submit.sh")
    end = jobs.run(script, *words, "run", env={"DDSTORE_HANDSHAKE_DIR": ""})
    found = re.findall(r"^(core|extra) job (\d+)$", end.stdout, re.M)
    for role, number in found:
        jobs.ids.append(number)
        log = run / f"ddstore-{role}-{number}.out"
        (jobs.folder / f"{number}.out").symlink_to(log)
    for words_of_help in ("--add -n 1", "summary.py", "scancel", f"touch {run}/stop"):
        assert words_of_help in end.stdout
    return [number for _, number in found]


def add(jobs: Jobs, node: str, *words: str) -> str:
    """One more extra job."""
    (number,) = submit(
        jobs, "--add", "-n1", f"--extra-sbatch=--nodelist={node}", *words
    )
    return number


def summary(jobs: Jobs) -> tuple[dict[str, str], str]:
    """What summary.py says: the line of each member, in words; all of it."""
    program = str(EXAMPLE / "summary.py")
    text = jobs.run(sys.executable, program, "run", env={"PYTHONSAFEPATH": ""}).stdout
    print(text)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    found = {
        line.split()[1]: line for line in lines if " holds " in line or "µs" in line
    }
    return found, text


def test_extra_jobs_come_and_go(jobs: Jobs) -> None:
    """One before the core, which is cancelled while it reads; one with it, and one
    later, which reads on until the stop, or two epochs."""
    before = add(jobs, "n2", "--epochs=0")
    jobs.said(before, "waiting for a core")
    sizes = ("--gib=0.002", "--batch=100", "--epochs=0", "--every=0.5")
    core, after = submit(jobs, "-n1", "--extra-sbatch=--nodelist=n1", *sizes)
    for number in (before, after):
        jobs.said(number, f"joined a core of 4 ranks with {ROWS:,} rows")
    jobs.said(core, "readers: 2 (extra ")
    jobs.said(after, "MB/s with checks")
    jobs.cancel(before)
    assert jobs.wait(before) == "CANCELLED"
    later = add(jobs, "n2", "--epochs=2")
    assert f"done; epochs: 2, rows: {2 * ROWS:,}, all right" in jobs.passed(later)
    assert "rank 3 on n2: local, " in jobs.output(later)
    (jobs.folder / "run" / "stop").touch()
    assert "stopped; " in jobs.passed(after)
    assert "extra members: 3; " in jobs.passed(core)
    found, text = summary(jobs)
    assert found[core].startswith(f"core {core} n1 x2, n2 x2 stopped ")
    assert f"holds {ROWS:,} rows" in found[core]
    us = r"[\d.]+ µs"
    paths = {
        "n1": f"local 0-1 {us}; tcp 2-3 {us}",
        "n2": f"tcp 0-1 {us}; local 2-3 {us}",
    }
    figures = r"\d[\d,]+ [\d,]+ [\d,.]+"  # rows, rows/s, MB/s
    for number, node, words in (
        (before, "n2", rf"cancelled [\d,]+ {figures}"),
        (after, "n1", rf"stopped [\d,]+ {figures}"),
        (later, "n2", rf"done 2 {2 * ROWS:,} [\d,]+ [\d,.]+"),
    ):
        line = f"extra {number}.0 {node} {words} {paths[node]}"
        assert re.fullmatch(line, found[f"{number}.0"]), found
    assert re.search(r"extra members: 3; [\d,]+ rows read, all right", text)


def test_core_goes(jobs: Jobs) -> None:
    """Requeued: the extra job joins again. Cancelled: one gives up, another one waits
    until it is told to stop."""
    core, patient = submit(jobs, "-n1", "--epochs=0", "--rejoin=40")
    jobs.said(patient, "joined a core")
    jobs.run("scontrol", "requeue", core)
    jobs.said(patient, "the core is gone (")
    jobs.cluster.wait(
        lambda: jobs.output(patient).count("joined a core") == 2, 60, "another core"
    )
    assert jobs.field(core, "Restarts") == "1"
    hasty = add(jobs, "n1", "--epochs=0", "--rejoin=1")
    jobs.said(hasty, "joined a core")
    jobs.cancel(core)
    assert jobs.wait(hasty) == "FAILED"
    assert jobs.field(hasty, "ExitCode") == "3:0"
    assert "waiting for 1 s for another one" in jobs.output(hasty)
    assert "no core came back: " in jobs.output(hasty)
    assert jobs.wait(core) == "CANCELLED"
    assert "core: ended by SIGTERM" in jobs.output(core)
    (jobs.folder / "run" / "stop").touch()
    assert "stopped; " in jobs.passed(patient)
    found, text = summary(jobs)
    assert "stopped, joined 2 times" in found[f"{patient}.0"]
    assert " no core " in found[f"{hasty}.0"]
    assert found[core].startswith(f"core {core} n1 x2, n2 x2 cancelled, restart 1 ")
    assert ", all right" in text
