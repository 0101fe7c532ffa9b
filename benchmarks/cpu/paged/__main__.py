"""Compare attention on paged caches with its peers and with the measured reads: `make bench`.

Usage: python -m benchmarks.cpu.paged [--quick] [--only TEXT] [--check]

Every row makes its caches once, compares all contenders with float64, and times them in turns; ratios are medians over
the rounds. If redblue is wrong, no number is printed. The peers are transformers' paged|sdpa, a gather with PyTorch's
SDPA, and, in processes of their own, vLLM's CPU op and zentorch's SDPA. A whole run takes about twelve minutes on two
cores. It writes docs/results/paged.json and paged.svg. Ctrl-C ends the run and keeps the results so far.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from importlib import metadata
from pathlib import Path

import torch  # pyright: ignore[reportMissingImports]
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.common.gate import Red
from benchmarks.common.places import RESULTS
from benchmarks.common.results import Row, read, write
from benchmarks.common.timing import THREADS
from benchmarks.cpu import attention
from benchmarks.cpu.measures import Bench
from benchmarks.cpu.paged.calls import inputs
from benchmarks.cpu.paged.contenders import redblue
from benchmarks.cpu.paged.gate import gate
from benchmarks.cpu.paged.grid import measures
from benchmarks.cpu.paged.measures import Measure, Settings, checked
from benchmarks.cpu.paged.others import PYTHONS, VLLM, ZENTORCH, Other
from benchmarks.cpu.paged.page import draw, tables

KEPT = RESULTS / "paged.json"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only rows whose title contains this text")
    parser.add_argument("--quick", action="store_true", help="a few rows, 3 short rounds: about two minutes")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contender (%(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=0.05, help="time of each contender in each round (%(default)s)"
    )
    parser.add_argument("--alone", action="store_true", help="without peers")
    parser.add_argument("--check", action="store_true", help="only compare redblue with float64")
    parser.add_argument("--list", action="store_true", help="only list the rows")
    parser.add_argument("--profile", metavar="TEXT", help="call redblue in a loop, for a profiler: the first such row")
    for peer, python in PYTHONS.items():
        name = f"--{peer.lower()}-python"
        parser.add_argument(name, type=Path, default=python, help=f"a Python that has {peer} (%(default)s)")
    parser.add_argument("--json", type=Path, help=f"file for the results (default: {KEPT.name} if the run is whole)")
    parser.add_argument(
        "--show", type=Path, metavar="JSON", help="measure nothing; show the tables and draw the figure of a kept run"
    )
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.seconds = 3, 0.03
    if given.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {given.rounds}")
    rows = measures()
    given.rows = [row for row in rows if given.only in row.title and (row.quick or not given.quick)]
    if not given.rows:
        parser.error(f"--only: no row contains {given.only!r}: {'; '.join(row.title for row in rows)}")
    given.profiled = next((row for row in rows if given.profile and given.profile in row.title), None)
    if given.profile and not given.profiled:
        parser.error(f"--profile: no row contains {given.profile!r}: {'; '.join(row.title for row in rows)}")
    return given


def settings_of(given: argparse.Namespace) -> Settings:
    """The settings, with the peers that have an environment; the reason is printed for those that have none."""
    settings = Settings(given.rounds, given.seconds, given.alone)
    pythons = {VLLM: given.vllm_python, ZENTORCH: given.zentorch_python}
    for peer, python in pythons.items() if not given.alone else ():
        if python.exists():
            settings.others.append(Other(peer, python))
        else:
            settings.absent[peer] = f"{peer} is not measured: there is no {python} (make bench-peers)"
            print(settings.absent[peer], file=sys.stderr)
    return settings


def run(rows: list[Measure], settings: Settings) -> tuple[list[Row], bool]:
    """The rows, and whether they are complete. Raises Red if redblue is wrong."""
    found: list[Row] = []
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("checked and timed", total=len(rows))
        try:
            for row in rows:
                progress.update(task, description=row.title)
                start = time.perf_counter()
                found.append(named(row, settings))
                progress.console.print(f"{row.title}: {time.perf_counter() - start:.0f} s", highlight=False)
                progress.advance(task)
        except KeyboardInterrupt:
            return found, False
    return found, True


def named(row: Measure, settings: Settings) -> Row:
    try:
        return row.run(row, settings)
    except Red as red:
        raise Red(f"{row.title}: {red}") from None


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
    given = arguments()
    torch.set_num_threads(THREADS)
    if given.list:
        print("\n".join(row.title for row in given.rows))
        return
    if given.show:
        facts, rows = read(given.show)
        show(facts, rows)
        draw(facts, rows, given.show.with_suffix(".svg"))
        return
    if given.profiled:
        try:
            profile(given.profiled)
        except KeyboardInterrupt:
            return
    load = os.getloadavg()[0]
    settings = settings_of(given)
    try:
        if given.check:
            check(given.rows)
            return
        rows, complete = run(given.rows, settings)
    except Red as red:
        sys.exit(f"wrong result, so no number is printed: {red}")
    finally:
        for other in settings.others:
            other.close()
    facts = attention.about(Bench(given.rounds, given.seconds, given.alone), load)
    versions = facts["versions"] | {"transformers": metadata.version("transformers")}
    versions |= {other.peer: " on torch ".join(other.versions.values()) for other in settings.others if other.versions}
    facts |= {"complete": complete, "versions": versions, "absent": settings.absent}
    show(facts, rows)
    whole = complete and not (given.only or given.quick or given.alone)
    path = given.json or (KEPT if whole else None)
    if path and rows:
        write(path, facts, rows)
        draw(facts, rows, path.with_suffix(".svg"))
    if not complete:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
