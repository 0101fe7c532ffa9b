"""One call of the Triton kernels for a problem, with tiles for a given size of shared memory or for the card itself.

As a script, this module is the program that ncu profiles. Its argument is a file with the pickled arguments of
gpu_call; the kernels that run between cudaProfilerStart and cudaProfilerStop are measured.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from redblue import schedules
from redblue.base.dtypes import COMPUTED
from redblue.base.errors import RedblueError
from redblue.kernels.gpu.launch import PlanOptions, Task
from redblue.kernels.gpu.planning.plan import Launch, card_of, plan
from redblue.kernels.gpu.table import KERNELS
from redblue.kernels.sizes import SUMS, Sizes, array_forms
from redblue.masks.rules.bands import Window
from redblue.problem import Problem


class GpuCall(NamedTuple):
    """The schedule and tiles that the kernels follow, and the function that launches them."""

    schedule: str
    tiles: dict[str, int]
    run: Callable[[], None]


def gpu_call(
    problem: Problem,
    words: int | None,
    schedule: str | None = None,
    tiles: Mapping[str, int] | None = None,
    device: str = "cpu",
) -> GpuCall:
    """Plan the launches for a problem.

    words: the shared memory of a block in words; None for all of the card's. schedule, tiles: None for the
    planner's choice. Raises RedblueError for a direction or a schedule without a kernel, Unplanned if nothing fits.
    """
    p = problem
    if p.direction not in ("forward", "backward") or p.dtype not in COMPUTED:
        raise RedblueError(
            f"GPU kernels run forward and backward in {', '.join(COMPUTED)}; got {p.direction} in {p.dtype}"
        )
    sizes = Sizes((p.batch,), p.kv_heads, p.group, p.n_q, p.n_k, p.d, p.d_v)
    card = card_of(torch.device(device))
    if words is not None:
        card = card._replace(shared_bytes=words * p.bytes_per_word)
    if tiles is None:
        options = PlanOptions(listed=not isinstance(p.mask.rule, Window))
        launch = plan(p.direction, sizes, p.dtype, card, options, schedule or "auto")
    else:
        name = schedule or "flash"
        launch = Launch(name, schedules.get(name).make_tiles(p, tiles))
    kernel = KERNELS.get(launch.kernel)
    if kernel is None or getattr(kernel, p.direction) is None:
        raise RedblueError(f"no GPU kernel follows {launch.kernel} {p.direction}; there are: {', '.join(KERNELS)}")
    task = task_of(p, sizes, torch.device(device))

    def run() -> None:
        for launch_kernel in getattr(kernel, p.direction)(task, launch):
            launch_kernel()

    return GpuCall(launch.kernel, launch.tiles._asdict(), run)


def task_of(p: Problem, sizes: Sizes, device: torch.device) -> Task:
    """Allocate the problem's tensors on the device, filled with zeros.

    Raises RedblueError if each head has a mask of its own.
    """
    arrays: dict[str, Any] = {
        name: torch.zeros(shape[:-1] if name in SUMS else shape, dtype=getattr(torch, dtype), device=device)
        for name, (shape, dtype) in array_forms(sizes, p.dtype, p.direction).items()
    }
    rule = p.mask.rule
    if isinstance(rule, Window):
        band = rule.on(p.n_q, p.n_k, 1)
        mask_fields: dict[str, Any] = {} if p.mask.is_full else {"first": band.first, "end": band.end}
    else:
        if p.mask.lead:
            raise RedblueError("GPU kernels are measured with one mask for all heads: give each head its own problem")
        mask_fields = {"mask": p.mask}
    return Task(sizes=sizes, **arrays, **mask_fields)


def main(path: str) -> None:
    """Run the call of the file once unmeasured and once measured; write its schedule and tiles beside the file."""
    call = gpu_call(*pickle.loads(Path(path).read_bytes()), device="cuda")
    call.run()  # compiles the kernels
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    call.run()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    Path(path).with_suffix(".json").write_text(json.dumps([call.schedule, call.tiles]))


if __name__ == "__main__":
    main(sys.argv[1])
