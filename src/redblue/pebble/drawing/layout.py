"""Where the nodes of a graph stand when it is drawn: inputs above, outputs below, few crossings between."""

from __future__ import annotations

import numpy as np

from redblue.pebble.graph import Graph

SWEEPS = 12


def layout(graph: Graph) -> np.ndarray:
    """(n, 2): x and y of each node, y the level. Neighbours on a level are at least 1 apart.

    A node stands below all its parents, an input just above its first child. On each level nodes are ordered by where
    their neighbours stand (Sugiyama's barycentres), and then stand as near to that place as their order allows.
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
        forward = sweep % 2 == 0
        near = _means(graph.n, x, *(down if forward else up))
        for row in rows if forward else rows[::-1]:
            near[row] = _means(graph.n, x, *(down if forward else up))[row]
            order = row[np.argsort(near[row], kind="stable")]
            x[order] = _apart(near[order])
    return np.stack([x, level], axis=1).astype(float)


def _means(n: int, x: np.ndarray, neighbours: np.ndarray, of: np.ndarray) -> np.ndarray:
    """The mean place of each node's neighbours; its own if it has none."""
    count = np.bincount(of, minlength=n)
    total = np.bincount(of, x[neighbours], n)
    return np.where(count > 0, total / np.maximum(count, 1), x)


def _apart(wanted: np.ndarray) -> np.ndarray:
    """Ascending places at least 1 apart, near the wanted ones (which ascend).

    Least squares: with each place less its rank they need only ascend, and pools of neighbours share their mean.
    """
    pools: list[list[float]] = []  # [sum, count], means ascending
    for place in wanted - np.arange(wanted.size):
        pools.append([place, 1])
        while len(pools) > 1 and pools[-2][0] * pools[-1][1] >= pools[-1][0] * pools[-2][1]:
            last = pools.pop()
            pools[-1] = [pools[-1][0] + last[0], pools[-1][1] + last[1]]
    means = [total / count for total, count in pools for _ in range(int(count))]
    return np.array(means) + np.arange(wanted.size)
