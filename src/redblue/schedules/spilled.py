"""Forward pass of `hybrid` and `small_cache`: P is computed tile by tile, written once and read back.

The two schedules differ only while scores are computed: in `hybrid` the block of queries stays in the cache (`stays`);
in `small_cache`, the papers' algorithm, it streams by in slices, as the keys do. The product P V is output-stationary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from redblue.base.integers import ceil_div, larger, smaller
from redblue.machine import Machine, Slow, Tile, exp, log, maximum
from redblue.problem import Problem
from redblue.schedules.products import score_cost_of, score_peak, score_tile
from redblue.schedules.schedule import (
    Cost,
    Pass,
    Scores,
    Sweep,
    blocks,
    grid,
    overlap,
    partial_rows,
    rows_walked,
    walks,
)
from redblue.schedules.search import edges, pair_edges
from redblue.schedules.softmax import (
    LOWEST,
    spill_tile,
    spilled_output,
    spilled_output_cost,
    spilled_output_peak,
    top_column,
)


class ForwardTiles(NamedTuple):
    rows: Any  # score tile: queries
    cols: Any  # score tile: keys
    depth: Any  # features (of scores) or keys (of outputs) per streamed slice
    out_rows: Any  # output tile: queries
    out_cols: Any  # output tile: features of V
    span: Any  # keys per walk of a block of queries; with several walks, their log-sum-exps are merged


def forward(
    m: Machine, problem: Problem, t: ForwardTiles, q: Slow, k: Slow, v: Slow, out: Slow, lse: Slow, *, stays: bool
) -> None:
    scale, pairs = problem.d**-0.5, problem.mask.on(problem.n_q, problem.n_k)
    p = m.scratch("p", (problem.n_q, problem.n_k))
    top = m.scratch("top", (problem.n_q, ceil_div(problem.n_k, t.cols)))
    cut = t.span < problem.n_k
    walk_lse = m.scratch("part", (ceil_div(problem.n_k, t.span) * problem.n_q,)) if cut else lse
    for i in blocks(problem.n_q, t.rows):
        live = m.cols_of(pairs, i)
        for walk in walks(live, t.span, problem.n_k):
            q_i = m.load(q[i]) if stays else q
            row_max, row_sum = m.full("row_max", (len(i),), LOWEST), m.zeros("row_sum", len(i))
            for j in grid(overlap(walk, live), t.cols, problem.n_k):
                s = score_tile(m, "s", q_i, k, i, j, t.depth)
                s *= scale
                spill_tile(m, s, pairs, i, j, (row_max, row_sum), p, top[i, top_column(j, t.cols)])
            row_max += log(row_sum)
            m.store(walk_lse[partial_rows(i, walk, t.span, problem.n_q)], row_max)
            m.free(row_max, row_sum)
            if isinstance(q_i, Tile):
                m.free(q_i)
        if cut:
            row_max, row_sum = m.full("row_max", (len(i),), LOWEST), m.zeros("row_sum", len(i))
            for walk in walks(live, t.span, problem.n_k):
                lse_part = m.load(walk_lse[partial_rows(i, walk, t.span, problem.n_q)])
                row_sum *= exp(row_max - maximum(row_max, lse_part))
                row_sum += exp(lse_part - maximum(row_max, lse_part))
                row_max[...] = maximum(row_max, lse_part)
                m.free(lse_part)
            row_max += log(row_sum)
            m.store(lse[i], row_max)
            m.free(row_max, row_sum)
    spilled_output(m, out, p, top, v, lse, pairs, t.cols, (t.out_rows, t.out_cols, t.depth))


def spill_peak(p: Problem, rows: Any, cols: Any, depth: int, stays: bool) -> Any:
    """Return the first phase's peak: score tile, slices or tile maxima, row statistics, and queries if they stay."""
    pairs = p.mask.on(p.n_q, p.n_k)
    r, c = smaller(rows, p.n_q), smaller(cols, p.n_k)
    return larger(score_peak(pairs, p.d, rows, cols, depth, stays), r * c + r) + r * (p.d * stays + 2)


def spill_cost(p: Problem, rows: Any, cols: Any, depth: int, span: Any, stays: bool) -> Cost:
    """Return the cost of writing P and the log-sum-exps of its rows."""
    pairs = p.mask.on(p.n_q, p.n_k)
    sums, peak = pairs.sums(rows, cols), spill_peak(p, rows, cols, depth, stays)
    scores = score_cost_of(sums, p.d, peak, stays)
    walked = rows_walked(pairs, rows, span)
    partial_words = walked if span < p.n_k else 0
    return Cost(
        scores.reads + walked * p.d * stays + partial_words,
        sums.area + sums.rows + partial_words + p.n_q,  # P, row maxima of tiles, lse of walks and of rows
        peak,
        scores.flops,
    )


