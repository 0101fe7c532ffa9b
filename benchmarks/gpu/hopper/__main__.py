"""Checks and times variants of the Hopper forward kernel: python -m benchmarks.gpu.hopper --out hopper.jsonl

Each variant is first checked against float64 on the GPU, then timed by events, in turns with SDPA's cuDNN backend. A
worker process runs the rows one by one; if it hangs or crashes, a new worker runs the rest. Each result is appended to
the file at once. --compile compiles every variant without a GPU and reports registers, spills and serialization.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

from benchmarks.common.options import chosen, parser_of
from benchmarks.gpu.hopper.compiling import compile_all, compiled
from benchmarks.gpu.hopper.rows import name, rows
from benchmarks.gpu.hopper.worker import Worker, work

ROW_SECONDS, START_SECONDS = 25.0, 60.0
AHEAD = max(1, min(12, (os.cpu_count() or 2) - 3))


def measure(out: str, budget: float, selected: list[dict[str, Any]]) -> int:
    """Run the rows within the budget; the number of rows that failed or were wrong."""
    start = time.monotonic()
    worker = Worker()
    ahead = [
        subprocess.Popen([sys.executable, "-m", "benchmarks.gpu.hopper", "--ahead", f"{i}/{AHEAD}"])
        for i in range(AHEAD)
    ]
    print(worker.answer(START_SECONDS), flush=True)
    wrong = 0
    for row in selected:
        left = budget - (time.monotonic() - start)
        if left < 4:
            print(f"stopped: the budget of {budget:.0f} s is spent", flush=True)
            break
        if worker.dead:
            worker = Worker()
            worker.answer(min(left, START_SECONDS))
            left = budget - (time.monotonic() - start)
        result = worker.ask(row, min(left, ROW_SECONDS))
        wrong += not result.get("right", False)
        with open(out, "a", encoding="utf-8") as file:
            file.write(json.dumps({"row": row, **result}) + "\n")
        print(f"{time.monotonic() - start:6.1f} s  {name(row)}\n          {json.dumps(result)}", flush=True)
    worker.stop()
    for process in ahead:
        process.kill()
    return wrong


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--out", default="hopper.jsonl", help="file to which results are appended")
    parser.add_argument("--budget", type=float, default=150.0, help="seconds for everything")
    parser.add_argument("--only", default="", help="run only rows whose name contains this text")
    parser.add_argument("--list", action="store_true", help="print the rows")
    parser.add_argument("--compile", action="store_true", help="compile every variant for sm_90, without a GPU")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--ahead", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    selected = chosen(parser, arguments.only, rows(), name)
    if arguments.list:
        print(*map(name, selected), sep="\n")
        return 0
    if arguments.work:
        work()
        return 0
    if arguments.ahead:
        share, shares = map(int, arguments.ahead.split("/"))
        for row in selected[share::shares]:
            compiled(row)
        return 0
    if arguments.compile:
        return min(1, compile_all(selected))
    return min(1, measure(arguments.out, arguments.budget, selected))


if __name__ == "__main__":
    sys.exit(main())
