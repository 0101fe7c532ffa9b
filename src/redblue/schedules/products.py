"""Output-stationary matrix products: a tile of the result stays in the cache while thin slices stream by.

There are two kinds. `score_tile` computes a matrix over pairs (Q K^T or dO V^T), summed over features. `pair_product`
multiplies a matrix over pairs by another one (P V, P^T dO, dS K, dS^T Q), summed over keys or queries. With tiles of
side about sqrt(M) and slices of depth 1, a product moves 2 n^2 d / sqrt(M) words at leading order, the minimum by
Smith et al. (arXiv 1702.02017).
"""

from __future__ import annotations

from typing import Any

from redblue.base.integers import ceil_div, smaller
from redblue.machine import Machine, Slow, Tile
from redblue.masks import Mask, Pairs, Runs
from redblue.masks.patterns.pairs import TileSums
from redblue.schedules.schedule import Cost, blocks, grid, overlap, within
from redblue.schedules.search import cheapest, edges, pair_edges


def every_pair(rows: int, cols: int) -> Pairs:
    """Return the full mask, for a product whose left factor is dense."""
    return Mask.full().on(rows, cols)


def score_tile(m: Machine, name: str, left: Slow | Tile, right: Slow, i: range, j: range, depth: int) -> Tile:
    """Compute left[i] @ right[j].T in a new tile. left: in slow memory, or a tile that already holds rows i."""
    s = m.zeros(name, len(i), len(j))
    for f in blocks(right.shape[1], depth):
        right_slice = m.load(right[j, f])
        if isinstance(left, Tile):
            s += left[:, f.start : f.stop] @ right_slice.T
        else:
            left_slice = m.load(left[i, f])
            s += left_slice @ right_slice.T
            m.free(left_slice)
        m.free(right_slice)
    return s


def score_peak(pairs: Pairs, features: int, rows: Any, cols: Any, depth: int, resident: bool) -> Any:
    r, c, w = smaller(rows, pairs.n_rows), smaller(cols, pairs.n_cols), min(depth, features)
    return r * c + w * (c if resident else r + c)


def score_cost(pairs: Pairs, features: int, rows: Any, cols: Any, depth: int, resident: bool) -> Cost:
    """Return the cost of score_tile for every tile with attended pairs. resident: the caller loads the left rows."""
    peak = score_peak(pairs, features, rows, cols, depth, resident)
    return score_cost_of(pairs.sums(rows, cols), features, peak, resident)


def score_cost_of(sums: TileSums, features: int, peak: Any, resident: bool) -> Cost:
    """Return the cost that score_cost returns, for given sums over the tiles: computing them takes most of the time."""
    streamed = sums.cols if resident else sums.rows + sums.cols
    return Cost(features * streamed, 0, peak, 2 * features * sums.area)


def pair_product(
    m: Machine,
    result: Slow,
    x: Slow,
    other: Slow,
    pairs: Pairs,
    rows: int,
    cols: int,
    depth: int,
    *,
    of: range | None = None,
    over: range | None = None,
) -> None:
    """Compute result = x @ other, reading only the slices of x that contain attended pairs.

    pairs: the mask on x's rows and columns. of: rows of result to compute; default all.
    over: columns of x to sum over; default all. A tile of the result that earlier columns contributed to is loaded and
    updated; a tile to which these columns contribute nothing is skipped.
    """
    for i in blocks(of or range(pairs.n_rows), rows):
        for f in blocks(other.shape[1], cols):
            columns = m.cols_of(pairs, i)
            summed, begun = part_in_chunk(over, columns) if over else (columns, False)
            if summed is None:
                continue
            tile = m.load(result[i, f]) if begun else m.zeros(result.name, len(i), len(f))
            for j in grid(summed, depth, pairs.n_cols):
                other_slice = m.load(other[j, f])
                for live in overlap(i, pairs.rows_of(j)):
                    x_slice = m.load(x[live, j])
                    rows_of_tile = tile[within(live, i)]
                    rows_of_tile += x_slice @ other_slice
                    m.free(x_slice)
                m.free(other_slice)
            m.store(result[i, f], tile)
            m.free(tile)


def part_in_chunk(chunk: range, live: Runs) -> tuple[Runs | None, bool]:
    """Return the part of a sum's indices that lies in this chunk, and whether an earlier chunk began the sum.

    live: all indices of the sum. The part is None if this chunk has nothing to do. An empty sum is stored (as 0) by the
    first chunk.
    """
    part = overlap(chunk, live)
    if not part and (live or chunk.start):
        return None, False
    return part, bool(part) and live[0].start < chunk.start


def pair_product_peak(pairs: Pairs, features: int, rows: Any, cols: Any, depth: int) -> Any:
    r, c, w = smaller(rows, pairs.n_rows), smaller(cols, features), min(depth, pairs.n_cols)
    return r * c + w * (r + c)


def pair_product_cost(pairs: Pairs, features: int, rows: Any, cols: Any, depth: int) -> Cost:
    slices = pairs.sums(1, depth).area
    reads = ceil_div(features, cols) * slices + features * pairs.sums(rows, depth).cols
    peak = pair_product_peak(pairs, features, rows, cols, depth)
    return Cost(reads, pairs.n_rows * features, peak, 2 * features * slices)


def resume_cost(pairs: Pairs, features: int, rows: Any, chunk: Any) -> Cost:
    """Return the extra cost of summing over `chunk` columns at a time: partial results are stored and loaded again."""
    resumed = features * (pairs.sums(rows, chunk).rows - pairs.sums(rows, pairs.n_cols).rows)
    return Cost(resumed, resumed, 0, 0)


def pair_product_tiles(
    pairs: Pairs, features: int, words: int, depth: int, row_multiple: int, col_multiple: int
) -> tuple[int, ...] | None:
    """Return the edges (rows, cols) of the result's tile that move the fewest words; None if none fit."""
    candidates = pair_edges(
        edges(pairs.n_rows, row_multiple, not pairs.is_full),
        edges(features, col_multiple),
        lambda rows, cols: pair_product_peak(pairs, features, rows, cols, depth),
        words,
        pairs,
    )
    return cheapest(pair_product_cost(pairs, features, *candidates, depth), candidates, words)
