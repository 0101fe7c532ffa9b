"""The rules of the game as data: who may compute when, what moves cost, how many levels of memory there are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import whole_number
from redblue.catalogue.memories import Memory
from redblue.catalogue.memories import memory as find_memory
from redblue.compiled import _core
from redblue.pebble.graph import Graph
from redblue.pebble.whole import LARGEST, is_whole

NAMES = ("red-blue", "one-shot", "partial")
MOST_LEVELS = 7  # of memory, slow memory included


class Further(NamedTuple):
    """A level of memory between red and slow memory: its words, and what a word costs to and from below."""

    words: int
    load_cost: float = 1
    store_cost: float = 1


@dataclass(frozen=True)
class Rules:
    """What is allowed, and what it costs.

    name: "red-blue" (Hong & Kung, STOC 1981: a node is computed when all its parents are red, as often as one likes),
    "one-shot" (each node is computed at most once), or "partial" (PRBP; Papp, Sobczyk, Yzelman, SPAA 2025,
    arXiv 2506.10854: a node's parents are aggregated one by one, each edge once. A pebble on an aggregate that slow
    memory does not hold is dark red: it can be taken off only once every edge out of the node is marked).
    inputs_start_blue: sources lie in slow memory from the start, and cannot be computed; else they are computed freely.
    sinks_end_blue: every sink must end in slow memory; else it must end with a pebble of either colour.
    sliding: a red pebble may slide from a parent to the node that is computed from it. Not with "partial".
    load_cost, store_cost: per word moved between red and the next level. compute_cost: per node computed (with
    "partial": per edge marked).
    constants: sources that are no inputs: they do not start blue, and are computed from nothing.
    weights: words of each node; 1 each if None. Words count for capacities and for costs of loads and stores.
    further: levels between the red pebbles' and slow memory, nearest first (Savage's memory hierarchy game, COCOON
    1995). A word moves between neighbouring levels only, and may lie in several. Not with "partial".

    Raises RedblueError, naming the field, for what cannot be played.
    """

    name: str = "red-blue"
    inputs_start_blue: bool = True
    sinks_end_blue: bool = True
    sliding: bool = False
    load_cost: float = 1
    store_cost: float = 1
    compute_cost: float = 0
    constants: tuple[int, ...] = ()
    weights: tuple[int, ...] | None = None
    further: tuple[Further, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise RedblueError(f"rules must be {', '.join(map(repr, NAMES))} or Rules, got {self.name!r}")
        for field in ("load_cost", "store_cost", "compute_cost"):
            _cost(field, getattr(self, field))
        for field in ("inputs_start_blue", "sinks_end_blue", "sliding"):
            _flag(field, getattr(self, field))
        if self.weights is not None:
            weights = [whole_number(f"weights[{v}]", w) for v, w in enumerate(_listed("weights", self.weights))]
            object.__setattr__(self, "weights", tuple(weights))
        constants = [whole_number(f"constants[{i}]", v, 0) for i, v in enumerate(_listed("constants", self.constants))]
        object.__setattr__(self, "constants", tuple(sorted(constants)))
        levels = [_listed(f"further[{i}]", level) for i, level in enumerate(_listed("further", self.further))]
        if odd := [level for level in levels if not 1 <= len(level) <= 3]:
            raise RedblueError(f"a level of `further` is (words, load_cost, store_cost), got {odd[0]!r}")
        further = tuple(Further(*level) for level in levels)
        for i, level in enumerate(further):
            whole_number(f"further[{i}].words", level.words)
            _cost(f"further[{i}].load_cost", level.load_cost)
            _cost(f"further[{i}].store_cost", level.store_cost)
        object.__setattr__(self, "further", further)
        if self.levels > MOST_LEVELS:
            raise RedblueError(f"at most {MOST_LEVELS} levels of memory can be played, got {self.levels}")
        if self.partial and self.sliding:
            raise RedblueError("partial computation has no sliding: it needs two red pebbles at most; leave it out")
        if self.partial and further:
            raise RedblueError("partial computation is a game of two levels: leave `further` out")

    @property
    def partial(self) -> bool:
        return self.name == "partial"

    @property
    def levels(self) -> int:
        """Levels of memory: red, those of `further`, and slow memory."""
        return 2 + len(self.further)

    @property
    def load_costs(self) -> tuple[float, ...]:
        """Per boundary, nearest first."""
        return self.load_cost, *(level.load_cost for level in self.further)

    @property
    def store_costs(self) -> tuple[float, ...]:
        return self.store_cost, *(level.store_cost for level in self.further)

    def starts_blue(self, graph: Graph) -> np.ndarray:
        """Whether each node lies in slow memory at the start, (n,). Raises RedblueError if a constant is no source."""
        blue = graph.in_degree == 0
        for v in self.constants:
            if not 0 <= v < graph.n or not blue[v]:
                raise RedblueError(f"constants name node {v}, which is no source of this graph")
        blue[list(self.constants)] = False
        return blue & self.inputs_start_blue

    def words_of(self, graph: Graph) -> np.ndarray:
        """Words of each node, (n,). Raises RedblueError if the weights are for another number of nodes."""
        if self.weights is None:
            return np.ones(graph.n, np.int64)
        if len(self.weights) != graph.n:
            raise RedblueError(f"weights are given for {len(self.weights)} nodes, the graph has {graph.n}")
        return np.array(self.weights, np.int64)

    @property
    def plain(self) -> bool:
        """Whether this is the game of the papers: costs of 1, words of 1, two levels, blue at both ends, no sliding."""
        return self == Rules(self.name)


def rules_of(rules: str | Rules) -> Rules:
    """Rules by their name. Raises RedblueError for unknown names."""
    return rules if isinstance(rules, Rules) else Rules(rules)


def least_red(graph: Graph, rules: str | Rules = "red-blue") -> int:
    """The least words of red pebbles with which every node can be computed: in-degree + 1, by the plain rules."""
    rules = rules_of(rules)
    words = rules.words_of(graph)
    if rules.partial:
        pairs = words[graph.heads] + words[graph.parents]
        return int(max(pairs.max(initial=0), words.max()))
    total = np.bincount(graph.heads, words[graph.parents], graph.n).astype(np.int64)
    if rules.sliding:  # the pebble of the largest parent slides, and frees its words as it goes
        largest = np.zeros(graph.n, np.int64)
        np.maximum.at(largest, graph.heads, words[graph.parents])
        return int((total + np.maximum(words - largest, 0)).max(initial=words.max()))
    return int((total + words).max())


def check_red(graph: Graph, red: int, rules: str | Rules = "red-blue") -> int:
    """`red` itself, if every node can be computed with it. Raises RedblueError, saying the least that works."""
    red = whole_number("red", red)
    least = least_red(graph, rules)
    if red < least:
        raise RedblueError(f"red is {red}: this graph needs at least {least} with the rules {rules_of(rules).name!r}")
    return red


def board_of(graph: Graph, capacities: Sequence[int], rules: Rules) -> _core.PebbleBoard:
    """What the compiled core plays on. capacities: words of each level but slow memory, nearest first."""
    blue = rules.starts_blue(graph)
    return _core.PebbleBoard(
        graph.starts,
        graph.parents,
        rules.words_of(graph),
        np.array(capacities, np.int64),
        blue.astype(np.uint8),
        ((graph.in_degree == 0) & ~blue).astype(np.uint8),
        once=rules.name == "one-shot",
        partial=rules.partial,
        sliding=rules.sliding,
        keeps_sinks=rules.sinks_end_blue,
    )


def hierarchy(memory: str | Memory, bytes_per_word: int = 4, name: str = "red-blue") -> tuple[int, Rules]:
    """(red, rules) of a machine's memories: a name of the catalogue, a TOML file, or a Memory.

    red is the words of one instance of its fastest level; each level between that and the slowest becomes one of
    `further`. A word costs 1 at the fastest boundary, and elsewhere as much longer as it takes there; boundaries whose
    bandwidth is not known cost what the one before costs.
    Raises RedblueError if the capacity of a level but the last is not known.
    """
    found = find_memory(memory)
    words = []
    for level in found.levels[:-1]:
        if level.capacity_bytes is None:
            raise RedblueError(f"{found.name}: the capacity of {level.name} is not known, so it cannot be played")
        words.append(level.capacity_bytes // bytes_per_word)
    costs = [1.0]
    rates = [boundary.bandwidth_bytes_per_second for boundary in found.boundaries]
    for rate in rates[1:]:
        costs.append(rates[0] / rate if rates[0] and rate else costs[-1])
    further = tuple(Further(w, c, c) for w, c in zip(words[1:], costs[1:], strict=True))
    return words[0], Rules(name, further=further)


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise RedblueError(f"{name} must be True or False, got {value!r}")


def _listed(name: str, values: Any) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise RedblueError(f"{name} must be a list or a tuple, got {values!r}")
    return list(values)


def _cost(name: str, value: Any) -> None:
    real = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not 0 <= real < math.inf or (is_whole(value) and real > LARGEST):
        raise RedblueError(f"{name} must be a number of at least 0, got {value!r}")
