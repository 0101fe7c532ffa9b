"""What a schedule is: two passes, each with its program, its closed-form cost and its search for tiles."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div, larger, whole_number
from redblue.masks import Pairs, Runs
from redblue.problem import Problem

# Arrays in slow memory that a pass may take, by parameter name. "p" are the softmax probabilities.
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
}
PRODUCED = {"forward": ("out", "lse", "p", "row_max", "row_sum"), "backward": ("dq", "dk", "dv"), "gradient_x": ("dx",)}


# Edges that are as long as an axis unless they are given: shorter ones only save slow memory, or give more processors
# something to do.
WHOLE = {"chunk": "n_q", "span": "n_k"}
LONGEST = 2**27  # of an axis: beyond it the search would take seconds
LARGEST = 2**58  # n_q n_k d, or n d d: beyond it the search over 64-bit integers could overflow


class TooFewWords(RedblueError):
    """A cache smaller than the least that a schedule works in."""


class NotCovered(RedblueError):
    """A direction or a mask that a schedule has no program for."""


@dataclass(frozen=True)
class Cost:
    """Words read and written, most words held, and floating-point operations of one stream.

    The fields are numbers, or arrays over many candidate tiles. `a + b` is a followed by b.
    A closed form's reads, writes and flops equal the run's. Its peak does on a full mask; on others it is an upper
    bound (whole tiles, even where the mask leaves none), so that what fits by the closed form runs.
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
    """A pass over the mask, block by block, that asks once for each block of rows (of columns) what it attends.

    side: "rows" or "cols". edge: rows (columns) of a block. times: how often each block asks.
    """

    side: str
    edge: int
    times: int = 1


