"""The machine that writes down what it does: the graph of every word it computes, and the moves of the pebble game.

One load per word loaded, one store per word stored, and for each word that a tile is given the computations it takes:
a chain of multiply-adds for each word of a product, of additions for a sum, each one node; whatever else is done to a
word joins the last of them, and without a sum is one node. A tile's word is red until it is overwritten or freed; what
is in between two computations is red beside the tiles: at most 3 words at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from redblue.machine import words
from redblue.machine.base import Machine
from redblue.machine.errors import MachineError
from redblue.machine.values import Region, Tile, Value
from redblue.machine.words import NONE, Computed, Summed
from redblue.pebble.graph import Builder, Graph
from redblue.pebble.moves import COMPUTE, DELETE, LOAD, STORE, Game

SPARE = 3  # words that may be red beside those that tiles hold


class Played(NamedTuple):
    """What a run wrote: constants are the nodes that are stored without being computed from anything."""

    graph: Graph
    moves: Game
    constants: tuple[int, ...]


class Tracing(Machine):
    """Runs a schedule on words that remember what they were computed from."""

    def __init__(self, capacity: int | None = None, most_moves: float = float("inf")) -> None:
        super().__init__(capacity, most_moves)
        self._names: list[str] = []  # of each node: where it lies in slow memory, or the tile it was made for
        self._stored: dict[int, str] = {}  # nodes that were stored, and where last
        self._inputs = 0  # the first nodes
        self._parents: list[tuple[int, ...]] = []
        self._holders: list[int] = []  # per node: tiles' words, and computations under way, that hold it red
        self._kinds, self._nodes = array("b"), array("q")
        self._constants: list[float] = []
        self._constant_nodes: dict[int, int] = {}  # node -> the constant that it is
        self._tiles: dict[int, tuple[str, np.ndarray]] = {}  # storage by identity, with the name of its tile
        self._name = ""

    def played(self) -> Played:
        """The graph and the game so far, without what was computed and never led to a stored word."""
        live = bytearray(len(self._parents))
        live[: self._inputs] = b"\1" * self._inputs
        for v in reversed(range(len(live))):
            if live[v] or v in self._stored:
                live[v] = 1
                for p in self._parents[v]:
                    live[p] = 1
        number = np.cumsum(np.frombuffer(live, np.uint8), dtype=np.int64) - 1
        builder = Builder()
        for v, label in self._labels(live):
            builder.node(label, *(int(number[p]) for p in self._parents[v]))
        kinds, nodes = np.frombuffer(self._kinds, np.int8), np.frombuffer(self._nodes, np.int64)
        kept = np.frombuffer(live, bool)[nodes]
        game = Game.from_arrays(kinds[kept], number[nodes[kept]])
        return Played(builder.graph(), game, tuple(int(number[v]) for v in self._constant_nodes))

    def _labels(self, live: bytearray) -> Iterator[tuple[int, str]]:
        """Each live node's name: its place in slow memory (an earlier word there: @ and its number), or tile#number."""
        last = {place: v for v, place in self._stored.items()}
        count: dict[str, int] = {}
        for v, name in enumerate(self._names):
            if not live[v]:
                continue
            place = name if v < self._inputs else self._stored.get(v, name)
            if v < self._inputs or last.get(place) == v:
                yield v, place
            else:
                count[place] = count.get(place, 0) + 1
                yield v, f"{place}{'@' if v in self._stored else '#'}{count[place]}"

    # Nodes ------------------------------------------------------------------------------------
    def _new_node(self, name: str, parents: tuple[int, ...] = ()) -> int:
        self._names.append(name)
        self._parents.append(parents)
        self._holders.append(0)
        return len(self._parents) - 1

    def _move(self, kind: int, node: int) -> None:
        self._kinds.append(kind)
        self._nodes.append(node)

    def _check_held(self, node: int) -> None:
        if not self._holders[node]:
            raise MachineError(
                "a word was overwritten while what is computed from it was still being written: put the value into a "
                "tile of its own with new()"
            )

    def _hold(self, node: int) -> int:
        """The node, held once more."""
        self._check_held(node)
        self._holders[node] += 1
        return node

    def _compute(self, parents: list[int]) -> int:
        for p in parents:
            self._check_held(p)
        node = self._new_node(self._name, tuple(dict.fromkeys(parents)))
        self._move(COMPUTE, node)
        self._holders[node] = 1
        return node

    def _release(self, word: int) -> None:
        if word < 0:
            return
        self._holders[word] -= 1
        if not self._holders[word]:
            self._move(DELETE, word)

    def _constant(self, number: float) -> int:
        """The word that stands for a constant."""
        for i, known in enumerate(self._constants):
            if known == number or (known != known and number != number):
                return NONE - 1 - i
        self._constants.append(number)
        return NONE - len(self._constants)

    # What a machine decides -------------------------------------------------------------------
    def slow_input(self, name: str, shape: tuple[int, ...], data: np.ndarray | None) -> np.ndarray:
        places = product(*map(range, shape))
        nodes = [self._new_node(f"{name}[{','.join(map(str, place))}]") for place in places]
        self._inputs = len(self._parents)
        return np.array(nodes, np.int64).reshape(shape)

    def slow_storage(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.full(shape, NONE)

    def new(self, name: str, value: Value) -> Tile:
        self._name = name
        return super().new(name, value)

    def full(self, name: str, shape: tuple[int, ...], number: float) -> Tile:
        self._name = name
        return super().full(name, shape, number)

    def blank(self, shape: tuple[int, ...]) -> np.ndarray:
        return self._storage(self._name, np.full(shape, self._constant(float("nan"))))

    def _storage(self, name: str, data: np.ndarray) -> np.ndarray:
        self._tiles[id(data)] = name, data
        return data

    def free(self, *tiles: Tile) -> None:
        super().free(*tiles)
        for tile in tiles:
            for word in tile.data.ravel().tolist():
                self._release(word)
            self._tiles.pop(id(tile.data), None)

    def fetch(self, region: Region) -> np.ndarray:
        assert region.array.data is not None
        data = region.array.data[region.slices].copy()
        found = []
        for node in data.ravel().tolist():
            self._move(LOAD, node)
            self._holders[node] += 1
            if node in self._constant_nodes:  # from here on a constant again, which nothing needs red
                self._release(node)
                node = self._constant_nodes[node]
            found.append(node)
        data[...] = np.array(found, np.int64).reshape(data.shape)
        return self._storage(region.array.name, data)

    def keep(self, region: Region, data: np.ndarray) -> None:
        assert region.array.data is not None
        firsts = [part.start for part in region.slices] + [0] * (len(region.shape) - len(region.slices))
        kept = []
        for place, word in zip(np.ndindex(region.shape), data.ravel().tolist(), strict=True):
            node = word
            if word < 0:
                node = self._new_node("")
                self._constant_nodes[node] = word
                self._move(COMPUTE, node)
            self._move(STORE, node)
            if word < 0:
                self._move(DELETE, node)
            at = ",".join(str(first + step) for first, step in zip(firsts, place, strict=True))
            self._stored[node] = f"{region.array.name}[{at}]"
            kept.append(node)
        region.array.data[region.slices] = np.array(kept, np.int64).reshape(region.shape)

    def elementwise(self, ufunc: np.ufunc, inputs: list[Any]) -> Computed:
        return words.elementwise(ufunc, [self._computed(x) for x in inputs])

    def reduce(self, ufunc: np.ufunc, data: Any, axis: int) -> Computed:
        return words.reduce(ufunc, self._computed(data), axis)

    def product(self, a: np.ndarray, b: np.ndarray) -> Computed:
        self.flops += 2 * a.shape[0] * a.shape[1] * b.shape[1]
        return self.reduce(np.add, self.elementwise(np.multiply, [a[:, None, :], b.T[None, :, :]]), 2)

    def select(self, pairs: Any, rows: range, cols: range, data: Any, otherwise: float) -> Computed:
        return words.select(pairs.dense(rows, cols), self._computed(data), otherwise)

    def _computed(self, x: Any) -> Computed:
        if isinstance(x, Computed):
            return x
        return words.of_words(x, self._constants) if isinstance(x, np.ndarray) else words.of_number(x)

    def assign(self, data: np.ndarray, key: Any, value: Any) -> None:
        target = data[key]
        self._name = self._tiles[id(data if data.base is None else data.base)][0]
        value = self._computed(value).broadcast(target.shape)
        flat = value.each(lambda array: array.reshape(-1))
        numbers, pure = flat.numbers.tolist(), flat.pure.tolist()
        nodes = [array.tolist() for array in flat.nodes]
        chains = [_Chain(s) for s in flat.sums]
        found = []
        for i, old in enumerate(target.ravel().tolist()):
            own = [array[i] for array in nodes if array[i] != NONE]
            sums = [chain for chain in chains if chain.index[i] != NONE]
            found.append(self._word(i, numbers[i], pure[i], own, sums))
            self._release(old)
        target[...] = np.array(found, np.int64).reshape(target.shape)

    def _word(self, i: int, number: float, pure: bool, own: list[int], sums: list[_Chain]) -> int:
        """The word for place i, held."""
        if not own and not sums:
            return self._constant(number)
        if pure and not sums:
            return self._hold(own[0])
        partial = [self._sum(chain, i, [])[0] for chain in sums[:-1]]
        if sums:
            total, last = self._sum(sums[-1], i, [] if pure else own + partial)
        else:
            total, last = NONE, False
        if not pure and not last:
            word = self._compute([*own, *partial, *([total] if total != NONE else [])])
            self._release(total)
            total = word
        for word in partial:
            self._release(word)
        return total

    def _sum(self, chain: _Chain, i: int, also: list[int]) -> tuple[int, bool]:
        """A chain's last node, held, and whether the nodes of `also` have joined its parents."""
        total = chain.start[i]
        if total != NONE:
            self._hold(total)
        terms = chain.terms(chain.index[i])
        for at, (pure, parents) in enumerate(terms):
            if pure and total == NONE:
                total = self._hold(parents[0])
                continue
            before, last = ([total] if total != NONE else []), at == len(terms) - 1
            total = self._compute([*before, *parents, *(also if last else [])])
            for word in before:
                self._release(word)
            if last:
                return total, True
        return total, False


class _Chain:
    """What one sum of a computed value needs, as lists."""

    def __init__(self, summed: Summed) -> None:
        self.index, self.start = summed.index.tolist(), summed.start.tolist()
        self._of = summed.terms.of

    def terms(self, row: int) -> list[tuple[bool, list[int]]]:
        """Per term that is no constant: whether it is one word itself, and the words it is computed from."""
        columns = [array[row].tolist() for array in self._of.nodes]
        found = zip(self._of.pure[row].tolist(), *columns, strict=True)
        return [(pure, own) for pure, *parents in found if (own := [p for p in parents if p != NONE])]
