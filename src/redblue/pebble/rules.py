"""The rules of a game as data: when a node can be computed, the cost of each move, the levels of memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

from redblue.base.arguments import checked_arguments
from redblue.base.errors import RedblueError
from redblue.base.integers import whole_number
from redblue.catalogue.memories import Memory
from redblue.catalogue.memories import memory as find_memory
from redblue.compiled import _core
from redblue.pebble.graph import Graph
from redblue.pebble.whole_arrays import INT64_MAX, is_whole

NAMES = ("red-blue", "one-shot", "partial")
MAX_LEVELS = 7  # levels of memory, slow memory included
MAX_WEIGHT = 2**31  # words of a node, so that the words moved in billions of moves fit 64 bits


class Further(NamedTuple):
    """A level of memory between the red pebbles and slow memory.

    words: its capacity. load_cost, store_cost: per word moved from and to the next level, the one nearer slow memory.
    """

    words: int
    load_cost: float = 1
    store_cost: float = 1


@dataclass(frozen=True)
class Rules:
    """Rules of a game and costs of its moves.

    name: one of three variants.
        "red-blue" (Hong & Kung, STOC 1981): a node can be computed, any number of times, when all its
        parents are red.
        "one-shot": the same, but each node is computed at most once.
        "partial" (PRBP; Papp, Sobczyk, Yzelman, SPAA 2025, arXiv 2506.10854): a node's parents are aggregated into it
        one by one; each aggregation marks one edge, once. The red pebble of an aggregate is dark red while slow memory
        does not hold the aggregate; a dark red pebble can be deleted only when every edge out of the node is marked.
    inputs_start_blue: if True, sources start in slow memory and cannot be computed; if False, sources can be computed.
    sinks_end_blue: if True, every sink must end in slow memory; if False, a pebble of either colour is enough.
    sliding: whether a red pebble may slide from a parent to the node computed from it. Not allowed with "partial".
    load_cost, store_cost: per word moved between the red pebbles and the next level.
    compute_cost: per node computed; with "partial", per edge marked. Costs that are no integers become floats.
    constants: sources that are not inputs: they do not start blue, and can be computed.
    weights: words of each node, at most 2^31; None: 1 word each. Words count towards capacities and the costs of loads
        and stores.
    further: levels between the red pebbles and slow memory, nearest first (Savage's memory hierarchy game, COCOON
        1995). A word moves between neighbouring levels only, and may lie in several. Not allowed with "partial".

    Raises RedblueError, naming the field, for a field or a combination of fields that cannot be played.
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
        if not isinstance(self.name, str) or self.name not in NAMES:
            raise RedblueError(f"rules must be {', '.join(map(repr, NAMES))} or Rules, got {self.name!r}")
        for field in ("load_cost", "store_cost", "compute_cost"):
            object.__setattr__(self, field, _cost(field, getattr(self, field)))
        for field in ("inputs_start_blue", "sinks_end_blue", "sliding"):
            _flag(field, getattr(self, field))
        if self.weights is not None:
            weights = enumerate(_listed("weights", self.weights))
            object.__setattr__(
                self, "weights", tuple(whole_number(f"weights[{v}]", w, most=MAX_WEIGHT) for v, w in weights)
            )
        constants = [whole_number(f"constants[{i}]", v, 0) for i, v in enumerate(_listed("constants", self.constants))]
        object.__setattr__(self, "constants", tuple(sorted(constants)))
        levels = [_listed(f"further[{i}]", level) for i, level in enumerate(_listed("further", self.further))]
        if invalid := [level for level in levels if not 1 <= len(level) <= 3]:
            raise RedblueError(f"a level of `further` is (words, load_cost, store_cost), got {invalid[0]!r}")
        object.__setattr__(self, "further", tuple(_further(f"further[{i}]", *level) for i, level in enumerate(levels)))
        if self.levels > MAX_LEVELS:
            raise RedblueError(f"at most {MAX_LEVELS} levels of memory can be played, got {self.levels}")
        if self.partial and self.sliding:
            raise RedblueError("partial computation has no sliding, and needs only two red pebbles: leave sliding out")
        if self.partial and self.further:
            raise RedblueError("partial computation is a game of two levels: leave `further` out")

    @property
    def partial(self) -> bool:
        return self.name == "partial"

    @property
    def levels(self) -> int:
        """Number of levels of memory: red, the levels of `further`, and slow memory."""
        return 2 + len(self.further)

    @property
    def load_costs(self) -> tuple[float, ...]:
        """Cost per word loaded across each boundary, nearest first."""
        return self.load_cost, *(level.load_cost for level in self.further)

    @property
    def store_costs(self) -> tuple[float, ...]:
        """Cost per word stored across each boundary, nearest first."""
        return self.store_cost, *(level.store_cost for level in self.further)

    def starts_blue(self, graph: Graph) -> np.ndarray:
        """Whether each node starts in slow memory, (n,). Raises RedblueError if a constant is not a source."""
        blue = graph.in_degree == 0
        for v in self.constants:
            if not 0 <= v < graph.n or not blue[v]:
                raise RedblueError(f"constants name node {v}, which is no source of this graph")
        blue[list(self.constants)] = False
        return blue & self.inputs_start_blue

    def words_of(self, graph: Graph) -> np.ndarray:
        """Words of each node, (n,). Raises RedblueError if the number of weights is not the number of nodes."""
        if self.weights is None:
            return np.ones(graph.n, np.int64)
        if len(self.weights) != graph.n:
            raise RedblueError(f"weights are given for {len(self.weights)} nodes, the graph has {graph.n}")
        return np.array(self.weights, np.int64)

    @property
    def plain(self) -> bool:
        """Whether these are the rules of the papers: every field but the name has its default."""
        return self == Rules(self.name)