@dataclass(frozen=True)
class Pass:
    """One direction of a schedule, for one stream (see Problem.one_stream).

    run(machine, problem, tiles, *arrays): the program; its parameter names say which arrays it takes.
    tile_type: a NamedTuple of tile edges. cost(problem, tiles): the closed form.
    search(problem, words, multiple): the tiles of fewest words, as a tile_type of integers, or None.
    sweeps(problem, tiles): where the program asks the mask (m.cols_of), which matters if its index is stored.
    """

    run: Callable[..., None]
    tile_type: Callable[..., Any]
    cost: Callable[[Problem, Any], Cost]
    search: Callable[[Problem, int, Mapping[str, int]], Any]
    sweeps: Callable[[Problem, Any], tuple[Sweep, ...]] = lambda problem, tiles: ()

    @property
    def arrays(self) -> tuple[str, ...]:
        parameters = inspect.signature(self.run).parameters.values()
        return tuple(x.name for x in parameters if x.kind is x.POSITIONAL_OR_KEYWORD)[3:]

    @property
    def edges(self) -> tuple[str, ...]:
        return self.tile_type._fields  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Schedule:
    """An algorithm: in which order tiles are loaded, computed and stored.

    source: where it is from. passes: by direction; some have only one.
    drop_in: its passes take and give what the operator does (O and lse; for gradient_x, what Problem says), so that a
    planner may choose it; `standard` instead keeps the n^2 probabilities for its backward pass.
    spills: it writes arrays of n_q n_k words to slow memory.
    safe: finite for any finite scores. full_only: takes no mask. scattered: for masks; another is as good without one.
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

    def direction(self, problem: Problem) -> Pass:
        """The pass for the problem. Raises NotCovered if there is none."""
        if problem.direction not in self.passes:
            own = " and ".join(self.passes)
            raise NotCovered(f"{self.name} has no pass for direction {problem.direction!r}: it has {own}")
        if self.full_only and not problem.mask.is_full:
            raise NotCovered(f"{self.name} takes no mask, got {problem.mask!r}: use Mask.full() or another schedule")
        return self.passes[problem.direction]

    def tiles(self, problem: Problem, words: int, multiple: Mapping[str, int] | None = None) -> Any:
        """The tiles that move the fewest words through a cache of `words` words.

        multiple: for some edges, the number their lengths must be a multiple of (a tile never exceeds its array).
        Raises TooFewWords, with the least that works.
        """
        stream, one_pass = problem.one_stream(), self.direction(problem)
        sizes = {"n_q (times query heads per key head)": stream.n_q, "n_k": stream.n_k, "d": stream.d}
        sizes["d_v"] = stream.d_v
        longest = max(sizes, key=sizes.__getitem__)
        area = stream.n_q * stream.n_k
        if problem.direction == "gradient_x":  # its products with weights have n d pairs
            area = max(area, max(stream.n_q, stream.n_k) * stream.d)
        if sizes[longest] > LONGEST or area * max(stream.d, stream.d_v) > LARGEST:
            raise RedblueError(
                f"{longest} is {sizes[longest]:,}: the tile search takes at most {LONGEST:,}, and n_q x n_k x d (and "
                f"for gradient_x n x d x d) of at most {LARGEST:,}; give the tiles instead"
            )
        multiple = dict.fromkeys(one_pass.edges, 1) | dict(multiple or {})
        tiles = one_pass.search(stream, words, multiple)
        if tiles is None:
            whole_axes = {edge: getattr(stream, axis) for edge, axis in WHOLE.items() if edge in multiple}
            least = int(one_pass.cost(stream, one_pass.tile_type(**(multiple | whole_axes))).peak)
            raise TooFewWords(
                f"{self.name} {problem.direction} with d = {problem.d}, d_v = {problem.d_v} needs a cache of at least "
                f"{least} words, got {words}"
            )
        return tiles

    def make_tiles(self, problem: Problem, edges: Mapping[str, int]) -> Any:
        """Tiles from named edges, checked; edges left out are 1, or all of their axis (see WHOLE)."""
        one_pass = self.direction(problem)
        unknown = sorted(set(edges) - set(one_pass.edges))
        if unknown:
            allowed = ", ".join(one_pass.edges)
            raise RedblueError(f"{self.name} {problem.direction} has no tile edge {unknown[0]!r}; it has {allowed}")
        stream = problem.one_stream()
        least = {e: max(1, getattr(stream, WHOLE[e])) if e in WHOLE else 1 for e in one_pass.edges}
        tiles = one_pass.tile_type(**(least | dict(edges)))
        self._check(problem, tiles)
        return tiles

    def _check(self, problem: Problem, tiles: Any) -> None:
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

    def cost(self, problem: Problem, tiles: Any) -> Cost:
        """Closed-form cost of the whole problem: every stream, one after the other."""
        self._check(problem, tiles)
        one = self.direction(problem).cost(problem.one_stream(), tiles)
        s = problem.streams
        return Cost(s * int(one.reads), s * int(one.writes), int(one.peak), s * int(one.flops))

    def words(self, problem: Problem, tiles: Any) -> int:
        """Closed-form words moved, reads plus writes."""
        return self.cost(problem, tiles).words


def blocks(spans: int | range | Runs, size: int) -> Iterator[range]:
    """Consecutive ranges of `size` in every span; the last of a span may be shorter."""
    for span in (range(spans),) if isinstance(spans, int) else (spans,) if isinstance(spans, range) else spans:
        yield from (range(i, min(i + size, span.stop)) for i in range(span.start, span.stop, size))


def whole(spans: Runs, size: int, length: int) -> Iterator[range]:
    """What the blocks of range(length) that the spans touch cover, in ranges that do not overlap."""
    done = 0
    for span in spans:
        first = max(done, span.start // size)
        done = max(done, ceil_div(span.stop, size))
        if first < done:
            yield range(first * size, min(length, done * size))


def grid(spans: Runs, size: int, length: int) -> Iterator[range]:
    """The blocks of range(length) that the spans touch, each once."""
    for part in whole(spans, size, length):
        yield from blocks(part, size)


def walks(spans: Runs, size: int, length: int) -> Iterator[range]:
    """What one walk covers at a time: all of range(length), or those of its blocks of `size` that the spans touch."""
    return iter((range(length),)) if size >= length else grid(spans, size, length)


def part_of(i: range, walk: range, span: int, n_rows: int) -> range:
    """Where a walk of rows i leaves what it found: that of all rows for one span after another."""
    before = walk.start // span * n_rows
    return range(before + i.start, before + i.stop)


def rows_walked(pairs: Pairs, rows: Any, size: Any) -> Any:
    """Rows of all walks: each block of `rows` rows once for each of its walks."""
    return pairs.n_rows if size >= pairs.n_cols else pairs.sums(rows, size).rows


def overlap(a: range, spans: Runs) -> Runs:
    """The parts of `a` that lie in the spans."""
    met = (range(max(a.start, b.start), min(a.stop, b.stop)) for b in spans)
    return tuple(part for part in met if part)


def within(part: range, whole: range) -> slice:
    """Where `part` lies in a tile that holds `whole`."""
    return slice(part.start - whole.start, part.stop - whole.start)
