"""An experiment over M: the kernels and caches to measure, and the tables and sentences about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import altair as alt

from redblue.kernels.table import tiled_kernels
from redblue.studies.experiments.experiment import Point, Row, Table
from redblue.studies.experiments.metered import (
    COUNTED,
    FULL,
    L1,
    LINE_BYTES,
    MAX_OVER_COUNTED,
    MEASURED,
    WORD_BYTES,
    Change,
    dividing,
    of,
)
from redblue.studies.experiments.metered_figure import figure

MAX_EDGE = 1 << 20  # a chunk of this length or more stands for all queries, and is not shown as a tile edge

KINDS = ("in exact counts", "in measurements of fully associative caches")  # in the order of `Over.places`


@dataclass(frozen=True)
class Over:
    """An experiment over M. The schedules with a tiled CPU kernel are counted, measured and drawn.

    changes: the capacities at which the best schedule changes. sizes: n for each d. capacities: M in words for each d.
    """

    direction: str
    changes: tuple[Change, ...]
    sizes: Mapping[int, int]
    capacities: Mapping[int, Sequence[int]]

    @property
    def schedules(self) -> tuple[str, ...]:
        return tiled_kernels("cpu", self.direction)

    def points(self) -> list[Point]:
        """Every schedule, at every head dimension, in every cache."""
        points: list[Point] = []
        for d, n in self.sizes.items():
            common = {"direction": self.direction, "d": d, "n": n}
            points.append(common | {"kind": COUNTED, "schedules": list(self.schedules)})
            caches = [(words, None) for words in self.capacities[d]] + [L1]
            points += [
                common | {"kind": MEASURED, "M": words, "ways": ways, "schedule": name}
                for words, ways in caches
                for name in self.schedules
            ]
        return points

    def figure(self, rows: list[Row]) -> alt.FacetChart:
        return figure(rows, self.schedules, self.changes)

    def places(self, rows: list[Row]) -> list[tuple[int, Change, float | None, float | None]]:
        """(d, change, counted, measured) for every change; the last two are M / d^2, None if no change was seen."""
        places = []
        for d in sorted({row["d"] for row in rows}):
            for change in self.changes:
                crossings = (dividing(rows, kind, d, change.small, change.large) for kind in (COUNTED, MEASURED))
                places.append((d, change, *(words and words / d**2 for words in crossings)))
        return places

    def tables(self, rows: list[Row]) -> list[Table]:
        lines = [
            (str(d), f"`{change.small}` to `{change.large}`", *map(_over, (change.over_d2, counted, measured)))
            for d, change, counted, measured in self.places(rows)
        ]
        columns = ("d", "change", "leading order", "exact counts", "measurements, fully associative")
        return [Table("The cache size M at which the best schedule changes", columns, lines, 2), measured_table(rows)]

    def findings(self, rows: list[Row]) -> list[str]:
        """Where the best schedule changes, and how far measurements lie above counts, in sentences."""
        sentences = []
        for change in self.changes:
            places = [values_of_kinds for _, own_change, *values_of_kinds in self.places(rows) if own_change is change]
            texts = []
            for name, values in zip(KINDS, zip(*places, strict=True), strict=True):
                positions = [f"{position:.2f}" for position in sorted(filter(None, values))]
                span = " to ".join(dict.fromkeys((positions[0], positions[-1]))) if positions else ""
                texts += [f"at M = {span} d² {name}"] if span else []
            if texts:
                where = [f"at M = {change.label} to leading order", *texts]
                joined = ", ".join(where[:-1]) + "," * (len(where) > 2) + f" and {where[-1]}"
                sentences.append(f"The best schedule changes from `{change.small}` to `{change.large}` {joined}.")
        return [*sentences, *ratio_findings(rows), *code_findings(rows)]


def _over(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} d²"


def over_counted(row: Row) -> float:
    """Measured words over counted ones."""
    return row["measured_words"] / row["counted_words"]


def without_allocation(row: Row) -> float:
    """Measured words over counted ones, without the lines that a store reads before it writes (write allocation)."""
    lines = row["parts"]["write_allocate_lines"]
    return (row["measured_words"] - lines * LINE_BYTES // WORD_BYTES) / row["counted_words"]


def ratio_findings(rows: Sequence[Row]) -> list[str]:
    """How far measurements lie above counts, in a sentence for each kind of cache."""
    sentences = []
    for cache, limit in MAX_OVER_COUNTED.items():
        measurements = sorted(
            (row for row in of(rows, MEASURED) if (row["ways"] is None) == (cache == FULL)), key=over_counted
        )
        if not measurements:
            continue
        low, middle, worst = measurements[0], median(map(over_counted, measurements)), measurements[-1]
        inside = [sum(ratio(row) <= limit for row in measurements) for ratio in (over_counted, without_allocation)]
        where = "a fully associative cache" if cache == FULL else "an L1d of 48 KiB and 12 ways"
        sentences.append(
            f"In {where}, kernels move {over_counted(low):.2f} to {over_counted(worst):.2f} times the words counted "
            f"for their tiles (median {middle:.2f}). {inside[0]} of {len(measurements)} measurements "
            f"meet the goal, a ratio of at most {limit}. Without the reads that write allocation adds, {inside[1]} "
            f"measurements meet the goal. The ratio is largest for `{worst['schedule']}` at "
            f"d = {worst['d']} and M = {worst['M']:,}."
        )
    return sentences


def code_findings(rows: Sequence[Row]) -> list[str]:
    """How many cache lines of code passed through the measured caches, in a sentence."""
    lines = [row["parts"]["code_lines"] for row in of(rows, MEASURED)]
    if not lines:
        return []
    few, many = min(lines), max(lines)
    return [f"A measured kernel loads {few} to {many} cache lines of code into the cache. They count as no words."]


def measured_table(rows: Sequence[Row]) -> Table:
    """A table of every measurement."""
    columns = ("schedule", "cache", "d", "n", "M", "tiles", "measured words", "measured / counted")
    columns += ("measured / counted, without write allocation", "measured / bound")
    lines = [
        (
            f"`{row['schedule']}`",
            f"{row['ways']} ways" if row["ways"] else FULL,
            str(row["d"]),
            str(row["n"]),
            f"{row['M']:,}",
            ", ".join(f"{edge} {length}" for edge, length in row["tiles"].items() if length < MAX_EDGE),
            f"{row['measured_words']:,}",
            f"{over_counted(row):.2f}",
            f"{without_allocation(row):.2f}",
            f"{row['measured_words'] / row['bound_words']:.2f}",
        )
        for row in sorted(of(rows, MEASURED), key=lambda row: (row["d"], row["ways"] or 0, row["M"]))
    ]
    return Table("Every measurement", columns, lines, 2)


METHOD = """
**Measurement.** The compiled CPU kernel runs under valgrind's callgrind, with one head, a full mask and float32. The
kernel uses AVX2, because valgrind does not decode AVX-512. Callgrind simulates a write-back cache with lines of 64
bytes that replaces the least recently used line (LRU). In the first table, a dash means that no change was seen.
The measurements of the first table are those of fully associative caches; the L1d of 12 ways is left out.

