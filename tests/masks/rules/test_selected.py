"""Masks among some of their queries and keys."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from redblue import Mask
from redblue.masks.rules.bands import Window
from redblue.masks.rules.selected import Selected, attended_keys, attending_queries, selected
from support.examples import examples
from support.mask_oracle import compositions

SIZES = st.integers(1, 150)


@st.composite
def subsets(draw, n):
    """Ascending numbers below n: a run, every k-th, or any."""
    kind = draw(st.sampled_from(["run", "stride", "any"]))
    if kind == "any":
        return np.array(sorted(draw(st.sets(st.integers(0, n - 1)))), np.int64)
    first = draw(st.integers(0, n - 1))
    step = 1 if kind == "run" else draw(st.integers(1, 5))
    return np.arange(first, draw(st.integers(first + 1, n)), step)


@examples(60)
@given(st.data())
def test_is_the_mask_among_the_rows_and_keys(data):
    n_q, n_k = data.draw(SIZES), data.draw(SIZES)
    mask, dense = data.draw(compositions(n_q, n_k, most=2))
    queries, keys = data.draw(subsets(n_q)), data.draw(subsets(n_k))
    part = dense[np.ix_(queries, keys)]
    rule = selected(mask.rule, queries, keys, n_q, n_k)
    if rule is None:
        assert not part.any()
    else:
        own = Mask(rule)
        np.testing.assert_array_equal(own.to_dense(len(queries), len(keys)), part)
        assert own.nnz(len(queries), len(keys)) == part.sum()
    assert set(np.flatnonzero(dense[queries].any(0))) <= set(attended_keys(mask.rule, queries, n_q, n_k))
    assert set(queries[part.any(1)]) <= set(attending_queries(mask.rule, queries, keys, n_q, n_k))


def test_only_needed_keys_and_queries():
    n = 100
    for queries in (np.arange(20, 40), np.arange(3, 100, 7)):
        dense = Mask.sliding_window(2).to_dense(n, n)
        needed = attended_keys(Mask.sliding_window(2).rule, queries, n, n)
        assert needed.tolist() == np.flatnonzero(dense[queries].any(0)).tolist()
        live = attending_queries(Mask.sliding_window(2).rule, queries, np.arange(10, 25), n, n)
        assert live.tolist() == queries[dense[np.ix_(queries, np.arange(10, 25))].any(1)].tolist()


def test_full_parts_are_full():
    causal = Mask.causal().rule
    assert selected(causal, np.arange(10, 20), np.arange(5), 20, 20).is_full  # pyright: ignore
    assert selected(causal, np.arange(5), np.arange(10, 20), 20, 20) is None
    assert selected(Mask.full().rule, np.arange(5), np.arange(0), 20, 20) is None


def test_parts_of_windows_among_consecutive_tokens_are_windows():
    queries, keys = np.arange(16, 32), np.arange(11, 32)
    for n_q, n_k, align in ((64, 64, "top-left"), (64, 64, "bottom-right"), (32, 35, "bottom-right")):
        rule = Mask.sliding_window(10, 0, align).rule
        part = selected(rule, queries, keys, n_q, n_k)
        assert isinstance(part, Window)
        np.testing.assert_array_equal(Mask(part).to_dense(16, 21), Mask(rule).to_dense(n_q, n_k)[np.ix_(queries, keys)])
        assert isinstance(selected(rule, queries, np.array([11, 15, 19]), n_q, n_k), Selected)


def test_planes():
    masks = [Mask.causal(), Mask.full(), ~Mask.full()]
    queries, keys = np.arange(0, 12, 3), np.arange(1, 12, 2)
    rule = selected(Mask.per_head(masks).rule, queries, keys, 12, 12)
    assert rule is not None
    for i, mask in enumerate(masks):
        part = mask.to_dense(12, 12)[np.ix_(queries, keys)]
        np.testing.assert_array_equal(Mask(rule).to_dense(4, 6)[i], part)
    nothing = Mask.per_head([~Mask.full()] * 2)
    assert selected(nothing.rule, queries, keys, 12, 12) is None
    assert selected(Mask.per_head(masks).rule, queries[:0], keys, 12, 12) is None
