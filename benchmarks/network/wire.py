"""Measure bytes on the wire and times of network schedules over links of a given bandwidth and latency.

Usage: python -m benchmarks.network.wire [--gbit 1] [--milliseconds 1] [--rounds 5] [--only NAME] [--json PATH]

Four processes of one thread each run in four network namespaces (Linux, root). The bytes that the kernel counts on each
process's interface are compared with the schedule's words. The time of a call is compared with the longer of two times:
that of its computing, measured with the same blocks, the same number of processes at once and no network, and that of
its bytes at the link's bandwidth, for the busiest process.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.network.links import INTERFACE, inside, namespaces
from redblue.catalogue.detect import detect_cpu

PROCESSES = 4
PLAIN = {"d": 64, "heads": 4, "kv_heads": 4, "dtype": "float32", "placement": "contiguous", "direction": "forward"}
FULL = {"mask": "full", "mask_arguments": []}
WINDOW = {"mask": "sliding_window", "mask_arguments": [512]}
CAUSAL = {"mask": "causal", "mask_arguments": []}


def cases() -> dict[str, list[dict[str, Any]]]:
    """Cases by name."""
    small = [FULL, CAUSAL, WINDOW, {"mask": "documents", "mask_arguments": [[1000, 2096, 1000]]}]
    schedules = ("ring", "all_gather", "head_parallel", "ring_heads", "mesh")
    wire = [
        {"schedule": schedule, "n": 4096, **PLAIN, **mask, "heads": 4, "direction": direction}
        for schedule in schedules
        for mask in small
        for direction in ("forward", "backward")
    ]
    times = [
        {"schedule": schedule, "n": n, **PLAIN, **mask, "heads": heads, "kv_heads": heads, "placement": placement}
        for n, heads, mask, placement in (
            (128, 256, FULL, "contiguous"),  # the link takes longer than computing
            (512, 64, FULL, "contiguous"),
            (1024, 64, FULL, "contiguous"),
            (1024, 64, CAUSAL, "zigzag"),
        )
        for schedule in ("ring", "mesh")
    ]
    return {"wire": wire, "times": times}


def run(chosen: list[dict[str, Any]], gbit: float, milliseconds: float, rounds: int) -> list[dict[str, Any]]:
    """The results of all cases."""
    environment = os.environ | {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder, namespaces(PROCESSES, gbit, milliseconds) as names:
        arguments = [str(PROCESSES), f"{folder}/store", json.dumps(chosen), str(rounds)]
        started = [
            subprocess.Popen(
                inside(name, [sys.executable, "-m", "benchmarks.network.worker", str(rank), *arguments]),
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, name in enumerate(names)
        ]
        outputs = [process.communicate()[0] for process in started]
        if any(process.returncode for process in started):
            raise SystemExit("a process failed")
    return json.loads(outputs[0])


def judged(result: dict[str, Any], gbit: float) -> dict[str, Any]:
    """The result with its medians, the time of its bytes, and the ratios of medians and of the least times."""
    alone, taken = (statistics.median(result[name]) for name in ("seconds_alone", "seconds"))
    link = result["most_bytes"] / (gbit * 1e9 / 8)
    counted, wire = sum(result["bytes_counted"]), sum(result["bytes_on_wire"])
    least = min(result["seconds"]) / max(min(result["seconds_alone"]), link)  # without what other programs took
    figures = {"computing_s": alone, "link_s": link, "time_s": taken}
    figures |= {"over_longer": taken / max(alone, link), "least_over_longer": least}
    rounded = {name: float(f"{value:.4g}") for name, value in figures.items()}
    kept = {name: value for name, value in result.items() if not name.startswith("seconds")}
    return kept | rounded | {"headers_share": round(wire / counted - 1, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gbit", type=float, default=1.0, help="bandwidth of each link and direction, Gbit/s")
    parser.add_argument("--milliseconds", type=float, default=1.0, help="latency of each link")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each case; medians over them")
    parser.add_argument("--only", choices=cases(), help="one group of cases")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    found: dict[str, Any] = {}
    for name, chosen in cases().items():
        if given.only in (None, name):
            results = run(chosen, given.gbit, given.milliseconds, given.rounds)
            found[name] = [judged(result, given.gbit) for result in results]
            for row in found[name]:
                print(
                    f"{row['schedule']:14}{row['mask']:16}n {row['n']:<7}{row['direction']:9}"
                    f"headers {row['headers_share']:7.2%}  computing {row['computing_s']:.3f} s  "
                    f"link {row['link_s']:.3f} s  time {row['time_s']:.3f} s  "
                    f"x {row['over_longer']:.2f} least x {row['least_over_longer']:.2f}",
                    flush=True,
                )
    if given.json:
        link = {"gbit": given.gbit, "milliseconds": given.milliseconds, "processes": PROCESSES}
        about = {"date": datetime.date.today().isoformat(), "cpu": detect_cpu().model, "cores": os.cpu_count()}
        given.json.write_text(json.dumps(about | link | found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