def rules_of(rules: str | Rules) -> Rules:
    """Convert a name of rules to Rules; Rules are returned unchanged. Raises RedblueError for unknown names."""
    return rules if isinstance(rules, Rules) else Rules(rules)


@checked_arguments
def least_red(graph: Graph, rules: str | Rules = "red-blue") -> int:
    """Return the fewest red words with which every node can be computed.

    By the plain rules of "red-blue" and "one-shot": the largest in-degree plus 1.
    """
    rules = rules_of(rules)
    words = rules.words_of(graph)
    if rules.partial:
        pairs = words[graph.heads] + words[graph.parents]
        return int(max(pairs.max(initial=0), words.max()))
    total = np.diff(np.concatenate(([0], np.cumsum(words[graph.parents])))[graph.starts])  # of each node's parents
    if rules.sliding:  # sliding the largest parent's pebble frees the most words
        largest = np.zeros(graph.n, np.int64)
        np.maximum.at(largest, graph.heads, words[graph.parents])
        return int((total + np.maximum(words - largest, 0)).max(initial=words.max()))
    return int((total + words).max())


def check_red(graph: Graph, red: int, rules: str | Rules = "red-blue") -> int:
    """Return `red` as an int. Raises RedblueError if `red` words are too few to compute every node."""
    red = whole_number("red", red)
    least = least_red(graph, rules)
    if red < least:
        raise RedblueError(f"red is {red}: this graph needs at least {least} with the rules {rules_of(rules).name!r}")
    return red


def board_of(graph: Graph, capacities: Sequence[int], rules: Rules) -> _core.PebbleBoard:
    """Pack graph and rules into the struct that the compiled core plays on.

    capacities: words of each level but slow memory, nearest first.
    """
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
        sinks_end_blue=rules.sinks_end_blue,
    )


@checked_arguments
def hierarchy(memory: str | Memory, bytes_per_word: int = 4, name: str = "red-blue") -> tuple[int, Rules]:
    """Return (red, rules) for the memory levels of a machine.

    memory: a name of the catalogue, "this-machine", the path of a TOML file, or a Memory. bytes_per_word: the size of a
    word. name: the name of the rules, as in Rules.
    `red` is the capacity in words of one instance of the fastest level. Each level between the fastest and the slowest
    becomes a level of `further`. A word costs 1 at the fastest boundary; at any other boundary its cost is the ratio of
    the fastest boundary's bandwidth to that boundary's. A boundary of unknown bandwidth costs as much as the boundary
    before it.
    Raises UnknownName for an unknown memory, and RedblueError if the capacity of a level but the last is not known.
    """
    whole_number("bytes_per_word", bytes_per_word)
    memory = find_memory(memory)
    words = []
    for level in memory.levels[:-1]:
        if level.capacity_bytes is None:
            raise RedblueError(f"{memory.name}: the capacity of {level.name} is not known, so it cannot be played")
        words.append(level.capacity_bytes // bytes_per_word)
    costs = [1.0]
    rates = [boundary.bandwidth_bytes_per_second for boundary in memory.boundaries]
    for rate in rates[1:]:
        costs.append(rates[0] / rate if rates[0] and rate else costs[-1])
    further = tuple(Further(w, c, c) for w, c in zip(words[1:], costs[1:], strict=True))
    return words[0], Rules(name, further=further)


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise RedblueError(f"{name} must be True or False, got {value!r}")


def _listed(name: str, values: Any) -> list[Any]:
    """Convert an iterable other than text to a list. Raises RedblueError for anything else."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise RedblueError(f"{name} must be a list or a tuple, got {values!r}")
    return list(values)


def _further(name: str, words: Any, load_cost: Any = 1, store_cost: Any = 1) -> Further:
    """Check the fields of a level, named `name` in errors."""
    words = whole_number(f"{name}.words", words)
    return Further(words, _cost(f"{name}.load_cost", load_cost), _cost(f"{name}.store_cost", store_cost))


def _cost(name: str, value: Any) -> float:
    """Return a cost as an int, which stays exact, or as a float. Game files hold both without a change."""
    if is_whole(value) and 0 <= value <= INT64_MAX:
        return int(value)
    try:
        real = float(value) if isinstance(value, Real) and not isinstance(value, Integral) else math.nan
    except OverflowError:  # a fraction that no float holds
        real = math.inf
    if not 0 <= real < math.inf:
        raise RedblueError(f"{name} must be a number of at least 0, got {value!r}")
    return real
