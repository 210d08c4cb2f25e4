"""What `ddstore bench` makes of its figures: a table, JSON and a picture.

A figure is a dict: name, value, unit, reference (what the value is compared with: a
text, or a number in the same unit), ratio (value against reference), budget (the bound
of the ratio, or None), ok (True, False, or None where there is nothing to meet) and
note.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import platform
from typing import Any

Result = dict[str, Any]
COLOURS = {True: "#2a7f62", False: "#c0392b", None: "#95a5a6"}
TICKS = (0.1, 0.2, 0.5, 1, 2, 3, 5, 8, 12, 20, 50, 100, 200, 500, 1000)
FINE_TICKS = (0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 1.75, 2.5)


def machine() -> str:
    """This machine in one line: processor, cores that we may use, kernel."""
    model = platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    model = line.partition(":")[2].strip()
                    break
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores, {platform.system()} {platform.release()}"


def number(value: Any) -> str:
    """A figure to three significant digits; texts and None as they are."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    text = f"{value:#.3g}"
    return text.rstrip(".")


def verdict(ok: bool | None) -> str:
    """The word for a budget that is met, missed or not set."""
    if ok is None:
        return ""
    return "ok" if ok else "missed"


def budget_text(result: Result) -> str:
    """A budget as it is written, e.g. `≤ 1.25`. A bare number doesn't tell whether it
    is the most or the least that is allowed; the verdict does."""
    budget, ratio, ok = result["budget"], result["ratio"], result["ok"]
    if budget is None or isinstance(budget, str):
        return (budget or "").replace("<=", "≤").replace(">=", "≥")
    if ok is None or ratio is None:
        return f"{budget:g}"
    return f"{'≤' if (ratio <= budget) == ok else '≥'} {budget:g}"


def show(results: list[Result]) -> None:
    """Prints the figures as a table and says how many budgets are met."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    table = Table(box=box.SIMPLE_HEAD, caption=machine(), caption_justify="left")
    table.add_column("measurement", overflow="fold")
    for column in ("value", "unit", "reference", "ratio", "budget", ""):
        left = column in ("unit", "")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    table.add_column("note", overflow="fold", style="dim")
    for result in results:
        colour = {True: "green", False: "bold red", None: "dim"}[result["ok"]]
        table.add_row(
            escape(result["name"]),
            number(result["value"]),
            escape(result["unit"]),
            escape(number(result["reference"])),
            number(result["ratio"]),
            escape(budget_text(result)),
            f"[{colour}]{verdict(result['ok'])}[/]",
            escape(result["note"] or ""),
        )
    console.print(table)
    judged = [result for result in results if result["ok"] is not None]
    met = sum(1 for result in judged if result["ok"])
    console.print(f"bench: {met} of {len(judged)} budgets met")


def as_json(results: list[Result]) -> str:
    """Date, machine and figures as one JSON object."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    record = {"date": now, "machine": machine(), "results": results}
    return json.dumps(record, indent=2, ensure_ascii=False)


def can_plot() -> bool:
    """Whether matplotlib is installed; it isn't imported for that."""
    return importlib.util.find_spec("matplotlib") is not None


def bound(budget: Any) -> float | None:
    """The number of a budget, which may be a text such as `<= 1.25`."""
    if isinstance(budget, str):
        budget = budget.strip("<>=≤≥x ")
    try:
        return None if budget is None else float(budget)
    except ValueError:
        return None


def label(result: Result) -> str:
    """What stands at the end of a bar: ratio, budget, value with unit, reference."""
    budget, reference = budget_text(result), result["reference"]
    text = f"{number(result['ratio'])}×"
    if budget:
        text += f" (budget {budget})"
    text += f"   {number(result['value'])} {result['unit']}"
    if isinstance(reference, str) and reference:
        return f"{text} against {reference}"
    if reference is None or reference == "":
        return text
    return f"{text} against {number(reference)}"


def draw_bars(axes: Any, shown: list[Result]) -> None:
    """A bar from 1 to the ratio for each figure, and a black line at its budget. The
    axis is logarithmic: twice as fast and half as fast are equally far from 1."""
    limits = [bound(result["budget"]) for result in shown]
    every = [1.0, *(r["ratio"] for r in shown), *(x for x in limits if x is not None)]
    low, high = min(every), max(every)
    for place, (result, limit) in enumerate(zip(shown, limits, strict=True)):
        ratio = result["ratio"]
        axes.barh(
            place, ratio - 1, left=1, height=0.6, color=COLOURS[result["ok"]], zorder=2
        )
        if limit is not None:
            axes.plot([limit] * 2, [place - 0.4, place + 0.4], color="black", lw=2)
        axes.annotate(
            label(result),
            (max(ratio, limit or 1.0, 1.0), place),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    spread = max(high / low, 1.5)
    axes.set_xscale("log")
    axes.set_xlim(low / spread**0.08, high * spread**0.9)
    ticks = sorted(TICKS + FINE_TICKS) if spread < 4 else TICKS
    ticks = [t for t in ticks if low / spread**0.08 <= t <= high * spread**0.3]
    axes.set_xticks(ticks, [f"{t:g}×" for t in ticks])
    axes.minorticks_off()
    axes.axvline(1.0, color="#34495e", lw=1)
    axes.grid(axis="x", color="#dfe6e9", zorder=0)


def plot(results: list[Result], path: str) -> None:
    """Draws the ratios as bars beside their budgets and writes a PNG. Needs
    matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shown = [
        r for r in results if isinstance(r["ratio"], (int, float)) and r["ratio"] > 0
    ]
    figure, axes = pyplot.subplots(figsize=(12, 2.0 + 0.42 * max(len(shown), 1)))
    draw_bars(axes, shown)
    axes.set_yticks(range(len(shown)), [r["name"] for r in shown], fontsize=9)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("ratio to the reference measured in the same run (log scale)")
    axes.set_title(f"ddstore bench\n{machine()}", fontsize=11, loc="left")
    axes.spines[["top", "right", "left"]].set_visible(False)
    legend: list[Any] = [
        Patch(color=COLOURS[True], label="budget met"),
        Patch(color=COLOURS[False], label="budget missed"),
        Patch(color=COLOURS[None], label="nothing to meet"),
        Line2D([], [], color="black", lw=2, label="budget"),
    ]
    figure.legend(handles=legend, loc="lower right", ncols=4, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(path, dpi=140)
    pyplot.close(figure)
