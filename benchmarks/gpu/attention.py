"""Compare attention on a GPU with its peers and with the measured matmul peak of the card: `make gpu`.

Every contender is checked against float64 before it is timed; if redblue is wrong, the run ends. The most important
calls come first, and each result is written to the JSON file at once. If a run is interrupted or its budget is spent,
it reports the missing points; the next run on the same device with the same versions continues from there. redblue is
measured again if its kernels have changed. Points that failed temporarily, for example for lack of memory, are tried
again at the end. The whole plan takes several runs; the calls with requirements are in the first. --list shows the
order.

--dry needs no GPU: it makes tiny calls under Triton's interpreter, without peers. Its times are meaningless.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

if "--dry" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton

import torch  # pyright: ignore[reportMissingImports]
from rich.console import Console

from benchmarks.common.gate import Red
from benchmarks.common.kept import changed, days, fingerprint, is_final, now, repeat_notice
from benchmarks.common.places import RESULTS
from benchmarks.gpu.ahead import ahead
from benchmarks.gpu.calls import OURS, PLANNED, Call, Limit, inputs, limits, plan
from benchmarks.gpu.gate import Gate, check_small
from benchmarks.gpu.peers import contender
from benchmarks.gpu.timing import Device, Dry, medians, peak
from redblue.base.files import replace_whole
from redblue.base.terminal import table

KEPT = RESULTS / "gpu.json"
BUDGET_SECONDS = 480.0
PACKAGES = ("redblue", "ffpa-attn")  # in addition to those of the fingerprint
PAGE_WIDTH = 132  # of output that does not go to a terminal
TOLD = 200  # characters of the reason why a contender failed
PATIENCE_SECONDS = 75  # for one call of a contender, since compilers have no limit of their own
AHEAD_SECONDS = 150.0  # for compilation on all cores before the first measurement


@dataclass
class Point:
    """The times of one contender for one call, in seconds, or the reason why there are none (`refused`).

    errors: the error of each result against float64. passing: the failure is temporary; another run may succeed.
    """

    call: Call
    contender: str
    seconds: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    refused: str = ""
    passing: bool = False
    date: str = field(default_factory=now)


@dataclass
class Kept:
    """The content of the JSON file. peaks: TFLOP/s of matrix products; the keys are types."""

    about: dict[str, Any]
    peaks: dict[str, float] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)

    def add(self, point: Point) -> None:
        """Add a point, or replace an earlier point of the same call and contender."""
        same = [x for x in self.points if (x.call, x.contender) == (point.call, point.contender)]
        self.points = [x for x in self.points if x not in same] + [point]

    @property
    def days(self) -> str:
        return days(point.date for point in self.points)

    def times(self) -> dict[Call, dict[str, float]]:
        seconds: dict[Call, dict[str, list[float]]] = {}
        for point in self.points:
            if point.seconds:
                seconds.setdefault(point.call, {})[point.contender] = point.seconds
        return {call: medians(each) for call, each in seconds.items()}

    def write(self, path: Path) -> None:
        text = json.dumps({"about": self.about, "peaks": self.peaks, "points": [asdict(x) for x in self.points]})
        replace_whole(path, lambda draft: draft.write_text(text.replace('{"call"', '\n{"call"') + "\n"))

    @classmethod
    def read(cls, path: Path) -> Kept:
        kept = json.loads(path.read_text(encoding="utf-8"))
        points = [Point(**each | {"call": Call(**each["call"])}) for each in kept["points"]]
        return cls(kept["about"], kept["peaks"], points)


def about(dry: bool) -> dict[str, Any]:
    """The device and the versions. Kept results are only reused if all of these facts are equal."""
    versions = {each.metadata["Name"].lower(): each.version for each in metadata.distributions()}
    facts: dict[str, Any] = {
        **fingerprint("none: dry" if dry else torch.cuda.get_device_name()),
        "versions": {name: versions.get(name, "not installed") for name in PACKAGES},
        "dry": dry,
    }
    if not dry:
        card = torch.cuda.get_device_properties(0)
        facts |= {
            "multiprocessors": card.multi_processor_count,
            "shared_bytes": getattr(card, "shared_memory_per_block_optin", None),
            "l2_bytes": card.L2_cache_size,
            "memory_bytes": card.total_memory,
            "cuda": torch.version.cuda or torch.version.hip,
            "cudnn": torch.backends.cudnn.version(),
        }
    return facts


def resumed(path: Path, facts: dict[str, Any], console: Console) -> Kept:
    """The kept results that are still valid.

    With equal facts, all are; if only redblue's kernels differ, those of the peers are; otherwise none is.
    """
    try:
        kept = Kept.read(path)
    except (OSError, ValueError, TypeError, KeyError):
        return Kept(facts)
    other = changed(kept.about, facts)
    if other == ["kernels"]:
        valid = Kept(facts, kept.peaks, [point for point in kept.points if point.contender not in OURS])
    else:
        valid = Kept(facts) if other else kept
    if len(valid.points) < len(kept.points):
        console.print(repeat_notice(len(kept.points) - len(valid.points), "points", other), highlight=False)
    return valid


def reason_of(failure: Exception, caught: list[warnings.WarningMessage]) -> str:
    """The reason of a failure, including the warnings in which PyTorch explains it."""
    reasons = [str(each.message).split(" (Triggered")[0] for each in caught if issubclass(each.category, UserWarning)]
    text = "; ".join([f"{type(failure).__name__}: {failure}", *dict.fromkeys(reasons)])
    return " ".join(text.split())[:TOLD]


@contextmanager
def patience(seconds: int) -> Iterator[None]:
    """Raises TimeoutError in the block when the time is over."""

    def over(signum: int, frame: object) -> None:
        raise TimeoutError(f"took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def measured(call: Call, name: str, given: list[torch.Tensor], gate: Gate, device: Device | Dry) -> Point:
    """Check and time one contender. Raises Red if redblue is wrong."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            with patience(PATIENCE_SECONDS):
                run = contender(name, call, given)
                errors = gate.check(name, run())
                return Point(call, name, device.seconds(run), errors)
        except Red:
            raise
        except Exception as failure:  # no failure of a contender may end the run
            return Point(call, name, refused=reason_of(failure, said), passing=not is_final(failure))
        finally:
            device.free()


