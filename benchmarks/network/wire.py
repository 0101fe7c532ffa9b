"""Measure bytes on the wire and times of network schedules over links of a given bandwidth and latency.

Processes of one thread each run in network namespaces (Linux, root). `bytes`: the bytes that the kernel counts on each
process's interface, compared with the bytes of the schedule's words, for 2, 3, 4 and 8 processes. `times`: the time of
a call of 4 processes, compared with the longer of two times. The first is the time of its computing: the same blocks in
the same number of processes, without network. The second is the time of its bytes at the link's bandwidth, for the
busiest process. The same messages are also timed without computing. The busy time of all cores is measured for both: if
processes and networking share few cores, the sum of both divided by the number of cores (`cores_s`) is a third lower
bound on the time of a call. It is meaningful only if no other program runs.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common.options import at_least, parser_of, positive
from benchmarks.network.links import INTERFACE, inside, namespaces
from redblue.catalogue.detect import detect_cpu

SCHEDULES = ("ring", "all_gather", "head_parallel", "ring_heads", "mesh")
FULL, CAUSAL = ("full", []), ("causal", [])
BYTES_MASKS = (FULL, CAUSAL, ("sliding_window", [192]), ("documents", [[400, 736, 400]]))
SHAPES = (  # n, heads, mask, placement; in the first, the link takes longer than computing
    (128, 256, FULL, "contiguous"),
    (512, 64, FULL, "contiguous"),
    (1024, 64, FULL, "contiguous"),
    (1024, 64, CAUSAL, "zigzag"),
)


def case(schedule: str, n: int, d: int, heads: int, mask: tuple[str, Any], placement: str, direction: str) -> Any:
    sizes = {"n": n, "d": d, "heads": heads, "kv_heads": heads, "dtype": "float32"}
    named = {"mask": mask[0], "mask_arguments": mask[1], "placement": placement, "direction": direction}
    return {"schedule": schedule, **sizes, **named}


BYTES = [
    case(schedule, 1536, 32, 24, mask, "contiguous", direction)
    for schedule in SCHEDULES
    for mask in BYTES_MASKS
    for direction in ("forward", "backward")
]
TIMES = [
    case(schedule, n, 64, heads, mask, placement, "forward")
    for n, heads, mask, placement in SHAPES
    for schedule in ("ring", "mesh")
]
GROUPS = {"bytes": ((2, 3, 4, 8), BYTES), "times": ((4,), TIMES)}


def run(chosen: list[dict[str, Any]], processes: int, gbit: float, milliseconds: float, rounds: int) -> list[Any]:
    """The results of all cases. rounds: of times."""
    environment = os.environ | {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder, namespaces(processes, gbit, milliseconds) as names:
        arguments = [str(processes), f"{folder}/store", json.dumps(chosen), str(rounds)]
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


def about_bytes(result: dict[str, Any], processes: int, gbit: float) -> dict[str, Any]:
    """The bytes of all processes, counted and on the wire."""
    counted, wire = sum(result["bytes_counted"]), sum(result["bytes_on_wire"])
    kept = {name: result[name] for name in ("schedule", "mask", "direction", "grid", "words")}
    share = round(wire / counted - 1, 4) if counted else None
    return {"processes": processes, **kept, "bytes_counted": counted, "bytes_on_wire": wire, "headers_share": share}


def about_times(result: dict[str, Any], processes: int, gbit: float) -> dict[str, Any]:
    """The medians, the time of the bytes on the link, and the ratios of the medians and of the least times."""
    seconds = result["seconds"]
    medians = {f"{name}_s": statistics.median(rounds) for name, rounds in seconds.items()}
    link = result["most_bytes"] / (gbit * 1e9 / 8)
    least = min(seconds["call"]) / max(min(seconds["computing"]), link)  # least affected by other programs
    longer = max(medians["computing_s"], link)
    busy = result["busy_core_seconds"]
    cores = (busy["computing"] + busy["transfer"]) / (os.cpu_count() or 1)
    figures = medians | {"link_s": link, "over_longer": medians["call_s"] / longer, "least_over_longer": least}
    figures |= {"cores_s": cores, "over_longest": medians["call_s"] / max(longer, cores)}
    kept = {name: result[name] for name in ("schedule", "n", "heads", "mask", "placement", "grid")}
    return kept | {name: float(f"{value:.4g}") for name, value in figures.items()}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--gbit", type=positive, default=1.0, help="bandwidth of each link and direction, Gbit/s")
    parser.add_argument("--milliseconds", type=float, default=1.0, help="latency of each link")
    parser.add_argument(
        "--rounds", type=at_least(1), default=9, help="measurements of each time, over which figures are medians"
    )
    parser.add_argument("--only", choices=GROUPS, help="one group of cases")
    parser.add_argument("--json", type=Path, help="file for the results; groups of the file that are not measured stay")
    options = parser.parse_args()
    judged: dict[str, Any] = {}
    for name, (sizes, chosen) in GROUPS.items():
        judge = about_bytes if name == "bytes" else about_times
        for processes in sizes if options.only in (None, name) else ():
            rounds = options.rounds if name == "times" else 0
            for result in run(chosen, processes, options.gbit, options.milliseconds, rounds):
                judged.setdefault(name, []).append(judge(result, processes, options.gbit))
                print("  ".join(f"{key} {value}" for key, value in judged[name][-1].items()), flush=True)
    if options.json:
        link = {"gbit": options.gbit, "milliseconds": options.milliseconds}
        about = {"date": datetime.date.today().isoformat(), "cpu": detect_cpu().model, "cores": os.cpu_count(), **link}
        kept = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else {}
        groups = kept | {name: {**about, "cases": cases} for name, cases in judged.items()}
        text = json.dumps(groups).replace('{"processes"', '\n{"processes"').replace('{"schedule"', '\n{"schedule"')
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
