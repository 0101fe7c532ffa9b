"""Compare all schedules and formats of one mask: words over the capacity M, beside a proved and a published bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import numpy as np

from redblue import schedules
from redblue.base.errors import RedblueError
from redblue.base.estimates import check_fits
from redblue.base.integers import ceil_div
from redblue.bounds import Bound, lower_bound, lower_bounds
from redblue.bounds.family import Family, family
from redblue.lab.counts import Count, count
from redblue.masks import Blocks, Mask
from redblue.masks.patterns.spans import stride
from redblue.masks.rules.arrays import Csr
from redblue.masks.rules.block_patterns import BigBird, RandomBlocks
from redblue.masks.rules.periodic import NOfM
from redblue.masks.rules.rule import every_part
from redblue.masks.storage.names import parse
from redblue.problem import Problem
from redblue.schedules.schedule import Sweep
from redblue.schedules.stored_index import sides

T = TypeVar("T")
READ_BYTES = 48  # per entry of a sparse matrix while it is read: both indices, the value, and a sorted copy
BLOCK_SECONDS = 2e-5  # per block of a layout, in the search of tiles (measured, Zen 4)
BLOCK_BYTES = 25  # per block of a layout: its tables, and the pairs that the formats list (measured)
STORED = (Blocks, Csr, RandomBlocks, BigBird)  # rules made of arrays or of random draws; no formula gives their pairs
BOTH = (Sweep("rows", 1), Sweep("cols", 1))  # an index by rows, and one by columns


@dataclass(frozen=True)
class Point:
    """The counts for one capacity.

    words: M. bound: the best proved bound; it does not hold for schedules that read P. bound_given: the best proved
    bound for the schedules that read P; None if no count is of such a schedule. one_mask: words of the bound for one
    mask, 0 if there is none. family: words of the bound for a family of inputs, without its constant
    (bounds/family.py). counts: counts by schedule and format. reasons: reasons for missing counts, by schedule and
    format.
    """

    words: int
    bound: Bound
    one_mask: int
    family: int
    counts: dict[tuple[str, str], Count]
    reasons: dict[tuple[str, str], str]
    bound_given: Bound | None = None

    @property
    def best(self) -> Count | None:
        """The count with the fewest words among the schedules that a planner may choose, else among all schedules."""
        return min(self.counts.values(), key=_rank, default=None)


def _rank(candidate: Count) -> tuple[bool, int]:
    """A sort key: schedules that a planner may choose first, then the fewest words."""
    return not schedules.get(candidate.schedule).drop_in, candidate.words


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`.

    formats: the size of each format's index in words; backward, the sizes of the index by rows and of the index by
    columns, added up. left_out: reasons why formats cannot store the mask.
    """

    problem: Problem
    family: Family
    formats: dict[str, int]
    left_out: dict[str, str]
    points: tuple[Point, ...]

    @property
    def reads_p(self) -> bool:
        """Whether a count is of `standard` backward, which reads the probabilities P."""
        backward = self.problem.direction == "backward"
        return backward and any(name == "standard" for point in self.points for name, _ in point.counts)


def by_rule(mask: Mask) -> bool:
    """Whether a formula gives the attended pairs, so that no index has to be stored."""
    return not any(isinstance(rule, STORED) for rule in every_part(mask.rule))


def usual(mask: Mask) -> list[str]:
    """The formats to try by default."""
    if mask.is_full:
        return ["rule"]
    ratio = [f"{part.n}:{part.m}" for part in every_part(mask.rule) if isinstance(part, NOfM)][:1]
    return [*(["rule"] if by_rule(mask) else []), "bits", "blocks", "tiles", "csr", "coo", *ratio]


