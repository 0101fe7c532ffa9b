"""Count the words that a schedule moves on a problem, from its closed form (`count`) or by running it (`run`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from redblue import schedules
from redblue.base.arguments import checked_arguments
from redblue.base.errors import RedblueError
from redblue.base.integers import whole_number
from redblue.lab import paged_reference, reference
from redblue.machine import Counting, Machine, Numeric, TooLong
from redblue.masks.storage import names
from redblue.masks.storage.formats import Format
from redblue.paged_problem import AnyProblem, PagedProblem
from redblue.problem import Problem
from redblue.schedules.schedule import PRODUCED, SHAPES, Cost, Schedule
from redblue.schedules.stored_index import StoredIndex, index_room, index_words

MAX_MOVES = 20_000_000  # limit of a counting run: about a minute


@dataclass(frozen=True)
class Count:
    """The words and operations of a schedule on a problem, summed over all streams.

    reads, writes: words moved into and out of the cache. flops: operations of the products, 2 per multiply-add. All
    three equal the numbers of a run exactly.
    peak: the maximum of words in the cache, over all streams that run at once. The closed form equals the run's peak on
    a full mask, except that of `paged`: if tiles do not hold whole pages, it may be one word too large. On other masks,
    the closed form is an upper bound, because it assumes whole tiles.
    tiles: the tile edges, by name. at_once: the number of streams that share the cache.
    index: the format of the mask's index, "rule" if there is no index. index_words: the reads of the index, which
    `reads` includes.
    """

    schedule: str
    problem: AnyProblem
    tiles: dict[str, int]
    reads: int
    writes: int
    peak: int
    flops: int
    at_once: int = 1
    index: str = "rule"
    index_words: int = 0

    @property
    def words(self) -> int:
        return self.reads + self.writes


@checked_arguments
def count(
    schedule: str,
    problem: AnyProblem,
    *,
    words: int | None = None,
    tiles: Mapping[str, int] | None = None,
    at_once: int = 1,
    index: str | Format = "rule",
) -> Count:
    """Count the words that `schedule` moves on `problem`, from its closed form; the time does not depend on the sizes.

    words: capacity of the cache; the search then finds the tiles that move the fewest words. Above 2^27 rows per key
    head, or if n_q n_k d exceeds 2^58, it searches on shorter sequences. The count of the tiles that it finds is still
    exact, but other tiles may move fewer words at the ends of the sequences. Masks other than bands then need `tiles`.
    tiles: tile edges by name (see the schedule's tile type), instead of a search; missing edges are 1. With both
    arguments, the tiles must fit into `words`.
    at_once: streams (see Problem.streams) that run side by side, each in an equal share of the cache. Streams share no
    data, so running several at once never moves fewer words (docs/lab/theory.md, "Several heads at once").
    index: storage format of the mask: "bits", "blocks", "tiles" (of 64 x 64, or "tiles:E"), "csr", "coo", "2:4" (any
    N:M) or a Format (masks/storage/formats.py). Reads of the index are then counted; the search for tiles ignores them.
    "rule": the mask is computed from a rule and has no index.

    Raises UnknownName (schedule or format), TooFewWords, NotCovered, and RedblueError for invalid arguments and for a
    mask that the format cannot store.
    """
    algorithm, edges, share, stored = _choose(schedule, problem, words, tiles, at_once, index)
    cost = _cost(algorithm, problem, edges, stored)
    if share is not None and cost.peak > share:
        raise schedules.TooFewWords(f"{schedule} with tiles {edges._asdict()} holds {cost.peak} words, got {share}")
    figures = (cost.reads, cost.writes, at_once * cost.peak, cost.flops)
    index_reads = cost.reads - algorithm.cost(problem, edges).reads
    return Count(schedule, problem, edges._asdict(), *figures, at_once, stored.name if stored else "rule", index_reads)


def _cost(algorithm: Schedule, problem: AnyProblem, tiles: Any, stored: Format | None) -> Cost:
    """Return the closed-form cost, including the reads and the cache space of the mask's index."""
    cost = algorithm.cost(problem, tiles)
    if stored is None or isinstance(problem, PagedProblem):
        return cost
    sweeps = algorithm.direction(problem).sweeps(problem.one_stream(), tiles)
    index_reads = problem.streams * index_words(problem, stored, sweeps)
    return replace(cost, reads=cost.reads + index_reads, peak=cost.peak + index_room(problem, sweeps))


@checked_arguments
def run(
    schedule: str,
    problem: AnyProblem,
    *,
    words: int | None = None,
    tiles: Mapping[str, int] | None = None,
    at_once: int = 1,
    index: str | Format = "rule",
) -> Count:
    """Count the same words by running the schedule on a counting machine, which proves the closed form by execution.

    The arguments are the same as for `count`. Only one stream runs, in its share of the cache: all streams are alike.
    Raises the errors of `count`, and RedblueError for a run of more than MAX_MOVES moves.
    """
    algorithm, edges, share, stored = _choose(schedule, problem, words, tiles, at_once, index)
    try:
        if _min_moves(algorithm, problem, edges) > MAX_MOVES:
            raise TooLong("the run would be too long")  # fail now, not after a minute
        machine, _ = execute(algorithm, problem, edges, Counting(share, MAX_MOVES), index=stored)
    except TooLong:
        raise RedblueError(
            f"running {schedule} with tiles {edges._asdict()} takes more than {MAX_MOVES:,} moves, the limit "
            f"of a run. The closed form counts the same at once: leave the run out. Larger tiles take fewer moves."
        ) from None
    s = problem.streams
    figures = (s * machine.reads, s * machine.writes, at_once * machine.peak, s * machine.flops)
    format_name, index_reads = _index_of(machine)
    return Count(schedule, problem, edges._asdict(), *figures, at_once, format_name, s * index_reads)


def _index_of(machine: Machine) -> tuple[str, int]:
    """Return the format of the index that a run read, and the number of words read of it."""
    return (machine.index.format.name, machine.index.words) if isinstance(machine.index, StoredIndex) else ("rule", 0)


def _min_moves(schedule: Schedule, problem: AnyProblem, tiles: Any) -> int:
    """Return a lower bound of a run's moves: 1 per slice of each score tile in which some query attends some key.

    A slice takes several moves, and other phases move words too. Only one move is counted, because a schedule's blocks
    may start at the mask's first key instead of at multiples of the edge: there may be half as many as counted here.
    """
    stream = problem.one_stream()
    if isinstance(stream, PagedProblem):
        flops = schedule.cost(stream, tiles).flops
        return flops // (2 * (stream.d + stream.d_v) * tiles.rows * tiles.cols)
    scores = schedule.direction(problem).scores(stream, tiles)
    return scores.slices * int(stream.mask.on(stream.n_q, stream.n_k).sums(scores.rows, scores.cols).tiles)


@dataclass(frozen=True)
class Check:
    """The result of a schedule on numbers: its count, and its largest relative error against the float64 reference."""

    count: Count
    error: float


@checked_arguments
def check(
    schedule: str,
    problem: AnyProblem,
    *,
    words: int | None = None,
    tiles: Mapping[str, int] | None = None,
    seed: int = 0,
    index: str | Format = "rule",
) -> Check:
    """Run one stream of the schedule on standard normal inputs, and compare every output with the float64 reference.

    The arguments and errors are the same as for `count`. seed: the seed of the inputs.
    """
    whole_number("seed", seed, least=0)
    algorithm, edges, _, stored = _choose(schedule, problem, words, tiles, index=index)
    stream = problem.one_stream()
    arrays, expected = example(stream, seed)
    machine, outputs = execute(algorithm, problem, edges, Numeric(words), arrays, stored)
    error = max(relative_error(outputs[name], expected[name]) for name in outputs)
    cost = (machine.reads, machine.writes, machine.peak, machine.flops)
    return Check(Count(schedule, stream, edges._asdict(), *cost, 1, *_index_of(machine)), error)


def example(stream: AnyProblem, seed: int = 0) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return standard normal inputs of one stream, by name, and the float64 reference of every output, by name."""
    rng = np.random.default_rng(seed)
    if isinstance(stream, PagedProblem):
        return paged_reference.example(stream, rng)
    attends = stream.mask.to_dense(stream.n_q, stream.n_k)
    if stream.direction == "gradient_x":
        arrays = {name: rng.standard_normal(shape_of(name, stream)) for name in ("a1", "a2", "a3", "e", "x", "y")}
        return arrays, reference.gradient_x(**arrays, attends=attends)._asdict()
    arrays = {name: rng.standard_normal(shape_of(name, stream)) for name in ("q", "k", "v", "dout")}
    forward = reference.forward(arrays["q"], arrays["k"], arrays["v"], attends)._asdict()
    if stream.direction == "forward":
        return arrays, forward
    gradients = reference.backward(arrays["q"], arrays["k"], arrays["v"], arrays["dout"], attends)
    return arrays | forward, {name: getattr(gradients, name) for name in ("dq", "dk", "dv")}


def relative_error(got: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest absolute difference over the largest expected magnitude (over 1, if that is smaller).

    Infinities must agree exactly; NaN counts as an infinite error.
    """
    finite = np.isfinite(expected)
    if not np.array_equal(got[~finite], expected[~finite]) or not np.isfinite(got[finite]).all():
        return float("inf")
    scale = max(1.0, float(np.abs(expected[finite]).max(initial=0.0)))
    return float(np.abs(got[finite] - expected[finite]).max(initial=0.0)) / scale


def shape_of(name: str, problem: AnyProblem) -> tuple[int, ...]:
    """Return the shape of one stream's array, given its parameter name in a schedule (`SHAPES`)."""
    return tuple(getattr(problem, size) for size in SHAPES[name])


def execute(
    schedule: Schedule,
    problem: AnyProblem,
    tiles: Any,
    machine: Machine,
    arrays: Mapping[str, np.ndarray] | None = None,
    index: Format | None = None,
) -> tuple[Machine, dict[str, Any]]:
    """Run one stream on a machine. Return the machine, and the outputs by name (None on machines without numbers).

    tiles: an instance of the schedule's tile type. arrays: inputs by parameter name, for machines with numbers.
    index: storage format of the mask; None if the mask is computed from a rule.
    """
    stream, one_pass = problem.one_stream(), schedule.direction(problem)
    slow = {}
    for name in one_pass.arrays:
        shape = shape_of(name, stream)
        produced = name in PRODUCED[problem.direction]
        slow[name] = machine.output(name, shape) if produced else machine.input(name, shape, (arrays or {}).get(name))
    if index is not None and isinstance(problem, Problem):
        machine.index = StoredIndex(machine, problem, index, one_pass.sweeps(problem.one_stream(), tiles))
    one_pass.run(machine, stream, tiles, **slow)
    machine.finish()
    return machine, {name: slow[name].data for name in one_pass.arrays if name in PRODUCED[problem.direction]}


def _choose(
    schedule: str,
    problem: AnyProblem,
    words: int | None,
    tiles: Mapping[str, int] | None,
    at_once: int = 1,
    index: str | Format = "rule",
) -> tuple[Schedule, Any, int | None, Format | None]:
    """Return the schedule, its tiles, the cache words of one stream (or None), and the mask's storage format (or None).

    Raises the errors of `count`.
    """
    algorithm = schedules.get(schedule)
    whole_number("at_once", at_once, most=math.inf)
    if words is not None:
        whole_number("words", words, most=math.inf)
    if at_once > problem.streams:
        raise RedblueError(
            f"at_once ({at_once}) must be at most the problem's streams ({problem.streams}: batch x kv_heads)"
        )
    share, stored = None if words is None else words.__index__() // at_once, _stored(problem, index)
    if tiles is not None:
        return algorithm, algorithm.make_tiles(problem, tiles), share, stored
    if share is None:
        raise RedblueError("give the cache's capacity in words, or the tiles, or both")
    edges = algorithm.tiles(problem, share)
    tile_words = share
    try:
        while stored and (excess := _cost(algorithm, problem, edges, stored).peak - share) > 0:
            tile_words -= excess  # the index needs this part of the cache
            edges = algorithm.tiles(problem, max(1, tile_words))
    except schedules.TooFewWords as error:
        raise schedules.TooFewWords(
            f"beside the index of the mask, {max(0, tile_words)} of {share} words are left: {error}"
        ) from None
    return algorithm, edges, share, stored


def _stored(problem: AnyProblem, index: str | Format) -> Format | None:
    """Return the mask's storage format; None for "rule". Raises RedblueError for a full mask and unknown formats."""
    if index == "rule":
        return None
    if isinstance(problem, PagedProblem):
        raise RedblueError(
            f"the mask of a paged problem is a rule without an index, got index={index!r}: use index='rule'"
        )
    if problem.mask.on(problem.n_q, problem.n_k).is_full:
        raise RedblueError(
            f"a mask on which every query attends every key has no index, got index={index!r}: use index='rule'"
        )
    return names.parse(index)
