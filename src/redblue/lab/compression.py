"""The protocol behind the bound for any arithmetic: a phase of a run, compressed into a message, determines its scores.

Saha & Ye (arXiv 2402.07443, Theorem 4.4) turn any algorithm into a solution of MatrixEntryCompression. Alice knows Q
and K. She sends the words that the cache holds when a phase begins and the words that the phase loads, W words in all.
Bob knows the algorithm, but no input. He runs the phase on these words, and reads off every score that it computes.
So W words of F_q determine all scores of a phase, which bounds the number of these scores (docs/lab/theory.md,
Theorem 4). Here both run: Alice and Bob are machines over F_q that run the same schedule.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import whole_number
from redblue.lab.counts import execute, shape_of
from redblue.machine import Region, Tile
from redblue.machine.field import PRIME, Field, embed
from redblue.problem import Problem
from redblue.schedules.schedule import PRODUCED, Schedule

# The factors of the products over pairs: the scores forward, dP backward
FACTORS = {
    "forward": ("q", "k"),
    "backward": ("dout", "v"),
}


class Place(NamedTuple):
    """The words of one computed value that are products over pairs.

    value: the number of the value in the run. words: the places of these words in the value. pairs: i n_k + j of each
    word. scaled: whether the word is the product times the problem's scale.
    """

    value: int
    words: np.ndarray
    pairs: np.ndarray
    scaled: np.ndarray


@dataclass(frozen=True)
class Phase:
    """A part of a run: it begins with the load of word number `begin`, and ends before the load of word `end`.

    places: for each pair whose product the phase computes, the place of the first such product.
    """

    begin: int
    end: int
    places: tuple[Place, ...]

    @property
    def pairs(self) -> np.ndarray:
        """The pairs i n_k + j whose products the phase computes, in the order in which Bob reads them off."""
        return np.concatenate([place.pairs for place in self.places] or [np.zeros(0, np.int64)])


class Compression:
    """The protocol for one stream of a schedule's run in a cache of `words` words, cut into phases of `loads` loads.

    loads: `words` by default; the first phase, which begins with an empty cache, has `words` more.
    phases: all phases of the run.
    Raises RedblueError unless `prime` is a prime above n_q + 1 and n_k + 1 and `loads` is at least 1. Raises the errors
    of a run, too.
    """

    def __init__(
        self,
        schedule: Schedule,
        problem: Problem,
        tiles: Any,
        words: int,
        *,
        prime: int = PRIME,
        loads: int | None = None,
    ) -> None:
        self.schedule, self.problem, self.tiles = schedule, problem.one_stream(), tiles
        self.words, self.prime = whole_number("words", words), Field(prime=prime).prime
        self.loads = whole_number("loads", words if loads is None else loads)
        longest = max(self.problem.n_q, self.problem.n_k)
        if self.prime <= longest + 1:
            raise RedblueError(f"for {longest} rows or keys, prime must be more than {longest + 1}, got {prime}")
        self.scale = 1 / problem.d if problem.direction == "gradient_x" else problem.d**-0.5
        self.phases = self._cut(self._find())

    # The public part: which computed values are scores does not depend on the data ----------------------------
    def _find(self) -> tuple[int, list[tuple[int, Place]]]:
        """Return the number of words that a run loads, and its places, each with the number of words loaded before it.

        A computed word is a score if it equals the score for two random inputs of the largest field.
        """
        first = _Finder(self, self.draw(1, PRIME))
        self._run(first, first.arrays)
        second = _Finder(self, self.draw(2, PRIME), {place.value: place for _, place in first.places})
        self._run(second, second.arrays)
        return second.reads, second.places

    def _cut(self, plan: tuple[int, list[tuple[int, Place]]]) -> tuple[Phase, ...]:
        total, places = plan
        ends = [*range(self.words + self.loads, total, self.loads), total]
        phases, begin = [], 0
        for end in ends:
            inside = [place for loaded, place in places if begin < loaded <= end]
            phases.append(Phase(begin, end, _first_of_each_pair(inside)))
            begin = end
        return tuple(phases)

    def draw(self, seed: int, prime: int | None = None) -> dict[str, np.ndarray]:
        """Draw random inputs, by name: words of the field."""
        rng, produced = np.random.default_rng(seed), PRODUCED[self.problem.direction]
        names = self.schedule.direction(self.problem).arrays
        shapes = {name: shape_of(name, self.problem) for name in names if name not in produced}
        return {name: rng.integers(prime or self.prime, size=shape) for name, shape in shapes.items()}

    def products(self, arrays: Mapping[str, np.ndarray], prime: int | None = None) -> np.ndarray:
        """Return the products over pairs, (n_q, n_k), computed directly: Q K^T, or dO V^T backward."""
        machine = Field(prime=prime or self.prime)
        if self.problem.direction == "gradient_x":
            q = machine.product(arrays["a1"], arrays["x"])
            return machine.product(q, arrays["a2"].T)
        left, right = FACTORS[self.problem.direction]
        return machine.product(arrays[left], arrays[right].T)

    # The protocol --------------------------------------------------------------------------------------------
    def encode(self, arrays: Mapping[str, np.ndarray], phase: Phase) -> np.ndarray:
        """Alice: return the message of a phase, the words held when it begins and the words that it loads."""
        alice = _Alice(self, phase)
        self._run(alice, arrays)
        return np.concatenate(alice.message or [np.zeros(0, np.int64)])

    def decode(self, message: np.ndarray, phase: Phase) -> np.ndarray:
        """Bob: return the products of `phase.pairs`. Raises RedblueError for a message of another length."""
        bob = _Bob(self, phase, message)
        with contextlib.suppress(_PhaseOver):
            self._run(bob, {name: np.zeros_like(array) for name, array in self.draw(0).items()})
        if bob.used != len(message):
            raise RedblueError(f"the message of the phase has {bob.used} words, got {len(message)}")
        return np.concatenate(bob.read_off or [np.zeros(0, np.int64)])

    def determined(self, phase: Phase) -> int:
        """Return a lower bound on the words of any message that determines the products of the phase (Theorem 4).

        The d keys with the most products count all their products; each other key counts at most d products. The same
        holds for rows. The larger of the two sums is returned.
        """
        d = self.problem.d_v if self.problem.direction == "backward" else self.problem.d
        fewest = []
        for vertices in np.divmod(phase.pairs, self.problem.n_k):
            products = np.sort(np.bincount(vertices, minlength=1))[::-1]
            fewest.append(int(products[:d].sum() + np.minimum(products[d:], d).sum()))
        return max(fewest)

    def _run(self, machine: Field, arrays: Mapping[str, np.ndarray]) -> None:
        execute(self.schedule, self.problem, self.tiles, machine, arrays)


def _first_of_each_pair(places: list[Place]) -> tuple[Place, ...]:
    """Drop the places of pairs whose product was computed earlier in the phase."""
    earlier: set[int] = set()
    kept = []
    for place in places:
        new = np.array([not (pair in earlier or earlier.add(pair)) for pair in place.pairs.tolist()], bool)
        if new.any():
            kept.append(Place(place.value, *(column[new] for column in place[1:])))
    return tuple(kept)


class _PhaseOver(Exception):
    """Bob has completed his phase."""


class _Watched(Field):
    """A field machine that reports each load and each computed value to its subclass."""

    def __init__(self, protocol: Compression, prime: int) -> None:
        super().__init__(protocol.words, prime)
        self.values = 0  # computed so far
        self.tiles: dict[int, np.ndarray] = {}  # storage of the tiles held, in the order of their allocation

    def allocate(self, shape: tuple[int, ...]) -> np.ndarray:
        data = super().allocate(shape)
        self.tiles[id(data)] = data
        return data

    def read_region(self, region: Region) -> np.ndarray:
        data = np.ascontiguousarray(super().read_region(region))
        self.loading(data.reshape(-1))
        self.tiles[id(data)] = data
        return data

    def free(self, *tiles: Tile) -> None:
        super().free(*tiles)
        for tile in tiles:
            del self.tiles[id(tile.data)]

    def elementwise(self, ufunc: np.ufunc, inputs: list[Any]) -> np.ndarray:
        value = super().elementwise(ufunc, inputs)
        # A maximum may be a score, but the data decides which one.
        return value if ufunc in (np.maximum, np.minimum) else self._recorded(value)

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return self._recorded(super().product(a, b))

    def _recorded(self, value: np.ndarray) -> np.ndarray:
        self.values += 1
        self.computed(value.reshape(-1))
        return value

    def loading(self, words: np.ndarray) -> None:
        """Called with the words of a load; `reads` words were loaded before."""

    def computed(self, value: np.ndarray) -> None:
        """Called with the words of a computed value, number `values` of the run."""


class _Finder(_Watched):
    """Finds the computed words that equal a score, among all words or among the words of an earlier search."""

    def __init__(
        self, protocol: Compression, arrays: dict[str, np.ndarray], known: dict[int, Place] | None = None
    ) -> None:
        super().__init__(protocol, PRIME)
        self.arrays, self.known, self.places = arrays, known, []
        products = protocol.products(arrays, PRIME).reshape(-1)
        self.pairs = len(products)
        self.table = np.concatenate([products, products * embed(protocol.scale, PRIME) % PRIME])
        self.order = np.argsort(self.table, kind="stable")
        self.sorted = self.table[self.order]

    def computed(self, value: np.ndarray) -> None:
        if self.known is None:
            rank = np.minimum(np.searchsorted(self.sorted, value), len(self.sorted) - 1)
            words = np.flatnonzero(self.sorted[rank] == value)
            scaled, pairs = np.divmod(self.order[rank[words]], self.pairs)
            place = Place(self.values, words, pairs, scaled == 1)
        elif (earlier := self.known.get(self.values)) is not None:
            agrees = value[earlier.words] == self.table[earlier.pairs + self.pairs * earlier.scaled]
            place = Place(self.values, *(column[agrees] for column in earlier[1:]))
        else:
            return
        if len(place.words):
            self.places.append((self.reads, place))


class _Alice(_Watched):
    """Runs on the inputs, and writes the message of one phase."""

    def __init__(self, protocol: Compression, phase: Phase) -> None:
        super().__init__(protocol, protocol.prime)
        self.phase, self.message = phase, []

    def loading(self, words: np.ndarray) -> None:
        begin, end = (max(0, step - self.reads) for step in (self.phase.begin, self.phase.end))
        if begins_within(self.phase, self.reads, len(words)):
            self.message += [tile.reshape(-1).copy() for tile in self.tiles.values()] + [words[:begin].copy()]
        self.message.append(words[begin:end].copy())


class _Bob(_Watched):
    """Runs without inputs, until the phase begins; then on the words of the message."""

    def __init__(self, protocol: Compression, phase: Phase, message: np.ndarray) -> None:
        super().__init__(protocol, protocol.prime)
        self.phase, self.message = phase, np.asarray(message, np.int64)
        self.places = {place.value: place for place in phase.places}
        self.unscale = pow(embed(protocol.scale, self.prime), -1, self.prime)
        self.read_off, self.used, self.within = [], 0, not phase.begin

    def loading(self, words: np.ndarray) -> None:
        begin, end = (max(0, step - self.reads) for step in (self.phase.begin, self.phase.end))
        if self.reads >= self.phase.end:
            raise _PhaseOver
        if begins_within(self.phase, self.reads, len(words)):
            self.within = True
            for tile in self.tiles.values():
                self._receive(tile.reshape(-1))
            self._receive(words[:begin])
        self._receive(words[begin:end])
        if end < len(words):
            raise _PhaseOver

    def _receive(self, words: np.ndarray) -> None:
        """Fill words of the cache with the next words of the message; a message that is too short ends in zeros."""
        part = self.message[self.used : self.used + len(words)]
        words[: len(part)] = part
        self.used += len(words)

    def computed(self, value: np.ndarray) -> None:
        place = self.places.get(self.values)
        if place is not None and self.within:
            words = value[place.words]
            self.read_off.append(np.where(place.scaled, words * self.unscale % self.prime, words))


def begins_within(phase: Phase, loaded: int, words: int) -> bool:
    """Whether a phase begins in a load of `words` words. If so, its message contains the words held at that time."""
    return bool(phase.begin) and loaded <= phase.begin < loaded + words
