"""More than two levels of memory: what one level asks for, the next one holds or fetches in its turn."""

from __future__ import annotations

import heapq

import numpy as np

from redblue.base.errors import RedblueError
from redblue.pebble.graph import Graph
from redblue.pebble.moves import DELETE, LOAD, STORE, Game
from redblue.pebble.rules import Rules


def deepen(graph: Graph, game: Game, rules: Rules) -> Game:
    """A game of two levels, played on all of the rules' levels: each evicts by Belady, and writes back what is needed.

    Raises RedblueError for a level that holds fewer words than a node has.
    """
    for level, further in enumerate(rules.further, start=1):
        words = rules.words_of(graph)
        if words.max() > further.words:
            raise RedblueError(
                f"level {level} holds {further.words} words, and node {graph.labels[int(words.argmax())]!r} has "
                f"{words.max()}: give it at least as many"
            )
        game = _Level(graph, rules, level).play(game)
    return game


class _Level:
    """One level between red and slow memory, asked by the loads and stores of the level above."""

    def __init__(self, graph: Graph, rules: Rules, level: int) -> None:
        self.level, self.capacity = level, rules.further[level - 1].words
        self.words = rules.words_of(graph).tolist()
        self.below = rules.starts_blue(graph).tolist()  # whether the levels below hold the word
        self.sink = (graph.out_degree == 0).tolist()
        self.sinks_end_blue = rules.sinks_end_blue
        self.here: set[int] = set()
        self.held = 0
        self.due: list[int] = []  # per node: when it is loaded next; `never` if it is not
        self.queue: list[tuple[int, int]] = []  # (-due, node), perhaps out of date
        self.rows: list[tuple[int, int, int, int]] = []

    def play(self, game: Game) -> Game:
        loads = (game.kinds == LOAD) & (game.levels == self.level - 1)
        stores = (game.kinds == STORE) & (game.levels == self.level - 1)
        never = len(game)
        following, after = [never] * never, [never] * len(self.words)
        for i in reversed(np.flatnonzero(loads | stores).tolist()):
            v = int(game.nodes[i])
            following[i] = after[v]
            if loads[i]:
                after[v] = i
        self.never, self.due = never, after
        for i, move in enumerate(game):
            if loads[i]:
                if move.node not in self.here:
                    self._take(move.node)
                    self._move(LOAD, move.node)
            elif stores[i] and move.node not in self.here:
                self._take(move.node)
            self.rows.append(move)
            if loads[i] or stores[i]:
                self._ask(move.node, following[i])
        return Game.of(self.rows)

    def _ask(self, v: int, due: int) -> None:
        """v was asked for: it is due again then, or at an end."""
        self.due[v] = due
        lasts = self.sink[v] and not self.below[v] and not self.sinks_end_blue  # its only pebble, which may stay here
        if due == self.never and not lasts:
            self._drop(v)
        else:
            heapq.heappush(self.queue, (-due, v))

    def _take(self, v: int) -> None:
        while self.held + self.words[v] > self.capacity:
            due, victim = heapq.heappop(self.queue)
            if victim in self.here and self.due[victim] == -due:
                self._drop(victim)
        self.here.add(v)
        self.held += self.words[v]

    def _drop(self, v: int) -> None:
        if not self.below[v] and (self.due[v] < self.never or self.sink[v]):
            self._move(STORE, v)
            self.below[v] = True
        self._move(DELETE, v)
        self.here.discard(v)
        self.held -= self.words[v]

    def _move(self, kind: int, v: int) -> None:
        self.rows.append((kind, v, -1, self.level))
