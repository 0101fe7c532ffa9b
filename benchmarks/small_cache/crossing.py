"""Compare flash with the small-cache algorithms as shared memory shrinks, an experiment that the papers lack.

The planner gets 24 to 227 KB of shared memory. `flash` then uses smaller tiles, `hybrid` and `small_cache` spill. The
closed forms count the words of the best tiles, and of the best tiles for tensor cores (multiples of 16). `--dry` only
counts and needs no GPU. On a GPU, each schedule is also timed with the tiles of its plan. If Nsight Compute runs, the
bytes at both boundaries are measured and compared with their bounds: between L1 and L2 the bound for the capacity of
shared memory, between L2 and DRAM the bound for the capacity of L2.
"""

from __future__ import annotations

import argparse
import datetime
import json
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console

import redblue as rb
from benchmarks.common.kept import days
from benchmarks.common.options import parser_of
from benchmarks.common.places import RESULTS, can_draw
from redblue import schedules
from redblue.base.files import replace_whole
from redblue.base.terminal import table
from redblue.schedules import TooFewWords

KEPT = RESULTS / "small_cache.json"
KILOBYTES = (24, 32, 48, 64, 99, 163, 227)  # of shared memory: from less than half of a T4's to an H100's
WIDTHS = (64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024)
SCHEDULES = ("flash", "hybrid", "small_cache")  # the best schedule of each regime, as M shrinks
PAIRS = tuple(pairwise(SCHEDULES))
DIRECTIONS = ("forward", "backward")
N, HEADS, DTYPE, WORD_BYTES = 8192, 16, "bfloat16", 2
TENSOR_CORE = 16  # tile edges are multiples of this


@dataclass
class Row:
    """One schedule with one size of memory. Words and bytes are for one head; None: does not fit, or not measured."""

    direction: str
    d: int
    kilobytes: int
    schedule: str
    words: int | None = None  # with the best tiles
    tensor_core_words: int | None = None  # with the best tiles whose edges are multiples of 16
    tensor_core_tiles: dict[str, int] = field(default_factory=dict)
    bound_words: int = 0
    launch: str = ""  # the planned launch for a card with this much shared memory
    launch_words: int | None = None  # with the tiles of the launch
    seconds: float | None = None  # for HEADS heads
    date: str = ""  # of the measurement or refusal
    l1_l2_bytes: float | None = None  # counted by Nsight Compute
    l2_dram_bytes: float | None = None
    l2_dram_bound_bytes: float | None = None  # for the capacity of L2
    why: str = ""

    @property
    def capacity_words(self) -> int:
        return self.kilobytes * 1024 // WORD_BYTES

    @property
    def d2_over_M(self) -> float:
        return self.d**2 / self.capacity_words


def problem(direction: str, d: int) -> rb.Problem:
    return rb.Problem(n_q=N, n_k=N, d=d, dtype=DTYPE, direction=direction)


def counted(direction: str, d: int, kilobytes: int, schedule: str) -> Row:
    row = Row(direction, d, kilobytes, schedule)
    case, algorithm = problem(direction, d), schedules.get(schedule)
    row.bound_words = rb.lower_bound(case, words=row.capacity_words).words
    edges = algorithm.direction(case).edges
    try:
        row.words = algorithm.words(case, algorithm.tiles(case, row.capacity_words))
        tiles = algorithm.tiles(case, row.capacity_words, dict.fromkeys(edges, TENSOR_CORE))
    except TooFewWords as error:
        row.why = str(error)
    else:
        row.tensor_core_words, row.tensor_core_tiles = algorithm.words(case, tiles), tiles._asdict()
    return row


def about() -> dict[str, Any]:
    date = datetime.date.today().isoformat()
    return {"n": N, "dtype": DTYPE, "kilobytes": ", ".join(map(str, KILOBYTES)), "device": "", "date": date}


def everything() -> list[Row]:
    """All rows with their counts, without measurements."""
    return [counted(way, d, kb, name) for way in DIRECTIONS for kb in KILOBYTES for d in WIDTHS for name in SCHEDULES]


def crossing(rows: list[Row], first: str, second: str, quantity: str) -> float | None:
    """The d^2 / M beyond which schedule `second` takes less than `first`. rows: for one direction and memory size.

    quantity: "words" or "seconds". The crossing is interpolated linearly between head dimensions. None: no crossing.
    """
    amounts: dict[int, dict[str, float]] = {}
    for row in rows:
        if getattr(row, quantity):
            amounts.setdefault(row.d, {})[row.schedule] = getattr(row, quantity)
    ratios = [
        (d, by_schedule[first] / by_schedule[second])
        for d, by_schedule in sorted(amounts.items())
        if {first, second} <= set(by_schedule)
    ]
    for (d, low), (wider, high) in pairwise(ratios):
        if low <= 1 < high:
            return (d + (wider - d) * (1 - low) / (high - low)) ** 2 / rows[0].capacity_words
    return None


