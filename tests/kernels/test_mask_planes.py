"""Masks whose planes fit the sizes of a call, and masks whose planes do not."""

import pytest

from redblue import Mask
from redblue.base.errors import RedblueError
from redblue.kernels.mask_planes import check_lead, per_head
from redblue.kernels.sizes import Sizes

BATCH, HEADS = 2, 3
HEAD_PLANES = Mask.per_head([Mask.causal()] * (HEADS - 1) + [Mask.full()])
BATCH_PLANES = Mask.key_lengths([4, 5])


def sizes(kv_heads, group=1, batch=BATCH):
    return Sizes((batch,), kv_heads, group, 5, 5, 8, 8)


def test_per_head_is_true_only_if_heads_have_masks_of_their_own():
    assert per_head(HEAD_PLANES)
    assert not any(map(per_head, (None, Mask.causal(), BATCH_PLANES)))


@pytest.mark.parametrize("mask", [Mask.causal(), HEAD_PLANES, BATCH_PLANES])
def test_planes_that_broadcast_to_batch_and_heads_are_allowed(mask):
    check_lead(mask, sizes(HEADS))


@pytest.mark.parametrize(("mask", "wrong"), [(HEAD_PLANES, sizes(HEADS + 1)), (BATCH_PLANES, sizes(HEADS, batch=3))])
def test_planes_that_do_not_broadcast_are_refused(mask, wrong):
    with pytest.raises(RedblueError, match=r"must broadcast to \(..., heads\)"):
        check_lead(mask, wrong)


def test_heads_that_share_a_key_head_must_have_one_mask():
    check_lead(BATCH_PLANES, sizes(1, HEADS))
    with pytest.raises(RedblueError, match="heads that share a key head must have one mask"):
        check_lead(HEAD_PLANES, sizes(1, HEADS))
