"""PyTorch's flash-attention ops on the CPU, where PyTorch has no kernel for them.

torch.nn.attention.varlen calls these ops, and so do libraries that distribute attention over several processes. The
kernels are registered in PyTorch's dispatcher under the CPU's key of each op, which is empty otherwise. So they serve
every caller in every thread, and replace nothing. PyTorch's own derivatives of the ops call the ops of the backward
pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from redblue.base.errors import RedblueError
from redblue.op.pytorch.overrides import Kernels, Override, register
from redblue.op.pytorch.usage import Usage


def enable_flash_ops() -> Override:
    """Register CPU kernels for PyTorch's flash-attention ops, until the returned Override is disabled.

    The ops are aten::_flash_attention_forward, aten::_scaled_dot_product_flash_attention, their backward ops, and
    aten::_flash_attention_forward_no_dropout_inplace if this PyTorch has it. So torch.nn.attention.varlen runs on the
    CPU, with gradients. `used` of the Override counts the calls of the forward ops; calls that redblue refuses raise
    RedblueError. Raises RedblueError if PyTorch is not installed.
    """
    return _kernels.request()


@contextmanager
def flash_ops() -> Iterator[Usage]:
    """A context in which enable_flash_ops is in force, in all threads. Contexts may nest.

    Yields the record of the calls that were served and refused, with the reasons; it stays readable after the block.
    Raises RedblueError if PyTorch is not installed.
    """
    with _kernels.requested() as used:
        yield used


def _install(undo: ExitStack) -> None:
    import torch

    from redblue.op.pytorch import flash_kernels

    functions = {
        "_flash_attention_forward": _counted(flash_kernels.forward),
        "_flash_attention_forward_no_dropout_inplace": _counted(flash_kernels.forward_into),
        "_flash_attention_backward": flash_kernels.backward,
        "_scaled_dot_product_flash_attention": _counted(flash_kernels.sdpa_forward),
        "_scaled_dot_product_flash_attention_backward": flash_kernels.sdpa_backward,
    }
    known = {name: function for name, function in functions.items() if hasattr(torch.ops.aten, name)}
    register(undo, known, ("CPU",))


def _counted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that its calls are added to the record of every request."""

    @wraps(function)
    def counted(*arguments: Any, **options: Any) -> Any:
        try:
            output = function(*arguments, **options)
        except RedblueError as error:
            _kernels.count(str(error))
            raise
        _kernels.count(None)
        return output

    return counted


_kernels = Kernels(_install)
