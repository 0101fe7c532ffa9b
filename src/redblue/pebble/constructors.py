"""Constructors of graphs: matrix product, attention, Fourier transform, tree, chain, stencil, diamond, random.

Each label names the value of its node, such as `q[0,1]` or `l[3]`. In a chain of sums the partial result of t terms has
the label `c[i,j]+t`; the last node, which is the whole sum, has the label `c[i,j]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import inf

import numpy as np

from redblue.base.arguments import checked_arguments
from redblue.base.errors import RedblueError
from redblue.base.estimates import check_fits, count_text
from redblue.base.integers import whole_number
from redblue.masks import Mask
from redblue.pebble.graph import Builder, Graph, GraphError

ACCUMULATE = ("fma", "products")
# Memory per node and per edge, and time per node or edge, as measured. During the building of a graph, a label and the
# numbers of a node's parents are Python objects.
NODE_BYTES, EDGE_BYTES, SECONDS = 180, 55, 0.4e-6


@checked_arguments
def matmul_graph(m: int, k: int, n: int, accumulate: str = "fma") -> Graph:
    """Graph of C = A B with A (m, k) and B (k, n), by the standard algorithm of m k n products.

    accumulate: "fma": a chain of k multiply-adds per output, of which the first is a plain product; "products": k
        product nodes per output and a chain of k - 1 sums.
    Nodes: mk + kn inputs, plus mkn with "fma" or m(2k - 1)n with "products".
    Raises RedblueError for a size below 1, another `accumulate`, and a graph that does not fit this machine's memory.
    """
    m, k, n = _sizes(m=m, k=k, n=n)
    _check_accumulate(accumulate)
    steps = _steps(k, accumulate)
    _check_size("matmul", m * k + k * n + m * n * steps, 3 * m * n * steps, m=m, k=k, n=n)
    builder = Builder()
    a, b = _matrix(builder, "a", m, k), _matrix(builder, "b", k, n)
    for i, j in product(range(m), range(n)):
        _dot(builder, f"c[{i},{j}]", [(a[i, t], b[t, j]) for t in range(k)], accumulate)
    return builder.graph()


@checked_arguments
def attention_graph(n: int, d: int, d_v: int | None = None, mask: Mask | None = None, accumulate: str = "fma") -> Graph:
    """Graph of softmax(Q K^T) V for Q, K (n, d) and V (n, d_v), without row maxima: exact arithmetic needs none.

    - `p[i,j]`: per attended pair a chain of d multiply-adds; the exponential is part of the last.
    - `l[i]`: per row a chain of additions over the row's pairs.
    - `o[i,c]`: per output a chain of multiply-adds over the row's pairs, `o[i,c]+t`, then one division by l[i].
    A row without pairs has only the nodes of its query. accumulate: as in matmul_graph. d_v: d if None.
    Raises RedblueError as matmul_graph does, and for a mask that does not fit n queries and n keys.
    """
    d_v = d if d_v is None else d_v
    n, d, d_v = _sizes(n=n, d=d, d_v=d_v)
    _check_accumulate(accumulate)
    pairs = _pairs(mask, n)
    computed = pairs * (_steps(d, accumulate) + 1 + d_v * _steps(1, accumulate)) + n * d_v
    _check_size("attention", n * (2 * d + d_v) + computed, 3 * computed, n=n, d=d, d_v=d_v)
    builder, attends = Builder(), _attends(mask, n)
    q, k, v = _matrix(builder, "q", n, d), _matrix(builder, "k", n, d), _matrix(builder, "v", n, d_v)
    for i in range(n):
        keys = attends[i]
        p = {j: _dot(builder, f"p[{i},{j}]", _zip(q[i], k[j]), accumulate, f"s[{i},{j}]") for j in keys}
        if not keys:
            continue
        row_sum = _chain(builder, f"l[{i}]", list(p.values()))
        for c in range(d_v):
            terms = [(p[j], v[j, c]) for j in keys]
            total = _dot(builder, f"o[{i},{c}]+{len(keys)}", terms, accumulate, f"o[{i},{c}]")
            builder.node(f"o[{i},{c}]", total, row_sum)
    return builder.graph()


@checked_arguments
def attention_backward_graph(n: int, d: int, mask: Mask | None = None) -> Graph:
    """Graph of dQ, dK and dV from Q, K, V, O, dO (n, d) and the log-sum-exp (n,), as chains of multiply-adds.

    p[i,j] = exp(q_i k_j - lse_i), the exponential being part of the last multiply-add; delta[i] = dO_i O_i;
    dp[i,j] = dO_i v_j; ds[i,j] = p[i,j] (dp[i,j] - delta[i]);
    dv_j = sum_i p[i,j] dO_i; dk_j = sum_i ds[i,j] q_i; dq_i = sum_j ds[i,j] k_j.
    Queries without keys and keys without queries have no gradient nodes.
    Raises RedblueError for a size below 1, a mask that does not fit n queries and n keys, and a graph that does not fit
    this machine's memory.
    """
    n, d = _sizes(n=n, d=d)
    computed = n * d + _pairs(mask, n) * (5 * d + 1)
    _check_size("attention-backward", n * (5 * d + 1) + computed, 3 * computed, n=n, d=d)
    builder, attends = Builder(), _attends(mask, n)
    q, k, v, out, dout = (_matrix(builder, name, n, d) for name in ("q", "k", "v", "out", "dout"))
    lse = [builder.node(f"lse[{i}]") for i in range(n)]
    p, ds = {}, {}
    for i in range(n):
        if not attends[i]:
            continue
        delta = _dot(builder, f"delta[{i}]", _zip(dout[i], out[i]))
        for j in attends[i]:
            p[i, j] = _dot(builder, f"p[{i},{j}]", _zip(q[i], k[j]), also=(lse[i],), partial=f"s[{i},{j}]")
            dp = _dot(builder, f"dp[{i},{j}]", _zip(dout[i], v[j]))
            ds[i, j] = builder.node(f"ds[{i},{j}]", p[i, j], dp, delta)
    for name, weight, source, side in (("dq", ds, k, 0), ("dk", ds, q, 1), ("dv", p, dout, 1)):
        for x, c in product(range(n), range(d)):
            terms = [(weight[pair], source[pair[1 - side], c]) for pair in weight if pair[side] == x]
            if terms:
                _dot(builder, f"{name}[{x},{c}]", terms)
    return builder.graph()


@checked_arguments
def fft_graph(points: int) -> Graph:
    """Graph of a Fourier transform's butterflies: log2(points) steps of `points` nodes with two parents each.

    Raises GraphError unless `points` is a power of two of at least 2, and RedblueError for a graph that does not fit
    this machine's memory.
    """
    (points,) = _sizes(points=points)
    if points & (points - 1) or points < 2:
        raise GraphError(f"points must be a power of two of at least 2, got {points}")
    computed = points * (points.bit_length() - 1)
    _check_size("fft", points + computed, 2 * computed, points=points)
    builder = Builder()
    row = [builder.node(f"x[{i}]") for i in range(points)]
    for step in range(points.bit_length() - 1):
        row = [builder.node(f"y{step + 1}[{i}]", *sorted((row[i], row[i ^ (1 << step)]))) for i in range(points)]
    return builder.graph()


@checked_arguments
def tree_graph(arity: int, depth: int) -> Graph:
    """Graph of a complete in-tree: the arity^depth leaves are inputs, the root is the output.

    Raises RedblueError for a size below 1, and for a graph that does not fit this machine's memory.
    """
    arity, depth = _sizes(arity=arity, depth=depth)
    leaves = arity**depth if depth * arity.bit_length() < 1000 else inf
    _check_size("tree", max(2 * leaves, depth), max(2 * leaves, depth), arity=arity, depth=depth)
    builder = Builder()
    row = [builder.node(f"t{depth}[{i}]") for i in range(arity**depth)]
    for level in reversed(range(depth)):
        row = [builder.node(f"t{level}[{i}]", *row[i * arity : (i + 1) * arity]) for i in range(arity**level)]
    return builder.graph()


@checked_arguments
def chain_graph(length: int) -> Graph:
    """Graph of `length` nodes in a row, each computed from the node before it; the first is the input.

    Raises RedblueError for a size below 1, and for a graph that does not fit this machine's memory.
    """
    (length,) = _sizes(length=length)
    _check_size("chain", length, length, length=length)
    builder = Builder()
    for i in range(length):
        builder.node(f"x[{i}]", *((i - 1,) if i else ()))
    return builder.graph()


@checked_arguments
def stencil_graph(points: int, steps: int, radius: int = 1) -> Graph:
    """Graph of a stencil on a line of `points`.

    Each step computes a point from the points of the step before at a distance of at most `radius`.
    Raises RedblueError for a size below 1, and for a graph that does not fit this machine's memory.
    """
    points, steps, radius = _sizes(points=points, steps=steps, radius=radius)
    edges = points * steps * min(points, 2 * radius + 1)
    _check_size("stencil", points * (steps + 1), edges, points=points, steps=steps, radius=radius)
    builder = Builder()
    row = [builder.node(f"x0[{i}]") for i in range(points)]
    for step in range(1, steps + 1):
        row = [builder.node(f"x{step}[{i}]", *row[max(0, i - radius) : i + radius + 1]) for i in range(points)]
    return builder.graph()


@checked_arguments
def diamond_graph(rows: int, cols: int) -> Graph:
    """Graph of a grid in which node (i, j) is computed from (i - 1, j) and (i, j - 1): one input, one output.

    Raises RedblueError for a size below 1, and for a graph that does not fit this machine's memory.
    """
    rows, cols = _sizes(rows=rows, cols=cols)
    _check_size("diamond", rows * cols, 2 * rows * cols, rows=rows, cols=cols)
    builder = Builder()
    for i, j in product(range(rows), range(cols)):
        number = i * cols + j
        builder.node(f"x[{i},{j}]", *([number - cols] if i else []), *([number - 1] if j else []))
    return builder.graph()


@checked_arguments
def random_graph(seed: int, nodes: int = 12, sources: int = 3, in_degree: int = 2) -> Graph:
    """Random graph: `sources` inputs, then nodes with 1 to in_degree parents drawn from all nodes before them.

    The same arguments give the same graph.
    Raises RedblueError for a size below 1, and for a graph that does not fit this machine's memory.
    """
    nodes, sources, in_degree = _sizes(nodes=nodes, sources=sources, in_degree=in_degree)
    _check_size("random", nodes, nodes * min(nodes, in_degree), nodes=nodes, sources=sources, in_degree=in_degree)
    draw, builder = np.random.default_rng(whole_number("seed", seed, 0)), Builder()
    for v in range(nodes):
        parents = draw.choice(v, draw.integers(1, min(in_degree, v) + 1), replace=False) if v >= sources else ()
        builder.node(f"x[{v}]", *sorted(int(p) for p in parents))
    return builder.graph()


def _check_size(kind: str, nodes: float, edges: float, /, **sizes: int) -> None:
    """Raise RedblueError, before any work, if this machine cannot hold a graph with these estimated counts."""
    named = ",".join(f"{name}={size}" for name, size in sizes.items())
    counts = " and ".join(f"{count_text(number)} {unit}" for number, unit in ((nodes, "nodes"), (edges, "edges")))
    bytes, seconds = NODE_BYTES * nodes + EDGE_BYTES * edges, SECONDS * (nodes + edges)
    check_fits(f"the graph {kind}:{named} of {counts}", bytes, seconds)


def _steps(terms: int, accumulate: str) -> int:
    """Return an upper bound of the number of nodes of an inner product of `terms` terms."""
    return terms if accumulate == "fma" else 2 * terms


def _pairs(mask: Mask | None, n: int) -> int:
    """Count the attended pairs, without an array of n x n."""
    return n * n if mask is None else _checked(mask).on(n, n).nnz


def _matrix(builder: Builder, name: str, rows: int, cols: int) -> np.ndarray:
    """Add the inputs name[i,j], and return their node numbers, (rows, cols)."""
    return np.array([[builder.node(f"{name}[{i},{j}]") for j in range(cols)] for i in range(rows)])


def _zip(a: np.ndarray, b: np.ndarray) -> list[tuple[int, int]]:
    """Pair the nodes of two vectors, as the terms of their inner product."""
    return list(zip(a.tolist(), b.tolist(), strict=True))


def _dot(
    builder: Builder,
    name: str,
    terms: Sequence[tuple[int, int]],
    accumulate: str = "fma",
    partial: str | None = None,
    also: tuple[int, ...] = (),
) -> int:
    """Add the sum of products a * b over the terms (a, b), and return its last node, which is labelled `name`.

    partial: label of the partial sums, before "+t"; `name` if None. also: further parents of the last node.
    """
    partial = name if partial is None else partial
    if accumulate == "fma":
        previous: tuple[int, ...] = ()
        for t, (a, b) in enumerate(terms[:-1], start=1):
            previous = (builder.node(f"{partial}+{t}", *previous, a, b),)
        return builder.node(name, *previous, *terms[-1], *also)
    if len(terms) == 1:
        return builder.node(name, *terms[0], *also)
    factors = [builder.node(f"{builder.labels[a]}*{builder.labels[b]}", a, b) for a, b in terms]
    return _chain(builder, name, factors, partial, also)


def _chain(
    builder: Builder, name: str, terms: Sequence[int], partial: str | None = None, also: tuple[int, ...] = ()
) -> int:
    """Add the terms up one by one, and return the last node, which is labelled `name`; a single term is its own sum."""
    partial, total = name if partial is None else partial, terms[0]
    for t, term in enumerate(terms[1:], start=2):
        last = t == len(terms)
        total = builder.node(name if last else f"{partial}+{t}", total, term, *(also if last else ()))
    return total


def _attends(mask: Mask | None, n: int) -> list[list[int]]:
    """List the keys that each query attends."""
    return [np.flatnonzero(row).tolist() for row in _checked(Mask.full() if mask is None else mask).to_dense(n, n)]


def _checked(mask: object) -> Mask:
    """Raise RedblueError unless the argument is a Mask."""
    if not isinstance(mask, Mask):
        raise RedblueError(f"mask must be a redblue.Mask, such as Mask.causal(), got {mask!r}")
    return mask


def _check_accumulate(accumulate: str) -> None:
    if accumulate not in ACCUMULATE:
        raise RedblueError(f"accumulate must be {' or '.join(map(repr, ACCUMULATE))}, got {accumulate!r}")


def _sizes(**sizes: int) -> Iterator[int]:
    """Check that every size is a whole number of at least 1, and return them as ints."""
    return (whole_number(name, size) for name, size in sizes.items())
