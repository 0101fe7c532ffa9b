"""Measured lines of compiled kernels over M, beside the counted curves and the bound: what several experiments share.

A row is of one schedule in one cache: kind "counted" holds its best tiles in the model; kind "measured" holds the
kernel that was run, in the tiles planned for that cache, and what the cache moved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from redblue import schedules
from redblue.base.errors import RedblueError
from redblue.bounds import lower_bound
from redblue.catalogue.memories import USABLE_SHARE
from redblue.lab.counts import count
from redblue.meter import measure as measured
from redblue.meter import valgrind
from redblue.problem import Problem
from redblue.studies.experiments.experiment import Point, Row

COUNTED, MEASURED = "counted", "measured"
DTYPE, WORD_BYTES, LINE_BYTES = "float32", 4, 64
GRID = [round(1024 * 2 ** (step / 4)) for step in range(25)]  # M of the counted curves: 1k to 64k words
L1 = (12288, 12)  # M in words, ways: 48 KiB, as of Zen 5 and of Intel since Ice Lake
FULL = "fully associative"
MOST = {FULL: 1.3, "L1": 1.6}  # measured over counted words that were asked for


class Change(NamedTuple):
    """Where one schedule takes another's place. label: of M; over_d2: M over d^2 at leading order."""

    label: str
    over_d2: float
    small: str
    large: str


def measure(point: Point) -> list[Row]:
    problem = Problem(point["n"], point["n"], point["d"], dtype=DTYPE, direction=point["direction"])
    common = {name: point[name] for name in ("direction", "kind", "d", "n")}
    if point["kind"] == MEASURED:
        return [point | run(problem, point["M"], point["ways"], point["schedule"])]
    rows = []
    for words in GRID:
        bound = lower_bound(problem, words).words
        for name in point["schedules"]:
            row = common | {"M": words, "schedule": name, "bound_words": bound}
            try:
                made = count(name, problem, words=words)
                rows.append(row | {"counted_words": made.words, "tiles": made.tiles})
            except schedules.TooFewWords as error:
                rows.append(row | {"counted_words": None, "why": str(error)})
    return rows


def run(problem: Problem, words: int, ways: int | None, schedule: str) -> Row:
    """The kernel in tiles for this cache: for all of one set of lines, for what is usable of several sets."""
    usable = words if ways is None else int(USABLE_SHARE * words)
    try:
        found = measured(
            problem,
            words=words,
            using="cachegrind",
            schedule=schedule,
            plan_words=usable,
            line_bytes=LINE_BYTES,
            ways=ways,
        )
    except schedules.TooFewWords as error:
        return {"measured_words": None, "why": str(error)}
    return {
        "tiles": dict(found.tiles),
        "measured_words": found.measured_words,
        "counted_words": found.counted_words,
        "bound_words": found.bound_words,
        "kernel": found.kernel,
        "parts": dict(found.parts),
    }


def missing() -> str:
    try:
        valgrind.find()
    except RedblueError as error:
        return str(error)
    return ""


def tools() -> dict[str, str]:
    return {"callgrind of": valgrind.find()[1]}


def of(rows: Sequence[Row], kind: str, **wanted: object) -> list[Row]:
    """The rows of a kind that have figures, and these values."""
    key = f"{kind}_words"
    return [
        row
        for row in rows
        if row["kind"] == kind and row.get(key) and all(row.get(name) == value for name, value in wanted.items())
    ]


def dividing(rows: Sequence[Row], kind: str, d: int, small: str, large: str) -> float | None:
    """M in words from which on `large` moves fewer words than `small`, between the capacities looked at; None if the
    two do not change places there. Of measured rows, in a fully associative cache."""
    more = {"ways": None} if kind == MEASURED else {}

    def words(name: str) -> dict[int, int]:
        return {row["M"]: row[f"{kind}_words"] for row in of(rows, kind, d=d, schedule=name, **more)}

    one, other = words(small), words(large)
    gains = [(at, math.log(other[at] / one[at])) for at in sorted(one.keys() & other.keys())]
    for (low, worse), (high, better) in reversed(list(pairwise(gains))):
        if worse > 0 >= better:
            return low * (high / low) ** (worse / (worse - better))
    return None
