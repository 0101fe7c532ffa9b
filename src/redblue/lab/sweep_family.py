"""A search for the schedule of a family that moves the fewest words per pair, at leading order.

The search assumes d = d_v, and large n and M. The words per pair then depend only on x = d / sqrt(M).

TABLE holds the leading constants of this package's schedules (docs/lab/theory.md, "The regimes"); `fewest` finds the
best schedule of the family.
A schedule is a sequence of sweeps over all pairs. A sweep computes or reads arrays of pairs (P, dP, dS), adds to
outputs, and writes arrays of pairs. Three kinds of sweep are tried, with every set of arrays:

- rows (or keys) stay: if `a` arrays of d words per row stay and b arrays stream, a b x^2 words move; a streaming output
  is read and written, so it counts twice;
- a tile of pairs stays, for each array that the sweep computes: slices of all factors stream once, outputs twice;
- a tile of an output stays, in a product with b column blocks, which reads an array of pairs b times.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

FACTORS = {"p": ("q", "k"), "dp": ("dout", "v")}  # factors of an array of pairs: by rows, by keys
# direction -> output: (array of pairs that it is made from, its other factor, its side: 0 for rows, 1 for keys)
OUTPUTS = {
    "forward": {"o": ("p", "v", 0)},
    "backward": {"dv": ("p", "dout", 1), "dq": ("ds", "k", 0), "dk": ("ds", "q", 1)},
    "gradient_x": {"o": ("p", "v", 0), "g": ("ds", "k", 0)},
}
KEYS = ("k", "v")

Sides = tuple[int, int]  # a number for rows, and one for keys


class PairSweep(NamedTuple):
    """A sweep over all pairs: the arrays of pairs that it computes, reads and writes, and the outputs it adds to."""

    computed: tuple[str, ...]
    read: tuple[str, ...]
    adds: tuple[str, ...]
    writes: tuple[str, ...]

    def __str__(self) -> str:
        parts = ("compute", self.computed), ("read", self.read), ("write", self.writes), ("sum", self.adds)
        return ", ".join(f"{verb} {' and '.join(names)}" for verb, names in parts if names)


def pairs_read(x: float) -> float:
    """Words per pair of an output-stationary product over pairs, whose left factor is read a whole number of times."""
    return min(b + x**2 / b for b in range(1, math.ceil(x) + 2))  # the best number of times lies next to x


# words per pair of each schedule that is the best one for some x
TABLE = {
    "forward": {
        "flash": lambda x: 4 * x**2,
        "hybrid": lambda x: x**2 + 1 + pairs_read(x),
        "small_cache": lambda x: 2 * x + 1 + pairs_read(x),
    },
    "backward": {
        "flash": lambda x: 14 * x**2,
        "flash_onepass": lambda x: 16 * x**2,
        "spilled_ds": lambda x: 8 * x**2 + 1 + pairs_read(x),
        "hybrid": lambda x: 3 * x**2 + 3 + 2 * pairs_read(x),
        "small_cache": lambda x: 4 * x + 3 + 3 * pairs_read(x),
    },
    "gradient_x": {
        "gradient_x": lambda x: 10 * x**2,
        "gradient_x_dp": lambda x: 7 * x**2 + 2,
        "gradient_x_hybrid": lambda x: 2 * x**2 + 3 + 2 * pairs_read(x),
        "gradient_x_small": lambda x: 4 * x + 3 + 2 * pairs_read(x),
    },
}


def subsets(items: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield all subsets, the empty one first."""
    items = tuple(items)
    return itertools.chain.from_iterable(itertools.combinations(items, size) for size in range(len(items) + 1))


def resident(x: float, rows: Sides, keys: Sides) -> float:
    """Words of a sweep in which all rows, or all keys, stay. rows, keys: numbers of (inputs, outputs)."""
    moved_rows, moved_keys = rows[0] + 2 * rows[1], keys[0] + 2 * keys[1]
    return min(sum(rows) * moved_keys, sum(keys) * moved_rows) * x**2


def tiled(x: float, outputs: dict[str, tuple[str, str, int]], computed: Iterable[str], adds: Iterable[str]) -> float:
    """Words of a sweep in which a tile of each array of pairs in use stays, while slices of its factors stream.

    A tile of scores is complete before its P is used, and a tile of dP before its dS is used. So an array of pairs and
    the outputs made from it take slices of their factors at different times. The only sharing is that of dP and dV,
    which both take slices of dO: dV is made from P, so it need not wait for dP.
    """
    held = {"ds" if pair == "dp" else pair for pair in computed} | {outputs[name][0] for name in adds}
    streams = [set(FACTORS[pair]) for pair in computed]
    made = [[name for name in adds if outputs[name][0] == pair] for pair in sorted(held)]
    streams += [{outputs[name][1] for name in names} | {f"+{name}" for name in names} for names in made if names]
    if "dp" in computed and "dv" in adds:
        streams = [s for s in streams if s not in ({"dout", "v"}, {"dout", "+dv"})] + [{"dout", "v", "+dv"}]
    words = 0.0
    for stream in streams:
        sides = [0, 0]
        for factor in stream:
            side = outputs[factor[1:]][2] if factor[0] == "+" else factor in KEYS
            sides[side] += 2 if factor[0] == "+" else 1
        words += 2 * math.sqrt(sides[0] * sides[1] * len(held)) * x
    return words


def sweeps(
    direction: str, x: float, written: frozenset[str], done: frozenset[str]
) -> Iterator[tuple[float, frozenset[str], frozenset[str], PairSweep]]:
    """Yield (words, arrays of pairs written so far, outputs done, description) of one more sweep."""
    outputs = OUTPUTS[direction]
    computable = {"forward": ("p",), "backward": ("p", "dp"), "gradient_x": ("p", "dp") if "o" in done else ("p",)}
    for computed, read in itertools.product(subsets(computable[direction]), subsets(sorted(written))):
        held = {*computed, *read}
        if set(computed) & set(read):
            continue
        if {"p", "dp"} <= held:
            held.add("ds")
        made = [name for name in outputs if name not in done and outputs[name][0] in held]
        for adds, writes in itertools.product(subsets(made), subsets(sorted(held - written))):
            if not adds and not writes:
                continue
            used = {factor for pair in computed for factor in FACTORS[pair]} | {outputs[name][1] for name in adds}
            into = [sum(outputs[name][2] == side for name in adds) for side in (0, 1)]
            keys = len(used & {*KEYS})
            words = min(resident(x, (len(used) - keys, into[0]), (keys, into[1])), tiled(x, outputs, computed, adds))
            words += len(read) + len(writes)
            if len(adds) == len(read) == 1 and not computed and not writes:
                words = min(words, pairs_read(x))
            yield words, written | {*writes}, done | {*adds}, PairSweep(computed, read, adds, writes)


def fewest(direction: str, x: float) -> tuple[float, tuple[PairSweep, ...]]:
    """Return the words per pair of the best schedule of the family, and its sweeps: the shortest path over sweeps."""
    count, every = itertools.count(), frozenset(OUTPUTS[direction])
    start = (0.0, next(count), frozenset[str](), frozenset[str](), tuple[PairSweep, ...]())
    queue, settled = [start], set[tuple[frozenset[str], frozenset[str]]]()
    while queue:
        words, _, written, done, path = heapq.heappop(queue)
        if done == every:
            return words, path
        if (written, done) not in settled:
            settled.add((written, done))
            for more, now, made, step in sweeps(direction, x, written, done):
                heapq.heappush(queue, (words + more, next(count), now, made, (*path, step)))
    raise AssertionError(direction)
