"""Measure the speed of the laboratory and the roofline of this machine: `make bench`.

If a counting run differs from its closed form, nothing is timed. Times are the best of several runs; the table
names the machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from rich.console import Console

import redblue as rb
from benchmarks.common.options import parser_of
from benchmarks.common.timing import seconds_of, with_seconds
from redblue import schedules
from redblue.base.terminal import table
from redblue.base.text import amount
from redblue.base.text import time as seconds_text
from redblue.catalogue.roofline import roofline
from redblue.lab import counts
from redblue.problem import DIRECTIONS

MILLION = 1_000_000
LIMITS = {"closed_form_seconds": 1e-3, "search_seconds": 50e-3, "counting_run_seconds": 0.5}  # requirements
WORDS = 116_224  # 227 KiB of 16-bit words


def best_of(runs: int, action: Callable[[], object]) -> float:
    """Seconds of the fastest run."""
    return min(seconds_of(action) for _ in range(runs))


def check() -> None:
    """Exit if the counting run differs from the closed form at the size that is timed."""
    problem, tiles = rb.Problem(4096, 4096, 64), {"rows": 64, "cols": 64}
    closed, ran = rb.count("flash", problem, tiles=tiles), counts.run("flash", problem, tiles=tiles)
    if closed != ran:
        sys.exit(f"the counting run and the closed form differ: {ran} and {closed}")


def laboratory() -> list[dict[str, Any]]:
    """Seconds of a closed form, of a tile search and of a counting run, for every schedule and direction."""
    rows = []
    for name, schedule in schedules.SCHEDULES.items():
        mask = rb.Mask.full() if schedule.full_only else rb.Mask.causal()
        for direction in (each for each in schedule.passes if each in DIRECTIONS):
            large = rb.Problem(MILLION, MILLION, 128, mask=mask, direction=direction)
            try:
                tiles = schedule.tiles(large, WORDS)
            except rb.TooFewWords:  # a schedule that keeps whole rows of the problem
                continue
            middle = rb.Problem(4096, 4096, 64, direction=direction)
            edges = dict.fromkeys(schedule.direction(middle).edges, 64)
            rows.append(
                {
                    "schedule": name,
                    "direction": direction,
                    "closed_form_seconds": best_of(20, lambda s=schedule, p=large, t=tiles: s.cost(p, t)),
                    "search_seconds": best_of(5, lambda s=schedule, p=large: s.tiles(p, WORDS)),
                    "counting_run_seconds": best_of(3, lambda n=name, p=middle, e=edges: counts.run(n, p, tiles=e)),
                }
            )
    return rows


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    as_json = parser.parse_args().json
    check()
    roof, roof_seconds = with_seconds(lambda: roofline(remeasure=True))
    rows = laboratory()
    if as_json:
        print(json.dumps({"laboratory": rows, "roof_seconds": roof_seconds, "roof": asdict(roof)}, indent=2))
        return
    times = table(
        ("schedule", "direction"),
        ("closed form", "tile search", "counting run"),
        title="The laboratory: closed form and search at n = 1,000,000, d = 128, causal; run at n = 4096, d = 64",
        caption="saha_ye takes no mask and runs with the full one",
    )
    for row in rows:
        figures = (row["closed_form_seconds"], row["search_seconds"], row["counting_run_seconds"])
        times.add_row(row["schedule"], row["direction"], *map(seconds_text, figures))
    rates = table(("roof", ""), ("one core", "all cores"), title=f"{roof.cpu}: measured in {roof_seconds:.1f} s")
    for dtype, rate in roof.peak_flops_per_second.items():
        rates.add_row("multiply-add", dtype, *(f"{amount(rate[who])}FLOP/s" for who in ("one core", "all cores")))
    for level, rate in roof.read_bandwidth_bytes_per_second.items():
        rates.add_row("read", level, *(f"{amount(rate[who])}B/s" for who in ("one core", "all cores")))
    Console().print(times, "", rates)
    slow = [
        f"{row['schedule']} {row['direction']}: {key}"
        for row in rows
        for key, limit in LIMITS.items()
        if row[key] > limit
    ]
    if slow:
        sys.exit("slower than required (1 ms, 50 ms, 0.5 s), perhaps because the machine was busy: " + "; ".join(slow))


if __name__ == "__main__":
    main()
