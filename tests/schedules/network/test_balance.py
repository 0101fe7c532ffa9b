"""Balance of a mask over processes, against dense masks pair by pair."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue import Mask, RedblueError
from redblue.schedules.network import PLACEMENTS, Placement
from redblue.schedules.network.balance import (
    MAX_TOKENS,
    TOLERANCE,
    balance,
    best_placement,
    block_cyclic,
    heaviest_first,
    row_pairs,
    weighted_contiguous,
)
from support.examples import examples
from support.spaces import block_masks, masks


@st.composite
def sizes_and_masks(draw):
    n = draw(st.integers(1, 40))
    return n, draw(st.integers(1, min(n, 7))), draw(masks | block_masks(n, n))


def random_placement(n, world, seed):
    owner = np.random.default_rng(seed).integers(0, world, n)
    return Placement("random", tuple(np.flatnonzero(owner == p).astype(np.int64) for p in range(world)))


@examples(100)
@given(case=sizes_and_masks(), name=st.sampled_from([*PLACEMENTS, "random"]), seed=st.integers(0, 99))
def test_pairs_and_missing_keys_are_those_of_the_dense_mask(case, name, seed):
    n, world, mask = case
    balanced = balance(mask, n, random_placement(n, world, seed) if name == "random" else name, world)
    attends = mask.to_dense(n, n)
    for own, pairs, missing in zip(balanced.placement.positions, balanced.pairs, balanced.missing_keys, strict=True):
        assert pairs == attends[own].sum()
        assert missing == np.delete(attends[own].any(axis=0), own).sum()
    most = max(attends[own].sum() for own in balanced.placement.positions)
    assert balanced.share == pytest.approx(most * world / attends.sum() if attends.any() else 1)


def test_missing_keys_of_an_intersection_are_those_of_the_dense_mask():
    """Keys that rows of a range attend in each part of the intersection, but no row attends in both."""
    mask, n = Mask.documents([8] * 8) & ~Mask.sliding_window(3, 3), 64
    placement = Placement("uneven", (np.arange(5, 21), np.append(np.arange(5), np.arange(21, 64))))
    attends = mask.to_dense(n, n)
    for own, missing in zip(placement.positions, balance(mask, n, placement, 2).missing_keys, strict=True):
        assert missing == np.delete(attends[own].any(axis=0), own).sum()


@examples(100)
@given(case=sizes_and_masks())
def test_the_best_placement_is_within_the_tolerance_of_every_other_and_holds_every_token_once(case):
    n, world, mask = case
    best = best_placement(mask, n, world)
    assert np.array_equal(np.sort(np.concatenate(best.positions)), np.arange(n))
    assert all(own.dtype == np.int64 and (np.diff(own) > 0).all() for own in best.positions)
    most = max(MAX_TOKENS * n / world, -(-n // world))
    assert max(best.lengths) <= most
    chosen = balance(mask, n, best, world)
    for name in PLACEMENTS:
        other = balance(mask, n, name, world)
        if max(other.placement.lengths) > most:
            continue
        assert chosen.share <= (1 + TOLERANCE) * other.share
        if other.share <= chosen.share:
            assert chosen.words <= other.words, name


@examples(60)
@given(case=sizes_and_masks(), per_process=st.integers(1, 9))
def test_every_candidate_holds_every_token_once(case, per_process):
    n, world, mask = case
    pairs = row_pairs(mask, n)
    made = [weighted_contiguous(pairs, world)]
    made += (
        [heaviest_first(pairs, world, per_process), block_cyclic(n, world, per_process)]
        if per_process * world <= n
        else []
    )
    for placement in made:
        assert np.array_equal(np.sort(np.concatenate(placement.positions)), np.arange(n)), placement.name
        assert all((np.diff(own) > 0).all() for own in placement.positions)
        assert min(placement.lengths) >= 1


def test_a_causal_mask_is_balanced_by_zigzag_and_a_window_by_consecutive_parts():
    causal, window = Mask.causal(), Mask.sliding_window(64, 0)
    assert best_placement(causal, 1024, 8).name == "zigzag"
    assert balance(causal, 1024, "contiguous", 8).share == pytest.approx(1.875, abs=0.01)
    assert balance(causal, 1024, "zigzag", 8).share == 1
    chosen = balance(window, 4096, best_placement(window, 4096, 8), 8)
    assert chosen.share < 1.02
    assert chosen.words == 7 * 64  # the keys before each part


def test_documents_that_fit_on_a_process_need_no_keys():
    mask = Mask.documents([100] * 8)
    best = balance(mask, 800, best_placement(mask, 800, 4), 4)
    assert best.words == 0
    assert best.share == 1


def test_uneven_documents_are_balanced_by_blocks():
    mask = Mask.documents([500, 20, 20, 20, 20, 200, 100, 144]) & Mask.causal()
    best = balance(mask, 1024, best_placement(mask, 1024, 4), 4)
    assert best.share < 1.1 < balance(mask, 1024, "contiguous", 4).share


def test_a_stack_of_masks_counts_all_planes():
    stack = Mask.per_head([Mask.causal(), Mask.sliding_window(2, 0), Mask.causal()])
    assert np.array_equal(row_pairs(stack, 9), stack.to_dense(9, 9).sum(axis=(0, 2)))
    balanced = balance(stack, 12, "contiguous", 3)
    dense = stack.to_dense(12, 12)
    assert balanced.pairs.tolist() == [int(dense[:, 4 * p : 4 * p + 4].sum()) for p in range(3)]


def test_wrong_arguments_are_named():
    with pytest.raises(RedblueError, match="n \\(3\\) must be at least world_size \\(4\\)"):
        best_placement(Mask.full(), 3, 4)
    with pytest.raises(RedblueError, match="world_size must be a whole number"):
        balance(Mask.full(), 3, "zigzag", 0)
    with pytest.raises(RedblueError, match="placement"):
        balance(Mask.full(), 3, "diagonal", 2)
    with pytest.raises(RedblueError):
        best_placement(Mask.documents([4, 4]), 9, 2)


def test_no_candidate_gives_a_process_too_many_tokens():
    """17 tokens in 12 blocks: two blocks of two tokens would be 4 tokens, more than 4/3 of 17 / 6."""
    assert max(best_placement(Mask.causal(), 17, 6).lengths) == 3
