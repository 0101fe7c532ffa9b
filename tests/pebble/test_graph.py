"""Graphs of the pebble game: the graphs that constructors build, and arguments that are no graph."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue import Mask, RedblueError, pebble
from redblue.pebble import Graph, GraphError, Rules, from_edges, least_red
from support.games import graphs


@pytest.mark.parametrize(
    ("graph", "nodes", "edges", "sources", "sinks"),
    [
        (pebble.attention_graph(2, 1), 18, 26, 6, 2),
        (pebble.attention_graph(2, 2), 34, 52, 12, 4),
        (pebble.attention_graph(3, 2, d_v=1, mask=Mask.causal()), 39, 57, 15, 3),
        (pebble.attention_graph(2, 2, accumulate="products"), 42, 60, 12, 4),
        (pebble.attention_backward_graph(2, 1), 38, 66, 12, 6),
        (pebble.matmul_graph(2, 2, 2), 16, 20, 8, 4),
        (pebble.matmul_graph(2, 2, 2, "products"), 20, 24, 8, 4),
        (pebble.matmul_graph(3, 1, 2, "products"), 11, 12, 5, 6),
        (pebble.fft_graph(4), 12, 16, 4, 4),
        (pebble.tree_graph(2, 3), 15, 14, 8, 1),
        (pebble.chain_graph(5), 5, 4, 1, 1),
        (pebble.stencil_graph(4, 2), 12, 20, 4, 4),
        (pebble.diamond_graph(3, 4), 12, 17, 1, 1),
        (pebble.random_graph(7, nodes=20, sources=4), 20, 24, 4, 9),
    ],
)
def test_the_constructors(graph, nodes, edges, sources, sinks):
    assert (graph.n, len(graph.parents), len(graph.sources), len(graph.sinks)) == (nodes, edges, sources, sinks)


def parents(graph, label):
    return {graph.labels[p] for p in graph.parents_of(graph.numbers[label])}


def test_labels_say_what_nodes_are():
    graph = pebble.attention_graph(3, 3)
    assert parents(graph, "s[1,0]+2") == {"s[1,0]+1", "q[1,1]", "k[0,1]"}
    assert parents(graph, "p[1,0]") == {"s[1,0]+2", "q[1,2]", "k[0,2]"}
    assert parents(graph, "l[2]+2") == {"p[2,0]", "p[2,1]"}
    assert parents(graph, "o[2,1]+2") == {"o[2,1]+1", "p[2,1]", "v[1,1]"}
    assert parents(graph, "o[2,1]") == {"o[2,1]+3", "l[2]"}
    products = pebble.attention_graph(2, 2, accumulate="products")
    assert parents(products, "p[0,1]") == {"q[0,0]*k[1,0]", "q[0,1]*k[1,1]"}


def test_a_masked_graph_has_only_attended_pairs():
    graph = pebble.attention_graph(4, 1, mask=Mask.sliding_window(left=1, right=0))
    assert "p[2,1]" in graph.labels
    assert "p[2,0]" not in graph.labels
    assert parents(graph, "o[0,0]") == {"o[0,0]+1", "p[0,0]"}  # a sum of one term is the term itself
    nobody = pebble.attention_graph(2, 1, mask=Mask.blocks(np.array([[1, 0], [0, 0]], bool), 1))
    assert [label for label in nobody.labels if label.startswith("o[1")] == []


def test_the_backward_graph_is_the_gradient():
    """The parents of a few nodes, and the sinks, are those of the gradient's formulas."""
    graph = pebble.attention_backward_graph(2, 2)
    assert parents(graph, "ds[0,1]") == {"p[0,1]", "dp[0,1]", "delta[0]"}
    assert parents(graph, "p[0,1]") == {"s[0,1]+1", "q[0,1]", "k[1,1]", "lse[0]"}
    assert parents(graph, "dk[1,0]") == {"dk[1,0]+1", "ds[1,1]", "q[1,0]"}
    assert {graph.labels[v][:2] for v in graph.sinks} == {"dq", "dk", "dv"}


@given(graphs())
def test_children_are_the_other_way_round(graph):
    down = {(p, v) for v in range(graph.n) for p in graph.parents_of(v).tolist()}
    assert down == {(v, c) for v in range(graph.n) for c in graph.children_of(v).tolist()}
    assert graph.sinks.tolist() == [v for v in range(graph.n) if not len(graph.children_of(v))]


@given(graphs(), st.randoms())
def test_edges_in_any_order_make_the_same_graph(graph, random):
    edges = [(graph.labels[p], graph.labels[v]) for v in range(graph.n) for p in graph.parents_of(v).tolist()]
    random.shuffle(edges)
    nodes = list(graph.labels)
    random.shuffle(nodes)
    other = from_edges(edges, nodes)
    assert sorted(other.labels) == sorted(graph.labels)
    for label in graph.labels:
        assert parents(other, label) == parents(graph, label)


