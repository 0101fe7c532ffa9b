"""Bounds on games in which every node is computed once: by cuts through the graph, and by its spectrum."""

from __future__ import annotations

import numpy as np

from redblue.pebble.flows import Network, max_flow
from redblue.pebble.graph import Graph
from redblue.pebble.rules import Rules

CUTS = 100  # nodes tried at most, evenly spread
SPECTRUM_NODES = 1500  # a dense eigenvalue problem of that size takes a second
ROUNDING = 1e-6  # relative; far above the error of the eigenvalues


def wavefront(graph: Graph, red: int, rules: Rules) -> tuple[int, str]:
    """Values that must be stored and loaded again, and the node as which is computed they are alive.

    Just after a node is computed, every computed value with a child not yet computed is red or stored, whatever the
    order was: at least a minimum cut that separates the node and what it needs from what needs it, less `red`. Inputs
    count for nothing: they need not be stored. After Elango, Rastello, Pouchet, Ramanujam, Sadayappan, SPAA 2014.
    """
    inner = np.flatnonzero((graph.in_degree > 0) & (graph.out_degree > 0))
    best, at = 0, ""
    for v in inner[np.unique(np.linspace(0, len(inner) - 1, min(CUTS, len(inner))).astype(int))] if len(inner) else ():
        cut = max_flow(_alive(graph, rules, int(v)))
        if cut - red > best:
            best, at = cut - red, graph.labels[v]
    return best, at


def _alive(graph: Graph, rules: Rules, v: int) -> Network:
    """Whose minimum cut is the fewest words of computed values alive as v has just been computed, in any order.

    Node u is on the source's side if it is computed before or is v; with it its parents. Values of nodes on that side
    with a child on the other side are cut: u to n + u.
    """
    n, words = graph.n, rules.words_of(graph)
    inner = np.flatnonzero((graph.in_degree > 0) & (graph.out_degree > 0))
    after = np.zeros(n, bool)
    after[v] = True
    for u in range(v + 1, n):
        after[u] = after[graph.parents_of(u)].any()
    after[v] = False
    later, source, sink, endless = np.flatnonzero(after), 2 * n, 2 * n + 1, int(words.sum()) + 1
    edges = graph.in_degree[graph.parents] > 0
    parts = (
        (np.array([source]), np.array([v]), np.array([endless])),
        (later, np.full(len(later), sink), np.full(len(later), endless)),
        (inner, n + inner, words[inner]),
        (n + graph.parents[edges], graph.heads[edges], np.full(int(edges.sum()), endless)),
        (graph.heads, graph.parents, np.full(len(graph.parents), endless)),
    )
    tails, heads, capacities = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Network(tails, heads, capacities, source, sink, 2 * n + 2)


def spectral(graph: Graph, red: int, rules: Rules) -> tuple[int, int]:
    """Words moved beyond inputs loaded once and outputs stored, and the number of phases that shows it.

    Cut a game into k phases of equally many nodes. A phase loads what it uses and did not compute, and stores what it
    computes and later phases use, but for `red` words each. An edge between phases is worth 1 / out-degree twice, and
    these sum up to at least floor(n / k) times the k smallest eigenvalues of the graph's Laplacian with such weights,
    inputs left out. Jain & Zaharia, SPAA 2020, whose inputs are computed; here they lie in slow memory.
    """
    inner = graph.in_degree > 0
    count = int(np.count_nonzero(inner))
    if not 1 < count <= SPECTRUM_NODES:
        return 0, 1
    place = np.cumsum(inner) - 1
    edges = inner[graph.parents]
    tails, heads = graph.parents[edges], graph.heads[edges]
    laplacian, weight = np.zeros((count, count)), 1 / graph.out_degree[tails]
    i, j = place[tails], place[heads]
    np.add.at(laplacian, (i, i), weight)
    np.add.at(laplacian, (j, j), weight)
    np.add.at(laplacian, (i, j), -weight)
    np.add.at(laplacian, (j, i), -weight)
    sums = np.cumsum(np.maximum(np.linalg.eigvalsh(laplacian), 0))
    k = np.arange(1, count + 1)
    found = (count // k) * sums * (1 - ROUNDING) - ROUNDING - 2 * (k - 1) * red
    best = int(np.argmax(found))
    return max(0, int(np.ceil(found[best]))), int(k[best])
