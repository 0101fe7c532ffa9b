"""Compare attention on this CPU with its peers and with the measured peak: `make bench`.

Every call is checked against float64 before any call is timed. If redblue is wrong, no number is printed. Then
contenders are timed in alternation; ratios are medians over the rounds. A whole run takes about twenty minutes on two
cores. It writes docs/results/operator.json and operator.svg. Ctrl-C ends the run and keeps the results so far.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from rich.table import Table

from benchmarks.common.failures import Red
from benchmarks.common.machine import described, facts_of_run, versions
from benchmarks.common.options import QUICK, add_rounds, at_least, console, parser_of
from benchmarks.common.places import RESULTS
from benchmarks.common.results import Figure, Row, read, write
from benchmarks.common.timing import THREADS, spread
from benchmarks.cpu import figure
from benchmarks.cpu.measures import Bench, Measure, measures
from redblue.base.progress import INTERRUPTED, progress_bar
from redblue.base.terminal import table
from redblue.catalogue.detect import detect_cpu

KEPT = RESULTS / "operator.json"
PACKAGES = ("redblue", "torch", "onnxruntime", "openvino", "numpy")
BUSY_LOAD = 0.5  # load average of the minute before the start
WIDE_SPREAD = 0.1  # relative distance of the quartiles of a ratio


def arguments(names: Sequence[str]) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--only", help=f"only these measures, comma-separated: {', '.join(names)}")
    parser.add_argument(
        "--d",
        type=numbers,
        default=(),
        help="only these head dimensions, comma-separated, in measures that have several",
    )
    parser.add_argument("--quick", action="store_true", help="3 short rounds, to test that the benchmark works")
    add_rounds(parser, 15, 0.1)
    parser.add_argument("--alone", action="store_true", help="without peers")
    parser.add_argument("--check", action="store_true", help="only check results against float64")
    parser.add_argument("--json", type=Path, help=f"file for the results (default: {KEPT.name} if the run is whole)")
    parser.add_argument(
        "--show", type=Path, metavar="JSON", help="measure nothing; show the tables and draw the figure of a kept run"
    )
    options = parser.parse_args()
    vars(options).update(QUICK if options.quick else {})
    options.only = options.only.split(",") if options.only else []
    for name in options.only:
        if name not in names:
            parser.error(f"--only: {name} is none of {', '.join(names)}")
    return options


def numbers(text: str) -> set[int]:
    return {at_least(1)(part) for part in text.split(",")}


def about(rounds: int, seconds: float, load: float) -> dict[str, Any]:
    """The date, machine and settings of the run."""
    return facts_of_run(
        cores=detect_cpu().cores,
        rounds=rounds,
        seconds_per_turn=seconds,
        load_before=round(load, 2),
        versions={"python": platform.python_version()} | versions(PACKAGES),
    )


def checked_and_run(chosen: list[Measure], bench: Bench, only_check: bool) -> tuple[list[Row], bool]:
    """The rows, and whether they are complete. Raises Red, before anything is timed, if redblue is wrong."""
    rows: list[Row] = []
    with progress_bar("checked against float64", "cases", len(chosen)) as move:
        for done, measure in enumerate(chosen):
            move(done, len(chosen), f"checked against float64: {measure.title}")
            measure.check(bench)
    if only_check:
        return rows, True
    with progress_bar("timed", "cases", len(chosen)) as move:
        try:
            for done, measure in enumerate(chosen):
                move(done, len(chosen), f"timed: {measure.title}")
                rows.append(measure.run(bench))
        except KeyboardInterrupt:
            return rows, False
    return rows, True


def number(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:.0%}" if unit == "%" else f"{value:.1f} us" if unit == "us" else f"{value:.2f}"


def limit(shown: Figure, value: float | None) -> str:
    sign = "<= " if shown.at_most and value is not None else ""
    return sign + number(value, shown.unit)


def verdicts(rows: list[Row]) -> Table:
    """A table of all figures with their requirements and aims."""
    made = table(("case", "figure"), ("must", "aim", "measured", "quartiles", "met"), title="Attention on this CPU")
    for row in rows:
        name = f"{row.measure}, {row.case}"
        for each in row.figures:
            middle, low, high = (number(value, each.unit) for value in each.value)
            limits = (limit(each, each.limit.must), limit(each, each.limit.aim))
            style = "red" if each.met == "no" else None
            made.add_row(name, each.what, *limits, middle, f"{low} - {high}", each.met, style=style)
            name = ""
        if row.note or not row.figures:
            made.add_row(name, row.note or "nothing to compare with", style="dim")
    return made


def rates(rows: list[Row]) -> Table:
    """A table of the rates of all contenders."""
    made = table(("case", "contender"), ("median", "quartiles", "unit"), title="Rates")
    for row in rows:
        name = f"{row.measure}, {row.case}"
        for contender, values in row.rates.items():
            middle, low, high = (f"{value:.4g}" for value in spread(values))
            made.add_row(name, contender, middle, f"{low} - {high}", row.unit)
            name = ""
    return made


def show(facts: dict[str, Any], rows: list[Row]) -> None:
    out = console()
    out.print(verdicts(rows), rates(rows))
    libraries = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    out.print(f"{described(facts)}; {libraries}", style="dim")
    if facts["load_before"] > BUSY_LOAD:
        out.print(f"The machine was busy (load {facts['load_before']}): measure again.", style="yellow")
    wide = [row for row in rows if any(each.value.high > (1 + WIDE_SPREAD) * each.value.low for each in row.figures)]
    if wide:
        names = "; ".join(f"{row.measure}, {row.case}" for row in wide)
        out.print(f"Quartiles more than {WIDE_SPREAD:.0%} apart: {names}", style="yellow")
    if not facts["complete"]:
        out.print("The run was interrupted: some measures are missing.", style="yellow")


def main() -> None:
    known = measures()
    options = arguments(list(known))
    if options.show:
        facts, rows = read(options.show)
        show(facts, rows)
        figure.draw(facts, rows, options.show.with_suffix(".svg"))
        return
    load = os.getloadavg()[0]
    torch.set_num_threads(THREADS)
    bench = Bench(options.rounds, options.seconds, options.alone)
    chosen = [measure for name in options.only or known for measure in known[name]]
    chosen = [measure for measure in chosen if not options.d or measure.d is None or measure.d in options.d]
    try:
        rows, complete = checked_and_run(chosen, bench, options.check)
    except Red as red:
        sys.exit(f"wrong result, so nothing is timed: {red}")
    if options.check:
        return
    facts = about(bench.rounds, bench.seconds, load) | {"complete": complete, "errors": bench.errors}
    whole = complete and not (options.only or options.d or options.quick or options.alone)
    path = options.json or (KEPT if whole else None)
    show(facts, rows)
    if path:
        write(path, facts, rows)
        figure.draw(facts, rows, path.with_suffix(".svg"))
    if not complete:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