def write(path: Path, facts: dict[str, Any], rows: list[Row]) -> None:
    """Write one line per row, with the columns that are not empty."""
    records = [{key: value for key, value in asdict(row).items() if value not in (None, "", {})} for row in rows]
    columns = list(dict.fromkeys(key for record in records for key in record))
    lines = ",\n".join(json.dumps([record.get(key) for key in columns], separators=(",", ":")) for record in records)
    text = f'{json.dumps(facts | {"columns": columns})[:-1]}, "rows": [\n{lines}\n]}}\n'
    replace_whole(path, lambda draft: draft.write_text(text, encoding="utf-8"))


def read(path: Path) -> tuple[dict[str, Any], list[Row]]:
    facts = json.loads(path.read_text(encoding="utf-8"))
    columns = facts.pop("columns")
    records = (dict(zip(columns, row, strict=True)) for row in facts.pop("rows"))
    return facts, [Row(**{key: value for key, value in record.items() if value is not None}) for record in records]


def show(facts: dict[str, Any], rows: list[Row], console: Console) -> None:
    """Print, for each memory size, where another schedule becomes better in words and, if measured, in time."""
    for quantity in ("words", "seconds"):
        if not any(getattr(row, quantity) for row in rows):
            continue
        heads = [f"{first}\n-> {second}" for first, second in PAIRS]
        made = table(
            ("direction",), ("KB", *heads), title=f"d^2 / M beyond which another schedule takes fewer {quantity}"
        )
        for direction in DIRECTIONS:
            for kb in KILOBYTES:
                some = [row for row in rows if (row.direction, row.kilobytes) == (direction, kb)]
                places = (crossing(some, *pair, quantity) for pair in PAIRS)
                made.add_row(direction, str(kb), *("" if x is None else f"{x:.2f}" for x in places))
        console.print(made)
    when = days(row.date for row in rows if row.seconds)
    where = f"; times: {facts['device']}, {when}" if when else ""
    console.print(f"predicted by the leading terms, forward: 1 and 4{where}", style="dim", highlight=False)


def crossings(rows: list[Row]) -> list[dict[str, Any]]:
    """All crossings, for each direction and memory size, in words and in seconds."""
    entries = []
    for direction in DIRECTIONS:
        for kb in KILOBYTES:
            some = [row for row in rows if (row.direction, row.kilobytes) == (direction, kb)]
            for quantity in ("words", "seconds"):
                for pair in PAIRS:
                    ratio = crossing(some, *pair, quantity)
                    if ratio is not None:
                        entries.append(
                            {"direction": direction, "what": quantity, "schedule": pair[1], "d2_over_M": ratio}
                        )
    return entries


def draw(path: Path, facts: dict[str, Any], rows: list[Row]) -> None:
    """Draw the figure if the drawing libraries are installed; a machine with a GPU may lack them."""
    if not can_draw(path):
        return
    from benchmarks.small_cache import figure as small_cache_figure

    known = {"n": N, "word_bytes": WORD_BYTES}
    records = [asdict(row) | {"d2_over_M": row.d2_over_M} | known for row in rows]
    small_cache_figure.draw(facts, records, crossings(rows), path)


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--dry", action="store_true", help="only count; this needs no GPU")
    parser.add_argument("--budget", type=float, default=480.0, help="seconds on the GPU (%(default)s)")
    parser.add_argument("--json", type=Path, default=KEPT, help=f"file for the results ({KEPT.name})")
    parser.add_argument(
        "--show", action="store_true", help="measure nothing; show the table and draw the figure of the kept results"
    )
    options = parser.parse_args()
    if options.show and not options.json.exists():
        parser.error(f"--show: there is no {options.json}")
    return options


def main() -> None:
    options, console = arguments(), Console()
    if options.show:
        facts, rows = read(options.json)
    elif options.dry:
        if options.json.exists() and any(row.launch for row in read(options.json)[1]):
            raise SystemExit(f"{options.json} holds measurements, which --dry would overwrite: give another --json")
        facts, rows = about(), everything()
    else:
        from benchmarks.small_cache import device as small_cache_device

        facts, rows = small_cache_device.measured(options.json, options.budget, console)
    write(options.json, facts, rows)
    show(facts, rows, console)
    draw(options.json.with_suffix(".svg"), facts, rows)


if __name__ == "__main__":
    main()
