"""Masks with a plane for each head or batch entry: whether their planes fit the sizes of a call."""

from __future__ import annotations

from redblue.base.errors import RedblueError
from redblue.kernels.sizes import Sizes
from redblue.masks import Mask


def check_lead(mask: Mask, sizes: Sizes) -> None:
    """Raise RedblueError unless the mask's planes broadcast to (lead..., heads)."""
    full = (*sizes.lead, sizes.kv_heads * sizes.group)
    lead = (1,) * (len(full) - len(mask.lead)) + mask.lead
    if len(lead) != len(full) or any(a not in (1, b) for a, b in zip(lead, full, strict=True)):
        raise RedblueError(
            f"the mask has planes of shape {mask.lead}, which must broadcast to (..., heads) = {full}: give one plane "
            "for all heads, or planes of this shape"
        )
    if per_head(mask) and sizes.group > 1:
        raise RedblueError(
            "heads that share a key head must have one mask: repeat k and v to give heads different masks"
        )


def per_head(mask: Mask | None) -> bool:
    """Whether heads have masks of their own. Then heads that share a key head cannot be computed as one."""
    return mask is not None and bool(mask.lead) and mask.lead[-1] > 1
