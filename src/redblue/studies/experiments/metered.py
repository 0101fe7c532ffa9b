"""Measure compiled kernels in simulated caches of M words, beside their counts and the bound; experiments share this.

A row describes one schedule in one cache. A row of kind "counted" holds the best tiles in the model. A row of kind
"measured" holds the kernel that ran, its tiles, which were planned for that cache, and the words that the cache moved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from redblue import schedules
from redblue.base.dtypes import BYTES_PER_WORD
from redblue.base.errors import RedblueError
from redblue.bounds import lower_bound
from redblue.catalogue.memories import USABLE_SHARE
from redblue.lab.counts import count
from redblue.meter import measure as measured
from redblue.meter import valgrind
from redblue.problem import Problem
from redblue.studies.experiments.experiment import Point, Row

COUNTED, MEASURED = "counted", "measured"
DTYPE, LINE_BYTES = "float32", 64
WORD_BYTES = BYTES_PER_WORD[DTYPE]
GRID = [round(1024 * 2 ** (step / 4)) for step in range(25)]  # M of the counted curves: 1k to 64k words
L1 = (12288, 12)  # M in words, and ways: the 48 KiB of Zen 5, and of Intel since Ice Lake
FULL = "fully associative"
MAX_OVER_COUNTED = {FULL: 1.3, "L1": 1.6}  # the goal for measured over counted words


class Change(NamedTuple):
    """A capacity from which on the schedule `large` beats `small`.

    label: this M as text; over_d2: M / d^2, at leading order.
    """

    label: str
    over_d2: float
    small: str
    large: str


def measure(point: Point) -> list[Row]:
    """Measure one kernel in one cache, or count all schedules over the capacities of GRID."""
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
                counted = count(name, problem, words=words)
                rows.append(row | {"counted_words": counted.words, "tiles": counted.tiles})
            except schedules.TooFewWords as error:
                rows.append(row | {"counted_words": None, "why": str(error)})
    return rows


def run(problem: Problem, words: int, ways: int | None, schedule: str) -> Row:
    """Measure the kernel with tiles for this cache: for its whole capacity if it is fully associative (`ways` None),
    else for the usable share of it.
    """
    usable = words if ways is None else int(USABLE_SHARE * words)
    try:
        result = measured(
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
        "tiles": dict(result.tiles),
        "measured_words": result.measured_words,
        "counted_words": result.counted_words,
        "bound_words": result.bound_words,
        "kernel": result.kernel,
        "parts": dict(result.parts),
    }


def missing() -> str:
    """What this machine lacks; "" if nothing."""
    try:
        valgrind.find()
    except RedblueError as error:
        return str(error)
    return ""


def tools() -> dict[str, str]:
    """The version of valgrind."""
    return {"callgrind of": valgrind.find()[1]}


def of(rows: Sequence[Row], kind: str, **wanted: object) -> list[Row]:
    """Select the rows of a kind whose schedule fitted, and whose fields have the wanted values."""
    key = f"{kind}_words"
    return [
        row
        for row in rows
        if row["kind"] == kind and row.get(key) and all(row.get(name) == value for name, value in wanted.items())
    ]


def per_pair(row: Row, name: str) -> float:
    """A field of a row, in words, divided by the number of pairs, n^2."""
    return row[name] / row["n"] ** 2


def dividing(rows: Sequence[Row], kind: str, d: int, small: str, large: str) -> float | None:
    """M in words from which on the schedule `large` moves fewer words than `small`; None if there is no such M.

    M is interpolated between the capacities of the rows. Measured rows count for fully associative caches only.
    """
    more = {"ways": None} if kind == MEASURED else {}

    def words(name: str) -> dict[int, int]:
        return {row["M"]: row[f"{kind}_words"] for row in of(rows, kind, d=d, schedule=name, **more)}

    small_words, large_words = words(small), words(large)
    gains = [
        (capacity, math.log(large_words[capacity] / small_words[capacity]))
        for capacity in sorted(small_words.keys() & large_words.keys())
    ]
    for (low, worse), (high, better) in reversed(list(pairwise(gains))):
        if worse > 0 >= better:
            return low * (high / low) ** (worse / (worse - better))
    return None
