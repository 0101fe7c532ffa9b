"""A sweep on the terminal: the best schedule of each point, and remarks on the other rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from redblue import schedules
from redblue.base.terminal import StackingTable, table
from redblue.base.text import amount, ratio, time
from redblue.lab.text import STANDARD_REMARK
from redblue.studies.sweep.grid import Sweep
from redblue.studies.sweep.points import FITS, INVALID, Row

MAX_LINES = 40  # limit of the table; a longer table shows only its first and last lines
MAX_REASONS = 3


def best_rows(rows: Sequence[Row]) -> list[Row]:
    """For each point and cache, the row of the schedule with the fewest words that a planner may choose.

    If a planner may choose none, it is the row of another schedule; if none fits, a row without words.
    """
    places: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = tuple(row[name] for name in PLACE)
        places.setdefault(key, []).append(row)
    return [min(candidates, key=_rank) for candidates in places.values()]


PLACE = (
    *("n_q", "n_k", "d", "d_v", "batch", "heads", "kv_heads", "dtype", "mask", "window", "direction"),
    *("memory", "boundary", "capacity_words"),
)


def _rank(row: Row) -> tuple[bool, bool, int]:
    """A sort key: rows that fit first, then schedules that a planner may choose, then the fewest words."""
    fits = row["status"] == FITS
    return not fits, not (fits and schedules.get(row["schedule"]).drop_in), row["words"] or 0


def summary(sweep: Sweep, rows: Sequence[Row], kept_in: str | None) -> StackingTable:
    """The table of the best rows. kept_in: the name of the file that holds all rows, if there is one."""
    numbers, texts = _columns(sweep)
    best = best_rows(rows)
    timed = any(row["seconds"] is not None for row in best)
    headings = ["M (words)" if name == "capacity_words" else name for name in numbers]
    figures = ["words", "per pair", "gap", *(["time"] if timed else [])]
    lines = table(
        [", ".join(texts)] if texts else [],
        headings,
        title=f"{sweep.size:,} point{'s' * (sweep.size != 1)}, the best schedule of each",
        caption="\n".join(_remarks(best, rows, kept_in)),
    )
    lines.pad_edge, lines.collapse_padding = False, True  # many columns have to fit
    lines.add_column(Text("schedule"), overflow="fold")
    for name in figures:
        lines.add_column(Text(name), justify="right", no_wrap=True)
    half = MAX_LINES // 2
    long = len(best) > MAX_LINES
    for i, row in enumerate([*best[:half], *best[-half:]] if long else best):
        if long and i == half:
            lines.add_row("...")
        lines.add_row(
            *([", ".join(str(row[name] or "-") for name in texts)] if texts else []),
            *(f"{row[name]:,}" if row[name] is not None else "-" for name in numbers),
            row["schedule"] if row["status"] == FITS else "invalid" if row["status"] == INVALID else "none fits",
            amount(row["words"]),
            "-" if row["words_per_pair"] is None else f"{row['words_per_pair']:.3g}",
            ratio(row["gap"]),
            *([time(row["seconds"]) if row["seconds"] is not None else "-"] if timed else []),
        )
    return lines


def _columns(sweep: Sweep) -> tuple[list[str], list[str]]:
    """The names of the numeric columns, and of the text columns, that vary between points."""
    varying = [axis for axis in sweep.varying if axis.name not in ("words", "memory", "schedule")]
    n = "n_k" if "n_q" in sweep.axes else "n_q"
    numbers = [n if axis.name == "n" else axis.name for axis in varying if axis.is_number]
    texts = [axis.name for axis in varying if not axis.is_number]
    if "memory" in sweep.axes:
        texts += ["memory", "boundary"] if len(sweep.axes["memory"].values) > 1 else ["boundary"]
    if "words" in sweep.axes and len(sweep.caches) > 1:
        numbers.append("capacity_words")
    return numbers, texts


def _remarks(best: Sequence[Row], rows: Sequence[Row], kept_in: str | None) -> list[str]:
    """Lines below the table: rows not shown, invalid points, and points at which no schedule fits."""
    remarks = []
    if len(best) > MAX_LINES:
        where = f"all {len(rows):,} rows are in {kept_in}" if kept_in else "give -o FILE for all rows"
        remarks.append(f"{MAX_LINES} of {len(best):,} places shown; {where}")
    reasons = list(dict.fromkeys(str(row["reason"]) for row in rows if row["status"] == INVALID))
    if reasons:
        count = sum(row["status"] == INVALID for row in rows)
        remarks.append(f"{count:,} invalid: {'; '.join(reasons[:MAX_REASONS])}{'; ...' * (len(reasons) > MAX_REASONS)}")
    nowhere = list(dict.fromkeys(str(row["reason"]) for row in best if row["status"] not in (FITS, INVALID)))
    if nowhere:
        remarks.append(f"none fits: {'; '.join(nowhere[:MAX_REASONS])}{'; ...' * (len(nowhere) > MAX_REASONS)}")
    if any((row["schedule"], row["direction"], row["status"]) == ("standard", "backward", FITS) for row in rows):
        # Even if the table shows another schedule: the picture and the file show this one.
        remarks.append(STANDARD_REMARK)
    return remarks
