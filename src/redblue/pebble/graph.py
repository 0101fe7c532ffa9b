"""Computation graphs: directed acyclic graphs whose nodes are values and whose parents are operands."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np

from redblue.base.arguments import checked_arguments
from redblue.base.errors import RedblueError
from redblue.pebble.whole_arrays import NotWhole, whole_array


class GraphError(RedblueError):
    """The input is not a directed acyclic graph whose nodes have distinct names."""


@dataclass(frozen=True, eq=False)
class Graph:
    """A directed acyclic graph in compressed rows. Nodes are numbered 0..n-1, every parent before its children.

    labels: distinct names of the nodes; names that are no text are converted, as from_edges does.
    starts (n + 1,), parents (edges,): the parents of node v are parents[starts[v]:starts[v + 1]], in the order given.
    Two graphs are equal if `starts` and `parents` are equal; labels do not matter.

    Raises GraphError, naming the node, for arrays that do not describe such a graph.
    """

    labels: tuple[str, ...] = field(repr=False)
    starts: np.ndarray = field(repr=False)
    parents: np.ndarray = field(repr=False)

    def __post_init__(self) -> None:
        for name in ("starts", "parents"):
            try:
                array = whole_array(getattr(self, name)).copy()
            except NotWhole as error:
                raise GraphError(f"{name}[{error.number}] {error}") from None
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        if not hasattr(self.labels, "__iter__") or not all(isinstance(label, Hashable) for label in self.labels):
            raise GraphError(f"labels must be a sequence of names, got {self.labels!r}")
        object.__setattr__(self, "labels", tuple(map(str, self.labels)))
        self._check()

    @property
    def n(self) -> int:
        return len(self.labels)

    @cached_property
    def in_degree(self) -> np.ndarray:
        """Number of parents of each node, (n,)."""
        return np.diff(self.starts)

    @cached_property
    def out_degree(self) -> np.ndarray:
        """Number of children of each node, (n,)."""
        return np.bincount(self.parents, minlength=self.n)

    @cached_property
    def sources(self) -> np.ndarray:
        """Nodes without parents, ascending: the inputs."""
        return np.flatnonzero(self.in_degree == 0)

    @cached_property
    def sinks(self) -> np.ndarray:
        """Nodes without children, ascending: the outputs."""
        return np.flatnonzero(self.out_degree == 0)

    @cached_property
    def heads(self) -> np.ndarray:
        """The child of each edge, (edges,): parents[i] is a parent of heads[i]."""
        return np.repeat(np.arange(self.n), self.in_degree)

    @cached_property
    def children(self) -> tuple[np.ndarray, np.ndarray]:
        """(starts, children): the children of v are children[starts[v]:starts[v + 1]], ascending."""
        starts = np.concatenate(([0], np.cumsum(self.out_degree)))
        return starts, self.heads[np.argsort(self.parents, kind="stable")]

    def parents_of(self, v: int) -> np.ndarray:
        return self.parents[self.starts[v] : self.starts[v + 1]]

    def children_of(self, v: int) -> np.ndarray:
        starts, children = self.children
        return children[starts[v] : starts[v + 1]]

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Node number by label."""
        return {label: v for v, label in enumerate(self.labels)}

    @cached_property
    def digest(self) -> str:
        """Hash of `starts` and `parents` (not of the labels), 32 hexadecimal digits."""
        return blake2b(
            self.starts.astype("<i8").tobytes() + self.parents.astype("<i8").tobytes(), digest_size=16
        ).hexdigest()

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, Graph) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        nodes, edges = self.n, len(self.parents)
        return f"Graph({nodes} nodes, {edges} edges, {len(self.sources)} sources, {len(self.sinks)} sinks)"

    def _check(self) -> None:
        labels, starts, parents = self.labels, self.starts, self.parents
        if not labels:
            raise GraphError("the graph is empty: a game needs at least one node")
        if len(set(labels)) < len(labels):
            raise GraphError(f"two nodes are named {_first_duplicate(labels)!r}: give each node a name of its own")
        if starts.shape != (self.n + 1,) or starts[0] != 0 or starts[-1] != parents.size or (np.diff(starts) < 0).any():
            raise GraphError(
                f"starts must have {self.n + 1} entries that ascend from 0 to the {parents.size} parents, got {starts}"
            )
        invalid = np.flatnonzero((parents < 0) | (parents >= self.n))
        if invalid.size:
            v, parent = self.heads[invalid[0]], parents[invalid[0]]
            raise GraphError(f"node {labels[v]!r} has the unknown parent {parent}: nodes are 0 to {self.n - 1}")
        invalid = np.flatnonzero(parents >= self.heads)
        if invalid.size:
            v, parent = self.heads[invalid[0]], parents[invalid[0]]
            raise GraphError(
                f"node {labels[v]!r} ({v}) has the parent {labels[parent]!r} ({parent}), which does not come before "
                "it: number the nodes so that parents come first (from_edges does)"
            )
        keys = np.sort(self.heads * self.n + parents)
        repeated = np.flatnonzero(keys[1:] == keys[:-1])
        if repeated.size:
            v, parent = divmod(int(keys[repeated[0]]), self.n)
            raise GraphError(f"node {labels[v]!r} has the parent {labels[parent]!r} twice: name each parent once")


