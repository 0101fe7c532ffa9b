"""Output-stationary matrix products: a tile of the result stays in the cache while thin slices stream by.

Two kinds: products whose result is a pair matrix (scores Q K^T and dO V^T), summed over features; and products
that consume one (P V, P^T dO, dS K, dS^T Q), summed over keys or queries. With tiles of side ~sqrt(M) and slices
of depth 1 each moves 2 n^2 d / sqrt(M) words at leading order: what Smith et al. (arXiv 1702.02017) prove least.
"""

from __future__ import annotations

from typing import Any

from redblue.base.integers import ceil_div, smaller
from redblue.machine import Machine, Slow, Tile
from redblue.masks import Pairs, Runs
from redblue.schedules.schedule import Cost, blocks, grid, overlap, within
from redblue.schedules.search import cheapest, edges, pair_edges


def score_tile(m: Machine, name: str, left: Slow | Tile, right: Slow, i: range, j: range, depth: int) -> Tile:
    """left[i] @ right[j].T in a new tile. `left` is in slow memory, or a tile that already holds its rows i."""
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
    """Cost of one score_tile per live tile; with `resident`, the left rows are loaded by the caller."""
    sums = pairs.sums(rows, cols)
    streamed = sums.cols if resident else sums.rows + sums.cols
    peak = score_peak(pairs, features, rows, cols, depth, resident)
    return Cost(features * streamed, 0, peak, 2 * features * sums.area)


def consume(
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
    """result = x @ other, where x holds words only for the live tiles of `pairs`: the rest is never read.

    of: the rows of result, if not all. over: the columns of x that are summed, if not all: the part of a result that
    earlier columns began is loaded, and what no column adds to is left alone.
    """
    for i in blocks(of or range(pairs.n_rows), rows):
        for f in blocks(other.shape[1], cols):
            columns = m.cols_of(pairs, i)
            summed, begun = share_of(over, columns) if over else (columns, False)
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


def share_of(chunk: range, live: Runs) -> tuple[Runs | None, bool]:
    """Of what a result is summed over, the part in this chunk, and whether an earlier chunk began it.

    None: nothing is left to do, since the first chunk begins what no chunk adds to.
    """
    met = overlap(chunk, live)
    if not met and (live or chunk.start):
        return None, False
    return met, bool(met) and live[0].start < chunk.start


def consume_peak(pairs: Pairs, features: int, rows: Any, cols: Any, depth: int) -> Any:
    r, c, w = smaller(rows, pairs.n_rows), smaller(cols, features), min(depth, pairs.n_cols)
    return r * c + w * (r + c)


def consume_cost(pairs: Pairs, features: int, rows: Any, cols: Any, depth: int) -> Cost:
    slices = pairs.sums(1, depth).area
    reads = ceil_div(features, cols) * slices + features * pairs.sums(rows, depth).cols
    peak = consume_peak(pairs, features, rows, cols, depth)
    return Cost(reads, pairs.n_rows * features, peak, 2 * features * slices)


def resume_cost(pairs: Pairs, features: int, rows: Any, chunk: Any) -> Cost:
    """What it costs more to sum over `chunk` columns at a time, whose results stay in slow memory between."""
    begun = features * (pairs.sums(rows, chunk).rows - pairs.sums(rows, pairs.n_cols).rows)
    return Cost(begun, begun, 0, 0)


def consume_tiles(
    pairs: Pairs, features: int, words: int, depth: int, row_multiple: int, col_multiple: int
) -> tuple[int, ...] | None:
    """The edges (rows, cols) of the result's tile that move the fewest words."""
    tried = pair_edges(
        edges(pairs.n_rows, row_multiple, not pairs.is_full),
        edges(features, col_multiple),
        lambda rows, cols: consume_peak(pairs, features, rows, cols, depth),
        words,
        pairs,
    )
    return cheapest(consume_cost(pairs, features, *tried, depth), tried, words)
