"""The forward pass that `hybrid` and `small_cache` share: P is computed tile by tile, written once and read back.

The two differ in one thing: whether, while scores are computed, the block of queries stays in the cache whole
(`stays`, the hybrid) or streams by in slices like the keys (the papers' small-cache algorithm). The product P V is
output-stationary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from redblue.base.integers import ceil_div, larger, smaller
from redblue.machine import Machine, Slow, Tile, exp, log, maximum
from redblue.problem import Problem
from redblue.schedules.products import score_cost, score_peak, score_tile
from redblue.schedules.schedule import Cost, Pass, Sweep, blocks, grid, overlap, part_of, rows_walked, walks
from redblue.schedules.search import edges, pair_edges
from redblue.schedules.softmax import LOWEST, spill, weigh, weigh_cost, weigh_peak


class ForwardTiles(NamedTuple):
    rows: Any  # score tile: queries
    cols: Any  # score tile: keys
    depth: Any  # features (of scores) or keys (of outputs) per streamed slice
    out_rows: Any  # output tile: queries
    out_cols: Any  # output tile: features of V
    span: Any  # keys that one walk of a block of queries covers; where there are more, what it finds is merged


def forward(
    m: Machine, problem: Problem, t: ForwardTiles, q: Slow, k: Slow, v: Slow, out: Slow, lse: Slow, *, stays: bool
) -> None:
    scale, pairs = problem.d**-0.5, problem.mask.on(problem.n_q, problem.n_k)
    p = m.scratch("p", (problem.n_q, problem.n_k))
    top = m.scratch("top", (problem.n_q, ceil_div(problem.n_k, t.cols)))
    cut = t.span < problem.n_k
    part = m.scratch("part", (ceil_div(problem.n_k, t.span) * problem.n_q,)) if cut else lse
    for i in blocks(problem.n_q, t.rows):
        live = m.cols_of(pairs, i)
        for walk in walks(live, t.span, problem.n_k):
            q_i = m.load(q[i]) if stays else q
            row_max, row_sum = m.full("row_max", (len(i),), LOWEST), m.zeros("row_sum", len(i))
            for j in grid(overlap(walk, live), t.cols, problem.n_k):
                s = score_tile(m, "s", q_i, k, i, j, t.depth)
                s *= scale
                spill(m, s, pairs, i, j, (row_max, row_sum), p, top[i, range(j.start // t.cols, j.start // t.cols + 1)])
            row_max += log(row_sum)
            m.store(part[part_of(i, walk, t.span, problem.n_q)], row_max)
            m.free(row_max, row_sum)
            if isinstance(q_i, Tile):
                m.free(q_i)
        if cut:
            row_max, row_sum = m.full("row_max", (len(i),), LOWEST), m.zeros("row_sum", len(i))
            for walk in walks(live, t.span, problem.n_k):
                found = m.load(part[part_of(i, walk, t.span, problem.n_q)])
                row_sum *= exp(row_max - maximum(row_max, found))
                row_sum += exp(found - maximum(row_max, found))
                row_max[...] = maximum(row_max, found)
                m.free(found)
            row_max += log(row_sum)
            m.store(lse[i], row_max)
            m.free(row_max, row_sum)
    weigh(m, out, p, top, v, lse, pairs, t.cols, (t.out_rows, t.out_cols, t.depth))


def _forward_peak(p: Problem, rows: Any, cols: Any, depth: int, stays: bool) -> Any:
    """Of the first phase: a score tile, its slices or its maxima, the row statistics and perhaps the queries."""
    pairs = p.mask.on(p.n_q, p.n_k)
    r, c = smaller(rows, p.n_q), smaller(cols, p.n_k)
    return larger(score_peak(pairs, p.d, rows, cols, depth, stays), r * c + r) + r * (p.d * stays + 2)


def _spill_cost(p: Problem, rows: Any, cols: Any, depth: int, span: Any, stays: bool) -> Cost:
    pairs = p.mask.on(p.n_q, p.n_k)
    scores, sums = score_cost(pairs, p.d, rows, cols, depth, stays), pairs.sums(rows, cols)
    walked = rows_walked(pairs, rows, span)
    parts = walked if span < p.n_k else 0
    return Cost(
        scores.reads + walked * p.d * stays + parts,
        sums.area + sums.rows + parts + p.n_q,  # P, the tiles' row maxima, lse of walks and of rows
        _forward_peak(p, rows, cols, depth, stays),
        scores.flops,
    )


def forward_cost(p: Problem, t: ForwardTiles, *, stays: bool) -> Cost:
    pairs = p.mask.on(p.n_q, p.n_k)
    return _spill_cost(p, t.rows, t.cols, t.depth, t.span, stays) + weigh_cost(
        pairs, p.d_v, t.cols, t.out_rows, t.out_cols, t.depth
    )


def spill_and_weigh_tiles(
    p: Problem,
    words: int,
    multiple: Mapping[str, int],
    peak: Callable[[Any, Any], Any],
    cost: Callable[[Any, Any], Cost],
) -> tuple[int, ...] | None:
    """The edges (rows, cols, depth, out_rows, out_cols) of P's and the output's tiles that move the fewest words.

    peak, cost: of the phases that work on tiles of P, by the edges rows and cols.
    """
    pairs, depth = p.mask.on(p.n_q, p.n_k), multiple["depth"]
    rows, cols = pair_edges(
        edges(p.n_q, multiple["rows"], not pairs.is_full),
        edges(p.n_k, multiple["cols"], not pairs.is_full),
        peak,
        words,
        pairs,
    )
    out_rows, out_cols = pair_edges(
        edges(p.n_q, multiple["out_rows"], not pairs.is_full),
        edges(p.d_v, multiple["out_cols"]),
        lambda r, c: weigh_peak(pairs, p.d_v, r, c, depth),
        words,
        pairs,
    )
    if not len(rows) or not len(out_rows):
        return None
    # The phases share one term: a score tile's maxima are read once per column block of the output. So find the best
    # output tile for each number of those, and weigh each of them against every score tile.
    times, maxima = ceil_div(p.d_v, out_cols), pairs.sums(1, cols).tiles
    weighing = weigh_cost(pairs, p.d_v, p.n_k, out_rows, out_cols, depth).words
    weighing = weighing - times * pairs.sums(1, p.n_k).tiles
    order = np.lexsort((weighing, times))
    kept = order[np.unique(times[order], return_index=True)[1]]
    total = cost(rows, cols).words[None] + weighing[kept][:, None] + times[kept][:, None] * maxima[None]
    o, s = np.unravel_index(int(np.argmin(total)), total.shape)
    return int(rows[s]), int(cols[s]), depth, int(out_rows[kept[o]]), int(out_cols[kept[o]])


def forward_tiles(p: Problem, words: int, multiple: Mapping[str, int], *, stays: bool) -> ForwardTiles | None:
    depth = multiple["depth"]
    found = spill_and_weigh_tiles(
        p,
        words,
        multiple,
        lambda rows, cols: _forward_peak(p, rows, cols, depth, stays),
        lambda rows, cols: _spill_cost(p, rows, cols, depth, p.n_k, stays),
    )
    return ForwardTiles._make((*found, p.n_k)) if found else None


def forward_pass(stays: bool) -> Pass:
    """The forward pass, with the queries staying or streaming while scores are computed."""
    bind = partial(partial, stays=stays)
    return Pass(bind(forward), ForwardTiles, bind(forward_cost), bind(forward_tiles), sweeps)


def sweeps(p: Problem, t: ForwardTiles) -> tuple[Sweep, ...]:
    """One while P is computed, and one for each column block of O while it is weighed."""
    return Sweep("rows", t.rows), Sweep("rows", t.out_rows, ceil_div(p.d_v, t.out_cols))
