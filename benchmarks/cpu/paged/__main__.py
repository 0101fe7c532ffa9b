"""Compare attention on paged caches with its peers and with the measured reads: `make bench`.

Every row makes its caches once, compares all contenders with float64, and times them in alternation; ratios are medians
over the rounds. If redblue is wrong, no number is printed. The peers are transformers' paged|sdpa, a gather with
PyTorch's SDPA, and, in separate processes, vLLM's CPU op and zentorch's SDPA. All contenders and the measured reads use
huge pages of the system; with THP_MEM_ALLOC_ENABLE=0, caches use small pages. A whole run takes about twelve minutes on
two cores. It writes docs/results/paged.json after every row, and paged.svg at the end. Ctrl-C ends the run; --resume
continues it, and keeps the rows that the same core measured on this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from functools import partial
from importlib import metadata
from pathlib import Path

import torch  # pyright: ignore[reportMissingImports]

from benchmarks.common.failures import Red
from benchmarks.common.journal import Journal, core
from benchmarks.common.options import QUICK, add_rounds, at_least, chosen, parser_of
from benchmarks.common.other_process import LIBRARIES, VLLM, ZENTORCH, started
from benchmarks.common.places import RESULTS
from benchmarks.common.results import Row, read
from benchmarks.common.timing import THREADS, with_seconds
from benchmarks.cpu import attention
from benchmarks.cpu.paged.calls import inputs
from benchmarks.cpu.paged.contenders import redblue
from benchmarks.cpu.paged.gate import gate
from benchmarks.cpu.paged.grid import measures
from benchmarks.cpu.paged.huge_pages import huge_share
from benchmarks.cpu.paged.measures import Measure, Settings, checked
from benchmarks.cpu.paged.page import draw, tables
from redblue.base.progress import INTERRUPTED, progress_bar

KEPT = RESULTS / "paged.json"
HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"  # PyTorch reads it at its first allocation
# Rows of runs that differ in one of these facts are measured again
FINGERPRINT = ("cpu", "isa", "threads", "core", "huge_pages")


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--only", default="", help="only rows whose title contains this text")
    parser.add_argument("--quick", action="store_true", help="a few rows, 3 short rounds: about two minutes")
    add_rounds(parser, 7, 0.05)
    parser.add_argument("--alone", action="store_true", help="without peers")
    parser.add_argument("--resume", action="store_true", help="keep the rows of the file, measure the others")
    parser.add_argument("--most-rows", type=at_least(0), default=0, help="stop after measuring this many rows (all)")
    parser.add_argument("--check", action="store_true", help="only compare redblue with float64")
    parser.add_argument("--list", action="store_true", help="only list the rows")
    parser.add_argument("--profile", metavar="TEXT", help="call redblue in a loop, for a profiler: the first such row")
    for peer in (VLLM, ZENTORCH):
        python, help_text = LIBRARIES[peer].python, f"a Python that has {peer} (%(default)s)"
        parser.add_argument(f"--{peer.lower()}-python", type=Path, default=python, help=help_text)
    parser.add_argument("--json", type=Path, help=f"file for the results (default: {KEPT.name} if the run is whole)")
    parser.add_argument(
        "--show", type=Path, metavar="JSON", help="measure nothing; show the tables and draw the figure of a kept run"
    )
    options = parser.parse_args()
    vars(options).update(QUICK if options.quick else {})
    rows = measures()
    offered = [row for row in rows if row.quick or not options.quick]
    options.rows = chosen(parser, options.only, offered, lambda row: row.title)
    options.profiled = next((row for row in rows if options.profile and options.profile in row.title), None)
    if options.profile and not options.profiled:
        parser.error(f"--profile: no row contains {options.profile!r}: {'; '.join(row.title for row in rows)}")
    return options


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings, with the peers whose processes start. Prints the reasons why the others are absent."""
    settings = Settings(options.rounds, options.seconds, options.alone)
    if not (options.alone or options.check):
        pythons = {VLLM: options.vllm_python, ZENTORCH: options.zentorch_python}
        settings.others, settings.absent = started(pythons, "benchmarks.cpu.paged.others")
        for peer, reason in settings.absent.items():
            print(f"{peer} is not measured: {reason}", file=sys.stderr)
    return settings


def run(rows: list[Measure], settings: Settings, journal: Journal, most: int = 0) -> None:
    """Measure the rows that the journal lacks, at most `most` of them (0: all). Raises Red if redblue is wrong."""
    missing = [row for row in rows if row.title not in journal.kept]
    with (
        progress_bar("checked and timed", "rows", len(rows)) as move,
        contextlib.suppress(KeyboardInterrupt),  # the journal has the rows so far
    ):
        for done, row in enumerate(missing[: most or None], len(rows) - len(missing)):
            move(done, len(rows), row.title)
            load = os.getloadavg()[0]
            measured, seconds = with_seconds(partial(row.run, row, settings))
            measured.parameters["load_before"] = load
            journal.keep(measured)
            print(f"{row.title}: {seconds:.0f} s", file=sys.stderr)


def check(rows: list[Measure]) -> None:
    """Compare redblue with float64 in every call."""
    for row in rows:
        for call in row.calls.values():
            x = inputs(call)
            checked(redblue(call, x), gate(call, x))
            print(f"right: {row.name}, {call.dtype}, {call.title}", flush=True)


def profile(row: Measure) -> None:
    """Call redblue until Ctrl-C; print the speed of every two seconds."""
    call = row.call
    loop = redblue(call, inputs(call))
    print(f"process {os.getpid()}: {row.title}; Ctrl-C ends it", flush=True)
    while True:
        count, start = 0, time.perf_counter()
        while (seconds := time.perf_counter() - start) < 2:
            loop()
            count += 1
        print(f"{count / seconds:.1f} calls/s, {call.bytes * count / seconds / 1e9:.1f} GB/s", flush=True)


def show(facts: dict, rows: list[Row]) -> None:
    attention.show(facts, rows)
    print(tables(rows))


@torch.no_grad()
def main() -> None:
    os.environ.setdefault(HUGE_PAGES, "1")
    options = arguments()
    torch.set_num_threads(THREADS)
    if options.list:
        print("\n".join(row.title for row in options.rows))
        return
    if options.show:
        facts, rows = read(options.show)
        show(facts, rows)
        draw(facts, rows, options.show.with_suffix(".svg"))
        return
    if options.profiled:
        try:
            profile(options.profiled)
        except KeyboardInterrupt:
            return
    load = os.getloadavg()[0]
    settings = settings_of(options)
    whole = not (options.only or options.quick or options.alone)
    path = options.json or (KEPT if whole else None)
    facts = attention.about(options.rounds, options.seconds, load)
    facts["versions"] |= {"transformers": metadata.version("transformers")}
    facts["versions"] |= {other.peer: other.version for other in settings.others}
    facts |= {"complete": False, "absent": settings.absent, "core": core()}
    facts["huge_pages"] = huge_share() > 0.9
    journal = Journal(path, facts, [row.title for row in options.rows], FINGERPRINT, options.resume)
    try:
        if options.check:
            check(options.rows)
            return
        run(options.rows, settings, journal, options.most_rows)
    except KeyboardInterrupt:
        pass
    except Red as red:
        sys.exit(f"wrong result, so no number is printed: {red}")
    finally:
        for other in settings.others:
            other.close()
    rows = journal.rows
    show(facts, rows)
    if path and rows:
        draw(facts, rows, path.with_suffix(".svg"))
    if not facts["complete"] and not options.most_rows:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
