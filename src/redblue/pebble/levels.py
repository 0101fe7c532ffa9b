"""Extend a game of two levels to more: each further level serves the loads and stores of the level before it."""

from __future__ import annotations

import heapq

import numpy as np

from redblue.base.errors import RedblueError
from redblue.pebble.graph import Graph
from redblue.pebble.moves import DELETE, LOAD, STORE, Game
from redblue.pebble.rules import Rules


def deepen(graph: Graph, game: Game, rules: Rules) -> Game:
    """Extend a game of two levels to all levels of the rules.

    Each further level evicts the word whose next use is furthest away (Belady), and writes back a word that is still
    needed.
    Raises RedblueError for a level that holds fewer words than one node has.
    """
    for level, further in enumerate(rules.further, start=1):
        words = rules.words_of(graph)
        if words.max() > further.words:
            raise RedblueError(
                f"level {level} holds {further.words} words, and node {graph.labels[int(words.argmax())]!r} has "
                f"{words.max()}: give the level at least as many"
            )
        game = _Level(graph, rules, level).play(game)
    return game


class _Level:
    """One level between the red pebbles and slow memory, driven by the loads and stores of the level above."""

    def __init__(self, graph: Graph, rules: Rules, level: int) -> None:
        self.level, self.capacity = level, rules.further[level - 1].words
        self.words = rules.words_of(graph).tolist()
        self.below = rules.starts_blue(graph).tolist()  # per node: whether the level below holds it
        self.sink = (graph.out_degree == 0).tolist()
        self.sinks_end_blue = rules.sinks_end_blue
        self.resident: set[int] = set()
        self.held_words = 0
        self.next_use: list[int] = []  # per node: index of the next load from above; `never` if there is none
        self.queue: list[tuple[int, int]] = []  # heap of (-next use, node); stale entries are skipped when popped
        self.moves: list[tuple[int, int, int, int]] = []

    def play(self, game: Game) -> Game:
        """Return the game with this level's moves inserted."""
        loads = (game.kinds == LOAD) & (game.levels == self.level - 1)
        stores = (game.kinds == STORE) & (game.levels == self.level - 1)
        never = len(game)
        following, upcoming = [never] * never, [never] * len(self.words)  # next load: after each move, and per node
        for i in reversed(np.flatnonzero(loads | stores).tolist()):
            v = int(game.nodes[i])
            following[i] = upcoming[v]
            if loads[i]:
                upcoming[v] = i
        self.never, self.next_use = never, upcoming
        for i, move in enumerate(game):
            if loads[i]:
                if move.node not in self.resident:
                    self._admit(move.node)
                    self._record(LOAD, move.node)
            elif stores[i] and move.node not in self.resident:
                self._admit(move.node)
            self.moves.append(move)
            if loads[i] or stores[i]:
                self._reschedule(move.node, following[i])
        return Game.of(self.moves)

    def _reschedule(self, v: int, next_use: int) -> None:
        """Set the next use of v, which the level above has just used; evict v if there is none."""
        self.next_use[v] = next_use
        # An output that need not end in slow memory keeps its only pebble here.
        stays = self.sink[v] and not self.below[v] and not self.sinks_end_blue
        if next_use == self.never and not stays:
            self._evict(v)
        else:
            heapq.heappush(self.queue, (-next_use, v))

    def _admit(self, v: int) -> None:
        """Take v in, after evicting as many words as needed."""
        while self.held_words + self.words[v] > self.capacity:
            negative_use, victim = heapq.heappop(self.queue)
            if victim in self.resident and self.next_use[victim] == -negative_use:
                self._evict(victim)
        self.resident.add(v)
        self.held_words += self.words[v]

    def _evict(self, v: int) -> None:
        """Remove v; first store it if it is still needed and the level below does not hold it."""
        if not self.below[v] and (self.next_use[v] < self.never or self.sink[v]):
            self._record(STORE, v)
            self.below[v] = True
        self._record(DELETE, v)
        self.resident.discard(v)
        self.held_words -= self.words[v]

    def _record(self, kind: int, v: int) -> None:
        self.moves.append((kind, v, -1, self.level))
