"""Words of a schedule on a problem: from its closed form, or by running it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from redblue import schedules
from redblue.base.errors import RedblueError
from redblue.base.integers import whole_number
from redblue.lab import reference
from redblue.machine import Counting, Machine, Numeric, TooLong
from redblue.masks.storage import names
from redblue.masks.storage.formats import Format
from redblue.problem import Problem
from redblue.schedules.schedule import PRODUCED, SHAPES, Cost, Schedule
from redblue.schedules.stored_index import StoredIndex, index_room, index_words

MOST_MOVES = 20_000_000  # of a counting run: about a minute


@dataclass(frozen=True)
class Count:
    """What a schedule moves on a problem, over all its streams.

    reads, writes: words moved into and out of the cache. flops: 2 per multiply-add of the products. All three are those
    of the run, exactly. peak: most words held, by all streams at once; from the closed form it is the run's on a full
    mask, and on others an upper bound of it (whole tiles, even where no query attends all of one).
    tiles: the tile edges, by name. at_once: streams that share the cache.
    index: the format of the mask's index, "rule" if it needs none. index_words: how many of the reads are of it.
    """

    schedule: str
    problem: Problem
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


def count(
    schedule: str,
    problem: Problem,
    *,
    words: int | None = None,
    tiles: Mapping[str, int] | None = None,
    at_once: int = 1,
    index: str | Format = "rule",
) -> Count:
    """Words that `schedule` moves on `problem`, from its closed form: large sizes cost nothing.

    words: the cache's capacity; the tiles that move the fewest words in it are found. Or give `tiles` by name
    (see the schedule's tile type); edges left out are 1. Give both, and the tiles must fit.
    at_once: streams (see Problem.streams) that run side by side, each in an equal share of the cache. They share
    nothing, so that never moves fewer words than one after another (docs/theory.md, "Several heads at once").
    index: how the mask is stored, "bits", "blocks", "tiles" (of 64 x 64, or "tiles:E"), "csr", "coo", "2:4" (any N:M)
    or a Format: its index is read and counted (masks/storage/formats.py). "rule": it is known without an index. The
    tiles are those that move the fewest words of the rest.
    Raises UnknownName, TooFewWords, NotCovered, RedblueError; the last too where the mask cannot be stored so.
    """
    found, chosen, share, stored = _choose(schedule, problem, words, tiles, at_once, index)
    cost = _cost(found, problem, chosen, stored)
    if share is not None and cost.peak > share:
        raise schedules.TooFewWords(f"{schedule} with tiles {chosen._asdict()} holds {cost.peak} words, got {share}")
    figures = (cost.reads, cost.writes, at_once * cost.peak, cost.flops)
    read = cost.reads - found.cost(problem, chosen).reads
    return Count(schedule, problem, chosen._asdict(), *figures, at_once, stored.name if stored else "rule", read)


def _cost(found: Schedule, problem: Problem, tiles: Any, stored: Format | None) -> Cost:
    """The closed form, what is read of the mask's index included."""
    cost = found.cost(problem, tiles)
    if stored is None:
        return cost
    sweeps = found.direction(problem).sweeps(problem.one_stream(), tiles)
    read = problem.streams * index_words(problem, stored, sweeps)
    return replace(cost, reads=cost.reads + read, peak=cost.peak + index_room(problem, sweeps))


def run(
    schedule: str,
    problem: Problem,
    *,
    words: int | None = None,
    tiles: Mapping[str, int] | None = None,
    at_once: int = 1,
    index: str | Format = "rule",
) -> Count:
    """The same count by running the schedule on a counting machine: the proof by execution.

    One stream is run, in its share of the cache; all others do the same.
    Raises what `count` does, and RedblueError for a run of more than MOST_MOVES moves.
    """
    found, chosen, share, stored = _choose(schedule, problem, words, tiles, at_once, index)
    try:
        if _least_moves(problem, chosen) > MOST_MOVES:
            raise TooLong("it would")  # so that nobody waits for what is known beforehand
        machine, _ = execute(found, problem, chosen, Counting(share, MOST_MOVES), index=stored)
    except TooLong:
        raise RedblueError(
            f"running {schedule} with tiles {chosen._asdict()} takes more than {MOST_MOVES:,} moves of some "
            f"microseconds each, the most that are run: its closed form counts the same at once (leave the run out), "
            f"and larger tiles take fewer"
        ) from None
    s = problem.streams
    figures = (s * machine.reads, s * machine.writes, at_once * machine.peak, s * machine.flops)
    name, read = _index_of(machine)
    return Count(schedule, problem, chosen._asdict(), *figures, at_once, name, s * read)


def _index_of(machine: Machine) -> tuple[str, int]:
    """The format of the index that a run read, and how many words of it."""
    return (machine.index.format.name, machine.index.words) if isinstance(machine.index, StoredIndex) else ("rule", 0)


def _least_moves(problem: Problem, tiles: Any) -> int:
    """Fewer moves than any run makes: 1 for each slice of each live tile of scores.

    Each takes several, and there are other phases; but blocks that begin with a mask's keys can be half as many.
    """
    stream = problem.one_stream()
    slices = -(-problem.d // getattr(tiles, "depth", problem.d))
    return slices * int(stream.mask.on(stream.n_q, stream.n_k).sums(tiles.rows, tiles.cols).tiles)


@dataclass(frozen=True)
class Check:
    """A schedule run on numbers: its count, and its largest relative error against the float64 reference."""

    count: Count
    error: float


def check(
    schedule: str,
    problem: Problem,
    *,
    words: int | None = None,
    tiles: Mapping[str, int] | None = None,
    seed: int = 0,
    index: str | Format = "rule",
) -> Check:
    """Run one stream of the schedule on random numbers (standard normal) and hold every output against float64."""
    found, chosen, _, stored = _choose(schedule, problem, words, tiles, index=index)
    stream = problem.one_stream()
    arrays, expected = example(stream, seed)
    machine, outputs = execute(found, problem, chosen, Numeric(words), arrays, stored)
    error = max(relative_error(outputs[name], expected[name]) for name in outputs)
    cost = (machine.reads, machine.writes, machine.peak, machine.flops)
    return Check(Count(schedule, stream, chosen._asdict(), *cost, 1, *_index_of(machine)), error)


def example(stream: Problem, seed: int = 0) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Random inputs (standard normal) of one stream, by name, and what float64 says of every output."""
    rng = np.random.default_rng(seed)
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
    """Largest difference, relative to the largest expected magnitude (or to 1, where that is less).

    Infinities must agree exactly, and NaN is an infinite error.
    """
    finite = np.isfinite(expected)
    if not np.array_equal(got[~finite], expected[~finite]) or not np.isfinite(got[finite]).all():
        return float("inf")
    scale = max(1.0, float(np.abs(expected[finite]).max(initial=0.0)))
    return float(np.abs(got[finite] - expected[finite]).max(initial=0.0)) / scale


def shape_of(name: str, problem: Problem) -> tuple[int, ...]:
    """Shape of one stream's array, by its name in a schedule's parameters."""
    return tuple(getattr(problem, size) for size in SHAPES[name])


def execute(
    schedule: Schedule,
    problem: Problem,
    tiles: Any,
    machine: Machine,
    arrays: Mapping[str, np.ndarray] | None = None,
    index: Format | None = None,
) -> tuple[Machine, dict[str, Any]]:
    """Run one stream on a machine. Returns the machine, and the outputs by name (None on machines without numbers).

    index: how the mask is stored; None if it is known by rule.
    """
    stream, one_pass = problem.one_stream(), schedule.direction(problem)
    slow = {}
    for name in one_pass.arrays:
        shape = shape_of(name, stream)
        produced = name in PRODUCED[problem.direction]
        slow[name] = machine.output(name, shape) if produced else machine.input(name, shape, (arrays or {}).get(name))
    if index is not None:
        machine.index = StoredIndex(machine, problem, index, one_pass.sweeps(stream, tiles))
    one_pass.run(machine, stream, tiles, **slow)
    machine.finish()
    return machine, {name: slow[name].data for name in one_pass.arrays if name in PRODUCED[problem.direction]}


def _choose(
    schedule: str,
    problem: Problem,
    words: int | None,
    tiles: Mapping[str, int] | None,
    at_once: int = 1,
    index: str | Format = "rule",
) -> tuple[Schedule, Any, int | None, Format | None]:
    """The schedule, its tiles, the words that one stream has, and how the mask is stored."""
    found = schedules.get(schedule)
    for name, value in (("words", words), ("at_once", at_once)):
        if value is not None:
            whole_number(name, value, most=math.inf)
    if at_once > problem.streams:
        raise RedblueError(
            f"at_once ({at_once}) must be at most the problem's streams ({problem.streams}: batch x kv_heads)"
        )
    share, stored = None if words is None else words.__index__() // at_once, _stored(problem, index)
    if tiles is not None:
        return found, found.make_tiles(problem, tiles), share, stored
    if share is None:
        raise RedblueError("give the cache's capacity in words, or the tiles, or both")
    chosen = found.tiles(problem, share)
    room = share
    try:
        while stored and (over := _cost(found, problem, chosen, stored).peak - share) > 0:
            room -= over  # what the index takes of the cache
            chosen = found.tiles(problem, max(1, room))
    except schedules.TooFewWords as error:
        raise schedules.TooFewWords(
            f"beside the index of the mask, {room} of {share} words are left: {error}"
        ) from None
    return found, chosen, share, stored


def _stored(problem: Problem, index: str | Format) -> Format | None:
    """How the mask is stored; None if it is known by rule. Raises RedblueError."""
    if index == "rule":
        return None
    if problem.mask.on(problem.n_q, problem.n_k).is_full:
        raise RedblueError(f"a mask on which every query attends every key has no index, got index={index!r}: use rule")
    return names.parse(index)
