"""The schedule `flash`, backward, in two kernels that both recompute the probabilities.

One kernel writes dQ and delta (the row sums of dout * out), the other, which reads delta, writes dK and dV. Each sum
has one owner, so results do not depend on the order in which programs run.
"""

from __future__ import annotations

from redblue.kernels.gpu.flash.dk_and_dv import dk_and_dv_run
from redblue.kernels.gpu.flash.dq import dq_run
from redblue.kernels.gpu.launch import Run, Task
from redblue.kernels.gpu.planning.plan import Launch


def backward(task: Task, launch: Launch, precision: str = "ieee") -> list[Run]:
    """The launches that write task.dq and delta, then dk and dv."""
    return [dq_run(task, launch, precision), dk_and_dv_run(task, launch, precision)]
