"""The arrays, the task and the launches of a job."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.gpu.wide.jobs import DTYPE, Job
from redblue.kernels.gpu.launch import Run, Task
from redblue.kernels.gpu.spilled.tma import launches
from redblue.kernels.sizes import SUMS, Sizes, array_forms


def tensors(job: Job, device: str, n: int, heads: int) -> dict[str, Any]:
    """The arrays of a task."""
    d_v = job.d_v or job.d
    forms = array_forms(Sizes((1,), heads, 1, n, n, job.d, d_v), DTYPE, "backward")
    torch.manual_seed(1)
    arrays = {}
    for name, (shape, number) in forms.items():
        shape, dtype = shape[:-1] if name in SUMS else shape, getattr(torch, number)
        is_input = name in ("q", "k", "v", "dout") and device != "meta"
        arrays[name] = (torch.randn if is_input else torch.empty)(shape, dtype=dtype, device=device)
    return arrays


def task_of(job: Job, arrays: dict[str, Any]) -> Task:
    batch, heads, n, d = arrays["q"].shape
    sizes = Sizes((batch,), heads, 1, n, n, d, arrays["v"].shape[-1])
    return Task.of(sizes=sizes, end=1 if job.causal else None, **arrays)


def runs_of(job: Job, task: Task) -> tuple[list[Run], list[Run]]:
    """All launches that the job needs, and the launches that it times."""
    assert job.choice
    ahead = launches.forward(task, job.choice)
    last = ahead if job.direction == "forward" else launches.backward(task, job.choice)
    if job.what in ("forward", "backward"):
        return (ahead if job.direction == "backward" else []) + last, last
    kernel = {"p": "score_tiles", "ds": "score_tiles", "row": "row_sums", "key": "key_sums", "both": "p_and_ds"}
    chosen = [x for x in last if (x.kernel.__name__, x.arguments.get("KIND", job.what)) == (kernel[job.what], job.what)]
    if job.what == "key":
        chosen = chosen[::2]  # dV
    return (ahead if job.direction == "backward" else []) + last, chosen
