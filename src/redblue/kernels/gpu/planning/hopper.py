"""The requirements of the Gluon kernels for Hopper GPUs (hopper/)."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from redblue.kernels.gpu.scores import INTERPRETED
from redblue.kernels.gpu.versions import has_descriptors

HOPPER = 90  # later architectures multiply in tensor memory
KERNELS = ("redblue.kernels.gpu.hopper.forward_kernel", "redblue.kernels.gpu.hopper.backward_kernel")


@cache
def available() -> bool:
    """Whether this Triton compiles these kernels. Its interpreter does not run Gluon, and Gluon's names may change."""
    if INTERPRETED.value or not has_descriptors():
        return False
    try:
        for kernel in KERNELS:
            import_module(kernel)
    except (ImportError, AttributeError):
        return False
    return True
