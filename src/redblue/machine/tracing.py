"""The tracing machine: records a schedule's run as a computation graph and the moves of a pebble game.

- Each word loaded is one load, and each word stored is one store.
- Each word written to a tile is computed by one or more nodes. A word of a matrix product is a chain of multiply-adds,
  and a word of a sum is a chain of additions, with one node per term. All other operations on the word are part of the
  chain's last node; without a chain they are one node.
- A word of a tile is red until it is overwritten or freed. The partial results of a chain are red in addition to the
  tiles: at most SPARE words at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from redblue.machine import dependencies
from redblue.machine.base import Machine
from redblue.machine.dependencies import NONE, Computed, Sums
from redblue.machine.errors import MachineError
from redblue.machine.values import Region, Tile, Value
from redblue.pebble.graph import Builder, Graph
from redblue.pebble.moves import COMPUTE, DELETE, LOAD, STORE, Game

SPARE = 3  # words that may be red in addition to the words of the tiles


class Recording(NamedTuple):
    """The graph and the moves of a run. constants: nodes that were stored and are computed from nothing."""

    graph: Graph
    moves: Game
    constants: tuple[int, ...]


class Tracing(Machine):
    """Represents each word by the number of a graph node, and records the graph and the moves of a run."""

    def __init__(self, capacity: int | None = None, max_moves: float = float("inf")) -> None:
        super().__init__(capacity, max_moves)
        self._names: list[str] = []  # per node: its place in slow memory (inputs), or the tile it was computed for
        self._stored: dict[int, str] = {}  # stored node -> its latest place in slow memory
        self._inputs = 0  # number of inputs, which are the first nodes
        self._parents: list[tuple[int, ...]] = []
        self._holders: list[int] = []  # per node: number of tile words and unfinished computations that keep it red
        self._kinds, self._nodes = array("b"), array("q")  # kind and node of each move
        self._constants: list[float] = []  # table of constants
        self._constant_nodes: dict[int, int] = {}  # stored constant: node -> code of the constant
        self._tiles: dict[int, tuple[str, np.ndarray]] = {}  # id of a tile's storage -> (name of the tile, storage)
        self._name = ""  # name of the tile that is being written, which new nodes take

    def recording(self) -> Recording:
        """Return the graph and the moves so far, with only the inputs and the nodes that stored words depend on."""
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
        is_live = np.frombuffer(live, bool)[nodes]
        game = Game.from_arrays(kinds[is_live], number[nodes[is_live]])
        return Recording(builder.graph(), game, tuple(int(number[v]) for v in self._constant_nodes))

    def _labels(self, live: bytearray) -> Iterator[tuple[int, str]]:
        """Yield number and label of each live node.

        The label is the node's place in slow memory. Earlier words of the same place get "@" and a count; words that
        were never stored get the name of their tile, "#" and a count.
        """
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

    # Nodes and moves ------------------------------------------------------------------------------------
    def _new_node(self, name: str, parents: tuple[int, ...] = ()) -> int:
        self._names.append(name)
        self._parents.append(parents)
        self._holders.append(0)
        return len(self._parents) - 1

    def _move(self, kind: int, node: int) -> None:
        self._kinds.append(kind)
        self._nodes.append(node)

    def _check_held(self, node: int) -> None:
        """Raise MachineError if the node is no longer red, although its value is still being used."""
        if not self._holders[node]:
            raise MachineError(
                "a word was overwritten while a value computed from it was still being written: put the value into a "
                "tile of its own with new()"
            )

    def _hold(self, node: int) -> int:
        """Keep the node red for one more holder, and return it."""
        self._check_held(node)
        self._holders[node] += 1
        return node

    def _compute(self, parents: list[int]) -> int:
        """Compute a new node, held once, and return it."""
        for p in parents:
            self._check_held(p)
        node = self._new_node(self._name, tuple(dict.fromkeys(parents)))
        self._move(COMPUTE, node)
        self._holders[node] = 1
        return node

    def _release(self, word: int) -> None:
        """Give up one holder of a word; without holders the node's red pebble is deleted. Constants need no pebble."""
        if word < 0:
            return
        self._holders[word] -= 1
        if not self._holders[word]:
            self._move(DELETE, word)

    def _constant(self, number: float) -> int:
        """Return the code of a constant, which is added to the table if it is new."""
        for i, known in enumerate(self._constants):
            if known == number or (known != known and number != number):
                return NONE - 1 - i
        self._constants.append(number)
        return NONE - len(self._constants)

    # The abstract methods of a machine --------------------------------------------------------
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

    def allocate(self, shape: tuple[int, ...]) -> np.ndarray:
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

    def read_region(self, region: Region) -> np.ndarray:
        assert region.array.data is not None
        data = region.array.data[region.slices].copy()
        words = []
        for node in data.ravel().tolist():
            self._move(LOAD, node)
            self._holders[node] += 1
            if node in self._constant_nodes:  # the word is a constant again, which needs no red pebble
                self._release(node)
                node = self._constant_nodes[node]
            words.append(node)
        data[...] = np.array(words, np.int64).reshape(data.shape)
        return self._storage(region.array.name, data)

    def write_region(self, region: Region, data: np.ndarray) -> None:
        assert region.array.data is not None
        firsts = [part.start for part in region.slices] + [0] * (len(region.shape) - len(region.slices))
        nodes = []
        for place, word in zip(np.ndindex(region.shape), data.ravel().tolist(), strict=True):
            node = word
            if word < 0:
                node = self._new_node("")
                self._constant_nodes[node] = word
                self._move(COMPUTE, node)
            self._move(STORE, node)
            if word < 0:
                self._move(DELETE, node)
            indices = ",".join(str(first + step) for first, step in zip(firsts, place, strict=True))
            self._stored[node] = f"{region.array.name}[{indices}]"
            nodes.append(node)
        region.array.data[region.slices] = np.array(nodes, np.int64).reshape(region.shape)

    def elementwise(self, ufunc: np.ufunc, inputs: list[Any]) -> Computed:
        return dependencies.elementwise(ufunc, [self._computed(x) for x in inputs])

    def reduce(self, ufunc: np.ufunc, data: Any, axis: int) -> Computed:
        return dependencies.reduce(ufunc, self._computed(data), axis)

    def product(self, a: np.ndarray, b: np.ndarray) -> Computed:
        self.flops += 2 * a.shape[0] * a.shape[1] * b.shape[1]
        return self.reduce(np.add, self.elementwise(np.multiply, [a[:, None, :], b.T[None, :, :]]), 2)

    def select(self, pairs: Any, rows: range, cols: range, data: Any, otherwise: float) -> Computed:
        return dependencies.select(pairs.dense(rows, cols), self._computed(data), otherwise)

    def _computed(self, x: Any) -> Computed:
        """Convert words of a tile or a plain number to Computed."""
        if isinstance(x, Computed):
            return x
        return dependencies.of_words(x, self._constants) if isinstance(x, np.ndarray) else dependencies.of_number(x)

    def assign(self, data: np.ndarray, key: Any, value: Any) -> None:
        target = data[key]
        self._name = self._tiles[id(data if data.base is None else data.base)][0]
        value = self._computed(value).broadcast(target.shape)
        flat = value.map(lambda array: array.reshape(-1))
        constants, is_copy = flat.constants.tolist(), flat.is_copy.tolist()
        nodes = [array.tolist() for array in flat.nodes]
        chains = [_Chain(s) for s in flat.sums]
        words = []
        for i, old in enumerate(target.ravel().tolist()):
            own = [array[i] for array in nodes if array[i] != NONE]
            sums = [chain for chain in chains if chain.row[i] != NONE]
            words.append(self._word(i, constants[i], is_copy[i], own, sums))
            self._release(old)
        target[...] = np.array(words, np.int64).reshape(target.shape)

    def _word(self, i: int, constant: float, is_copy: bool, own: list[int], sums: list[_Chain]) -> int:
        """Compute word i of a value, and return it with one holder.

        own, sums: the nodes and the chains that the word depends on.
        """
        if not own and not sums:
            return self._constant(constant)
        if is_copy and not sums:
            return self._hold(own[0])
        partial = [self._sum(chain, i, [])[0] for chain in sums[:-1]]
        if sums:
            total, joined = self._sum(sums[-1], i, [] if is_copy else own + partial)
        else:
            total, joined = NONE, False
        if not is_copy and not joined:
            word = self._compute([*own, *partial, *([total] if total != NONE else [])])
            self._release(total)
            total = word
        for word in partial:
            self._release(word)
        return total

    def _sum(self, chain: _Chain, i: int, extra_parents: list[int]) -> tuple[int, bool]:
        """Compute the chain of word i, whose last node also gets `extra_parents`.

        Returns the last node, with one holder, and whether it got the extra parents.
        """
        total = chain.start[i]
        if total != NONE:
            self._hold(total)
        terms = chain.terms(chain.row[i])
        for position, (is_copy, parents) in enumerate(terms):
            if is_copy and total == NONE:
                total = self._hold(parents[0])
                continue
            previous, last = ([total] if total != NONE else []), position == len(terms) - 1
            total = self._compute([*previous, *parents, *(extra_parents if last else [])])
            for word in previous:
                self._release(word)
            if last:
                return total, True
        return total, False


class _Chain:
    """The sums of a computed value, as lists: for each word its row and its start."""

    def __init__(self, sums: Sums) -> None:
        self.row, self.start = sums.row.tolist(), sums.start.tolist()
        self._terms = sums.reduction.terms

    def terms(self, row: int) -> list[tuple[bool, list[int]]]:
        """List the terms of a row that are not constants: whether each is a copy of a node, and its nodes."""
        columns = [array[row].tolist() for array in self._terms.nodes]
        terms = zip(self._terms.is_copy[row].tolist(), *columns, strict=True)
        return [(is_copy, nodes) for is_copy, *parents in terms if (nodes := [p for p in parents if p != NONE])]