def compare(
    problem: Problem,
    capacities: Sequence[int],
    formats: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Comparison:
    """Count every schedule with every format at every capacity.

    capacities: M in words. formats: None for the `usual` ones that can store the mask. names: schedules; None for all
    that cover the problem. progress(done, total): called before each capacity.
    Raises RedblueError for a direction other than forward and backward, and if one of `formats` cannot store the mask.
    """
    if problem.direction not in ("forward", "backward"):
        raise RedblueError(
            f"direction must be forward or backward, got {problem.direction!r}: other directions have no bound"
        )
    _check_memory(problem)
    sizes, left_out = {}, {}
    for name in formats or usual(problem.mask):
        size = _attempt(lambda name=name: _index_words(problem, name))
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


def _check_memory(problem: Problem) -> None:
    """Announce the comparison of a large layout; raise RedblueError if this machine's memory cannot hold its tables."""
    for rule in every_part(problem.mask.rule):
        if isinstance(rule, (Blocks, RandomBlocks)):
            rows, cols = (ceil_div(n, edge) for n, edge in zip((problem.n_q, problem.n_k), rule.block, strict=True))
            blocks = rows * cols
            task = f"comparing the formats of a layout of {rows:,} x {cols:,} blocks"
            check_fits(task, BLOCK_BYTES * blocks, BLOCK_SECONDS * blocks)


def _attempt(make: Callable[[], T]) -> T | RedblueError:
    """Return the result of `make`, or the RedblueError that it raises."""
    try:
        return make()
    except RedblueError as error:
        return error


def _index_words(problem: Problem, name: str) -> int:
    """The size of the mask's index in a format. Raises RedblueError if the format cannot store the mask."""
    if name == "rule":
        return 0
    if problem.mask.on(problem.n_q, problem.n_k).is_full:
        raise RedblueError(f"a mask on which every query attends every key has no index, got {name!r}: use rule")
    sweeps = BOTH if problem.direction == "backward" else BOTH[:1]
    return sum(parse(name).size(side, 8 * problem.bytes_per_word) for side in sides(problem, sweeps).values())


def _point(problem: Problem, words: int, formats: Sequence[str], names: Sequence[str]) -> Point:
    """Count the schedules `names` with every format in a cache of `words` words."""
    counts: dict[tuple[str, str], Count] = {}
    reasons: dict[tuple[str, str], str] = {}
    for schedule in names:
        without_index = _attempt(lambda schedule=schedule: count(schedule, problem, words=words))
        for name in formats:
            result = without_index
            if isinstance(without_index, Count) and name != "rule":
                result = _attempt(lambda known=without_index, name=name: _with_index(known, words, name))
            if isinstance(result, Count):
                counts[schedule, name] = result
            else:
                reasons[schedule, name] = str(result)
    bounds = {bound.name: bound for bound in reversed(lower_bounds(problem, words))}
    best = max((bound for bound in bounds.values() if bound.proved), key=lambda bound: bound.words)
    one_mask = bounds["one mask"].words if "one mask" in bounds else 0
    given = any(schedules.get(schedule).takes_p(problem.direction) for schedule, _ in counts)
    bound_given = lower_bound(problem, words, p_given=True) if given else None
    return Point(words, best, one_mask, bounds["sparse"].words, counts, reasons, bound_given)


def _with_index(known: Count, words: int, name: str) -> Count:
    """Count the schedule with an index: with the tiles of `known` if the index fits beside them, else smaller tiles."""
    try:
        return count(known.schedule, known.problem, words=words, tiles=known.tiles, index=name)
    except schedules.TooFewWords:
        return count(known.schedule, known.problem, words=words, index=name)


def read_graph(path: str) -> Mask:
    """Read a mask from a sparse matrix in a .mtx (Matrix Market) or .npz (scipy.sparse.save_npz) file.

    Query i attends key j if the entry (i, j) is stored, whatever its value. Raises RedblueError if the file cannot be
    read, and if the matrix is empty.
    """
    import scipy.io
    import scipy.sparse

    is_mtx = Path(path).suffix.lower() == ".mtx"
    try:
        if is_mtx:  # the header may claim more than any memory holds
            _, _, count, *_ = scipy.io.mminfo(path)
            check_fits(f"the graph in {path!r} with {count:,} entries", READ_BYTES * count)
        entries = scipy.sparse.coo_array(scipy.io.mmread(path) if is_mtx else scipy.sparse.load_npz(path))
    except RedblueError:
        raise
    except Exception as error:  # scipy's parsers raise exceptions of many types
        raise RedblueError(f"cannot read {path!r} as a sparse matrix: {error}") from None
    n_q, n_k = cast("tuple[int, int]", entries.shape)
    if not n_q * n_k:
        raise RedblueError(f"{path!r} holds a matrix of {n_q} x {n_k}: an empty graph")
    check_fits(f"the graph in {path!r} with {n_q:,} rows", 16 * n_q)
    stride(n_q, n_k)  # raises if row * n_k + column would not fit 64 bits
    pairs = np.unique(entries.row.astype(np.int64) * n_k + entries.col)
    indptr = np.searchsorted(pairs // n_k, np.arange(n_q + 1))
    return Mask.from_csr(indptr, pairs % n_k, n_k)
