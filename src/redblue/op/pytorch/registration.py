"""The function that registers redblue's ops with PyTorch, for programs that run saved graphs."""

from __future__ import annotations

from redblue.base.errors import RedblueError


def register_ops() -> None:
    """Register redblue's ops with PyTorch, so that saved graphs that call them can be loaded.

    Call it before torch.export.load, torch.jit.load or torch._inductor.aoti_load_package. `attention` registers the ops
    itself at its first call with tensors. The ops of redblue.integrations.flash_attn are registered by importing that
    module. Raises RedblueError if PyTorch is not installed.
    """
    try:
        import torch  # noqa: F401
    except ImportError:
        raise RedblueError("redblue's ops need PyTorch: pip install 'redblue[torch]'") from None
    from redblue.op.pytorch import autograd, varlen  # noqa: F401 (define the ops, and their derivatives)
    from redblue.op.pytorch.paged import ops  # noqa: F401 (defines the ops for pages)
