"""What the kernels in Gluon need, which are written for Hopper GPUs (hopper/)."""

from __future__ import annotations

from importlib.util import find_spec

from redblue.kernels.gpu.scores import INTERPRETED
from redblue.kernels.gpu.versions import has_descriptors

HOPPER = 90  # later architectures multiply in tensor memory
SIXTEEN_BITS = ("bfloat16", "float16")


def available() -> bool:
    """Whether Triton compiles these kernels. Its interpreter does not run Gluon."""
    if INTERPRETED.value or not has_descriptors():
        return False
    return find_spec("triton.experimental.gluon.nvidia") is not None
