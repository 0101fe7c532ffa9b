"""Define a schedule: a pass for each of its directions, with its program, closed-form cost and tile search.

The helpers at the end cut axes and masks into blocks; programs and closed forms share them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div, larger, whole_number
from redblue.masks import Pairs, Runs
from redblue.masks.rules.bands import Window
from redblue.paged_problem import AnyProblem, PagedProblem
from redblue.problem import Problem
from redblue.schedules.search import WHOLE, search_grid

# Shapes of the arrays in slow memory, by the parameter name in a program. "p" holds the softmax probabilities.
SHAPES = {
    **dict.fromkeys(("q", "dq"), ("n_q", "d")),
    **dict.fromkeys(("k", "dk"), ("n_k", "d")),
    **dict.fromkeys(("v", "dv"), ("n_k", "d_v")),
    **dict.fromkeys(("out", "dout"), ("n_q", "d_v")),
    **dict.fromkeys(("lse", "row_max", "row_sum"), ("n_q",)),
    "p": ("n_q", "n_k"),
    # The gradient problem of arXiv 2410.09397, in its notation.
    "a1": ("n_q", "d"),
    **dict.fromkeys(("a2", "a3"), ("n_k", "d")),
    "e": ("n_q", "d_v"),
    **dict.fromkeys(("x", "dx"), ("d", "d")),
    "y": ("d", "d_v"),
    # A paged cache (PagedProblem): the rows of all pages, one page after another, and the page table.
    "k_pages": ("cells", "d"),
    "v_pages": ("v_cells", "d_v"),
    "page_table": ("sequences", "most_pages"),
}
# The arrays of the operator's passes: schedules that plans may choose take exactly these
OPERATOR_ARRAYS = {
    "forward": {"q", "k", "v", "out", "lse"},
    "backward": {"q", "k", "v", "out", "lse", "dout", "dq", "dk", "dv"},
    "gradient_x": {"a1", "a2", "a3", "e", "x", "y", "dx"},
}
PRODUCED = {
    "forward": ("out", "lse", "p", "row_max", "row_sum"),
    "backward": ("dq", "dk", "dv"),
    "gradient_x": ("dx",),
    "paged": ("out", "lse"),
}


MAX_AXIS = 2**27  # length of an axis: beyond it the tile search would take seconds
MIN_SHORTENED = 2**13  # a long problem is not shortened below this length: its best tiles could then differ
MAX_PRODUCT = 2**58  # n_q n_k d, or n d d: beyond it the tile search could overflow 64-bit integers


class TooFewWords(RedblueError):
    """The cache is smaller than the minimum that the schedule needs."""


class NotCovered(RedblueError):
    """The schedule has no program for the direction or the mask."""


@dataclass(frozen=True)
class Cost:
    """Words read, words written, peak of words in the cache, and floating-point operations of one stream.

    The fields are numbers, or arrays over candidate tiles. `a + b` is the cost of a followed by b.
    Reads, writes and flops of a closed form equal a run's. On a full mask, so does the peak, except that of `paged`:
    if tiles do not hold whole pages, it may be one word too large. On other masks, the peak is an upper bound, because
    it assumes whole tiles. Tiles that fit by the closed form therefore always run.
    """

    reads: Any
    writes: Any
    peak: Any
    flops: Any

    @property
    def words(self) -> Any:
        return self.reads + self.writes

    def __add__(self, later: Cost) -> Cost:
        peak = larger(self.peak, later.peak)
        return Cost(self.reads + later.reads, self.writes + later.writes, peak, self.flops + later.flops)


class Sweep(NamedTuple):
    """One pass over the mask, block by block, that looks up the attended pairs of each block (`m.cols_of`).

    side: "rows" or "cols". edge: rows (or columns) per block. times: number of look-ups per block.
    """

    side: str
    edge: int
    times: int = 1


class Scores(NamedTuple):
    """The tiles of scores that a pass computes: their edges, and the slices of features over which a tile is summed.

    Every tile with an attended pair takes at least one move per slice.
    """

    rows: int
    cols: int
    slices: int = 1


@dataclass(frozen=True)
class Pass:
    """One direction of a schedule, for one stream (see Problem.one_stream and PagedProblem.one_stream).

    run(machine, problem, tiles, *arrays): the program; its parameter names select the arrays (see SHAPES).
    tile_type: a NamedTuple of tile edges. In the tiles that hold the fewest words, an edge in WHOLE spans its axis and
    any other edge is as short as allowed; the attribute SMALLEST of tile_type gives the lengths of all exceptions.
    cost(problem, tiles): the closed form.
    search(problem, words, multiple): the tiles that move the fewest words, as a tile_type of integers; None if no tiles
    fit. multiple: the number that each edge must be a multiple of, unless the edge spans its whole array. Default: the
    search over a grid of edges (`search_grid`), for which `cost` must take arrays of edges.
    sweeps(problem, tiles): the program's look-ups of the mask (m.cols_of); they move words only if the mask is stored
    as an index.
    scores(problem, tiles): the tiles of scores, from which a lower bound of a run's moves follows.
    """

    run: Callable[..., None]
    tile_type: Callable[..., Any]
    cost: Callable[[Any, Any], Cost]
    search: Callable[[Any, int, Mapping[str, int]], Any] | None = None
    sweeps: Callable[[Problem, Any], tuple[Sweep, ...]] = lambda problem, tiles: ()
    scores: Callable[[Problem, Any], Scores] = lambda problem, tiles: Scores(tiles.rows, tiles.cols)

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of the arrays that the program takes, in order."""
        parameters = inspect.signature(self.run).parameters.values()
        return tuple(x.name for x in parameters if x.kind is x.POSITIONAL_OR_KEYWORD)[3:]

    @property
    def edges(self) -> tuple[str, ...]:
        """Names of the tile edges."""
        return self.tile_type._fields  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Schedule:
    """An algorithm: the order in which tiles are loaded, computed and stored.

    source: paper and theorem, or its derivation. passes: the pass of each direction that the schedule has.
    drop_in: its passes have the operator's inputs and outputs (O and lse; for gradient_x, see Problem), so the planner
    may choose it. (`standard` is no drop-in: its forward keeps the n^2 probabilities for its backward.)
    spills: it writes arrays of n_q n_k words to slow memory.
    safe: the result is finite for any finite scores. full_only: it takes no mask. scattered: only worthwhile with a
    mask. variant: it has the leading constants of another schedule, and plans choose it only where it saves at least
    1 % of the words.
    """

    name: str
    title: str
    source: str
    passes: Mapping[str, Pass]
    drop_in: bool = True
    spills: bool = False
    safe: bool = True
    full_only: bool = False
    scattered: bool = False
    variant: bool = False

    def direction(self, problem: AnyProblem) -> Pass:
        """Return the pass for the problem's direction. Raises NotCovered if there is none, or if it takes no mask."""
        if problem.direction not in self.passes:
            directions = " and ".join(self.passes)
            raise NotCovered(f"{self.name} has no pass for direction {problem.direction!r}: it has {directions}")
        if self.full_only and not problem.mask.is_full:
            raise NotCovered(f"{self.name} takes no mask, got {problem.mask!r}: use Mask.full() or another schedule")
        return self.passes[problem.direction]

    def takes_p(self, direction: str) -> bool:
        """Return whether the backward pass reads the probabilities P: then only bounds with `p_given` hold for it."""
        return direction == "backward" and direction in self.passes and "p" in self.passes[direction].arrays

    def tiles(self, problem: AnyProblem, words: int, multiple: Mapping[str, int] | None = None) -> Any:
        """Return the tiles that move the fewest words through a cache of `words` words.

        multiple: by edge, the number that its length must be a multiple of (1 by default), unless it spans its array.
        Raises TooFewWords, which states the minimum, and NotCovered; and RedblueError for sizes too large to search.
        """
        stream, one_pass = problem.one_stream(), self.direction(problem)
        searched = _searchable(stream)
        multiple = dict.fromkeys(one_pass.edges, 1) | dict(multiple or {})
        search = one_pass.search or partial(search_grid, one_pass)
        if searched is stream:
            tiles = search(stream, words, multiple)
        else:
            tiles = _fitting(one_pass, stream, searched, words, lambda left: search(searched, left, multiple))
        if tiles is None:
            whole_axes = {edge: getattr(stream, axis) for edge, axis in WHOLE.items() if edge in multiple}
            smallest = multiple | whole_axes | dict(getattr(one_pass.tile_type, "SMALLEST", {}))
            tiles = one_pass.tile_type(**smallest)
            least = int(one_pass.cost(stream, tiles).peak)
            if searched is stream or least > words:
                raise TooFewWords(
                    f"{self.name} {problem.direction} with d = {problem.d}, d_v = {problem.d_v} needs a cache of at "
                    f"least {least} words, got {words}"
                )
        return tiles

    def make_tiles(self, problem: AnyProblem, edges: Mapping[str, int]) -> Any:
        """Return tiles with the given edges; missing edges span their axis (see WHOLE), or have their default, or 1.

        Raises RedblueError for an unknown edge and for lengths that do not divide each other as required.
        """
        one_pass = self.direction(problem)
        unknown = sorted(set(edges) - set(one_pass.edges))
        if unknown:
            allowed = ", ".join(one_pass.edges)
            raise RedblueError(f"{self.name} {problem.direction} has no tile edge {unknown[0]!r}; it has {allowed}")
        stream = problem.one_stream()
        defaults = dict.fromkeys(one_pass.edges, 1) | getattr(one_pass.tile_type, "_field_defaults", {})
        whole_axes = {edge: max(1, getattr(stream, WHOLE[edge])) for edge in one_pass.edges if edge in WHOLE}
        tiles = one_pass.tile_type(**(defaults | whole_axes | dict(edges)))
        self._check(problem, tiles)
        return tiles

    def _check(self, problem: AnyProblem, tiles: Any) -> None:
        """Raise RedblueError unless all edges are positive, and slices and blocks divide the tiles that they cut."""
        for edge, length in tiles._asdict().items():
            whole_number(f"tile edge {edge}", length, most=math.inf)
        stream, depth = problem.one_stream(), getattr(tiles, "depth", 1)
        for edge, length in (("rows", stream.n_q), ("cols", stream.n_k)):
            tile = getattr(tiles, edge)
            if tile % depth and tile < length:
                raise RedblueError(f"tile edge {edge} ({tile}) must be a multiple of depth ({depth})")
        chunk = getattr(tiles, "chunk", stream.n_q)
        for edge in ("rows", "depth", "dq_rows"):
            if chunk < stream.n_q and chunk % getattr(tiles, edge):
                raise RedblueError(f"tile edge chunk ({chunk}) must be a multiple of {edge} ({getattr(tiles, edge)})")
        span = getattr(tiles, "span", stream.n_k)
        if span < stream.n_k and span % tiles.cols:
            raise RedblueError(f"tile edge span ({span}) must be a multiple of cols ({tiles.cols})")

    def cost(self, problem: AnyProblem, tiles: Any) -> Cost:
        """Return the closed-form cost of the whole problem, with its streams run one after another."""
        self._check(problem, tiles)
        stream_cost = self.direction(problem).cost(problem.one_stream(), tiles)
        s = problem.streams
        return Cost(
            s * int(stream_cost.reads), s * int(stream_cost.writes), int(stream_cost.peak), s * int(stream_cost.flops)
        )

    def words(self, problem: AnyProblem, tiles: Any) -> int:
        """Return the closed-form words moved, reads plus writes."""
        return self.cost(problem, tiles).words


