"""Attention over several processes of torch.distributed: sequences beyond one machine's memory."""

from redblue.base.errors import RedblueError

try:
    import torch  # noqa: F401
except ImportError:
    raise RedblueError("attention over processes needs PyTorch: pip install 'redblue[torch]'") from None

from redblue.distributed.failures import ProcessFailed
from redblue.distributed.operator import attention
from redblue.distributed.sequences import best_placement, gather, shard

__all__ = ["ProcessFailed", "attention", "best_placement", "gather", "shard"]