def forward_cost(p: Problem, t: ForwardTiles, *, stays: bool) -> Cost:
    pairs = p.mask.on(p.n_q, p.n_k)
    return spill_cost(p, t.rows, t.cols, t.depth, t.span, stays) + spilled_output_cost(
        pairs, p.d_v, t.cols, t.out_rows, t.out_cols, t.depth
    )


def spill_and_output_tiles(
    p: Problem,
    words: int,
    multiple: Mapping[str, int],
    peak: Callable[[Any, Any], Any],
    cost: Callable[[Any, Any], Cost],
) -> tuple[int, ...] | None:
    """Return the edges (rows, cols, depth, out_rows, out_cols) that move the fewest words; None if none fit.

    rows, cols: edges of P's tiles. out_rows, out_cols: edges of O's tiles. peak, cost: functions of rows and cols,
    for the phases that work on tiles of P.
    """
    pairs, depth = p.mask.on(p.n_q, p.n_k), multiple["depth"]
    rows, cols = pair_edges(
        edges(p.n_q, multiple["rows"], not pairs.is_full),
        edges(p.n_k, multiple["cols"], not pairs.is_full),
        peak,
        words,
        pairs,
    )
    out = _output_tiles(p, words, multiple["out_rows"], multiple["out_cols"], depth)
    if not len(rows) or not len(out.rows):
        return None
    # The phases share one term: each column block of the output reads the maxima of every score tile. So combine the
    # best output tile for each number of column blocks with every score tile.
    total = cost(rows, cols).words[None] + out.words[:, None] + out.times[:, None] * pairs.sums(1, cols).tiles[None]
    o, s = np.unravel_index(int(np.argmin(total)), total.shape)
    return int(rows[s]), int(cols[s]), depth, int(out.rows[o]), int(out.cols[o])


class _OutputTiles(NamedTuple):
    rows: np.ndarray
    cols: np.ndarray
    times: np.ndarray  # column blocks of the output
    words: np.ndarray  # without the reads of the maxima of score tiles


@lru_cache(maxsize=256)  # the schedules search the same output tiles, each at every capacity of a curve
def _output_tiles(p: Problem, words: int, rows_multiple: int, cols_multiple: int, depth: int) -> _OutputTiles:
    """Return the output tile that moves the fewest words, for each number of column blocks; empty if none fit."""
    pairs = p.mask.on(p.n_q, p.n_k)
    rows, cols = pair_edges(
        edges(p.n_q, rows_multiple, not pairs.is_full),
        edges(p.d_v, cols_multiple),
        lambda r, c: spilled_output_peak(pairs, p.d_v, r, c, depth),
        words,
        pairs,
    )
    times = ceil_div(p.d_v, cols)
    moved = spilled_output_cost(pairs, p.d_v, p.n_k, rows, cols, depth).words - times * pairs.sums(1, p.n_k).tiles
    order = np.lexsort((moved, times))
    best = order[np.unique(times[order], return_index=True)[1]]
    return _OutputTiles(rows[best], cols[best], times[best], moved[best])


def forward_tiles(p: Problem, words: int, multiple: Mapping[str, int], *, stays: bool) -> ForwardTiles | None:
    depth = multiple["depth"]
    tiles = spill_and_output_tiles(
        p,
        words,
        multiple,
        lambda rows, cols: spill_peak(p, rows, cols, depth, stays),
        lambda rows, cols: spill_cost(p, rows, cols, depth, p.n_k, stays),
    )
    return ForwardTiles._make((*tiles, p.n_k)) if tiles else None


def forward_pass(stays: bool) -> Pass:
    """Return the forward pass in which queries stay, or stream, while scores are computed."""
    return Pass(
        partial(forward, stays=stays),
        ForwardTiles,
        partial(forward_cost, stays=stays),
        partial(forward_tiles, stays=stays),
        sweeps,
        lambda p, t: Scores(t.rows, t.cols, ceil_div(p.d, t.depth)),
    )


def sweeps(p: Problem, t: ForwardTiles) -> tuple[Sweep, ...]:
    """Return one sweep for computing P, and one per column block of O for the product P V."""
    return Sweep("rows", t.rows), Sweep("rows", t.out_rows, ceil_div(p.d_v, t.out_cols))
