"""Compiles jobs for sm_90 without a GPU."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import time

from benchmarks.gpu.wide.jobs import Job
from benchmarks.gpu.wide.tasks import runs_of, task_of, tensors
from redblue.kernels.gpu.planning.fit import standing_in


def compiled(job: Job) -> str:
    """Compile a job's kernels for sm_90, without a GPU, into Triton's cache. Returns their largest resources."""
    shared = 0
    try:
        with standing_in(90):
            for case in (job, job._replace(causal=not job.causal)):
                runs = runs_of(case, task_of(case, tensors(case, "meta", case.n, case.heads)))[0]
                for run in {(x.kernel.__name__, str(x.arguments.get("KIND")), x.grid): x for x in runs}.values():
                    made = run.kernel.warmup(*run.positional, grid=run.grid, **run.settings)
                    shared = max(shared, made.metadata.shared)
    except Exception as error:  # the measurement of the job will report it
        return f"{type(error).__name__}: {error}"
    return f"{shared:,} bytes of shared memory" + ("" if shared <= 227 << 10 else ": TOO MUCH")


def compile_all(jobs: list[Job], seconds: float, workers: int) -> None:
    """Compile jobs side by side, for at most `seconds`."""
    stop = time.monotonic() + seconds
    jobs = [job for job in jobs if job.choice]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        results = [(job, pool.apply_async(compiled, (job,))) for job in jobs]
        with contextlib.suppress(multiprocessing.TimeoutError):
            for job, result in results:
                print("compiled", json.dumps(job.row), result.get(max(0.0, stop - time.monotonic())), flush=True)
