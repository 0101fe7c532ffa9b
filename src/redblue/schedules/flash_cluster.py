"""FlashAttention, forward, on a cluster of thread blocks that share the keys and values they load.

On GPUs from sm_90 on, a few blocks can run as a cluster and receive one load together (multicast). M is the memory of
the whole cluster. Each block keeps its own rows of queries and of the output, and a copy of the keys and values that
stream by; a load into all copies moves its words once. So K and V stream as often as in `flash` with the rows of all
blocks together: 4 n^2 d^2 / M words, although no single block has M words. The copies cost only memory: if c keys
stream by together, c max(d, d_v) words for each block but the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from redblue.base.integers import ceil_div, larger, smaller
from redblue.machine import Machine, Region, Slow, Tile
from redblue.problem import Problem
from redblue.schedules.schedule import Cost, Pass, Schedule, Sweep, blocks, within
from redblue.schedules.search import cheapest, edges, pair_edges
from redblue.schedules.softmax import LOWEST, online_softmax, store_rows

BLOCKS = 2  # thread blocks of a cluster: the fewest that can share loads; each further one takes memory for its copy


class ForwardTiles(NamedTuple):
    rows: Any  # queries of one block, which stay
    cols: Any  # keys and values that stream by together
    cluster: Any = BLOCKS  # thread blocks of a cluster


ForwardTiles.SMALLEST = {"cluster": BLOCKS}  # type: ignore[attr-defined]


def forward(m: Machine, problem: Problem, t: ForwardTiles, q: Slow, k: Slow, v: Slow, out: Slow, lse: Slow) -> None:
    scale, pairs = problem.d**-0.5, problem.mask.on(problem.n_q, problem.n_k)
    for i in blocks(problem.n_q, t.rows * t.cluster):
        parts = [within(part, i) for part in blocks(i, t.rows)]  # each block's rows among the cluster's rows
        q_i, out_i = m.load(q[i]), m.zeros("out_i", len(i), problem.d_v)
        row_max, row_sum = m.full("row_max", (len(i),), LOWEST), m.zeros("row_sum", len(i))
        for j in blocks(m.cols_of(pairs, i), t.cols):
            s, copies = m.zeros("s", len(i), len(j)), _multicast(m, k[j], len(parts))
            for part, k_j in zip(parts, copies, strict=True):
                s[part] = q_i[part] @ k_j.T * scale
            m.free(*copies)
            if not m.holds(pairs, i, j):
                s[...] = m.where(pairs, i, j, s, -np.inf)
            online_softmax(m, s, out_i, row_max, row_sum)
            copies = _multicast(m, v[j], len(parts))
            for part, v_j in zip(parts, copies, strict=True):
                out_rows = out_i[part]
                out_rows += s[part] @ v_j
            m.free(s, *copies)
        store_rows(m, out_i, row_max, row_sum, out[i], lse[i])
        m.free(q_i, out_i, row_max, row_sum)


def _multicast(m: Machine, region: Region, count: int) -> list[Tile]:
    """Load the region once, and give each of `count` blocks a copy."""
    first = m.load(region)
    return [first, *(m.new("copy", first[...]) for _ in range(1, count))]


def _peak(p: Problem, rows: Any, cols: Any, cluster: int) -> Any:
    r, c = smaller(rows * cluster, p.n_q), smaller(cols, p.n_k)
    copies = ceil_div(r, smaller(rows, p.n_q))
    return r * (p.d + p.d_v + 2) + r * c + larger(copies * c * max(p.d, p.d_v), r)


def forward_cost(p: Problem, t: ForwardTiles) -> Cost:
    streamed = p.mask.on(p.n_q, p.n_k).sums(t.rows * t.cluster, 1)
    reads = p.n_q * p.d + (p.d + p.d_v) * streamed.cols
    flops = 2 * (p.d + p.d_v) * streamed.area
    return Cost(reads, p.n_q * (p.d_v + 1), _peak(p, t.rows, t.cols, t.cluster), flops)


def forward_tiles(p: Problem, words: int, multiple: Mapping[str, int]) -> ForwardTiles | None:
    cluster = max(BLOCKS, multiple["cluster"])
    cols = np.array([min(multiple["cols"], p.n_k)])
    pairs = p.mask.on(p.n_q, p.n_k)
    candidates = pair_edges(
        edges(p.n_q, multiple["rows"], not pairs.is_full), cols, lambda r, c: _peak(p, r, c, cluster), words, pairs
    )
    best = cheapest(forward_cost(p, ForwardTiles(*candidates, cluster)), candidates, words)
    if best is None:
        return None
    # The blocks of a cluster that covers all queries take equal parts, if the copies fit.
    rows, equal = best[0], ceil_div(ceil_div(p.n_q, cluster), multiple["rows"]) * multiple["rows"]
    if equal < rows and _peak(p, equal, best[1], cluster) <= words:
        rows = equal
    return ForwardTiles(rows, best[1], cluster)


schedule = Schedule(
    name="flash_cluster",
    title="FlashAttention on a cluster of thread blocks that share loads",
    source="flash with the rows of several blocks; one load into all of them is TMA's multicast (CUDA, sm_90)",
    passes={
        "forward": Pass(
            forward,
            ForwardTiles,
            forward_cost,
            forward_tiles,
            lambda p, t: (Sweep("rows", t.rows * t.cluster),),
        )
    },
)
