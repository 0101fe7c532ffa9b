"""Lower bounds on the words that processes send and receive for attention. Proofs: docs/lab/network.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from redblue.base.arguments import checked_arguments
from redblue.base.errors import RedblueError
from redblue.base.integers import whole_number
from redblue.bounds import network_curves as curves
from redblue.bounds.network_curves import Curve, Sizes
from redblue.bounds.table import certified, phase_loads
from redblue.problem import Problem

ROUNDING = 1 - 1e-9  # factor that covers floating-point rounding
MAX_PROCESSES = 2**20
STEPS = 64  # thresholds that are tried for the work of the busiest process
WORK, SHARES = ("balanced", "any"), ("tokens", "balanced", "any")

WHOLE_PAIRS = "all products of a pair are formed on one process; no word of a single pair is sent"
SPLIT = "any algorithm that forms every product of every attended pair; output sums may be divided"
CHAINS = SPLIT + "; the sums of scores (backward: of dP) are added up one product at a time"
WORK_TEXT = {
    "balanced": "no process works on more than ceil(Z / P) of the Z pairs",
    "any": "any distribution of the pairs",
    "given": "the pairs of each process are given",
}
SHARES_TEXT = {
    "tokens": "each process holds at most ceil(n / P) tokens in all heads; if n_q = n_k, the same tokens in Q, K, V, O",
    "balanced": "each process holds any words, at most as many as ceil(n / P) tokens have in all heads",
    "any": "each process holds any words; each word is held by one process",
}


@dataclass(frozen=True)
class NetworkBound:
    """A lower bound on words over the network, for one problem and P processes.

    words: words that cross the network, each once. both_words: the sum of the words that the busiest process sends and
    of those that it receives. Statistics of rows, such as the log-sum-exp, are not counted.
    formula, conditions, source: the bound's formula, the algorithms for which it holds, and its theorem.
    """

    name: str
    words: int
    both_words: int
    formula: str
    conditions: str
    source: str

    @property
    def most_words(self) -> int:
        """Words that some process sends, or that some process receives, at least: half of `both_words`, rounded up."""
        return (self.both_words + 1) // 2


@dataclass(frozen=True)
class Row:
    """A row of the table. curves(case): the curves of the row for a case; none if the row does not apply."""

    name: str
    formula: str
    conditions: Callable[[str], str]
    source: str
    curves: Callable[[Case], list[Curve]]


@dataclass(frozen=True)
class Case:
    """A problem divided over P processes, and the distribution of its words at the start and at the end."""

    problem: Problem
    world_size: int
    shares: str
    process: Sizes

    @property
    def pairs(self) -> int:
        """Attended pairs of all streams."""
        return self.problem.streams * self.process.pairs

    def curve(self, lack: Callable[[float], float], free: float) -> Curve:
        """Return the curve of all streams. With shares "balanced", the words that a process holds are deducted."""
        less = self.problem.streams * self.process.held_words if self.shares == "balanced" else 0
        return Curve(lack, min(free, self.process.pairs), self.process.pairs, self.problem.streams, less)


def _rectangles(case: Case) -> list[Curve]:
    tokens = case.shares == "tokens"
    same = tokens and curves.pairs_of_tokens(case.problem)[1]
    kinds = [curves.rectangles(case.process, tokens, same), *curves.one_side(case.process, tokens)]
    return [case.curve(*kind) for kind in kinds if case.process.pairs]


def _bands(case: Case) -> list[Curve]:
    band = curves.pairs_of_tokens(case.problem)[0]
    if band is None or case.shares != "tokens":
        return []
    kinds = [curves.band_corners(case.process, band)]
    if case.problem.n_q == case.problem.n_k:
        kinds.append(curves.band_degrees(case.process, band))
    return [case.curve(*kind) for kind in kinds]


def _any_algorithm(case: Case) -> list[Curve]:
    held = case.process.held_words if case.shares == "tokens" else 0
    touched = curves.any_algorithm(case.problem)
    return [case.curve(*curves.without(tokens, held, case.process.pairs)) for tokens in touched]


HERE = "docs/lab/network.md, "
ROWS = (
    Row(
        "rectangles",
        "min of a r + b c - (words held) over r c >= pairs, streams taken whole; a, b words of a row and of a key",
        lambda direction: WHOLE_PAIRS,
        HERE + "Theorem N1 (Loomis and Whitney, as in Irony, Toledo and Tiskin 2004)",
        _rectangles,
    ),
    Row(
        "band",
        "as rectangles, but r rows and c keys of a band have at most h (r + c - h) pairs, h half its width; or: each "
        "token that is not held adds at most as many pairs as the band is wide",
        lambda direction: WHOLE_PAIRS,
        HERE + "Theorem N2",
        _bands,
    ),
    Row(
        "any algorithm",
        "least W with G(W) >= pairs, less the words held; G as for one phase of W words",
        lambda direction: SPLIT if direction == "forward" else CHAINS,
        HERE + "Theorem N3 (forward with docs/lab/theory.md, Theorem 1; backward with Theorem 3)",
        _any_algorithm,
    ),
)


@checked_arguments
def network_bounds(
    problem: Problem,
    world_size: int,
    words: int | None = None,
    work: str | Sequence[int] = "any",
    shares: str = "tokens",
    most_tokens: int | None = None,
) -> list[NetworkBound]:
    """Return all bounds for the problem on `world_size` processes, in descending order of `both_words`.

    words: M, the memory of one process in words; None: unbounded. work: "balanced", "any", or the attended pairs that
    each process works on, summed over all heads. shares: "tokens", "balanced" or "any", as docs/lab/network.md defines
    them. With any work and any shares, one process may hold and do everything, and the bounds are 0. most_tokens: the
    most queries, and the most keys, that one process holds; None: ceil(n / world_size).
    Raises RedblueError for any other value, if the pairs of the processes do not sum to the problem's pairs, and if the
    processes together cannot hold the problem's words. Source: docs/lab/network.md, Theorems N1 to N4.
    """
    world_size = whole_number("world_size", world_size, most=MAX_PROCESSES)
    if not isinstance(problem, Problem) or problem.direction == "gradient_x":
        raise RedblueError("network bounds cover problems of direction forward and backward, without pages")
    if shares not in SHARES:
        raise RedblueError(f"shares must be one of {', '.join(SHARES)}, got {shares!r}")
    if most_tokens is not None:
        whole_number("most_tokens", most_tokens, -(-max(problem.n_q, problem.n_k) // world_size))
    case = Case(problem, world_size, shares, curves.sizes(problem, world_size, most_tokens))
    pair_counts = _work(work, case)
    text = f"{WORK_TEXT[work if isinstance(work, str) else 'given']}; {SHARES_TEXT[shares]}"
    bounds = []
    for row in ROWS:
        values = [_least(curve, case, pair_counts) for curve in row.curves(case)]
        if values:
            crossing, both = (max(column) for column in zip(*values, strict=True))
            conditions = f"{row.conditions(problem.direction)}; {text}"
            bounds.append(_bound(row.name, crossing, both, row.formula, conditions, row.source))
    if words is not None:
        bounds.append(_phases(case, _memory(words, case), text))
    return sorted(bounds, key=lambda bound: (-bound.both_words, -bound.words))


def network_bound(
    problem: Problem,
    world_size: int,
    words: int | None = None,
    work: str | Sequence[int] = "any",
    shares: str = "tokens",
    most_tokens: int | None = None,
) -> NetworkBound:
    """Return the bound of `network_bounds` with the most words that the busiest process sends and receives."""
    return network_bounds(problem, world_size, words, work, shares, most_tokens)[0]


def _bound(name: str, crossing: float, both: float, formula: str, conditions: str, source: str) -> NetworkBound:
    words, both_words = (math.ceil(value * ROUNDING) for value in (crossing, both))
    return NetworkBound(name, words, both_words, formula, conditions, source)


def _work(work: str | Sequence[int], case: Case) -> str | list[int]:
    """Check the argument `work`, and return the pairs of each process as a list if it gives them."""
    if isinstance(work, str):
        if work not in WORK:
            raise RedblueError(f"work must be one of {', '.join(WORK)}, or the pairs of each process, got {work!r}")
        return work
    pair_counts = [whole_number("work", count, least=0) for count in work]
    if len(pair_counts) != case.world_size or sum(pair_counts) != case.pairs:
        raise RedblueError(
            f"work must give the pairs of each of the {case.world_size} processes, {case.pairs:,} in all, "
            f"got {len(pair_counts)} numbers that sum to {sum(pair_counts):,}"
        )
    return pair_counts


def _memory(words: int, case: Case) -> int:
    """Check the argument `words`: all processes together must hold the words of the problem."""
    least = -(-case.problem.streams * case.process.words // case.world_size)
    if whole_number("words", words) < least:
        raise RedblueError(
            f"words ({words:,}) is the memory of one of {case.world_size} processes, which must hold the problem "
            f"together: give at least {least:,}, or more processes"
        )
    return words


def _least(curve: Curve, case: Case, work: str | list[int]) -> tuple[float, float]:
    """Return the least words that cross the network, and the least words of the busiest process, sent and received.

    A word that a process lacks crosses the network for this process alone, and is then both sent and received.
    """
    world, mean = case.world_size, case.pairs / case.world_size
    held = case.problem.streams * case.process.words if case.shares == "any" else 0  # one process holds each word
    if world == 1 or not case.pairs:
        return 0.0, 0.0
    if isinstance(work, list):
        lacking = [curve.words(pairs) for pairs in work]
        crossing = max(0.0, sum(lacking) - held)
        return crossing, max(2 * crossing / world, max(lacking) if not held else 0.0)
    if work == "balanced":
        crossing = max(0.0, world * curve.mean_words(mean, -(-case.pairs // world)) - held)
        return crossing, 2 * crossing / world
    if held:
        return 0.0, 0.0
    return _any_work(curve, world, mean, case.pairs)


def _any_work(curve: Curve, world: int, mean: float, pairs: int) -> tuple[float, float]:
    """Bound the words for any distribution of work.

    For each threshold, either some process works on more pairs, or none does; both cases bound the words from below.
    """
    both = crossing = 0.0
    for step in range(STEPS + 1):
        threshold = mean * (pairs / mean) ** (step / STEPS)
        alone, average = curve.words(threshold), curve.mean_words(mean, threshold)
        both = max(both, min(alone, 2 * average))
        crossing = max(crossing, min(alone, world * average))
    return crossing, max(both, 2 * crossing / world)


def _phases(case: Case, words: int, text: str) -> NetworkBound:
    """Bound the words by phases over one process's memory of `words` words; it holds for any distribution of work."""
    p, world, streams = case.problem, case.world_size, case.problem.streams
    d_row, d_key = (p.d_v, 0) if p.direction == "forward" else (p.d, p.d + p.d_v)
    outputs = streams * (case.process.rows * d_row + case.process.keys * d_key)
    homes = {  # the most outputs that end on one process
        "tokens": streams * (case.process.held_rows * d_row + case.process.held_keys * d_key),
        "balanced": min(outputs, streams * case.process.held_words),
        "any": outputs,
    }[case.shares]
    xi, xi_v, gain = certified(p.direction)
    reach = np.floor(np.minimum((p.d / xi) ** 2, (p.d_v / xi_v) ** 2))  # a phase has a whole number of charges
    usable = reach > words
    charges = (reach - words) * (case.pairs / (gain * np.maximum(reach, 1)) - world)
    total = max(0.0, float(charges[usable].max(initial=0.0)) - outputs) * (world > 1)
    # phase_loads adds M, because its cache starts empty. A process may start with M words, so M is subtracted again.
    charges_alone = phase_loads(p.direction, p.d, p.d_v, words, case.pairs // world) - words
    alone = charges_alone - homes if case.shares != "any" and world > 1 else 0
    return _bound(
        "phases",
        total / 2,
        max(0, alone, total / world),
        "max over L of L (ceil(pairs / G(d, d_v, M + L)) - 1), less the outputs that end on the process",
        f"{CHAINS}; {text.split('; ', 1)[1]}; a process holds at most M words at any time",
        HERE + "Theorem N4 (docs/lab/theory.md, Theorem 3, on one process)",
    )
