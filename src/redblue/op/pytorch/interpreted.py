"""The kernels for GPUs on CPU tensors, by Triton's interpreter: for tests, meters, and machines without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.kernels.gpu.scores import INTERPRETED
from redblue.op import api
from redblue.op.pytorch import gpu, ops


def attention(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """Run redblue.attention with the GPU kernels, on tensors of a GPU or, with Triton's interpreter, of the CPU.

    Raises RedblueError for CPU tensors unless TRITON_INTERPRET=1 was set before Triton was imported, and for arrays
    that are not PyTorch tensors.
    """
    if not isinstance(q, Tensor):
        raise RedblueError(f"kernels for GPUs take PyTorch tensors, got {type(q).__name__}: call redblue.attention")
    if q.is_cuda:
        return api.attention(q, k, v, **options)
    with interpreted():
        return api.attention(q, k, v, **options)


@contextmanager
def interpreted() -> Iterator[None]:
    """A context in which calls on CPU tensors, and later their gradients, run the kernels for GPUs in the interpreter.

    Raises RedblueError unless TRITON_INTERPRET=1 was set before Triton was imported.
    """
    if not INTERPRETED.value:
        raise RedblueError(
            "tensors on the CPU can be given to GPU kernels only where Triton interprets: set TRITON_INTERPRET=1 "
            "before anything imports Triton, or call redblue.attention"
        )
    with ops.substituted(by=gpu):
        yield
