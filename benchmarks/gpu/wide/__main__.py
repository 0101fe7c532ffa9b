"""Time wide heads (d of 192 to 1024) on a GPU: tiles of each product, then whole calls and the unfused expression.

Every variant is checked against float64 before it is timed, at an odd size with the same compiled kernels. Whole calls
are also checked at the timed size, first and last head. A worker process makes the calls; one that hangs or crashes
costs one row. Each row is appended to --out at once. --compile compiles all variants for sm_90 without a GPU.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.gpu.wide.compiling import compile_all
from benchmarks.gpu.wide.jobs import BEST, BOTH_TILES, Job, best_of, call_jobs, kernel_jobs
from benchmarks.gpu.wide.worker import Worker

SECONDS_PER_JOB, COMPILERS = 25, 12


def main(
    out: Annotated[Path, typer.Option(help="The file to which rows are appended.")] = Path("wide.jsonl"),
    budget: Annotated[float, typer.Option(help="Seconds in all.")] = 120.0,
    compile_only: Annotated[bool, typer.Option("--compile", help="Only compile, without a GPU.")] = False,
) -> None:
    """Measure wide heads."""
    start, worker, rows = time.monotonic(), Worker(), []
    kernels = list(kernel_jobs())
    defaults = list(call_jobs(BEST, BOTH_TILES[0]))
    if compile_only:
        compile_all(kernels + defaults, 1e6, 1)
        return
    compile_all(kernels + defaults, min(40.0, budget / 3), min(COMPILERS, os.cpu_count() or 1))

    def measure(jobs: list[Job], until: float) -> None:
        for job in jobs:
            left = start + until - time.monotonic()
            if left < 3:
                return
            row = worker(job, min(SECONDS_PER_JOB, left))
            rows.append((job, row))
            line = json.dumps({"seconds": round(time.monotonic() - start, 1)} | job.row | row)
            print(line, flush=True)
            with out.open("a") as file:
                file.write(line + "\n")

    measure(kernels, budget * 0.6)
    measure(list(call_jobs(*best_of(rows))), budget)
    worker.stop()
    sys.exit(not any("tflops" in row for _, row in rows))


if __name__ == "__main__":
    typer.run(main)
