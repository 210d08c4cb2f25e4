"""What `ddstore nic-map` shows: the network interface that is nearest to each CPU."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pyddstore import _core

if TYPE_CHECKING:
    from pyddstore._core import NicMap, _NicCpu


def discover(pattern: str | None = None) -> NicMap:
    """The map of this machine, of interfaces whose names match the pattern."""
    return _core.NicMap(pattern=pattern)


def nic_of(nics: NicMap, cpu: int) -> str:
    """The interface of one CPU. LookupError if there is no such CPU."""
    rows = nics.cpus()
    for row in rows:
        if row["cpu"] == cpu:
            return row["nic"]
    last = rows[-1]["cpu"] if rows else -1
    raise LookupError(f"this machine has no CPU {cpu} (its last one is {last})")


def own_cpus(nics: NicMap) -> list[_NicCpu]:
    """The part of the map that this process may use."""
    own = os.sched_getaffinity(0)
    return [row for row in nics.cpus() if row["cpu"] in own]


def number(value: int | None) -> str:
    """A NUMA node as text."""
    return "?" if value is None else f"{value}"


def table_of(rows: list[_NicCpu]) -> Table:
    """A table of CPUs."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("CPU", justify="right", style="cyan")
    table.add_column("NUMA node", justify="right")
    table.add_column("interface", no_wrap=True)
    table.add_column("its NUMA node", justify="right")
    table.add_column("nearest by")
    for row in rows:
        table.add_row(
            str(row["cpu"]), number(row["numa"]), escape(row["nic"]),
            number(row["nic_numa"]), row["how"],
            style="" if row["how"] == "exact" else "dim",
        )  # fmt: skip
    return table


def show(nics: NicMap) -> None:
    """Prints the whole table."""
    Console().print(table_of(nics.cpus()))


def show_allocated(nics: NicMap) -> None:
    """Prints the table of this process's CPUs, their interfaces, and which it takes."""
    console = Console(soft_wrap=True)
    rows = own_cpus(nics)
    if rows:
        console.print(table_of(rows))
        names = dict.fromkeys(row["nic"] for row in rows)
        console.print(f"interfaces: {escape(' '.join(names))}", highlight=False)
    else:
        console.print("none of this process's CPUs is in the map", highlight=False)
    nic, why = nics.choose()
    console.print(f"this process takes {escape(nic)}: {escape(why)}", highlight=False)
