"""Attention over several processes of torch.distributed: sequences beyond one machine's memory."""

from redblue.distributed.failures import ProcessFailed
from redblue.distributed.operator import attention
from redblue.distributed.sequences import best_placement, gather, shard

__all__ = ["ProcessFailed", "attention", "best_placement", "gather", "shard"]