def test_graphs_are_values():
    a, b = pebble.chain_graph(3), from_edges([("a", "b"), ("b", "c")])
    assert a == b
    assert hash(a) == hash(b)
    assert a != pebble.chain_graph(4)
    assert a != "a"
    with pytest.raises(ValueError, match="read-only"):
        a.parents[0] = 1


def test_networkx():
    networkx = pytest.importorskip("networkx")
    graph = networkx.DiGraph([(1, 2), (2, 3)])
    graph.add_node("alone")
    assert pebble.from_networkx(graph).labels == ("1", "2", "3", "alone")
    with pytest.raises(GraphError, match="no direction"):
        pebble.from_networkx(networkx.Graph([(1, 2)]))


@pytest.mark.parametrize(
    ("edges", "nodes", "says"),
    [
        ([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")], None, "has a cycle: a -> b -> c -> a"),
        ([("a", "a")], None, "has a cycle: a -> a"),
        ([("a", "b")], ["a"], r"edge \('a', 'b'\) names the unknown node 'b': list it in nodes"),
        ([("a", "b"), ("a", "b")], None, r"edge \('a', 'b'\) is given twice"),
        ([("a", "b")], ["a", "b", "a"], "node 'a' is given twice"),
        ([("a", 1), ("a", "1")], None, "two nodes are named '1'"),
        ([("a", "b", "c")], None, r"an edge is a pair \(parent, child\), got \('a', 'b', 'c'\)"),
        ([], None, "the graph is empty"),
    ],
)
def test_what_is_no_graph(edges, nodes, says):
    with pytest.raises(GraphError, match=says):
        from_edges(edges, nodes)


@pytest.mark.parametrize(
    ("starts", "parents", "says"),
    [
        ([0, 0], [], "starts must have 3 entries"),
        ([0, 2, 1], [0], "starts must have 3 entries"),
        ([0, 0, 1], [7], "node 'b' has the unknown parent 7: nodes are 0 to 1"),
        ([0, 1, 1], [1], r"node 'a' \(0\) has the parent 'b' \(1\), which does not come before it"),
        ([0, 0, 2], [0, 0], "node 'b' has the parent 'a' twice"),
    ],
)
def test_arrays_that_are_no_graph(starts, parents, says):
    with pytest.raises(GraphError, match=says):
        Graph(("a", "b"), np.array(starts), np.array(parents, np.int64))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: pebble.from_edges([([1], 2)]), r"a node's name must be .* got \[1\]"),
        (lambda: pebble.from_edges([], [1, "1", 1]), "node 1 is given twice"),
        (lambda: pebble.Graph(("a", "b"), [0, 0, 1], [0.5]), r"parents\[0\] must be a whole number .* got 0.5"),
        (lambda: pebble.random_graph(-1), "seed must be a whole number of at least 0, got -1"),
        (lambda: pebble.attention_graph(2, 1, mask="causal"), "mask must be a Mask"),
        (lambda: pebble.solve(pebble.chain_graph(2), 2, time_limit="5"), "time_limit must be"),
        (lambda: pebble.solve(pebble.chain_graph(2), 2, memory_bytes="a"), "memory_bytes must be"),
        (lambda: pebble.heuristic(pebble.chain_graph(2), 2, tries="x"), "tries must be"),
        (lambda: pebble.matmul_graph(0, 1, 1), "m must be a whole number of at least 1, got 0"),
        (lambda: pebble.attention_graph(2, True), "d must be a whole number"),
        (lambda: pebble.attention_graph(2, 1, accumulate="fast"), "accumulate must be 'fma' or 'products', got 'fast'"),
        (lambda: pebble.fft_graph(6), "points must be a power of two of at least 2, got 6"),
        (lambda: pebble.fft_graph(1), "points must be a power of two"),
    ],
)
def test_bad_sizes(make, says):
    with pytest.raises(RedblueError, match=says):
        make()


def test_the_least_red():
    fft = pebble.fft_graph(4)
    assert [least_red(fft, rules) for rules in ("red-blue", "one-shot", "partial", Rules(sliding=True))] == [3, 3, 2, 2]
    chain = pebble.chain_graph(3)
    assert least_red(chain, Rules(weights=(5, 1, 2))) == 6
    assert least_red(chain, Rules(weights=(5, 1, 2), sliding=True)) == 5
    assert least_red(pebble.tree_graph(2, 1), Rules(weights=(1, 1, 3), sliding=True)) == 4
    assert least_red(chain, Rules("partial", weights=(1, 1, 4))) == 5
    assert least_red(pebble.chain_graph(1)) == 1


def test_numpy_integers_are_sizes():
    assert pebble.fft_graph(np.int64(4)) == pebble.fft_graph(4)
    assert pebble.random_graph(np.int64(3), nodes=np.int32(9)) == pebble.random_graph(3, nodes=9)
