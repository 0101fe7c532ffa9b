"""Masks of every kind with their dense arrays, which are computed pair by pair from the definitions alone."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from redblue import Mask
from support.spaces import block_masks, masks

MaskAndDense = tuple[Mask, np.ndarray]  # a mask, and the (n_q, n_k) boolean array that it must equal


def grid(n_q: int, n_k: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(n_q)[:, None], np.arange(n_k)[None]


def band(n_q, n_k, left, right, align="top-left"):
    i, j = grid(n_q, n_k)
    i = i + (n_k - n_q if align == "bottom-right" else 0)
    left, right = (n_q + n_k if side is None else side for side in (left, right))
    return (j >= i - left) & (j <= i + right)


@st.composite
def parts(draw: st.DrawFn, total: int, count: int) -> list[int]:
    """Draw `count` whole numbers of at least 0 with sum `total`."""
    cuts = sorted(draw(st.lists(st.integers(0, total), min_size=count - 1, max_size=count - 1)))
    return np.diff([0, *cuts, total]).tolist()


@st.composite
def bands(draw: st.DrawFn, n_q: int, n_k: int) -> MaskAndDense:
    rule = draw(masks).rule
    return Mask(rule), band(n_q, n_k, rule.left, rule.right, rule.align)


@st.composite
def layouts(draw: st.DrawFn, n_q: int, n_k: int) -> MaskAndDense:
    mask = draw(block_masks(n_q, n_k))
    layout, (bq, bk) = mask.rule.layout, mask.rule.block
    return mask, np.repeat(np.repeat(layout, bq, 0), bk, 1)[:n_q, :n_k]


@st.composite
def prefixes(draw: st.DrawFn, n_q: int, n_k: int) -> MaskAndDense:
    length = draw(st.integers(0, n_k + 3))
    return Mask.prefix(length), np.broadcast_to(np.arange(n_k) < length, (n_q, n_k))


@st.composite
def documents(draw: st.DrawFn, n_q: int, n_k: int) -> MaskAndDense:
    count = draw(st.integers(1, 5))
    lengths, keys = draw(parts(n_q, count)), draw(parts(n_k, count))
    of_query, of_key = np.repeat(np.arange(count), lengths), np.repeat(np.arange(count), keys)
    return Mask.documents(lengths, keys), of_query[:, None] == of_key


@st.composite
def windowed_documents(draw: st.DrawFn, n_q: int, n_k: int) -> MaskAndDense:
    count = draw(st.integers(1, 4))
    lengths, keys, window = draw(parts(n_q, count)), draw(parts(n_k, count)), draw(masks).rule
    attended, i, j = np.zeros((n_q, n_k), bool), 0, 0
    for n, m in zip(lengths, keys, strict=True):
        if n and m:
            attended[i : i + n, j : j + m] = band(n, m, window.left, window.right, window.align)
        i, j = i + n, j + m
    return Mask.documents(lengths, keys, within=Mask(window)), attended


@st.composite
def dilated(draw: st.DrawFn, n_q: int, n_k: int) -> MaskAndDense:
    window, step = draw(st.integers(0, 6)), draw(st.integers(1, 6))
    i, j = grid(n_q, n_k)
    return Mask.dilated(window, step), ((j - i) % step == 0) & (abs(j - i) <= window * step)


@st.composite
def strided(draw: st.DrawFn, n_q: int, n_k: int) -> MaskAndDense:
    stride = draw(st.integers(1, 9))
    i, j = grid(n_q, n_k)
    return Mask.strided(stride), (j <= i) & ((i - j <= stride) | ((i - j) % stride == 0))


@st.composite
def global_tokens(draw: st.DrawFn, n_q: int, n_k: int) -> MaskAndDense:
    tokens = draw(st.lists(st.integers(0, max(n_q, n_k) - 1), max_size=4))
    i, j = grid(n_q, n_k)
    return Mask.global_tokens(tokens), np.isin(i, tokens) | np.isin(j, tokens)


@st.composite
def butterflies(draw: st.DrawFn, n_q: int, n_k: int) -> MaskAndDense:
    bq, bk = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    i, j = grid(n_q, n_k)
    away = (i // bq) ^ (j // bk)
    return Mask.butterfly((bq, bk)), (away & (away - 1)) == 0


@st.composite
def n_of_m(draw: st.DrawFn, n_q: int, n_k: int) -> MaskAndDense:
    m = draw(st.integers(1, 6))
    n = draw(st.integers(1, m))
    i, j = grid(n_q, n_k)
    return Mask.n_of_m(n, m), (i + j) % m < n


@st.composite
def graphs(draw: st.DrawFn, n_q: int, n_k: int) -> MaskAndDense:
    dense = draw(arrays(bool, (n_q, n_k)))
    rows, cols = np.nonzero(dense)
    if draw(st.booleans()):
        return Mask.from_csr(np.append(0, np.cumsum(dense.sum(axis=1))), cols, n_k), dense
    order = np.random.default_rng(0).permutation(len(rows))
    return Mask.from_coo(rows[order], cols[order], (n_q, n_k)), dense


@st.composite
def dense(draw: st.DrawFn, n_q: int, n_k: int) -> MaskAndDense:
    shape = draw(st.sampled_from([(n_q, n_k), (1, n_k), (n_q, 1), (n_k,), (1, 1)]))
    array = draw(arrays(bool, shape))
    return Mask.from_dense(array), np.broadcast_to(array, (n_q, n_k))


@st.composite
def drawn(draw: st.DrawFn, n_q: int, n_k: int) -> MaskAndDense:
    """Random patterns. The mask itself gives the dense array, so tests only compare its tiles with its pairs."""
    block, seed = (draw(st.integers(1, 5)), draw(st.integers(1, 5))), draw(st.integers(0, 9))
    numbers = draw(st.integers(0, 2)), draw(st.integers(0, 3))
    mask = draw(st.sampled_from([Mask.random_blocks(0.4, seed, block), Mask.bigbird(block, 3, *numbers, seed)]))
    return mask, mask.to_dense(n_q, n_k)


KINDS = (
    bands, layouts, prefixes, documents, windowed_documents, dilated, strided, global_tokens, butterflies, n_of_m,
    graphs, dense, drawn,
)  # fmt: skip


def leaves(n_q: int, n_k: int) -> st.SearchStrategy[MaskAndDense]:
    return st.one_of([kind(n_q, n_k) for kind in KINDS])


@st.composite
def compositions(draw: st.DrawFn, n_q: int, n_k: int, most: int = 4) -> MaskAndDense:
    """Compose one to `most` masks by &, | and ~, in any nesting."""
    pairs = [draw(leaves(n_q, n_k)) for _ in range(draw(st.integers(1, most)))]
    while True:
        pairs = [(~m, ~d) if draw(st.booleans()) else (m, d) for m, d in pairs]
        if len(pairs) == 1:
            return pairs[0]
        (a, x), (b, y) = pairs.pop(), pairs.pop()
        pairs.insert(0, (a & b, x & y) if draw(st.booleans()) else (a | b, x | y))


def pieces(n: int, size: int) -> list[range]:
    """Cut 0 .. n - 1 into ranges of `size`."""
    return [range(i, min(n, i + size)) for i in range(0, n, size)]


def members(runs):
    """List the members of the runs, which must be nonempty, ascending and not adjacent."""
    assert all(runs)
    assert all(a.stop < b.start for a, b in itertools.pairwise(runs))
    return [x for run in runs for x in run]