def _fitting(one_pass: Pass, stream: AnyProblem, searched: AnyProblem, words: int, search: Callable[[int], Any]) -> Any:
    """Return the best tiles for the shorter problem `searched`, or smaller tiles if these do not fit for the stream.

    The stream's arrays are longer than those of `searched`, so tiles that keep a whole array hold more words.
    search(words): the best tiles for `searched`. Returns None if no tiles that the search returns fit.
    """
    left = words
    while left > 0 and (tiles := search(left)) is not None:
        held = min(left, int(one_pass.cost(searched, tiles).peak))
        whole = (edge for edge in one_pass.edges if edge in WHOLE)
        spanning = [edge for edge in whole if getattr(tiles, edge) >= getattr(searched, WHOLE[edge])]
        tiles = tiles._replace(**{edge: getattr(stream, WHOLE[edge]) for edge in spanning})
        peak = int(one_pass.cost(stream, tiles).peak)
        if peak <= words:
            return tiles
        left = held * words // peak
    return None


def _searchable(stream: AnyProblem) -> AnyProblem:
    """Return the problem, or, if its sequences are too long for the tile search, the same problem on shorter ones.

    Under a band, the mask of the shorter problem is the same band. The tiles that move the fewest words then differ
    only where a tile spans the whole sequence, or in the blocks at its end. Raises RedblueError for a problem that
    cannot be shortened.
    """
    if isinstance(stream, PagedProblem):
        return stream  # its sizes are limited
    d, n_q, n_k = max(stream.d, stream.d_v), stream.n_q, stream.n_k
    weights = max(n_q, n_k) * stream.d if stream.direction == "gradient_x" else 0  # pairs of its products with weights
    if max(n_q, n_k, d) <= MAX_AXIS and max(n_q * n_k, weights) * d <= MAX_PRODUCT:
        return stream
    longest = min(MAX_AXIS, math.isqrt(MAX_PRODUCT // d), MAX_PRODUCT // (d * stream.d))
    if longest < MIN_SHORTENED or not isinstance(stream.mask.rule, Window):
        raise RedblueError(
            f"n_q (times query heads per key head) = {n_q:,}, n_k = {n_k:,}, d = {stream.d:,}, d_v = {stream.d_v:,} "
            f"are too large for the tile search. Axes must be at most {MAX_AXIS:,}, and n_q x n_k x d (for gradient_x "
            f"also n x d x d) at most {MAX_PRODUCT:,}; n_q and n_k may be larger under full, causal and sliding-window "
            "masks. Give the tiles instead"
        )
    group = stream.mask.group
    if group > longest:
        raise RedblueError(
            f"{group:,} query heads per key head are too many for the tile search, which takes at most {longest:,} if "
            f"d = {stream.d:,} and d_v = {stream.d_v:,}. Give the tiles instead"
        )
    return replace(stream, n_q=min(n_q, longest // group * group), n_k=min(n_k, longest))


def blocks(spans: int | range | Runs, size: int) -> Iterator[range]:
    """Yield consecutive ranges of length `size` in every span; the last one of a span may be shorter."""
    for span in (range(spans),) if isinstance(spans, int) else (spans,) if isinstance(spans, range) else spans:
        yield from (range(i, min(i + size, span.stop)) for i in range(span.start, span.stop, size))


def whole_blocks(spans: Runs, size: int, length: int) -> Iterator[range]:
    """Yield the blocks of `size` in range(length) that the spans touch, with adjacent blocks of a span merged."""
    done = 0
    for span in spans:
        first = max(done, span.start // size)
        done = max(done, ceil_div(span.stop, size))
        if first < done:
            yield range(first * size, min(length, done * size))


def grid(spans: Runs, size: int, length: int) -> Iterator[range]:
    """Yield the blocks of `size` in range(length) that the spans touch, each once."""
    for part in whole_blocks(spans, size, length):
        yield from blocks(part, size)


def walks(spans: Runs, size: int, length: int) -> Iterator[range]:
    """Yield the range of columns of each walk over the spans.

    In one walk, the columns of one range stream by a block of rows. The range is all of range(length), or one block of
    `size` that the spans touch.
    """
    return iter((range(length),)) if size >= length else grid(spans, size, length)


def partial_rows(i: range, walk: range, span: int, n_rows: int) -> range:
    """Return the rows of the array of partial results in which a walk of rows i stores its result.

    The array holds n_rows rows per span, one span after another.
    """
    before = walk.start // span * n_rows
    return range(before + i.start, before + i.stop)


def rows_walked(pairs: Pairs, rows: Any, size: Any) -> Any:
    """Count rows over all walks: each block of `rows` rows counts once per walk. size: columns of a walk."""
    return pairs.n_rows if size >= pairs.n_cols else pairs.sums(rows, size).rows


def overlap(a: range, spans: Runs) -> Runs:
    """Return the intersection of `a` with the spans."""
    parts = (range(max(a.start, b.start), min(a.stop, b.stop)) for b in spans)
    return tuple(part for part in parts if part)


def within(part: range, whole: range) -> slice:
    """Return the slice of `part` in a tile that holds the range `whole`."""
    return slice(part.start - whole.start, part.stop - whole.start)
