"""A sweep on the terminal: the best schedule of each point, and what was left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from redblue import schedules
from redblue.base.terminal import table
from redblue.base.text import amount, ratio, time
from redblue.lab.text import STANDARD_REMARK
from redblue.studies.sweep.grid import Sweep
from redblue.studies.sweep.points import FITS, INVALID, Row

MOST_SHOWN = 40  # places; the first and the last, where there are more
MOST_REASONS = 3


def best_rows(rows: Sequence[Row]) -> list[Row]:
    """For each point and cache, the schedule of fewest words that a planner may choose, or else what there is."""
    places: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = tuple(row[name] for name in PLACE)
        places.setdefault(key, []).append(row)
    return [min(found, key=_rank) for found in places.values()]


PLACE = (
    *("n_q", "n_k", "d", "d_v", "batch", "heads", "kv_heads", "dtype", "mask", "window", "direction"),
    *("memory", "boundary", "capacity_words"),
)


def _rank(row: Row) -> tuple[bool, bool, int]:
    fits = row["status"] == FITS
    return not fits, not (fits and schedules.get(row["schedule"]).drop_in), row["words"] or 0


def summary(sweep: Sweep, rows: Sequence[Row], kept_in: str | None) -> Table:
    """The table. kept_in: the file that holds all rows."""
    numbers, texts = _columns(sweep)
    found = best_rows(rows)
    timed = any(row["seconds"] is not None for row in found)
    made = table((), title=f"{sweep.size:,} point{'s' * (sweep.size != 1)}, the best schedule of each")
    made.pad_edge, made.collapse_padding = False, True  # many columns have to fit
    made.caption = escape("\n".join(_remarks(found, rows, kept_in)))
    if texts:
        made.add_column(escape(", ".join(texts)), overflow="fold", min_width=16)
    for name in numbers:
        made.add_column("M (words)" if name == "capacity_words" else name, justify="right", no_wrap=True)
    made.add_column("schedule", overflow="fold", min_width=11)
    for name in ("words", "per pair", "gap", *(["time"] if timed else [])):
        made.add_column(name, justify="right", no_wrap=True)
    half = MOST_SHOWN // 2
    long = len(found) > MOST_SHOWN
    for i, row in enumerate([*found[:half], *found[-half:]] if long else found):
        if long and i == half:
            made.add_row(*["..." for _ in made.columns])
        made.add_row(
            *([escape(", ".join(str(row[name] or "-") for name in texts))] if texts else []),
            *(f"{row[name]:,}" if row[name] is not None else "-" for name in numbers),
            row["schedule"] if row["status"] == FITS else "invalid" if row["status"] == INVALID else "none fits",
            amount(row["words"]),
            "-" if row["words_per_pair"] is None else f"{row['words_per_pair']:.3g}",
            ratio(row["gap"]),
            *([time(row["seconds"]) if row["seconds"] is not None else "-"] if timed else []),
        )
    return made


def _columns(sweep: Sweep) -> tuple[list[str], list[str]]:
    """Numbers and texts in which the points differ."""
    varying = [axis for axis in sweep.varying if axis.name not in ("words", "memory", "schedule")]
    n = "n_k" if "n_q" in sweep.axes else "n_q"
    numbers = [n if axis.name == "n" else axis.name for axis in varying if axis.is_number]
    texts = [axis.name for axis in varying if not axis.is_number]
    if "memory" in sweep.axes:
        texts += ["memory", "boundary"] if len(sweep.axes["memory"].values) > 1 else ["boundary"]
    if "words" in sweep.axes and len(sweep.caches) > 1:
        numbers.append("capacity_words")
    return numbers, texts


def _remarks(found: Sequence[Row], rows: Sequence[Row], kept_in: str | None) -> list[str]:
    said = []
    if len(found) > MOST_SHOWN:
        where = f"all {len(rows):,} rows are in {kept_in}" if kept_in else "give -o FILE for all rows"
        said.append(f"{MOST_SHOWN} of {len(found):,} places shown; {where}")
    reasons = list(dict.fromkeys(str(row["reason"]) for row in rows if row["status"] == INVALID))
    if reasons:
        count = sum(row["status"] == INVALID for row in rows)
        said.append(f"{count:,} invalid: {'; '.join(reasons[:MOST_REASONS])}{'; ...' * (len(reasons) > MOST_REASONS)}")
    nowhere = list(dict.fromkeys(str(row["reason"]) for row in found if row["status"] not in (FITS, INVALID)))
    if nowhere:
        said.append(f"none fits: {'; '.join(nowhere[:MOST_REASONS])}{'; ...' * (len(nowhere) > MOST_REASONS)}")
    if any((row["schedule"], row["direction"], row["status"]) == ("standard", "backward", FITS) for row in rows):
        said.append(STANDARD_REMARK)  # also where the table's best is another: it is in the picture and in the file
    return said
