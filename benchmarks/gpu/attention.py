"""Compare attention on a GPU with its peers and with the measured matmul peak of the card: `make gpu`.

Every contender is checked against float64 before it is timed; a wrong one is recorded and not timed. The contenders of
a call alternate in one worker process; a crash or a hang costs one result. Kernels are compiled in the background, for
the most important calls first. Each result is written to the JSON file at once. A run that is interrupted or out of
budget reports the missing points. The next run on the same device with the same versions continues from the file, or
from the file given as --resume. redblue is measured again if its kernels have changed. Points that failed temporarily,
for example for lack of memory, are tried again at the end. --list shows the order.

--dry needs no GPU: it makes tiny calls under Triton's interpreter, without peers. Its times are meaningless.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from pathlib import Path

if "--dry" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton

import torch  # pyright: ignore[reportMissingImports]
from rich.console import Console

from benchmarks.common.options import chosen, console, parser_of
from benchmarks.common.places import RESULTS
from benchmarks.gpu import race
from benchmarks.gpu.ahead import Ahead
from benchmarks.gpu.calls import OURS, PLANNED, Call, plan
from benchmarks.gpu.points import Kept, Point, about, resumed
from benchmarks.gpu.report import amount, draw, say_left, show
from benchmarks.gpu.timing import COPY_BYTES, PEAK_SIDE, medians
from benchmarks.gpu.worker import Failed, Here, Lost, Worker
from redblue.base.progress import INTERRUPTED

KEPT = RESULTS / "gpu_attention.json"
BUDGET_SECONDS = 480.0
PATIENCE_SECONDS = 75  # for one call of a contender, because neither compilers nor hangs have their own limit
WAIT_SECONDS = 100.0  # for other processes to compile the kernels of one call


def left(kept: Kept, options: argparse.Namespace) -> list[tuple[Call, list[str]]]:
    """The points still to be measured, in order, then those that failed temporarily.

    If redblue is to be measured, the peers of the same entry are measured again, because they alternate with redblue.
    """
    before = {(point.call, point.contender): point.passing for point in kept.points}
    timed = {(point.call, point.contender) for point in kept.points if point.seconds}
    pending = []
    for passing in (None, True):
        for call, names in plan(options.dry):
            missing = {x for x in names if before.get((call, x)) is passing}
            if missing & {*OURS}:
                missing |= {x for x in names if (call, x) in timed}
            alone = (PLANNED,) if options.planned else OURS if options.alone else names
            wanted = [x for x in names if x in missing and x in alone]
            if wanted and (not options.only or options.only in call.title):
                pending.append((call, wanted))
    return pending


class Runner:
    """Measures points with a worker until the time is over, and stores each point at once."""

    def __init__(self, kept: Kept, path: Path, worker: Worker | Here, end: float, console: Console) -> None:
        self.kept, self.path, self.worker, self.end, self.console = kept, path, worker, end, console
        self.peaks: set[str] = set()  # the types whose peak this run has measured

    def ask(self, method: str, *arguments: object) -> object:
        """The worker's answer. Raises Failed if it takes longer than PATIENCE_SECONDS or the time left."""
        return self.worker.ask(method, *arguments, seconds=min(PATIENCE_SECONDS, self.end - time.monotonic()))

    def rates(self, dry: bool) -> None:
        """Measure the bandwidth of this card. After a failure, the result of an earlier run remains."""
        with contextlib.suppress(Failed):
            self.kept.copy = self.ask("bandwidth", 1 << 16 if dry else COPY_BYTES)  # pyright: ignore

    def measure(self, call: Call, names: list[str]) -> None:
        """Check the contenders one after another, then time the correct ones in alternation."""
        self._peak(call.dtype)
        opened, errors = False, {}
        for name in names:
            if time.monotonic() > self.end:
                break
            try:
                opened = opened or self._open(call, errors)
                errors[name] = self.ask("check", name)
            except Failed as failure:
                opened = opened and not isinstance(failure, Lost)
                if time.monotonic() < self.end:  # otherwise the budget ended it
                    self._keep(self._failed(call, name, failure))
        if errors and time.monotonic() < self.end:
            self._time(call, opened, errors)

    def _open(self, call: Call, errors: dict[str, list[float]]) -> bool:
        """Open the race; after the loss of a worker, check the earlier correct contenders again. Returns True."""
        self.ask("open", call)
        for name in errors:
            self.ask("check", name)
        return True

    def _time(self, call: Call, opened: bool, errors: dict[str, list[float]]) -> None:
        """Time all contenders in alternation or, if that fails, each alone."""
        groups = [[*errors]]
        while groups:
            names = groups.pop(0)
            try:
                opened = opened or self._open(call, {name: errors[name] for name in names})
                seconds = self.ask("time", names)
            except Failed as failure:
                opened = False
                if len(names) > 1:
                    groups = [[name] for name in names]
                elif time.monotonic() < self.end:
                    self._keep(self._failed(call, names[0], failure))
                continue
            for name in names:
                self._keep(Point(call, name, seconds[name], errors[name]))  # pyright: ignore

    def _failed(self, call: Call, name: str, failure: Failed) -> Point:
        return Point(call, name, refused=str(failure), passing=failure.passing, wrong=failure.wrong)

    def _keep(self, point: Point) -> None:
        self.kept.add(point)
        self.kept.write(self.path)
        if point.seconds:
            text = amount(point, medians({"": point.seconds})[""], self.kept)[0]
        else:
            text = f"{'WRONG: ' * point.wrong}{point.refused}"
        self.console.print(f"{point.call.title}: {point.contender} {text}", highlight=False)

    def _peak(self, dtype: str) -> None:
        if dtype not in self.peaks:
            self.peaks.add(dtype)
            side = 64 if self.kept.about["dry"] else PEAK_SIDE
            with contextlib.suppress(Failed):
                self.kept.peaks[dtype] = self.ask("peak", dtype, side)  # pyright: ignore