def left(kept: Kept, given: argparse.Namespace) -> list[tuple[Call, list[str]]]:
    """The points still to be measured, in order, then those that failed temporarily."""
    before = {(point.call, point.contender): point.passing for point in kept.points}
    found = []
    for passing in (None, True):
        for call, names in plan(given.dry):
            missing = [x for x in names if before.get((call, x)) is passing and (x in OURS or not given.alone)]
            if missing and (not given.only or given.only in call.title):
                found.append((call, missing))
    return found


def run(kept: Kept, given: argparse.Namespace, device: Device | Dry, console: Console) -> None:
    """Measure the missing points until the budget is spent."""
    end = time.monotonic() + given.budget
    todo, checked = left(kept, given), set()
    if not given.dry:
        ahead([call for call, names in todo if {*names} & {*OURS}], min(given.budget / 3, AHEAD_SECONDS), console)
    for call, missing in todo:
        if time.monotonic() > end:
            return
        try:
            kind = call.width, call.direction, call.density
            if PLANNED in missing and kind not in checked:
                check_small(call, device.name)
                checked.add(kind)
            arrays = inputs(call, device.name)
            gate = Gate(call, arrays)
        except torch.OutOfMemoryError as failure:
            for name in missing:
                kept.add(Point(call, name, refused=reason_of(failure, []), passing=True))
            continue
        if call.dtype not in kept.peaks:
            kept.peaks[call.dtype] = peak(device, call.dtype, 64) if given.dry else peak(device, call.dtype)
        for name in missing:
            if time.monotonic() > end:
                return
            point = measured(call, name, arrays, gate, device)
            kept.add(point)
            kept.write(given.json)
            speed = f"{call.flops / medians({name: point.seconds})[name] / 1e12:.1f} TFLOP/s" if point.seconds else ""
            console.print(f"{call.title}: {name} {speed or point.refused}", highlight=False)
        del arrays, gate
        device.free()


def say_left(todo: list[tuple[Call, list[str]]], console: Console) -> None:
    """Print how many points are missing or failed temporarily, by length and contender."""
    if not todo:
        return
    counts = Counter((call.n, name) for call, names in todo for name in names)
    made = table(("missing, or failed temporarily",), ("points",), title="the same command continues with these")
    for (n, name), count in counts.items():
        made.add_row(f"n {n}: {name}", str(count))
    console.print(made)


