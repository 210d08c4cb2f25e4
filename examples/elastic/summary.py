"""One table of what all members of a run have done so far: `python summary.py RUN`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from dataset import ROW_BYTES
from results import read_all, silent_s


def spans(ranks: Iterable[int]) -> str:
    """Ranks in few words: 0-2,5."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][-1] == rank - 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    return ",".join("-".join(map(str, part)) for part in parts)


def paths(peers: list[dict[str, Any]]) -> str:
    """How the core's ranks were reached, and how fast rows of them alone were."""
    words = []
    for path in dict.fromkeys(peer["path"] for peer in peers):
        same = [peer for peer in peers if peer["path"] == path]
        us = [peer["us"] for peer in same if peer["us"] is not None]
        speed = f" {median(us):.2f} µs" if us else ""
        words.append(f"{path} {spans(peer['rank'] for peer in same)}{speed}")
    return "; ".join(words)


def state(line: dict[str, Any]) -> str:
    """What a member was last seen doing."""
    text = str(line["state"])
    if line.get("joins", 0) > 1:
        text += f", joined {line['joins']} times"
    if line.get("restarts"):
        text += f", restart {line['restarts']}"
    silent = silent_s(line)
    return f"{text}, silent for {silent / 60:.0f} min" if silent else text


def speeds(rows: int, seconds: float) -> tuple[str, str]:
    """Rows a second and MB a second, of the time in get_batch."""
    rate = rows / seconds if seconds else 0
    return f"{rate:,.0f}", f"{rate * ROW_BYTES / 1e6:,.1f}"


def show(run: Path) -> None:
    """Prints the table."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    lines = read_all(run)
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("member", "host", "state"):
        table.add_column(column, overflow="fold")
    for column in ("epochs", "rows", "rows/s", "MB/s"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("path, ranks, a row", overflow="fold")
    extras = [line for line in lines if line["role"] == "extra"]
    for line in lines:
        if line["role"] == "core":
            hosts = [f"{host} x{n}" for host, n in Counter(line["hosts"]).items()]
            held = f"holds {line['held']:,} rows"
            table.add_row(
                line["member"], ", ".join(hosts), state(line), *["-"] * 4, held
            )
        else:
            table.add_row(
                line["member"], line["host"], state(line), f"{line['epochs']:,}",
                f"{line['rows']:,}", *speeds(line["rows"], line["seconds"]),
                paths(line["peers"]),
            )  # fmt: skip
    console.print(table)
    rows = sum(line["rows"] for line in extras)
    wrong = sum(line["wrong"] for line in extras)
    right = "all right" if not wrong else f"{wrong:,} WRONG"
    console.print(f"extra members: {len(extras)}; {rows:,} rows read, {right}")


def main() -> int:
    parser = argparse.ArgumentParser(description="A table of all members of a run.")
    parser.add_argument("run", type=Path, help="the run's directory")
    run: Path = parser.parse_args().run
    if not read_all(run):
        print(f"summary: there are no result lines in {run / 'results'} yet")
        return 1
    show(run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
