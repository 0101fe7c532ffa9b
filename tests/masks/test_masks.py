import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue import Mask, Problem, RedblueError, count
from redblue.base.integers import floor_sum
from support.examples import examples
from support.mask_oracle import members, pieces
from support.spaces import masks


@examples(300)
@given(masks, st.integers(1, 9), st.integers(1, 14), st.integers(1, 3), st.integers(1, 30), st.integers(1, 15))
def test_tile_questions_equal_the_dense_mask(mask, n_q, n_k, group, rows, cols):
    pairs = mask.for_group(group).on(group * n_q, n_k)
    dense = np.repeat(mask.to_dense(n_q, n_k), group, axis=0)
    sums = np.zeros(4, int)
    for i in pieces(group * n_q, rows):
        assert members(pairs.cols_of(i)) == list(np.flatnonzero(dense[i].any(axis=0)))
        for j in pieces(n_k, cols):
            tile = dense[i][:, j]
            assert pairs.holds(i, j) == tile.all()
            assert np.array_equal(pairs.dense(i, j), tile)
            assert members(pairs.rows_of(j)) == list(np.flatnonzero(dense[:, j].any(axis=1)))
            if tile.any():
                sums += (1, len(i), len(j), len(i) * len(j))
    assert [int(x) for x in pairs.sums(rows, cols)] == list(sums)
    for array_sum, total in zip(pairs.sums(np.array([rows, 1]), np.array([cols])), sums, strict=True):
        assert array_sum[0] == total
    transposed = pairs.T.sums(cols, rows)
    assert (transposed.tiles, transposed.rows, transposed.cols, transposed.area) == tuple(sums[[0, 2, 1, 3]])


@given(st.integers(0, 40), st.integers(1, 40), st.integers(0, 60), st.integers(0, 60))
def test_floor_sum(n, m, a, b):
    assert floor_sum(n, m, a, b) == sum((a * i + b) // m for i in range(n))


def test_torch_conventions():
    assert Mask.causal().to_dense(2, 3).tolist() == [[True, False, False], [True, True, False]]
    assert Mask.causal(align="bottom-right").to_dense(2, 3).tolist() == [[True, True, False], [True, True, True]]
    assert Mask.sliding_window(1, 0).to_dense(3, 3).tolist() == [
        [True, False, False],
        [True, True, False],
        [False, True, True],
    ]


def test_counts_and_density():
    assert Mask.causal().nnz(4, 4) == 10
    assert Mask.causal().nnz(10**6, 10**6) == 10**6 * (10**6 + 1) // 2
    assert Mask.full().density(3, 5) == 1.0
    assert Mask.sliding_window(0, 0).density(4, 4) == 0.25


@pytest.mark.parametrize(
    "mask",
    [Mask.full(), Mask.causal(), Mask.causal(align="bottom-right"), Mask.sliding_window(left=3, right=1)],
)
def test_repr_reads_like_its_constructor(mask):
    assert eval(repr(mask), {"Mask": Mask}) == mask


@pytest.mark.parametrize("align", ["top-left", "bottom-right"])
def test_a_side_beyond_all_keys_is_open(align):
    wide, far = Mask.sliding_window(10**26, 10**400, align), Mask.sliding_window(10**26, 1, align)
    for n_q, n_k in ((3, 5), (5, 3), (1, 9)):
        assert np.array_equal(wide.to_dense(n_q, n_k), Mask.full().to_dense(n_q, n_k))
        assert np.array_equal(far.to_dense(n_q, n_k), Mask.sliding_window(None, 1, align).to_dense(n_q, n_k))
    assert wide.resized((4, 4), (8, 8)).rule.left == 2 * 10**26
    causal, window = Mask.causal(align), Mask.sliding_window(10**26, 0, align)
    results = [count("flash", Problem(128, 128, 16, mask=m), words=400) for m in (causal, window)]  # in 64-bit integers
    assert results[0].words == results[1].words


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Mask.sliding_window(-1), "left must be a whole number of at least 0, got -1"),
        (lambda: Mask.sliding_window(1, 2.5), "right"),
        (lambda: Mask.causal(align="center"), "top-left, bottom-right, got 'center'"),
    ],
)
def test_bad_masks_are_refused(make, says):
    with pytest.raises(RedblueError, match=says):
        make()
