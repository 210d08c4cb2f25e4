"""Measuring in turn, so that what disturbs the machine disturbs all ways alike."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


class Dealer:
    """Deals row numbers in random order, again and again: one comes back only when all
    the others have been dealt since."""

    def __init__(self, first: int, end: int, seed: int) -> None:
        order = np.random.default_rng(seed).permutation(end - first)
        self.rows: Numbers = order.astype(np.int64) + first
        self.at = 0

    def deal(self, n: int) -> Numbers:
        """The next n numbers."""
        if self.at + n > len(self.rows):
            self.at = 0
        self.at += n
        return self.rows[self.at - n : self.at]


@dataclass
class Way:
    """One way of reading rows: read(numbers) puts them into an array given before.
    prepare, which is not timed, makes of the numbers what read takes."""

    name: str
    read: Callable[[Any], None]
    dealer: Dealer
    prepare: Callable[[Numbers], Any] = field(default=lambda numbers: numbers)


@dataclass
class Spread:
    """Least, median and greatest over the rounds."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Of these values."""
        return cls(min(values), statistics.median(values), max(values))


@dataclass
class Turns:
    """The rounds' medians of a call of each way, in microseconds."""

    us: list[list[float]]
    calls: int

    def time(self, way: int) -> Spread:
        """Of one way."""
        return Spread.of([us[way] for us in self.us])

    def ratio(self, a: int, b: int) -> Spread:
        """Of way a to way b, round by round."""
        return Spread.of([us[a] / us[b] for us in self.us])


def take_turns(
    ways: list[Way],
    batch: int,
    seconds: float,
    quick: bool,
    verify: Callable[[Way, Numbers], None],
) -> Turns:
    """Each way reads `batch` rows at a time, in turn and rows of its own, for about
    `seconds` in all; verify looks at what it read before."""
    rounds = 3 if quick else 9
    seconds = seconds / (10 if quick else 1) / rounds
    for way in ways:
        for _ in range(3):
            numbers = way.dealer.deal(batch)
            way.read(way.prepare(numbers))
            verify(way, numbers)
    us: list[list[float]] = []
    calls = 0
    for _ in range(rounds):
        samples: list[list[int]] = [[] for _ in ways]
        end = time.perf_counter() + seconds
        turn = 0
        while turn < 4 or time.perf_counter() < end:
            for place in range(len(ways)):
                number = (turn // 2 + place) % len(ways)
                if turn % 2:
                    number = len(ways) - 1 - number
                way = ways[number]
                argument = way.prepare(way.dealer.deal(batch))
                begin = time.perf_counter_ns()
                way.read(argument)
                samples[number].append(time.perf_counter_ns() - begin)
            turn += 1
        calls += turn
        us.append([statistics.median(some) / 1e3 for some in samples])
    return Turns(us, calls)


def show(
    part: str,
    name: str,
    unit: str,
    value: float,
    reference: float,
    what: str,
    ratio: Spread,
    budget: str | None,
    note: str,
    void: bool = False,
) -> None:
    """Prints a figure as a line of JSON. budget: "<= 1.3" or ">= 0.85". void: the
    control failed, there is no verdict."""
    ok = None
    if budget and not void:
        sign, bound = budget.split()
        ok = ratio.middle <= float(bound)
        if sign == ">=":
            ok = ratio.middle >= float(bound)
    record = {
        "part": part,
        "name": name,
        "value": round(value, 5),
        "unit": unit,
        "reference": f"{reference:.3g} {what}",
        "reference_value": round(reference, 5),
        "ratio": round(ratio.middle, 4),
        "ratio_low": round(ratio.low, 4),
        "ratio_high": round(ratio.high, 4),
        "budget": budget,
        "ok": ok,
        "note": note,
    }
    print(json.dumps(record), flush=True)