class Builder:
    """Builds a graph node by node; parents must be added before their children."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.starts = [0]
        self.parents: list[int] = []

    def node(self, label: str, *parents: int) -> int:
        """Add a node and return its number. parents: numbers of nodes added before."""
        self.labels.append(label)
        self.parents.extend(parents)
        self.starts.append(len(self.parents))
        return len(self.labels) - 1

    def graph(self) -> Graph:
        return Graph(tuple(self.labels), np.array(self.starts), np.array(self.parents, np.int64))


@checked_arguments
def from_edges(edges: Iterable[tuple[Hashable, Hashable]], nodes: Iterable[Hashable] | None = None) -> Graph:
    """Build a graph from edges (parent, child); labels are the nodes' names as text.

    nodes: names of all nodes. Needed for nodes without edges; an edge to a node that is not listed is then an error.
    Nodes are numbered in the order of their first mention, except where a parent must come before its child.

    Raises GraphError for a cycle (naming it), an edge to an unknown node, a node or an edge given twice, and no node.
    """
    node_names = [_name(node) for node in nodes] if nodes is not None else None
    if node_names is not None and len(set(node_names)) < len(node_names):
        raise GraphError(f"node {_first_duplicate(node_names)!r} is given twice: name each node once")
    numbers: dict[Hashable, int] = {name: i for i, name in enumerate(node_names or ())}
    parents: list[dict[int, None]] = [{} for _ in numbers]
    for edge in edges:
        if not isinstance(edge, tuple | list) or len(edge) != 2:
            raise GraphError(f"an edge is a pair (parent, child), got {edge!r}")
        for name in map(_name, edge):
            if name not in numbers:
                if node_names is not None:
                    raise GraphError(f"edge {tuple(edge)!r} names the unknown node {name!r}: list it in nodes")
                numbers[name] = len(numbers)
                parents.append({})
        parent, child = (numbers[name] for name in edge)
        if parent in parents[child]:
            raise GraphError(f"edge {tuple(edge)!r} is given twice: name each edge once")
        parents[child][parent] = None
    order = _topological(parents, list(numbers))
    new_number = {old: new for new, old in enumerate(order)}
    names, builder = [str(name) for name in numbers], Builder()
    for old in order:
        builder.node(names[old], *(new_number[p] for p in parents[old]))
    return builder.graph()


def from_networkx(graph: Any) -> Graph:
    """Convert a networkx.DiGraph. Raises GraphError as from_edges does, and for an undirected graph."""
    if not callable(getattr(graph, "is_directed", None)):
        raise GraphError(f"graph must be a networkx.DiGraph, got {type(graph).__name__}")
    if not graph.is_directed():
        raise GraphError(
            "the networkx graph has no direction: give a networkx.DiGraph whose edges lead from parent to child"
        )
    return from_edges(graph.edges(), graph.nodes())


def _topological(parents: list[dict[int, None]], names: list[Hashable]) -> list[int]:
    """Sort the nodes topologically; ties go to the lower number. Raises GraphError, naming a cycle, if there is one."""
    children: list[list[int]] = [[] for _ in parents]
    for v, own in enumerate(parents):
        for p in own:
            children[p].append(v)
    missing = [len(own) for own in parents]  # per node, parents not yet in the order
    ready = [v for v, count in enumerate(missing) if not count]  # a heap: the list is ascending
    order = []
    while ready:
        order.append(v := heapq.heappop(ready))
        for child in children[v]:
            missing[child] -= 1
            if not missing[child]:
                heapq.heappush(ready, child)
    if len(order) < len(parents):
        raise GraphError(f"the graph has a cycle: {' -> '.join(str(names[v]) for v in _cycle(parents, missing))}")
    return order


def _cycle(parents: list[dict[int, None]], missing: list[int]) -> list[int]:
    """Return the nodes of a cycle from parent to child, the first repeated at the end.

    missing: per node, the number of parents that the topological sort never reached. A node with such a parent lies on
    a cycle or below one, so walking from parent to parent through such nodes must close a cycle.
    """
    v, position = next(v for v, count in enumerate(missing) if count), {}
    while v not in position:
        position[v] = len(position)
        v = next(p for p in parents[v] if missing[p])
    cycle = list(position)[position[v] :]  # from child to parent
    return [v, *cycle[:0:-1], v]


def _name(node: Hashable) -> Hashable:
    """Return the node's name. Raises GraphError if the name is not hashable."""
    try:
        hash(node)
    except TypeError:
        raise GraphError(f"a node's name must be a text, a number or a tuple of them, got {node!r}") from None
    return node


def _first_duplicate(names: Iterable[Hashable]) -> Hashable:
    """The alphabetically first of the names that occur more than once."""
    return min((name for name, times in Counter(names).items() if times > 1), key=str)