def run(kept: Kept, options: argparse.Namespace, worker: Worker | Here, console: Console) -> None:
    """Measure the missing points until the budget is spent."""
    end, todo = time.monotonic() + options.budget, left(kept, options)
    runner = Runner(kept, options.json, worker, end, console)
    with contextlib.ExitStack() as stack:
        stack.callback(worker.end)
        ahead = None if options.dry else stack.enter_context(Ahead.on_device())
        if ahead:
            ahead.start(todo)
        runner.rates(options.dry)
        for call, names in todo:
            if ahead:
                ahead.wait(call, min(WAIT_SECONDS, end - time.monotonic()))
            if time.monotonic() > end:
                break
            runner.measure(call, names)
        if ahead:
            console.print(ahead.summary(), highlight=False)


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--budget", type=float, default=BUDGET_SECONDS, help="seconds, compilations included (%(default)s)"
    )
    parser.add_argument("--only", help="calls whose title contains this, such as 'd 512'")
    parser.add_argument("--alone", action="store_true", help="without peers")
    parser.add_argument("--planned", action="store_true", help="without peers and without tuning")
    parser.add_argument("--fresh", action="store_true", help="ignore kept results")
    parser.add_argument("--dry", action="store_true", help="without a GPU: tiny calls, interpreted, no times")
    parser.add_argument("--json", type=Path, default=None, help=f"file for the results ({KEPT.name})")
    parser.add_argument(
        "--resume", type=Path, default=KEPT, help=f"results to begin with, if --json has none ({KEPT.name})"
    )
    parser.add_argument("--list", action="store_true", help="measure nothing; list the points in order")
    parser.add_argument(
        "--show", action="store_true", help="measure nothing; show the tables and draw the figure of the kept results"
    )
    options = parser.parse_args()
    if options.dry and options.json is None and not options.list:
        parser.error("--dry needs --json, because its results must not replace measured ones")
    options.json = options.json or KEPT
    chosen(parser, options.only or "", plan(options.dry), lambda entry: entry[0].title)
    if options.show and not options.json.exists():
        parser.error(f"--show: there is no {options.json}")
    return options


def say_plan(options: argparse.Namespace, console: Console) -> None:
    todo = left(Kept({}), options)
    for call, names in todo:
        console.print(f"{call.title}: {', '.join(names)}", highlight=False)
    console.print(f"{sum(len(names) for _, names in todo)} points of {len({call for call, _ in todo})} calls")


def main() -> None:
    options, out = arguments(), console()
    if options.list:
        say_plan(options, out)
        return
    if options.show:
        kept = Kept.read(options.json)
        show(kept, out)
        draw(kept, options.json.with_suffix(".svg"))
        return
    if not options.dry and not torch.cuda.is_available():
        sys.exit("no GPU that PyTorch sees: run this where there is one, or --dry --json FILE to see that it works")
    facts = about(options.dry)
    kept = Kept(facts) if options.fresh else resumed((options.json, options.resume), facts, out)
    try:
        run(kept, options, Here(race.dry) if options.dry else Worker(race.on_device), out)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    kept.write(options.json)
    show(kept, out)
    draw(kept, options.json.with_suffix(".svg"))
    say_left(left(kept, options), out)
    if any(point.wrong for point in kept.points if point.contender in OURS):
        sys.exit("wrong results, which were not timed: see above")


if __name__ == "__main__":
    main()