def shown(value: float | None, each: Limit) -> tuple[str, str]:
    """The value as text, and whether it meets the limit."""
    if value is None:
        return "", "not measured"
    met = value <= each.must if each.at_most else value >= each.must
    return f"{value:.2f} {each.unit}" if each.unit == "x" else f"{value:.0f} {each.unit}", "pass" if met else "FAIL"


def show(kept: Kept, console: Console) -> None:
    times = kept.times()
    made = table(
        ("must reach, B1 H32 n8192 bf16",), ("must", "measured", ""), title=f"{kept.about['device']}, {kept.days}"
    )
    for each in limits():
        must = "" if not each.must else f"{'<= ' if each.at_most else ''}{each.must:g} {each.unit}"
        value, met = shown(each.value(times), each)
        made.add_row(each.what, must, value, met if each.must else "", style="red" if met == "FAIL" else None)
    rates = table(("call", "contender"), ("TFLOP/s", "of the peak", "largest error"))
    last = None
    for point in sorted(kept.points, key=lambda x: (x.call.direction, x.call.d, x.call.n, x.call.causal)):
        name = "" if point.call == last else point.call.title
        last = point.call
        if point.refused:
            rates.add_row(name, f"{point.contender}: {point.refused}", style="dim")
            continue
        rate = point.call.flops / times[point.call][point.contender] / 1e12
        share = f"{rate / kept.peaks[point.call.dtype]:.0%}"
        rates.add_row(name, point.contender, f"{rate:.1f}", share, f"{max(point.errors):.1e}")
    console.print(rates, made)


def draw(kept: Kept, path: Path) -> None:
    """Draw the figure if Altair is installed; a machine with a GPU may lack it."""
    if importlib.util.find_spec("altair") is None:
        print(f"no altair, so no {path.name}: --show draws it from the JSON file elsewhere", file=sys.stderr)
        return
    from benchmarks.gpu import figure as gpu_figure

    gpu_figure.draw(kept.about | {"days": kept.days}, kept.peaks, kept.times(), path)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--budget", type=float, default=BUDGET_SECONDS, help="seconds, compilations included (%(default)s)"
    )
    parser.add_argument("--only", help="calls whose title contains this, such as 'd 512'")
    parser.add_argument("--alone", action="store_true", help="without peers")
    parser.add_argument("--fresh", action="store_true", help="ignore kept results")
    parser.add_argument("--dry", action="store_true", help="without a GPU: tiny calls, interpreted, no times")
    parser.add_argument("--json", type=Path, default=None, help=f"file for the results ({KEPT.name})")
    parser.add_argument("--list", action="store_true", help="measure nothing; list the points in order")
    parser.add_argument(
        "--show", action="store_true", help="measure nothing; show the tables and draw the figure of the kept results"
    )
    given = parser.parse_args()
    if given.dry and given.json is None and not given.list:
        parser.error("--dry needs --json, because its results must not replace measured ones")
    given.json = given.json or KEPT
    return given


def say_plan(given: argparse.Namespace, console: Console) -> None:
    todo = left(Kept({}), given)
    for call, names in todo:
        console.print(f"{call.title}: {', '.join(names)}", highlight=False)
    console.print(f"{sum(len(names) for _, names in todo)} points of {len({call for call, _ in todo})} calls")


def main() -> None:
    given = arguments()
    console = Console(width=None if sys.stdout.isatty() else PAGE_WIDTH)
    if given.list:
        say_plan(given, console)
        return
    if given.show:
        kept = Kept.read(given.json)
        show(kept, console)
        draw(kept, given.json.with_suffix(".svg"))
        return
    if not given.dry and not torch.cuda.is_available():
        sys.exit("no GPU that PyTorch sees: run this where there is one, or --dry --json FILE to see that it works")
    device = Dry() if given.dry else Device()
    facts = about(given.dry)
    kept = Kept(facts) if given.fresh else resumed(given.json, facts, console)
    try:
        run(kept, given, device, console)
    except Red as red:
        sys.exit(f"wrong result, so nothing more is timed: {red}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    kept.write(given.json)
    show(kept, console)
    draw(kept, given.json.with_suffix(".svg"))
    say_left(left(kept, given), console)


if __name__ == "__main__":
    main()
