"""Times a job: a kernel, a whole call or a peer."""

from __future__ import annotations

import statistics
from typing import Any

import torch

from benchmarks.gpu.timing import Run, in_rounds
from benchmarks.gpu.wide.checks import checked, errors
from benchmarks.gpu.wide.jobs import DTYPE, SMALL, Job
from benchmarks.gpu.wide.tasks import runs_of, task_of, tensors
from redblue.kernels.gpu.planning.card import Card
from redblue.kernels.gpu.planning.plan import plan
from redblue.kernels.gpu.table import KERNELS

REPEATS = 5


def device_seconds(call: Run, repeats: int = REPEATS) -> float:
    """The median time of a call on the device."""
    return statistics.median(in_rounds({"": call}, repeats)[""])


def flops(job: Job) -> float:
    d_v = job.d_v or job.d
    product = 2 * job.n**2 * job.heads / (2 if job.causal else 1)
    widths = {"p": job.d, "ds": d_v, "both": job.d + d_v, "row": d_v, "key": d_v}
    whole = job.d + d_v if job.direction == "forward" else 3 * job.d + 2 * d_v
    return product * widths.get(job.what, whole)


def measured(job: Job) -> dict[str, Any]:
    """One row of the results."""
    if job.what == "bmm":
        return _bmm(job)
    if job.what == "planned":
        return _planned(job)
    if job.choice is None:
        return _peer(job)
    checked(job, SMALL, 3, "cuda")
    checked(job._replace(causal=not job.causal), SMALL, 3, "cuda")
    row: dict[str, Any] = {}
    if job.what in ("forward", "backward"):
        arrays, row["errors"] = checked(job, job.n, job.heads, "cuda")
    else:
        arrays = tensors(job, "cuda", job.n, job.heads)
    every, timed = runs_of(job, task_of(job, arrays))
    for run in every:
        run()
    seconds = device_seconds(lambda: [run() for run in timed])
    return row | {"launches": len(timed), "ms": seconds * 1e3, "tflops": flops(job) / seconds / 1e12}


def _bmm(job: Job) -> dict[str, Any]:
    """The four kinds of products by PyTorch alone, in TFLOP/s."""
    heads = 4
    q, p = (torch.randn(heads, job.n, x, device="cuda", dtype=torch.bfloat16) for x in (job.d, job.n))
    work = 2 * job.n**2 * job.d * heads / 1e12
    into, back = torch.empty_like(p), torch.empty_like(q)
    products = {
        "Q K^T": lambda: torch.bmm(q, q.mT, out=into),
        "P V": lambda: torch.bmm(p, q, out=back),
        "P^T dO": lambda: torch.bmm(p.mT, q, out=back),
    }
    return {"tflops": {name: work / device_seconds(call) for name, call in products.items()}}


def _planned(job: Job) -> dict[str, Any]:
    """The launches of the other kernels, as planned without timing."""
    arrays = tensors(job, "cuda", job.n, job.heads)
    task = task_of(job, arrays)
    runs, launch = [], None
    for direction in dict.fromkeys(("forward", job.direction)):
        launch = plan(direction, task.sizes, DTYPE, Card())
        runs = getattr(KERNELS[launch.kernel], direction)(task, launch)
        for run in runs:
            run()
    worst = errors(job, arrays)
    seconds = device_seconds(lambda: [run() for run in runs])
    return {"errors": worst, "launch": repr(launch), "ms": seconds * 1e3, "tflops": flops(job) / seconds / 1e12}


def _peer(job: Job) -> dict[str, Any]:
    arrays = tensors(job, "cuda", job.n, job.heads)
    q, k, v = (arrays[name].requires_grad_(job.direction == "backward") for name in ("q", "k", "v"))
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    scale = job.d**-0.5
    if job.what == "unfused":

        def forward() -> Any:
            return torch.softmax(torch.matmul(q * scale, k.mT), -1) @ v
    else:
        backend = {"efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}[job.what]

        def forward() -> Any:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, is_causal=job.causal)

    if job.direction == "forward":
        seconds = device_seconds(forward, 3)
    else:
        out = forward()
        seconds = device_seconds(lambda: torch.autograd.grad(out, (q, k, v), arrays["dout"], retain_graph=True), 3)
    return {"ms": seconds * 1e3, "tflops": flops(job) / seconds / 1e12}
