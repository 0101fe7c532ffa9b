"""Lower bounds for games in which every node is computed once: wavefronts (minimum cuts) and the graph's spectrum."""

from __future__ import annotations

import numpy as np

from redblue.pebble.flows import Network, max_flow
from redblue.pebble.graph import Graph
from redblue.pebble.rules import Rules

MAX_CUTS = 100  # nodes for which a minimum cut is computed, evenly spread
MAX_SPECTRUM_NODES = 1500  # a dense eigenvalue problem of this size takes a second
ROUNDING = 1e-6  # safety margin, relative and absolute; far above the error of the eigenvalues


def wavefront(graph: Graph, red: int, rules: Rules) -> tuple[int, str]:
    """Return the words that every game stores and loads again, and the label of the node that proves it ("" if none).

    A computed value is alive while one of its children is not computed yet; it must then be red or stored. In every
    order, the words alive just after a node has been computed are at least a minimum cut. The cut separates the node
    and its ancestors from the node's descendants. All but `red` of these words are stored, and loaded later. Inputs do
    not count: they are in slow memory already. After Elango, Rastello, Pouchet, Ramanujam, Sadayappan, SPAA 2014.
    """
    inner = np.flatnonzero((graph.in_degree > 0) & (graph.out_degree > 0))
    best, label = 0, ""
    for v in inner[np.unique(np.linspace(0, len(inner) - 1, min(MAX_CUTS, len(inner))).astype(int))]:
        cut = max_flow(_alive_network(graph, rules, inner, int(v)))
        if cut - red > best:
            best, label = cut - red, graph.labels[v]
    return best, label


def _alive_network(graph: Graph, rules: Rules, inner: np.ndarray, v: int) -> Network:
    """Build the network whose minimum cut is the fewest words alive just after v has been computed, in any order.

    inner: the nodes that have parents and children.

    The source's side of a cut holds v and the nodes computed before v; a node's parents are on this side, too. The
    descendants of v are on the sink's side. A node u of the source's side with a child on the other side is alive: its
    edge from u to n + u, of capacity its words, is cut.
    """
    n, words = graph.n, rules.words_of(graph)
    descendant = np.zeros(n, bool)
    descendant[v] = True
    for u in range(v + 1, n):
        descendant[u] = descendant[graph.parents_of(u)].any()
    descendant[v] = False
    later, source, sink, unlimited = np.flatnonzero(descendant), 2 * n, 2 * n + 1, int(words.sum()) + 1
    edges = graph.in_degree[graph.parents] > 0
    parts = (
        (np.array([source]), np.array([v]), np.array([unlimited])),
        (later, np.full(len(later), sink), np.full(len(later), unlimited)),
        (inner, n + inner, words[inner]),
        (n + graph.parents[edges], graph.heads[edges], np.full(int(edges.sum()), unlimited)),
        (graph.heads, graph.parents, np.full(len(graph.parents), unlimited)),
    )
    tails, heads, capacities = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Network(tails, heads, capacities, source, sink, 2 * n + 2)


def spectral(graph: Graph, red: int, rules: Rules) -> tuple[int, int]:
    """Return the words moved beyond the compulsory ones, and the number of phases k that gives this bound.

    Cut a game into k phases that compute equally many nodes. Each phase uses some values that earlier phases computed,
    and computes some values that later phases use. It loads the former and stores the latter, in both cases all but
    `red` words. Give each edge the weight 1 / out-degree of its parent; then the number of these values, summed over
    the phases, is at least twice the weight of the edges between phases. By spectral partitioning, this doubled weight
    is at least floor(n / k) times the sum of the k least eigenvalues of the weighted graph's Laplacian. Jain & Zaharia,
    SPAA 2020; there inputs are computed, here they are left out of the graph, as they start in slow memory.
    """
    inner = graph.in_degree > 0
    count = int(np.count_nonzero(inner))
    if not 1 < count <= MAX_SPECTRUM_NODES:
        return 0, 1
    row = np.cumsum(inner) - 1  # row of each inner node in the Laplacian
    edges = inner[graph.parents]
    tails, heads = graph.parents[edges], graph.heads[edges]
    laplacian, weight = np.zeros((count, count)), 1 / graph.out_degree[tails]
    i, j = row[tails], row[heads]
    np.add.at(laplacian, (i, i), weight)
    np.add.at(laplacian, (j, j), weight)
    np.add.at(laplacian, (i, j), -weight)
    np.add.at(laplacian, (j, i), -weight)
    sums = np.cumsum(np.maximum(np.linalg.eigvalsh(laplacian), 0))
    k = np.arange(1, count + 1)
    words = (count // k) * sums * (1 - ROUNDING) - ROUNDING - 2 * (k - 1) * red
    best = int(np.argmax(words))
    return max(0, int(np.ceil(words[best]))), int(k[best])
