"""Measure attention at the shapes of models, in a loop and after idle time, compared with all installed peers.

A cell of the grid is the time of the best peer over redblue's. "loop": the last of several calls in a row. "after
idle": the second call after 20 ms without calls. Contenders are timed in alternation; after each, its threads get 20 ms
to go to sleep. Before anything is timed, results of the first and the last head are compared with float64. Peers that
need their own PyTorch (`make bench-peers`) run in processes of their own. Peers that are far slower than the best peer
in a trial are not timed further. The JSON file is written after every row. A later run on the same CPU, with the same
core and the same versions, keeps the rows of the file, so that a grid can be measured in several intervals.
"""

from __future__ import annotations

import argparse
import contextlib
import platform
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch  # pyright: ignore[reportMissingImports]

from benchmarks.common.failures import Red
from benchmarks.common.journal import Journal, core
from benchmarks.common.machine import facts_of_run
from benchmarks.common.options import add_rounds, chosen, parser_of
from benchmarks.common.other_process import LIBRARIES, Other, started
from benchmarks.common.places import RESULTS
from benchmarks.common.results import read
from benchmarks.common.roof import multiply_adds
from benchmarks.common.timing import THREADS
from benchmarks.cpu.calls import SHORT
from benchmarks.cpu.models.measure import OTHERS, PEERS, Prepare, contenders, measure
from benchmarks.cpu.models.page import draw, summary
from benchmarks.cpu.models.shapes import COLUMNS, SHAPES
from benchmarks.cpu.peers import missing, version

KEPT = RESULTS / "models.json"
FINGERPRINT = ("cpu", "isa", "threads", "core", "versions")  # rows of runs that differ in one are measured again
ROWS = {
    f"{SHORT[dtype]} {direction}, {name}": (name, dtype, direction) for name in SHAPES for dtype, direction in COLUMNS
}


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    add_rounds(parser, 5)
    parser.add_argument("--only", default="", help="measure only shapes whose name contains this text")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no row after this number of seconds")
    parser.add_argument("--again", action="store_true", help="measure rows that the file already has, too")
    parser.add_argument("--json", type=Path, help=f"file for the results (default: {KEPT.name} without --only)")
    parser.add_argument("--figure", type=Path, help="file for the figure (default: beside the JSON file)")
    parser.add_argument("--show", action="store_true", help="measure nothing; draw the figure of the kept results")
    options = parser.parse_args()
    shapes = chosen(parser, options.only, SHAPES)
    options.titles = [title for title, (name, _, _) in ROWS.items() if name in shapes]
    options.json = options.json or (KEPT if options.show or not options.only else None)
    options.figure = options.figure or (options.json and options.json.with_suffix(".svg"))
    return options


def about(others: list[Other], absent: dict[str, str], rounds: int) -> dict[str, Any]:
    """The date, the machine, the version of every contender, and the reasons why peers are absent."""
    versions = {"python": platform.python_version(), "redblue": metadata.version("redblue")}
    versions |= {peer: version(peer) for peer in PEERS if peer not in absent}
    versions |= {other.peer: other.version for other in others}
    peaks = {dtype: round(multiply_adds(dtype, 0.5)() / 1e9) for dtype in SHORT}
    return facts_of_run(peak_gflops=peaks, rounds=rounds, core=core(), versions=versions, absent=absent)


def run(titles: list[str], prepared: dict[str, Prepare], rounds: int, journal: Journal, seconds: float) -> None:
    """Measure these rows, one after the other, until the seconds have passed or Ctrl-C. Raises Red."""
    start, printed_notes = time.monotonic(), {""}
    with contextlib.suppress(KeyboardInterrupt):  # the journal has the rows so far
        for done, title in enumerate(titles):
            if time.monotonic() - start > seconds:
                break
            row = measure(*ROWS[title], rounds, prepared)
            journal.keep(row)
            cells = ", ".join(f"{figure.value.median:.2f} {figure.what}" for figure in row.figures)
            note = "" if row.note in printed_notes else f" ({row.note})"
            printed_notes.add(row.note)
            print(f"{done + 1} of {len(titles)}: {title}: {cells}{note}", flush=True)


def main() -> None:
    options = arguments()
    if options.show:
        draw(*read(options.json), options.figure)
        return
    torch.set_num_threads(THREADS)
    absent = {peer: f"no {' and no '.join(missing(peer))}" for peer in PEERS if missing(peer)}
    others, failed = started({peer: LIBRARIES[peer].python for peer in OTHERS}, "benchmarks.cpu.models.others")
    absent |= failed
    if absent:
        print("not measured:", "; ".join(f"{peer}: {reason}" for peer, reason in absent.items()), file=sys.stderr)
    journal = Journal(options.json, about(others, absent, options.rounds), list(ROWS), FINGERPRINT, resume=True)
    titles = [title for title in options.titles if options.again or title not in journal.kept]
    try:
        prepared = contenders([peer for peer in PEERS if peer not in absent], others)
        run(titles, prepared, options.rounds, journal, options.seconds)
    except Red as red:
        sys.exit(f"wrong result, so the run ends: {red}")
    finally:
        for other in others:
            other.close()
    if journal.rows:
        print(summary(journal.rows))
        if options.figure:
            draw(journal.facts, journal.rows, options.figure)
    print(f"{len(journal.rows)} of {len(ROWS)} rows")


if __name__ == "__main__":
    main()
