"""What `ddstore info` shows: versions, what the library sees here, settings."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

ABSENT = "not installed"


def version_of(distribution: str) -> str:
    """The installed version of a Python distribution, without importing it."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ABSENT


def collect() -> dict[str, Any]:
    """Everything that `ddstore info` tells: `versions` (name to text), `machine` (pairs
    of key and text, as the library gives them) and `settings` (one dict each)."""
    from pyddstore import _core

    try:
        machine = _core.probe()
    except Exception as error:  # a setting is refused; which one is in `settings`
        machine = [("not looked at", str(error))]
    return {
        "versions": {
            "pyddstore": version_of("pyddstore"),
            "libddstore": _core.__version__,
            "python": f"{platform.python_version()} ({sys.executable})",
            "numpy": version_of("numpy"),
            "mpi4py": version_of("mpi4py"),
            "torch": version_of("torch"),
            "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        },
        "machine": machine,
        "settings": _core.settings(),
    }


def as_json(facts: dict[str, Any]) -> str:
    """The same facts as one JSON object."""
    return json.dumps(facts, indent=2, ensure_ascii=False)


def sections(machine: list[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """Sorts the library's lines into sections of names and texts; order is kept."""
    titles = {"interface": "Network interfaces", "provider": "Providers of libfabric"}
    titles["nic map"] = titles["interface"]
    titles |= dict.fromkeys(("libfabric", "rdma hardware"), "RDMA")
    titles["pmi2"] = "Launcher"
    titles |= dict.fromkeys(("memfd", "/dev/shm", "memory"), "Limits")
    found: dict[str, list[tuple[str, str]]] = {}
    for key, value in machine:
        if key in ("libddstore", "kernel"):
            continue  # among the versions
        title, name = titles.get(key, "Machine"), key
        if key.startswith("limit "):
            title, name = "Limits", key.removeprefix("limit ")
        elif key in ("interface", "provider") and ": " in value:
            name, _, value = value.partition(": ")
        found.setdefault(title, []).append((name, value))
    if "Providers of libfabric" in found:
        found["Providers of libfabric"] = together(found["Providers of libfabric"])
    return found


def together(providers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Puts lines `NAME on INTERFACE (NETWORK)` of one verdict into one line a
    provider."""
    places: dict[tuple[str, str], list[str]] = {}
    for line, verdict in providers:
        name, _, place = line.partition(" on ")
        known = places.setdefault((name, verdict), [])
        place = place.partition(" (")[0]
        if place and place not in known:
            known.append(place)
    return [
        (name, f"{verdict} ({', '.join(known)})" if known else verdict)
        for (name, verdict), known in places.items()
    ]


def two_columns(title: str, rows: list[tuple[str, str]]) -> Table:
    """A table of names and texts."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        show_header=False,
        padding=(0, 1),
    )
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(escape(name), escape(value))
    return table


def settings_table(settings: list[dict[str, Any]]) -> Table:
    """A table of all settings; those that aren't at their default stand out."""
    table = Table(
        title="Settings",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("name", style="cyan", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("from", no_wrap=True)
    table.add_column("what it is", overflow="fold")
    for row in settings:
        value, style = row["value"] or "(empty)", ""
        if row["bad"]:
            value, style = f"refused: {row['value']}", "bold red"
        elif row["origin"] != "default":
            style = "bold"
        table.add_row(
            escape(row["name"]), escape(value), row["origin"], escape(row["help"]),
            style=style,
        )  # fmt: skip
    return table


def show_info(facts: dict[str, Any]) -> None:
    """Prints all facts as tables. Not cut to 80 columns where there is no terminal."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=200, soft_wrap=True)
    console.print(two_columns("Versions", list(facts["versions"].items())))
    for title, rows in sections(facts["machine"]).items():
        console.print()
        console.print(two_columns(title, rows))
    console.print()
    console.print(settings_table(facts["settings"]))
    if any(row["bad"] for row in facts["settings"]):
        console.print("Settings in red are refused; stores can't be opened until then.")
