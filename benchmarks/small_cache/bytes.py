"""Count the bytes of the small-cache experiment with Nsight Compute, for one head of each timed launch.

`bytes_of` starts one process under ncu for all launches of one head dimension. That process runs this file as a script:
it compiles each launch before it lets ncu count the kernels.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch  # pyright: ignore[reportMissingImports]

from redblue.meter import ncu

BOUNDARIES = ("shared memory and L1/L2", "L2/DRAM")

Place = tuple[str, int, int, str]  # direction, d, kilobytes, schedule or "auto"


def bytes_of(places: Sequence[Place]) -> list[tuple[int, int]]:
    """The bytes of each launch between shared memory and L2, and between L2 and memory. Raises RedblueError."""
    with tempfile.TemporaryDirectory(prefix="redblue-ncu-") as folder:
        kernels = Path(folder, "kernels.json")
        command = [sys.executable, "-m", "benchmarks.small_cache.bytes", json.dumps(places), str(kernels)]
        status, output, errors = ncu.csv_of(command, BOUNDARIES, os.environ)
        launched = json.loads(kernels.read_text()) if kernels.exists() else []
    counts = ncu.read_each(output, launched, BOUNDARIES, status, errors)
    near, far = ([counted[name].bytes_read + counted[name].bytes_written for counted in counts] for name in BOUNDARIES)
    return list(zip(near, far, strict=True))


def main(places: list[Place], kernels: Path, profiler: Any = torch.cuda.profiler, device: str = "cuda") -> None:
    """Make each launch twice, the second time between start and stop; write the number of kernels of each launch."""
    from benchmarks.small_cache.crossing import Row, problem
    from benchmarks.small_cache.device import card_with, planned  # that module imports this file
    from redblue.kernels.gpu.table import KERNELS
    from redblue.kernels.sizes import Sizes
    from redblue.meter.gpu_calls import task_of

    launched = []
    for place in places:
        row = Row(*place)
        launch = planned(row, card_with(row.kilobytes))
        case = problem(row.direction, row.d)  # one head
        task = task_of(case, Sizes((1,), 1, 1, case.n_q, case.n_k, row.d, row.d), torch.device(device))
        runs = [run for run in getattr(KERNELS[launch.kernel], row.direction)(task, launch) if all(run.grid)]
        for run in runs:
            run()
        torch.cuda.synchronize()
        profiler.start()
        for run in runs:
            run()
        torch.cuda.synchronize()
        profiler.stop()
        launched.append(len(runs))
        kernels.write_text(json.dumps(launched))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
