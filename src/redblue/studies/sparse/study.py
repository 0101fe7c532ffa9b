"""One mask, every schedule, every way to store it: words over the size of the cache, beside both bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import numpy as np

from redblue import schedules
from redblue.base.errors import RedblueError
from redblue.bounds import Bound, lower_bounds
from redblue.bounds.family import Family, family
from redblue.lab.counts import Count, count
from redblue.masks import Blocks, Mask, Rule
from redblue.masks.rules.arrays import Csr
from redblue.masks.rules.blocks import BigBird, NOfM, RandomBlocks
from redblue.masks.storage.names import parse
from redblue.problem import Problem
from redblue.schedules.schedule import Sweep
from redblue.schedules.stored_index import sides

T = TypeVar("T")
STORED = (Blocks, Csr, RandomBlocks, BigBird)  # rules that are arrays, or drawn: no formula says which pairs attend
BOTH = (Sweep("rows", 1), Sweep("cols", 1))


@dataclass(frozen=True)
class Point:
    """One size of the cache. counts: by schedule and format. reasons: why one is missing. family: its form's value."""

    words: int
    bound: Bound
    one_mask: int
    family: int
    counts: dict[tuple[str, str], Count]
    reasons: dict[tuple[str, str], str]

    @property
    def best(self) -> Count | None:
        return min(self.counts.values(), key=lambda each: each.words, default=None)


@dataclass(frozen=True)
class Comparison:
    """formats: words that each index takes, of both sides backward. left_out: formats that cannot store the mask."""

    problem: Problem
    family: Family
    formats: dict[str, int]
    left_out: dict[str, str]
    points: tuple[Point, ...]


def by_rule(mask: Mask) -> bool:
    """Whether a formula says which pairs attend, so that no index need be stored."""
    return not any(isinstance(rule, STORED) for rule in _parts(mask.rule))


def _parts(rule: Rule) -> Iterable[Rule]:
    yield rule
    for each in dataclasses.fields(rule) if dataclasses.is_dataclass(rule) else ():
        value = getattr(rule, each.name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Rule):
                yield from _parts(part)


def usual(mask: Mask) -> list[str]:
    """The formats that are tried unless others are asked for."""
    if mask.is_full:
        return ["rule"]
    ratio = [f"{part.n}:{part.m}" for part in _parts(mask.rule) if isinstance(part, NOfM)][:1]
    return [*(["rule"] if by_rule(mask) else []), "bits", "blocks", "tiles", "csr", "coo", *ratio]


def compare(
    problem: Problem,
    capacities: Sequence[int],
    formats: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Comparison:
    """Words of every schedule with every format at every capacity.

    formats: `usual` ones, of which those that cannot store the mask are left out, unless given. names: of schedules.
    Raises RedblueError for another direction than forward and backward, and for a format given that does not fit.
    """
    if problem.direction not in ("forward", "backward"):
        raise RedblueError(f"direction must be forward or backward, got {problem.direction!r}: only these have a bound")
    sizes, left_out = {}, {}
    for name in formats or usual(problem.mask):
        size = _tried(lambda name=name: _size(problem, name))
        if isinstance(size, RedblueError) and formats:
            raise size
        if isinstance(size, RedblueError):
            left_out[name] = str(size)
        else:
            sizes[name] = size
    points = []
    for done, words in enumerate(capacities):
        progress(done, len(capacities))
        points.append(_point(problem, words, list(sizes), names or schedules.covering(problem)))
    return Comparison(problem, family(problem), sizes, left_out, tuple(points))


def _tried(make: Callable[[], T]) -> T | RedblueError:
    """What it makes, or why it cannot."""
    try:
        return make()
    except RedblueError as error:
        return error


def _size(problem: Problem, name: str) -> int:
    if name == "rule":
        return 0
    if problem.mask.on(problem.n_q, problem.n_k).is_full:
        raise RedblueError(f"a mask on which every query attends every key has no index, got {name!r}: use rule")
    wanted = BOTH if problem.direction == "backward" else BOTH[:1]
    return sum(parse(name).size(side, 8 * problem.bytes_per_word) for side in sides(problem, wanted).values())


def _point(problem: Problem, words: int, formats: Sequence[str], names: Sequence[str]) -> Point:
    counts: dict[tuple[str, str], Count] = {}
    reasons: dict[tuple[str, str], str] = {}
    for schedule in names:
        known = _tried(lambda schedule=schedule: count(schedule, problem, words=words))
        for name in formats:
            made = known
            if isinstance(known, Count) and name != "rule":
                made = _tried(lambda known=known, name=name: _beside(known, words, name))
            if isinstance(made, Count):
                counts[schedule, name] = made
            else:
                reasons[schedule, name] = str(made)
    bounds = {each.name: each for each in reversed(lower_bounds(problem, words))}
    best = max((each for each in bounds.values() if each.proved), key=lambda each: each.words)
    one = bounds["one mask"].words if "one mask" in bounds else 0
    return Point(words, best, one, bounds["sparse"].words, counts, reasons)


def _beside(known: Count, words: int, name: str) -> Count:
    """The same tiles if they leave room for the index, else smaller ones."""
    try:
        return count(known.schedule, known.problem, words=words, tiles=known.tiles, index=name)
    except schedules.TooFewWords:
        return count(known.schedule, known.problem, words=words, index=name)


def read_graph(path: str) -> Mask:
    """Which nodes attend which, from a matrix in a .mtx (Matrix Market) or .npz (scipy.sparse.save_npz) file.

    Entries that are stored attend, whatever their value. Needs scipy. Raises RedblueError.
    """
    try:
        import scipy.io
        import scipy.sparse
    except ImportError:
        raise RedblueError(f"to read {path!r}, scipy is needed: pip install 'redblue[graphs]'") from None
    try:
        read = scipy.io.mmread if Path(path).suffix.lower() == ".mtx" else scipy.sparse.load_npz
        entries = scipy.sparse.coo_array(read(path))
    except Exception as error:  # scipy lets through whatever its parsers meet
        raise RedblueError(f"cannot read {path!r} as a sparse matrix: {error}") from None
    n_q, n_k = cast("tuple[int, int]", entries.shape)
    if not n_q * n_k:
        raise RedblueError(f"{path!r} holds a matrix of {n_q} x {n_k}: an empty graph")
    pairs = np.unique(entries.row.astype(np.int64) * n_k + entries.col)
    indptr = np.searchsorted(pairs // n_k, np.arange(n_q + 1))
    return Mask.from_csr(indptr, pairs % n_k, n_k)
