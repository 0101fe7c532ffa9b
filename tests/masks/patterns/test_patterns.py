"""Masks on given sizes: closed forms of their pairs, and the census of their tiles."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from redblue.masks.patterns.census import census
from redblue.masks.patterns.closed_forms import diagonals, periodic
from support.examples import examples
from support.mask_oracle import compositions

COUNTS, SIZES = st.integers(0, 25), st.integers(1, 20)


@given(COUNTS, COUNTS, st.integers(1, 9), st.integers(0, 40), st.integers(1, 9))
def test_closed_forms_are_counts(n_q, n_k, step, count, n):
    i, j = np.arange(n_q)[:, None], np.arange(n_k)[None]
    away = i - j
    assert diagonals(n_q, n_k, step, count) == ((away >= 0) & (away % step == 0) & (away // step < count)).sum()
    m = max(n, step)
    assert periodic(n_q, n_k, n, m) == ((i + j) % m < n).sum()


@examples(150)
@given(st.data(), st.integers(1, 150), SIZES, st.integers(1, 160), st.integers(1, 22))
def test_every_tile_is_counted(data, n_q, n_k, rows, cols):
    mask, dense = data.draw(compositions(n_q, n_k, most=3))
    result = census(mask.rule.pattern(n_q, n_k), rows, cols)
    tiles = {}
    for i in range(0, n_q, rows):
        for j in range(0, n_k, cols):
            tile = dense[i : i + rows, j : j + cols]
            tiles[i // rows, j // cols] = int(tile.sum()), tile.size
    live = {place: counts for place, counts in tiles.items() if counts[0]}
    assert dict(zip(zip(*result[:2], strict=True), zip(*result[2:4], strict=True), strict=True)) == live
    full = sum(pairs == area for pairs, area in live.values())
    assert (result.tiles, result.empty) == (len(tiles), len(tiles) - len(live))
    assert (result.full, result.partial) == (full, len(live) - full)
