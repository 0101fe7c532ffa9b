"""Compares the results of a job with float64."""

from __future__ import annotations

import math
from typing import Any

import torch

from benchmarks.common.gate import scores
from benchmarks.gpu.wide.jobs import Job
from benchmarks.gpu.wide.tasks import runs_of, task_of, tensors

WORST = 0.02  # relative error; products in bfloat16 have 0.005 to 0.01


def exact(job: Job, arrays: dict[str, Any], head: int) -> dict[str, torch.Tensor]:
    """Results in float64, for one head."""
    q, k, v = (arrays[name][0, head].double().requires_grad_() for name in ("q", "k", "v"))
    s = scores(q, k, job.causal)
    out = torch.softmax(s, -1) @ v
    results = {"out": out, "lse": torch.logsumexp(s, -1)}
    if job.direction == "backward":
        grads = torch.autograd.grad(out, (q, k, v), arrays["dout"][0, head].double())
        results |= dict(zip(("dq", "dk", "dv"), grads, strict=True))
    return {name: x.detach() for name, x in results.items()}


def errors(job: Job, arrays: dict[str, Any]) -> dict[str, float]:
    """The largest relative error of each result, over the first and the last head."""
    worst: dict[str, float] = {}
    for head in (0, arrays["q"].shape[1] - 1):
        for name, x in exact(job, arrays, head).items():
            error = float((arrays[name][0, head].double() - x).norm() / x.norm())
            worst[name] = max(worst.get(name, 0.0), error if math.isfinite(error) else math.inf)
    return {name: float(f"{x:.1e}") for name, x in worst.items()}


def checked(job: Job, n: int, heads: int, device: str) -> tuple[dict[str, Any], dict[str, float]]:
    """The arrays after one call, and its errors. Raises ValueError if they are too large."""
    arrays = tensors(job, device, n, heads)
    for run in runs_of(job, task_of(job, arrays))[0]:
        run()
    worst = errors(job, arrays)
    if max(worst.values()) > WORST:
        raise ValueError(f"wrong at n {n}: {worst}")
    return arrays, worst
