"""A second, slow implementation of the pebble game's rules, on sets of pebbles, as the papers state them."""

from __future__ import annotations

from hypothesis import strategies as st

from redblue.pebble import COMPUTE, DELETE, LOAD, STORE, Further, Game, Graph, Move, Rules, random_graph


class Illegal(Exception):
    pass


def need(legal: bool) -> None:
    if not legal:
        raise Illegal


class Plain:
    """A game with two or more levels of memory, and with or without weights."""

    def __init__(self, graph: Graph, red: int, rules: Rules) -> None:
        self.graph, self.rules = graph, rules
        self.capacities = [red, *(level.words for level in rules.further)]
        self.pebbles = [set() for _ in range(rules.levels)]
        sources = set(graph.sources.tolist())
        self.inputs = sources - set(rules.constants) if rules.inputs_start_blue else set()
        self.pebbles[-1] |= self.inputs
        self.computed, self.marked, self.dark = set(), set(), set()
        self.cost = 0

    def words(self, node: int) -> int:
        return self.rules.weights[node] if self.rules.weights else 1

    def put(self, node: int, level: int) -> None:
        self.pebbles[level].add(node)
        if level < len(self.capacities):
            need(sum(map(self.words, self.pebbles[level])) <= self.capacities[level])

    def move(self, kind: int, node: int, parent: int, level: int) -> None:
        need(0 <= node < self.graph.n and 0 <= level < len(self.capacities))
        if kind == LOAD:
            need(node in self.pebbles[level + 1])
            self.put(node, level)
            self.cost += self.rules.load_costs[level] * self.words(node)
        elif kind == STORE:
            need(node in self.pebbles[level])
            self.put(node, level + 1)
            self.dark.discard(node)
            self.cost += self.rules.store_costs[level] * self.words(node)
        elif kind == DELETE:
            need(node in self.pebbles[level])
            if node in self.dark:
                children = {(node, c) for c in self.graph.children_of(node).tolist()}
                need(
                    children <= self.marked and self.finished(node) and not (self.rules.sinks_end_blue and not children)
                )
                self.dark.discard(node)
            self.pebbles[level].discard(node)
        else:
            need(kind == COMPUTE and level == 0)
            parents = set(self.graph.parents_of(node).tolist())
            need(bool(parents) or node not in self.inputs)
            if self.rules.partial and parents:
                self.aggregate(node, parent)
            else:
                need(not (self.rules.partial and parent >= 0))
                need(parents <= self.pebbles[0])
                need(self.rules.name == "red-blue" or node not in self.computed)
                if parent >= 0:
                    need(self.rules.sliding and parent in parents)
                    self.pebbles[0].discard(parent)
                self.put(node, 0)
                if self.rules.partial:
                    self.dark.add(node)
            self.computed.add(node)
            self.cost += self.rules.compute_cost

    def aggregate(self, node: int, parent: int) -> None:
        need(parent in self.graph.parents_of(node) and (parent, node) not in self.marked)
        need(self.finished(parent) and parent in self.pebbles[0])
        need(node in self.pebbles[0] or node not in self.pebbles[1])
        self.put(node, 0)
        self.pebbles[1].discard(node)
        self.dark.add(node)
        self.marked.add((parent, node))

    def finished(self, node: int) -> bool:
        return all((p, node) in self.marked for p in self.graph.parents_of(node).tolist())

    @property
    def done(self) -> bool:
        where = self.pebbles[-1] if self.rules.sinks_end_blue else set().union(*self.pebbles)
        every = not self.rules.partial or all(self.finished(v) for v in range(self.graph.n))
        return every and set(self.graph.sinks.tolist()) <= where

    def moves(self) -> list[Move]:
        """List every legal move, by trying all moves."""
        legal_moves = []
        for kind in range(4):
            for node in range(self.graph.n):
                parents = [-1, *self.graph.parents_of(node).tolist()] if kind == COMPUTE else [-1]
                for parent in parents:
                    for level in range(len(self.capacities)):
                        move = Move(kind, node, parent, level)
                        if not self.copy().refuses(move):
                            legal_moves.append(move)
        return legal_moves

    def refuses(self, move: Move) -> bool:
        try:
            self.move(*move)
        except Illegal:
            return True
        return False

    def copy(self) -> Plain:
        other = Plain(self.graph, self.capacities[0], self.rules)
        other.pebbles = [set(level) for level in self.pebbles]
        other.computed, other.marked, other.dark = set(self.computed), set(self.marked), set(self.dark)
        return other


@st.composite
def graphs(draw: st.DrawFn, most: int = 9) -> Graph:
    return random_graph(
        draw(st.integers(0, 10**6)),
        draw(st.integers(1, most)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 3)),
    )


@st.composite
def rule_sets(draw: st.DrawFn, graph: Graph, least_words: int = 1) -> Rules:
    """Draw any rules for the graph. least_words: the fewest words of a further level."""
    name = draw(st.sampled_from(["red-blue", "one-shot", "partial"]))
    partial = name == "partial"
    sources = graph.sources.tolist()
    return Rules(
        name,
        inputs_start_blue=draw(st.booleans()),
        sinks_end_blue=draw(st.booleans()),
        sliding=not partial and draw(st.booleans()),
        load_cost=draw(st.integers(0, 3)),
        store_cost=draw(st.integers(0, 3)),
        compute_cost=draw(st.integers(0, 3)),
        constants=draw(st.lists(st.sampled_from(sources), unique=True)),
        weights=draw(st.none() | st.lists(st.integers(1, 3), min_size=graph.n, max_size=graph.n)),
        further=()
        if partial
        else draw(st.lists(st.builds(Further, st.integers(least_words, 9), st.just(2), st.integers(0, 3)), max_size=2)),
    )


def naive_game(graph: Graph) -> Game:
    """Return a game that is legal with the fewest red pebbles: load the parents, compute, store, delete."""
    moves = []
    for v in range(graph.n):
        parents = graph.parents_of(v).tolist()
        if parents:
            moves += [Move(LOAD, p) for p in parents]
            moves += [Move(COMPUTE, v), Move(STORE, v)]
            moves += [Move(DELETE, p) for p in (*parents, v)]
    return Game.of(moves)
