"""Edge cases of masks: sizes that the algebra must keep, empty axes, arguments of the wrong kind, a million tokens."""

import types

import numpy as np
import pytest

from redblue import Mask, RedblueError
from redblue.masks.names import parse

MILLION = 1_000_000
ONES = np.ones((3, 3), bool)


@pytest.mark.parametrize(
    "mask",
    [
        Mask.causal() & Mask.from_dense(ONES),
        Mask.from_dense(ONES) & Mask.causal(),
        Mask.full() | Mask.from_dense(ONES),
        Mask.full() | Mask.documents([3]),
        ~Mask.documents([3]) | Mask.full(),
        Mask.full() & Mask.blocks([[True]], 3),
        Mask.full() | Mask.blocks([[False]], 3),
        Mask.full() | (Mask.causal() & Mask.blocks([[False]], 3)),
        Mask.full() | Mask.global_tokens([11]),
        Mask.blocks([[True]], 3) | Mask.blocks([[True, True], [True, True]], 5),
    ],
)
def test_a_mask_absorbed_by_a_full_mask_leaves_its_sizes(mask):
    with pytest.raises(RedblueError, match=r"n_q = 10|10 queries"):
        mask.nnz(10, 10)


def test_rules_of_any_size_and_equal_layouts_are_absorbed():
    assert Mask.full() & Mask.n_of_m(1, 2) == Mask.n_of_m(1, 2)
    assert Mask.full() | Mask.prefix(2) == Mask.full()
    assert Mask.from_dense([[True]]) & Mask.causal() == Mask.causal()
    some, every = (Mask.blocks([[first, True]], 2) for first in (False, True))
    assert (some | every, some & every) == (every, some)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Mask.documents([3, 1], within="causal"), "within must be a window, such as .* got 'causal'"),
        (lambda: Mask.causal().plot(10, 10, tile=(0, 1)), r"tile\[0\] must be a whole number of at least 1, got 0"),
        (lambda: Mask.causal().plot(10, 10, tile=0), r"tile\[0\] must be a whole number of at least 1, got 0"),
        (lambda: Mask.causal().plot(10, 10, tile=(1, 2, 3)), "tile must be two whole numbers"),
        (lambda: Mask.stack([Mask.causal()], 1), "shape must be a tuple of whole numbers, .* got 1"),
        (lambda: Mask.stack(Mask.causal()), r"masks must be a list of masks, .* got Mask.causal\(\)"),
        (lambda: Mask.per_batch(Mask.causal()), "masks must be a list of masks"),
        (lambda: Mask.key_lengths([]), "lengths must have at least one entry"),
        (lambda: Mask.causal().for_group(2).to_csr(5, 4), "n_q must be a multiple of the mask's 2 rows .* got 5"),
        (lambda: Mask.causal().for_group(0), "group must be a whole number of at least 1, got 0"),
        (lambda: Mask.causal().for_group(-1), "group must be a whole number of at least 1, got -1"),
        (lambda: parse("documents:3,-1"), r"lengths\[1\] must be at least 0, got -1"),
        (lambda: parse("causal & window:-2"), "left must be a whole number of at least 0, got -2"),
    ],
)
def test_arguments_of_the_wrong_kind_are_named(make, says):
    with pytest.raises(RedblueError, match=says):
        make()


def test_groups_of_rows():
    indptr, indices = Mask.n_of_m(1, 2).for_group(2).to_csr(0, 4)
    assert (indptr.tolist(), indices.tolist(), indices.dtype) == ([0], [], np.int64)
    assert Mask.documents([1, 2]).for_group(2).to_csr()[0].tolist() == [0, 1, 2, 4, 6, 8, 10]
    assert Mask.causal().plot(10, 10, tile=4).to_dict() == Mask.causal().plot(10, 10, tile=(4, 4)).to_dict()


def test_numbers_of_numpy():
    assert Mask.sliding_window(np.int64(3)) == Mask.sliding_window(3)
    assert repr(Mask.sliding_window(np.int64(3))) == repr(Mask.sliding_window(3))


@pytest.mark.parametrize(
    ("mask", "sizes"),
    [
        (Mask.blocks(np.zeros((0, 0), bool), 4), (0, 0)),
        (Mask.blocks(np.zeros((2, 0), bool), 4), (8, 0)),
        (Mask.blocks(np.zeros((0, 2), bool), 4), (0, 5)),
        (Mask.global_tokens([0]), (0, 0)),
        (Mask.global_tokens([0]), (0, 3)),
        (Mask.strided(2), (0, 3)),
    ],
)
def test_empty_axes(mask, sizes):
    assert mask.to_dense(*sizes).shape == sizes
    assert (mask.nnz(*sizes), mask.density(*sizes)) == (0, 0)
    assert len(mask.to_csr(*sizes)[0]) == sizes[0] + 1
    assert mask.on(*sizes).sums(2, 2).area == 0
    assert (~mask).nnz(*sizes) == 0
    assert repr(mask.resized(sizes, sizes)) == repr(mask)


def test_an_empty_block_mask():
    class Tensor(types.SimpleNamespace):
        def detach(self):
            return self

        cpu = detach

        def numpy(self):
            return self.array

        def new_tensor(self, array):
            return Tensor(array=np.asarray(array))

    none = Tensor(array=np.zeros((1, 1, 0), np.int64)), Tensor(array=np.zeros((1, 1, 0, 0), np.int64))
    block_mask = types.SimpleNamespace(
        kv_num_blocks=none[0], kv_indices=none[1], full_kv_num_blocks=None, full_kv_indices=None,
        BLOCK_SIZE=(128, 128), seq_lengths=(0, 0), mask_mod=lambda b, h, q, k: Tensor(array=q.array >= k.array),
    )  # fmt: skip
    assert Mask.from_block_mask(block_mask).nnz(0, 0) == 0


def test_leading_ones_of_a_dense_mask_broadcast():
    broadcast = Mask.from_dense(ONES[None, None])
    assert (broadcast, broadcast.lead) == (Mask.from_dense(ONES), ())
    assert Mask.from_dense(np.ones((1, 4, 3, 3), bool)).lead == (4,)
    assert Mask.from_dense(np.ones((4, 1, 3, 3), bool)).lead == (4, 1)


@pytest.mark.thorough
@pytest.mark.nightly
def test_a_million_tokens():
    n = MILLION
    assert Mask.n_of_m(1, 2).nnz(n, n) == n * n // 2
    assert Mask.strided(1000).nnz(n, n) == sum(n - d for d in range(1001)) + sum(n - d for d in range(2000, n, 1000))
    assert Mask.dilated(1, 1000).nnz(n, n) == 3 * n - 2000
    assert Mask.n_of_m(2, 4).density(n, n) == 0.5
    with pytest.raises(RedblueError, match="nearly every tile of the mask is attended in part"):
        Mask.n_of_m(1, 2).on(n, n).sums(64, 64)
    with pytest.raises(RedblueError, match="nearly every tile of the mask is attended in part"):
        Mask.strided(1000).on(n, n).sums(64, 64).area, Mask.strided(1000).on(n, n).degrees


def test_dense_masks_of_several_heads_without_keys():
    assert Mask.from_dense(np.ones((2, 3, 0), bool)).lead == (2,)
