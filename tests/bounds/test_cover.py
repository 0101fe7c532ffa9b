"""The most pairs that a few rows and columns of a mask cover: exactly, by exhaustive search, and by quick bounds."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue import Mask
from redblue.bounds.cover import Cover, cover, exact, kappas, steps_of, upper
from redblue.bounds.degrees import _by_degree, sides
from redblue.masks.storage.pair_lists import degrees, entries
from support.examples import examples, thorough
from support.mask_oracle import compositions
from support.spaces import plane


def by_hand(attends):
    """kappa, as the maximum over every set of rows and every set of columns."""
    rows, cols = attends.shape
    kappa = np.zeros((rows + 1, cols + 1), int)
    for r, c in itertools.product(range(rows + 1), range(cols + 1)):
        kappa[r, c] = max(
            attends[np.ix_(some, others)].sum()
            for some in itertools.combinations(range(rows), r)
            for others in itertools.combinations(range(cols), c)
        )
    return kappa


@examples(25)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**20 - 1))
def test_exact_tries_everything(rows, cols, bits):
    attends = (bits >> np.arange(rows * cols) & 1).astype(bool).reshape(rows, cols)
    expected = by_hand(attends)
    assert np.array_equal(exact(attends), expected)
    assert np.array_equal(exact(attends.T), expected.T)
    steps = steps_of(expected)
    for u in range(rows + cols + 3):
        most = max(expected[r, c] for r in range(rows + 1) for c in range(cols + 1) if r + c <= u)
        assert steps.most(u) == steps.most(u + 0.9) == most
    for e in (1, 2, 5, 99):
        slope = max(min(e, steps.most(u)) / u for u in range(1, rows + cols + 1))
        assert steps.slope(e) == pytest.approx(slope)


@examples(120)
@given(st.data(), st.integers(1, 9), st.integers(1, 12), st.integers(1, 2))
def test_what_is_quick_to_know_is_never_less_than_exact(data, n_q, n_k, group):
    mask, attends = data.draw(compositions(n_q, n_k))
    attends = np.repeat(attends, group, axis=0)[:10]
    pairs = mask.for_group(group).on(group * n_q, n_k)
    whole = np.repeat(mask.to_dense(n_q, n_k), group, axis=0)
    assert np.array_equal(degrees(pairs), whole.sum(axis=1))
    assert np.array_equal(degrees(pairs.T), whole.sum(axis=0))
    for laid, dense in ((pairs, whole), (pairs.T, whole.T)):
        starts, cols = entries(laid)
        rows = np.repeat(np.arange(len(dense)), np.diff(starts))
        assert np.array_equal(np.argwhere(dense), np.stack([rows, cols], axis=1))
    kappa = exact(attends)  # of the first ten rows, so at most that of all rows
    r, c = (np.arange(length) for length in kappa.shape)
    assert (kappa <= kappas(pairs)(r[:, None], c[None])).all()
    quick, known = upper(pairs), steps_of(kappa)
    u, e = np.arange(sum(kappa.shape) + 2), np.arange(1, 200)
    assert (known.most(u) <= quick.most(u)).all()
    assert (known.slope(e) <= quick.slope(e) * (1 + 1e-9)).all()


def test_a_band_covers_less_than_its_degrees_say():
    """A square crossed by the diagonal covers 3/4 of the pairs that the degrees of its rows and columns allow."""
    pairs = Mask.sliding_window(4, 4).on(400, 400)
    tall = Mask.sliding_window(2, 3).on(10, 10)
    for laid in (pairs, tall):
        kappa = kappas(laid)
        for r, c in itertools.product(range(1, 11), repeat=2):
            assert exact(laid.dense(range(10), range(10)))[r, c] <= kappa(r, c)
    assert kappas(pairs)(10, 10) == 5 * (10 + 10 - 5) < 9 * 10
    assert kappas(pairs)(5, 7) == 35


def test_rows_that_share_little_cover_little():
    q = 13
    pairs = plane(q).on(q * q, q * q)
    rows, cols = sides(pairs)
    for side in (rows, cols):
        assert side.largest(5, 8) == 5 * 8
        assert list(side.common(np.array([1, 2, 30]))) == [q, q + 1, q + 29]
    assert kappas(pairs)(30, 30) <= 30 * np.sqrt(q + 29) < 30 * q


@pytest.mark.parametrize("n", [2**27, 2**40, 2**60])
def test_sums_near_the_square_of_the_length_do_not_hide_a_few_pairs(n):
    for mask in (Mask.full(), Mask.causal(), Mask.sliding_window(n // 2)):
        for side in sides(mask.on(n, n)):
            for r, c in ((1, 1), (3, 5), (2048, 2048), (n, 7)):
                assert side.largest(r, c) == side.largest(float(r), float(c)) == r * c
    lopsided = _by_degree(np.array([2**40, 3, 3, 3, 3, 3]), (2**20, 1))  # the sums begin with 0, 2^60
    assert lopsided.largest(2**20 + 5, 4) == 4 * 2**20 + 15
    blocks = Mask.blocks(np.eye(4, dtype=bool), 2**31).on(2**33, 2**33)  # 2^64 pairs
    assert sides(blocks)[0].largest(2**33, 2**33) == 2**64


@pytest.mark.parametrize(
    "mask",
    [
        Mask.sliding_window(256, 255),
        thorough(Mask.sliding_window(256) | Mask.global_tokens([0, 5])),
        Mask.bigbird(64),
        Mask.documents([10_000] * 100),
    ],
    ids=repr,
)
def test_a_million_tokens(mask):
    bound = cover(mask.on(10**6, 10**6))
    assert bound.is_dense_to(200)
    assert bound.most(10**7) == mask.nnz(10**6, 10**6)
    u = np.geomspace(1, 2e6, 500)
    assert (np.diff(bound.most(u)) >= 0).all()
    assert (np.diff(bound.slope(u)) >= 0).all()


def test_a_full_mask_is_dense_everywhere():
    dense = Cover(np.arange(1, 41), np.arange(1, 41) ** 2 // 4)
    assert dense.is_dense_to(40)
    assert not Cover(dense.sizes, np.minimum(dense.pairs, 60)).is_dense_to(40)
