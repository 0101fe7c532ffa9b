"""Layout of a drawn graph: inputs at the top, outputs at the bottom, few crossing edges."""

from __future__ import annotations

import numpy as np

from redblue.pebble.graph import Graph

SWEEPS = 12  # passes over all levels, alternately downwards and upwards


def layout(graph: Graph) -> np.ndarray:
    """Compute x and y of each node, (n, 2); y is the level. Nodes of one level are at least 1 apart.

    A node stands below all its parents; an input stands one level above its highest child. Each level is ordered by the
    mean x of the nodes' neighbours (Sugiyama's barycentres). Then each node is placed as near to this mean as the order
    allows.
    """
    depth, starts, parents = [0] * graph.n, graph.starts.tolist(), graph.parents.tolist()
    for v in range(graph.n):
        depth[v] = 1 + max((depth[p] for p in parents[starts[v] : starts[v + 1]]), default=-1)
    for v in graph.sources.tolist():
        depth[v] = min((depth[c] for c in graph.children_of(v).tolist()), default=1) - 1
    level = np.array(depth)
    rows = [np.flatnonzero(level == y) for y in range(level.max() + 1)]
    x = np.zeros(graph.n)
    for row in rows:
        x[row] = np.arange(row.size) - (row.size - 1) / 2
    down, up = (graph.parents, graph.heads), (graph.heads, graph.parents)
    for sweep in range(SWEEPS):
        downwards = sweep % 2 == 0
        targets = _means(graph.n, x, *(down if downwards else up))
        for row in rows if downwards else rows[::-1]:
            targets[row] = _means(graph.n, x, *(down if downwards else up))[row]
            order = row[np.argsort(targets[row], kind="stable")]
            x[order] = _spread(targets[order])
    return np.stack([x, level], axis=1).astype(float)


def _means(n: int, x: np.ndarray, neighbours: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Mean x of each node's neighbours, (n,), or its own x if it has none. neighbours[i] is a neighbour of nodes[i]."""
    count = np.bincount(nodes, minlength=n)
    total = np.bincount(nodes, x[neighbours], n)
    return np.where(count > 0, total / np.maximum(count, 1), x)


def _spread(wanted: np.ndarray) -> np.ndarray:
    """Return ascending positions at least 1 apart with the least squared distance to the wanted ones, which ascend.

    Subtracting its rank from each position turns "at least 1 apart" into "ascending", which is isotonic regression.
    The algorithm is pool adjacent violators: neighbours out of order are merged into a pool that shares their mean.
    """
    pools: list[list[float]] = []  # [sum, count] of each; the means ascend
    for position in wanted - np.arange(wanted.size):
        pools.append([position, 1])
        while len(pools) > 1 and pools[-2][0] * pools[-1][1] >= pools[-1][0] * pools[-2][1]:
            last = pools.pop()
            pools[-1] = [pools[-1][0] + last[0], pools[-1][1] + last[1]]
    means = [total / count for total, count in pools for _ in range(int(count))]
    return np.array(means) + np.arange(wanted.size)
