"""Messages among all processes of a group, point to point, so that the rank of a missing process is known."""

from __future__ import annotations

from collections.abc import Mapping

import torch.distributed as dist
from torch import Tensor

from redblue.distributed.failures import Failures


def swap(
    sent: Mapping[int, Tensor], received: Mapping[int, Tensor], group: dist.ProcessGroup, failures: Failures, tag: int
) -> None:
    """Send tensors to other ranks, and fill the tensors `received` with those of other ranks; all are contiguous.

    Raises ProcessFailed, which names the rank that failed.
    """
    ranks = [*sent, *received]
    if not ranks:
        return
    kinds = [dist.isend] * len(sent) + [dist.irecv] * len(received)
    tensors = [*sent.values(), *received.values()]
    operations = [
        dist.P2POp(kind, tensor, dist.get_global_rank(group, rank), group, tag)
        for kind, tensor, rank in zip(kinds, tensors, ranks, strict=True)
    ]
    with failures.named(*ranks):
        works = dist.batch_isend_irecv(operations)
    # Some backends return one work for the whole batch
    waited = zip(ranks, works, strict=True) if len(works) == len(ranks) else [(ranks[0], work) for work in works]
    for rank, work in waited:
        failures.wait(work, rank, tensors[0].device)
