"""Compares the results of a job with float64."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.gate import band_mask, launch_gate
from benchmarks.gpu.wide.jobs import Job
from benchmarks.gpu.wide.tasks import runs_of, task_of, tensors

RESULTS = {"forward": ("out", "lse"), "backward": ("out", "lse", "dq", "dk", "dv")}


def errors(job: Job, arrays: dict[str, Any]) -> dict[str, float]:
    """The largest errors of the results, over the first and the last head. Raises Red if they are too large."""
    q, k, v = (arrays[name] for name in ("q", "k", "v"))
    attends = band_mask(q.shape[2], k.shape[2], None, 1 if job.causal else None, q.device)
    gate = launch_gate(q, k, v, arrays["dout"] if job.direction == "backward" else None, attends)
    worst = gate.check({name: arrays[name] for name in RESULTS[job.direction]})
    return {name: float(f"{error:.1e}") for name, error in worst.items()}


def checked(job: Job, n: int, heads: int, device: str) -> tuple[dict[str, Any], dict[str, float]]:
    """The arrays after one call, and its errors. Raises Red if they are too large."""
    arrays = tensors(job, device, n, heads)
    for run in runs_of(job, task_of(job, arrays))[0]:
        run()
    return arrays, errors(job, arrays)
