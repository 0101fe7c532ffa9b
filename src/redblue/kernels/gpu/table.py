"""The table of GPU kernels, by schedule."""

from __future__ import annotations

from typing import Any, NamedTuple

from redblue.kernels.gpu.flash import backward as flash_backward
from redblue.kernels.gpu.flash import forward as flash_forward
from redblue.kernels.gpu.spilled import backward as spilled_backward
from redblue.kernels.gpu.spilled import forward as spilled_forward


class Passes(NamedTuple):
    """Functions (task, launch, precision) -> list[Run] that return the launches which write a task's outputs."""

    forward: Any  # None: there is no such kernel
    backward: Any


def _one_pass(*arguments: Any) -> list[Any]:
    """The launches of hopper/backward.py."""
    from redblue.kernels.gpu.hopper import backward  # needs Gluon, which some versions of Triton lack

    return backward.backward(*arguments)


KERNELS: dict[str, Passes] = {
    "flash": Passes(flash_forward.forward, flash_backward.backward),
    "flash_onepass": Passes(None, _one_pass),
    "hybrid": Passes(spilled_forward.forward, spilled_backward.backward),
    "small_cache": Passes(spilled_forward.forward, spilled_backward.backward),
}