- *Measured words*: 16 words for each line of a read miss or a write miss, for each line that is written back, and for
  each line of the output that the cache still holds at the end. Accesses before the kernel are not included.
- *Counted words*: the schedule's closed form for the tiles that the kernel ran with.
- *Tiles*: `rows`, `cols` and `depth` are the queries, keys and features of a tile of scores. The other pairs of rows
  and columns are tiles of `out`, `dq`, `dk` and `dv`, or the tile of scores in the pass for dK and dV (`dkv`). `chunk`
  is the number of queries whose P (and dS) are in memory at the same time.

**Figure.** A line shows the schedule's best tiles in the model, where the schedule decides what the cache holds and can
use all of M. A mark shows the kernel. Most edges of the kernel's tiles are multiples of a vector, a cache line or the
rows of a micro-kernel. For a fully associative cache, the kernel's tiles are planned for the whole cache, minus room
for code and for dead tiles that LRU still holds. For a cache with sets, the tiles are planned for three quarters of the
cache ([real-caches](real-caches.md)). So a mark lies above its line for two reasons: the kernel's tiles are smaller,
and the kernel moves more words than are counted for its tiles. The table of measurements shows only the second effect.

The kernel moves more words than counted for these reasons:

- *Stores*: an ordinary store reads a line before it changes the line (write allocation). P is written once and read
  once. With the read of the store, P crosses the boundary three times instead of twice. Outputs and copies are read
  before they are written, too. The column "without write allocation" leaves out these reads, as streaming stores would.
- *Copies*: the kernel copies Q and other operands into packed buffers. The schedules do not count these O(n d) words,
  which matter if n is small.
- *Lines*: rows of fewer than 16 words, row statistics and the stack occupy whole lines.
- *Code*: lines of code pass through the simulated cache and evict data, as they do in a real L2. They matter most in
  the smallest caches: 1,024 words are 64 lines. The last finding gives their number.
- *Sets*: rows of K lie d words apart, as users store them. If d is a power of two, these rows share few sets of an L1d.
  `small_cache` reads slices of K in place, and so moves many more words from d = 128 on. Panels of P (a few rows with
  all keys) would also share few sets if their size were a multiple of 2048 bytes, so the kernels pad these panels by a
  few keys. In the forward pass with d = 32 and n = 512, in an L1d of 48 KiB, `hybrid` moved 2.9 times its count without
  this padding, and moves 1.5 times its count with it.
"""
