"""Masks of every kind and compositions: the queries of schedules, and the laws of the algebra."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from support.examples import examples
from support.mask_oracle import compositions, leaves, members, pieces

SIZES = st.integers(1, 20)


def sums_by_hand(dense, rows, cols):
    sums = np.zeros(4, int)
    for i, j in itertools.product(pieces(dense.shape[0], rows), pieces(dense.shape[1], cols)):
        if dense[i][:, j].any():
            sums += (1, len(i), len(j), len(i) * len(j))
    return list(sums)


def check(mask, dense, group, rows, cols):
    (n_q, n_k), stacked = dense.shape, np.repeat(dense, group, axis=0)
    assert np.array_equal(mask.to_dense(n_q, n_k), dense)
    assert mask.nnz(n_q, n_k) == dense.sum()
    assert mask.density(n_q, n_k) == dense.mean()
    indptr, indices = mask.to_csr(n_q, n_k)
    assert indptr.dtype == indices.dtype == np.int64
    assert np.array_equal(indptr, np.append(0, np.cumsum(dense.sum(axis=1))))
    assert np.array_equal(indices, np.nonzero(dense)[1])
    pairs = mask.for_group(group).on(group * n_q, n_k)
    for laid, whole in ((pairs, stacked), (pairs.T, stacked.T)):
        assert (laid.n_rows, laid.n_cols) == whole.shape
        assert (laid.nnz, laid.is_full) == (whole.sum(), whole.all())
        assert laid.cols_of(range(0)) == ()
        for i in pieces(laid.n_rows, rows):
            assert members(laid.cols_of(i)) == list(np.flatnonzero(whole[i].any(axis=0)))
            for j in pieces(laid.n_cols, cols):
                assert members(laid.rows_of(j)) == list(np.flatnonzero(whole[:, j].any(axis=1)))
                assert laid.holds(i, j) == whole[i][:, j].all()
                assert np.array_equal(laid.dense(i, j), whole[i][:, j])
        assert list(laid.sums(rows, cols)) == sums_by_hand(whole, rows, cols)
    several = pairs.sums(np.array([[rows], [2 * rows], [1]]), np.array([cols, 100]))
    for edges, total in zip(
        itertools.product((rows, 2 * rows, 1), (cols, 100)),
        np.stack(np.broadcast_arrays(*several), -1).reshape(-1, 4),
        strict=True,
    ):
        assert list(total) == sums_by_hand(stacked, *edges)
    if mask.is_full:
        assert dense.all()


@examples(200)
@given(st.data(), SIZES, SIZES, st.integers(1, 3), st.integers(1, 30), st.integers(1, 15))
def test_every_constructor_is_its_definition(data, n_q, n_k, group, rows, cols):
    check(*data.draw(leaves(n_q, n_k)), group, rows, cols)


@examples(200)
@given(st.data(), SIZES, SIZES, st.integers(1, 3), st.integers(1, 30), st.integers(1, 15))
def test_random_compositions_are_their_definition(data, n_q, n_k, group, rows, cols):
    check(*data.draw(compositions(n_q, n_k)), group, rows, cols)


@examples(40)
@given(st.data(), st.integers(60, 200), st.integers(1, 80), st.integers(1, 2), st.integers(20, 150), st.integers(9, 40))
def test_tiles_of_many_rows(data, n_q, n_k, group, rows, cols):
    check(*data.draw(compositions(n_q, n_k, most=3)), group, rows, cols)
