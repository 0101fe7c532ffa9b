"""Computation graphs: which value needs which others. Any directed acyclic graph is one."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np

from redblue.base.errors import RedblueError
from redblue.pebble.whole import NotWhole, whole_array


class GraphError(RedblueError):
    """What was given is no directed acyclic graph with nodes of distinct names."""


@dataclass(frozen=True, eq=False)
class Graph:
    """A directed acyclic graph whose nodes are numbered 0..n-1, every parent before its children.

    labels: the nodes' names, distinct. starts (n + 1,), parents (edges,): the parents of node v are
    parents[starts[v]:starts[v + 1]], in the order given. Two graphs are equal if these arrays are: names do not matter.

    Raises GraphError, naming the node, for arrays that say anything else.
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
        object.__setattr__(self, "labels", tuple(self.labels))
        self._check()

    @property
    def n(self) -> int:
        return len(self.labels)

    @cached_property
    def in_degree(self) -> np.ndarray:
        """Parents of each node, (n,)."""
        return np.diff(self.starts)

    @cached_property
    def out_degree(self) -> np.ndarray:
        """Children of each node, (n,)."""
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
        """The node that each entry of `parents` is a parent of, (edges,)."""
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
        """Each label's node."""
        return {label: v for v, label in enumerate(self.labels)}

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits that say which graph this is, labels aside."""
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
            raise GraphError(f"two nodes are named {_first_twice(labels)!r}: give each node a name of its own")
        if starts.shape != (self.n + 1,) or starts[0] != 0 or starts[-1] != parents.size or (np.diff(starts) < 0).any():
            raise GraphError(
                f"starts must have {self.n + 1} entries that ascend from 0 to the {parents.size} parents, got {starts}"
            )
        wrong = np.flatnonzero((parents < 0) | (parents >= self.n))
        if wrong.size:
            v, given = self.heads[wrong[0]], parents[wrong[0]]
            raise GraphError(f"node {labels[v]!r} has the unknown parent {given}: nodes are 0 to {self.n - 1}")
        wrong = np.flatnonzero(parents >= self.heads)
        if wrong.size:
            v, given = self.heads[wrong[0]], parents[wrong[0]]
            raise GraphError(
                f"node {labels[v]!r} ({v}) has the parent {labels[given]!r} ({given}), which does not come before it: "
                "number the nodes so that parents come first (from_edges does)"
            )
        keys = np.sort(self.heads * self.n + parents)
        twice = np.flatnonzero(keys[1:] == keys[:-1])
        if twice.size:
            v, given = divmod(int(keys[twice[0]]), self.n)
            raise GraphError(f"node {labels[v]!r} has the parent {labels[given]!r} twice: name each parent once")


class Builder:
    """Grows a graph node by node, parents first."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.starts = [0]
        self.parents: list[int] = []

    def node(self, label: str, *parents: int) -> int:
        """The number of a new node."""
        self.labels.append(label)
        self.parents.extend(parents)
        self.starts.append(len(self.parents))
        return len(self.labels) - 1

    def graph(self) -> Graph:
        return Graph(tuple(self.labels), np.array(self.starts), np.array(self.parents, np.int64))


def from_edges(edges: Iterable[tuple[Hashable, Hashable]], nodes: Iterable[Hashable] | None = None) -> Graph:
    """The graph of edges (parent, child); labels are the nodes' names as text.

    nodes: all of them, if there are any without edges, or if an edge to another one is a mistake. Nodes keep the order
    in which they are named first, as far as parents come before their children.

    Raises GraphError for a cycle (naming it), an edge to an unknown node, a node or an edge given twice, and no node.
    """
    known = [_name(node) for node in nodes] if nodes is not None else None
    if known is not None and len(set(known)) < len(known):
        raise GraphError(f"node {_first_twice(known)!r} is given twice: name each node once")
    numbers: dict[Hashable, int] = {name: i for i, name in enumerate(known or ())}
    parents: list[dict[int, None]] = [{} for _ in numbers]
    for edge in edges:
        if not isinstance(edge, tuple | list) or len(edge) != 2:
            raise GraphError(f"an edge is a pair (parent, child), got {edge!r}")
        for name in map(_name, edge):
            if name not in numbers:
                if known is not None:
                    raise GraphError(f"edge {tuple(edge)!r} names the unknown node {name!r}: list it in nodes")
                numbers[name] = len(numbers)
                parents.append({})
        parent, child = (numbers[name] for name in edge)
        if parent in parents[child]:
            raise GraphError(f"edge {tuple(edge)!r} is given twice: name each edge once")
        parents[child][parent] = None
    order = _topological(parents, list(numbers))
    place = {old: new for new, old in enumerate(order)}
    names, builder = [str(name) for name in numbers], Builder()
    for old in order:
        builder.node(names[old], *(place[p] for p in parents[old]))
    return builder.graph()


def from_networkx(graph: Any) -> Graph:
    """The graph of a networkx.DiGraph. Raises GraphError as from_edges, and for graphs without direction."""
    if not graph.is_directed():
        raise GraphError(
            "the networkx graph has no direction: give a networkx.DiGraph whose edges lead from parent to child"
        )
    return from_edges(graph.edges(), graph.nodes())


def _topological(parents: list[dict[int, None]], names: list[Hashable]) -> list[int]:
    """An order with parents first, by number where there is a choice. Raises GraphError, naming a cycle, if none is."""
    children: list[list[int]] = [[] for _ in parents]
    for v, above in enumerate(parents):
        for p in above:
            children[p].append(v)
    missing = [len(above) for above in parents]
    ready = [v for v, count in enumerate(missing) if not count]  # ascending, so a heap
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
    """Nodes from parent to child around a cycle, the first again at the end. Nodes that miss a parent have one."""
    v, seen = next(v for v, count in enumerate(missing) if count), {}
    while v not in seen:
        seen[v] = len(seen)
        v = next(p for p in parents[v] if missing[p])
    walked = list(seen)[seen[v] :]
    return [v, *walked[:0:-1], v]


def _name(node: Hashable) -> Hashable:
    try:
        hash(node)
    except TypeError:
        raise GraphError(f"a node's name must be a text, a number or a tuple of them, got {node!r}") from None
    return node


def _first_twice(names: Iterable[Hashable]) -> Hashable:
    """The first, in sorted order of text, of the names that are given more than once."""
    return min((name for name, times in Counter(names).items() if times > 1), key=str)
