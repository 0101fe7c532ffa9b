"""An experiment over M: which kernels in which caches, and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import altair as alt

from redblue.kernels.cpu.cache_fit import KERNELS
from redblue.studies.experiments.experiment import Point, Row, Table
from redblue.studies.experiments.metered import (
    COUNTED,
    FULL,
    L1,
    LINE_BYTES,
    MEASURED,
    MOST,
    WORD_BYTES,
    Change,
    dividing,
    of,
)
from redblue.studies.experiments.metered_figure import figure

MOST_EDGE = 1 << 20  # a chunk of all queries is none


@dataclass(frozen=True)
class Over:
    """An experiment over M: what is counted and drawn, of which the compiled kernels are measured.

    sizes: n by d. capacities: M in words, by d.
    """

    direction: str
    schedules: tuple[str, ...]
    changes: tuple[Change, ...]
    sizes: Mapping[int, int]
    capacities: Mapping[int, Sequence[int]]

    def points(self) -> list[Point]:
        """Every schedule, at every head dimension, in every cache."""
        found: list[Point] = []
        for d, n in self.sizes.items():
            common = {"direction": self.direction, "d": d, "n": n}
            found.append(common | {"kind": COUNTED, "schedules": list(self.schedules)})
            caches = [(words, None) for words in self.capacities[d]] + [L1]
            found += [
                common | {"kind": MEASURED, "M": words, "ways": ways, "schedule": name}
                for words, ways in caches
                for name in KERNELS[self.direction]
            ]
        return found

    def figure(self, rows: list[Row]) -> alt.FacetChart:
        return figure(rows, self.schedules, self.changes)

    def places(self, rows: list[Row]) -> list[tuple[int, Change, float | None, float | None]]:
        """(d, change, counted, measured): M over d^2 of every change of places."""
        found = []
        for d in sorted({row["d"] for row in rows}):
            for change in self.changes:
                at = (dividing(rows, kind, d, change.small, change.large) for kind in (COUNTED, MEASURED))
                found.append((d, change, *(words and words / d**2 for words in at)))
        return found

    def tables(self, rows: list[Row]) -> list[Table]:
        said = [
            (str(d), f"`{each.small}` to `{each.large}`", *map(_over, (each.over_d2, counted, measured)))
            for d, each, counted, measured in self.places(rows)
        ]
        columns = ("d", "from, to", "at leading order", "counted", "measured")
        return [Table("Where the best schedule changes, M over d²", columns, said, 2), measured_table(rows)]

    def findings(self, rows: list[Row]) -> list[str]:
        said = []
        for change in self.changes:
            found = [at for _, each, *at in self.places(rows) if each is change]
            texts = []
            for kind, values in zip((COUNTED, MEASURED), zip(*found, strict=True), strict=True):
                known = [each for each in values if each]
                texts += [f"{kind} {min(known):.2f} to {max(known):.2f} d²"] if known else []
            if texts:
                where = f"M = {change.label} at leading order"
                said.append(f"From `{change.small}` to `{change.large}`, {where}: {', '.join(texts)}.")
        return [*said, *ratio_findings(rows)]


def _over(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} d²"


def over_counted(row: Row) -> float:
    """Measured words over counted ones."""
    return row["measured_words"] / row["counted_words"]


def without_allocation(row: Row) -> float:
    """The same without the lines that an ordinary store reads before it changes them, which no schedule asks for."""
    lines = row["parts"]["write_allocate_lines"]
    return (row["measured_words"] - lines * LINE_BYTES // WORD_BYTES) / row["counted_words"]


def ratio_findings(rows: Sequence[Row]) -> list[str]:
    said = []
    for cache, most in MOST.items():
        found = sorted(
            (row for row in of(rows, MEASURED) if (row["ways"] is None) == (cache == FULL)), key=over_counted
        )
        if not found:
            continue
        low, middle, worst = found[0], found[len(found) // 2], found[-1]
        inside = [sum(ratio(row) <= most for row in found) for ratio in (over_counted, without_allocation)]
        where = "a fully associative cache" if cache == FULL else "an L1d of 48 KiB and 12 ways"
        said.append(
            f"In {where}, measured over counted words of the same tiles: {over_counted(low):.2f} to "
            f"{over_counted(worst):.2f}, {over_counted(middle):.2f} in the median; {inside[0]} of {len(found)} are at "
            f"most {most}, {inside[1]} without what stores read before they write. The most: `{worst['schedule']}`, "
            f"d = {worst['d']}, M = {worst['M']:,}."
        )
    return said


def measured_table(rows: Sequence[Row]) -> Table:
    """Every measurement."""
    columns = ("schedule", "cache", "d", "n", "M", "tiles", "measured", "/ counted", "no allocation", "/ bound")
    made = [
        (
            f"`{row['schedule']}`",
            f"{row['ways']} ways" if row["ways"] else FULL,
            str(row["d"]),
            str(row["n"]),
            f"{row['M']:,}",
            ", ".join(f"{edge} {length}" for edge, length in row["tiles"].items() if length < MOST_EDGE),
            f"{row['measured_words']:,}",
            f"{over_counted(row):.2f}",
            f"{without_allocation(row):.2f}",
            f"{row['measured_words'] / row['bound_words']:.2f}",
        )
        for row in sorted(of(rows, MEASURED), key=lambda row: (row["d"], row["ways"] or 0, row["M"]))
    ]
    return Table("Every measurement", columns, made, 2)


METHOD = """
The compiled CPU kernel (AVX2: valgrind decodes no AVX-512), one head, full mask, float32, runs under valgrind's
callgrind, which plays every access through a cache of 64-byte lines that replaces the least recently used one and
writes back. *Measured words*: the lines of all read and write misses, lines written back, and those of the outputs
that the cache still holds at the end, 16 words each; nothing that ran before the kernel. *Counted words*: the
schedule's closed form for the tiles that the kernel ran with.

The lines of the figure are the schedule's best tiles in the model, where a cache holds what it is told and M is all
usable; the kernel's tiles are multiples of its vectors, and are chosen for all of a fully associative cache (leaving
room for what it forgets last, and for code) and for three quarters of a cache with sets
([real-caches](real-caches.md)). So marks lie above lines for two reasons: smaller tiles, and what is moved beyond the
count of these. The table has the second alone.

Why more is moved than counted. *Stores*: an ordinary store reads a line before it changes it, so that P, written once
and read once, crosses the boundary three times, not twice; outputs and copies likewise. The column "no allocation"
leaves these lines out; streaming stores would. *Copies*: Q, and what else is packed, is copied to memory of the
kernel's own, which the schedules do not count: O(n d) words, which show where n is small. *Lines*: rows of fewer than
16 words, row statistics, code and stack. *Code*: 430 to 550 lines of it pass through the simulated cache as they do
through a real L2, much of a cache of 1k or 2k words. *Sets*: rows of K lie d words apart, a power of two, as users
lay them, and meet in few sets of an L1d: `small_cache`, which reads slices of K in place, pays for that from d = 128
on. Panels of P met in few sets, too, until they were set apart by one slice: at d = 32 and n = 512, `hybrid` then
moved 2.9 times its count in this L1d, and moves 1.5 times now.
"""
