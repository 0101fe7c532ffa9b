"""Plan a call on a card: choose the kernel, tiles and settings that fit and move the fewest words.

A launch fits if the card has enough shared memory and registers for it (resources.py). The closed form of its schedule
counts the words between shared memory and the next level. Occupancy is ranked before words moved. Ties go to settings
that are known to keep a multiprocessor busy: two or three stages, streaming tiles of 64, few warps. On sm_90 three
stages rank before two: with two stages, Triton requests the next tiles after a step's last product and then waits for
them. The length of streaming tiles ranks before the stages, since short tiles feed wgmma too slowly.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from itertools import product
from typing import Any, NamedTuple

from redblue import schedules
from redblue.base.dtypes import BYTES_PER_WORD
from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div
from redblue.kernels.gpu.launch import PlanOptions
from redblue.kernels.gpu.planning import by_gluon, by_tma, one_pass, warpgroups
from redblue.kernels.gpu.planning.card import BUSY, Card, card_named, card_of
from redblue.kernels.gpu.planning.footprints import (
    COUNTED_AS,
    KERNELS,
    MAX_SPILLED,
    MIN_EDGE,
    MIN_SPAN,
    ON_ONE_GRID,
    Part,
)
from redblue.kernels.gpu.planning.resources import pipelines, resources
from redblue.kernels.sizes import Sizes, magnitude
from redblue.problem import Problem
from redblue.schedules.schedule import WHOLE

__all__ = ["Card", "Launch", "Unplanned", "candidates", "card_named", "card_of", "launches", "node_sizes", "plan"]

WARPS, STREAMS, STAGES = (4, 8), (64, 128, 32, 16), (2, 3, 1)  # the best first, for ties in words
L2_SHARE = 0.5  # the share of the L2 cache that a chunk's spilled arrays may fill, so that they are read back from L2
ALIKE = 1.03  # words within this factor count as equal
NEAR = 2.0  # candidates may move at most this many times the words of the first candidate
MAX_CANDIDATES = 8
LESS = 0.75  # share of a refused launch's shared memory that the next plan may take
PLAIN = PlanOptions()
PLENTY = 1 << 16  # number of streams: more than the multiprocessors of any card


class Launch(NamedTuple):
    """A kernel by its schedule's name, its tiles by the names that the schedule gives them, and Triton's settings."""

    kernel: str  # "flash", "flash_onepass", "hybrid", "small_cache"
    tiles: Any
    warps: int = 4
    stages: int = 2
    chunk: int = 0  # rows (stacked) whose spilled probabilities are in memory at once
    shared_bytes: int = 0
    parts: tuple[tuple[int, int], ...] = ()  # warps and stages of each Triton kernel; empty: the same for all

    def settings(self, part: int) -> tuple[int, int]:
        """The warps and stages of a Triton kernel. part: its number in footprints.KERNELS."""
        return self.parts[part] if self.parts else (self.warps, self.stages)


class Unplanned(RedblueError):
    """No tiles of the kernel fit the card. The message names the bytes that the smallest tiles need and the limit."""

    def __init__(self, direction: str, sizes: Sizes, dtype: str, card: Card, least: Launch) -> None:
        self.kernel, self.least, self.card = least.kernel, least, card
        self.need_bytes, self.have_bytes = least.shared_bytes, card.shared_bytes
        tiles = ", ".join(f"{name} {edge}" for name, edge in least.tiles._asdict().items())
        super().__init__(
            f"{self.kernel}, {direction}, with d = {sizes.d}, d_v = {sizes.d_v} in {dtype} does not fit: its smallest "
            f"tiles ({tiles}) need {self.need_bytes:,} bytes of shared memory, and a block on this card has "
            f"{self.have_bytes:,}"
        )


def plan(
    direction: str, sizes: Sizes, dtype: str, card: Card, options: PlanOptions = PLAIN, schedule: str = "auto"
) -> Launch:
    """The best launch: the first of the candidates."""
    return candidates(direction, sizes, dtype, card, options, schedule)[0]


def candidates(
    direction: str, sizes: Sizes, dtype: str, card: Card, options: PlanOptions = PLAIN, schedule: str = "auto"
) -> tuple[Launch, ...]:
    """At most MAX_CANDIDATES launches, the best first. Lengths are rounded up to powers of two.

    schedule: the kernel to run, or "auto". If it cannot run on this card, another kernel takes its place, with a
    warning the first time. Raises Unplanned if none can.
    """
    planned = _cached(direction, _rounded(sizes), dtype, card, options, schedule)
    special = _for_hopper(direction, _in_powers(sizes), dtype, card, options, schedule)
    return (*special, *planned)[:MAX_CANDIDATES]


def _in_powers(sizes: Sizes) -> Sizes:
    """The sizes with lengths rounded up to powers of two, so that all calls of a kind have the same candidates."""
    n_q, n_k = (magnitude(n) if n else 0 for n in (sizes.n_q, sizes.n_k))
    return Sizes((1,), magnitude(sizes.streams), sizes.group, n_q, n_k, sizes.d, sizes.d_v)


@lru_cache(maxsize=4096)
def _for_hopper(
    direction: str, sizes: Sizes, dtype: str, card: Card, options: PlanOptions, schedule: str
) -> tuple[Launch, ...]:
    """The launches of kernels written for sm_90; empty if they do not support the call."""
    call = direction, sizes, dtype, card
    supports_gluon = schedule in ("auto", "flash") and bool(options.by_gluon)
    forward = by_gluon.choices(*call, options.by_gluon) if supports_gluon else ()
    backward = one_pass.choices(*call, options.by_gluon) if supports_gluon and options.any_order else ()
    wide = by_tma.choices(*call) if options.by_tma and schedule in ("auto", "small_cache") else ()
    return (
        *(Launch("flash", x, stages=x.stages, shared_bytes=x.shared_bytes(sizes.d, sizes.d_v)) for x in forward),
        *(
            Launch("flash_onepass", x, 8, one_pass.STAGES, shared_bytes=one_pass.SHARED_BYTES[sizes.d])
            for x in backward
        ),
        *(Launch("small_cache", x, shared_bytes=by_tma.largest_bytes(x)) for x in wide),
    )


def node_sizes(rows: int, d: int, d_v: int) -> Sizes:
    """The sizes by which a node of `attention_paged` with `rows` stacked rows is planned.

    The number of nodes is always PLENTY, so that tiles, and therefore rounding, do not depend on the rest of the batch.
    """
    return Sizes((1,), PLENTY, 1, rows, MIN_SPAN, d, d_v)


def launches(
    direction: str, sizes: Sizes, dtype: str, card: Card, options: PlanOptions = PLAIN, schedule: str = "auto"
) -> Iterator[Launch]:
    """Yield the candidates, then plans for less and less shared memory, down to the smallest tiles."""
    planned = candidates(direction, sizes, dtype, card, options, schedule)
    while True:
        yield from planned
        smaller = card._replace(shared_bytes=int(LESS * min(launch.shared_bytes for launch in planned)))
        try:
            planned = _candidates(direction, _rounded(sizes), dtype, smaller, options, schedule)[0][:1]
        except Unplanned:
            return


def _rounded(sizes: Sizes) -> Sizes:
    rows, keys, streams = (magnitude(x) for x in (sizes.n_q * sizes.group, sizes.n_k, sizes.streams))
    return Sizes((1,), streams, 1, rows, keys, sizes.d, sizes.d_v)


@lru_cache(maxsize=4096)
def _cached(
    direction: str, sizes: Sizes, dtype: str, card: Card, options: PlanOptions, schedule: str
) -> tuple[Launch, ...]:
    planned, failure = _candidates(direction, sizes, dtype, card, options, schedule)
    if failure:
        warnings.warn(f"{failure}; {planned[0].kernel} runs instead", stacklevel=3)
    return planned


@lru_cache(maxsize=4096)
def _candidates(
    direction: str, sizes: Sizes, dtype: str, card: Card, options: PlanOptions, schedule: str
) -> tuple[tuple[Launch, ...], Unplanned | None]:
    """The candidates, and the error of the requested kernel if another one takes its place."""
    ranked = {
        name: _ranked(name, direction, sizes, dtype, card, options)
        for name, kernel_direction in KERNELS
        if kernel_direction == direction
    }
    requested = ranked.get(schedule)
    if isinstance(requested, list):
        return _launches_of(requested), None
    fitting = [choice for choices in ranked.values() if isinstance(choices, list) for choice in choices]
    if not fitting:
        raise requested or next(failure for failure in reversed(ranked.values()) if isinstance(failure, Unplanned))
    return _launches_of(sorted(fitting, key=_rank)), requested


class _Choice(NamedTuple):
    rank: tuple[float, ...]  # lower is better
    launch: Launch
    words: int
    others: tuple[Launch, ...] = ()  # further launches worth timing; empty: choose among the other choices


def _rank(choice: _Choice) -> tuple[float, ...]:
    return choice.rank


def _launches_of(ranked: list[_Choice]) -> tuple[Launch, ...]:
    """The best launch, then the best ones that differ in kernel, in stages, in warps, or in an edge."""
    first, near = ranked[0], [choice for choice in ranked if choice.words <= NEAR * ranked[0].words]
    settings = [lambda x: x.kernel, lambda x: x.stages, lambda x: x.warps, *map(_edge, range(len(first.launch.tiles)))]
    selected = dict.fromkeys((first.launch, *first.others))
    if first.others:
        settings = settings[:1]
    for setting in settings:
        other = next((choice.launch for choice in near if setting(choice.launch) != setting(first.launch)), None)
        selected |= {other: None} if other else {}
    return tuple(selected)[:MAX_CANDIDATES]


def _edge(i: int) -> Any:
    return lambda launch: launch.tiles[i] if i < len(launch.tiles) else None


def _ranked(
    name: str, direction: str, sizes: Sizes, dtype: str, card: Card, options: PlanOptions
) -> list[_Choice] | Unplanned:
    """The kernel's launches that fit, the best first, or the error if none fits."""
    if warpgroups.covers(name, direction, sizes, dtype, card, options):
        by_parts = _by_parts(name, direction, sizes, dtype, card, options)
        if by_parts:
            return [by_parts]
    stages = STAGES if pipelines(card) else (1,)
    streams = [x for x in STREAMS if x <= max(MIN_EDGE, sizes.n_q, sizes.n_k)]
    tried = [
        _fitted(name, direction, sizes, dtype, card, options, *setting)
        for setting in product(WARPS, stages, streams, KERNELS[name, direction].max_edges)
    ]
    fitting = {choice.launch: choice for choice in tried if isinstance(choice, _Choice)}
    if fitting:
        return sorted(fitting.values(), key=_rank)
    least = min((launch for launch in tried if isinstance(launch, Launch)), key=lambda launch: launch.shared_bytes)
    return Unplanned(direction, sizes, dtype, card, least)


def _by_parts(name: str, direction: str, sizes: Sizes, dtype: str, card: Card, options: PlanOptions) -> _Choice | None:
    """The best launch with separate settings for each Triton kernel, and others worth timing; None if none fits."""
    kernel, counted = KERNELS[name, direction], schedules.get(name).passes[direction]
    problem = _problem(direction, sizes)
    tiles = counted.tile_type(
        **{edge: getattr(problem, WHOLE[edge]) if edge in WHOLE else MIN_EDGE for edge in counted.edges}
    )
    ranked = []
    for part, stream in zip(kernel.parts, kernel.streams, strict=True):
        count = partial(_words, name, direction, sizes)
        ranked.append(warpgroups.ranked(part, stream, tiles, sizes, dtype, card, options, count))
    if not all(ranked):
        return None

    def launch(chosen: list[warpgroups.Tile]) -> Launch:
        edges = {edge: length for tile in chosen for edge, length in tile.edges.items()}
        t = tiles._replace(**edges)
        t = _cut(t, sizes, card) if "span" in t._fields else t
        (warps, stages, *_), *rest = [(tile.warps, tile.stages) for tile in chosen]
        parts = tuple((tile.warps, tile.stages) for tile in chosen) if rest else ()
        return Launch(name, t, warps, stages, 0, max(tile.shared_bytes for tile in chosen), parts)

    first = [tiles_of_part[0] for tiles_of_part in ranked]
    others = [
        launch([*first[:i], tile, *first[i + 1 :]])
        for i, tiles_of_part in enumerate(ranked)
        for tile in warpgroups.alternatives(tiles_of_part)
    ]
    best = launch(first)
    words = _words(name, direction, sizes, best.tiles)
    pressure, idle = max(1.0, *(tile.pressure for tile in first)), max(tile.idle for tile in first)
    return _Choice((pressure, idle, round(math.log(words, ALIKE))), best, words, tuple(others))


def _fitted(
    name: str,
    direction: str,
    sizes: Sizes,
    dtype: str,
    card: Card,
    options: PlanOptions,
    warps: int,
    stages: int,
    stream: int,
    max_edge: int,
) -> _Choice | Launch:
    """The best launch with these settings, or the smallest launch if nothing fits."""
    kernel, counted = KERNELS[name, direction], schedules.get(name).passes[_counted_as(direction)]
    problem = _problem(direction, sizes)
    shortest = {edge: getattr(problem, WHOLE[edge]) if edge in WHOLE else MIN_EDGE for edge in counted.edges}
    tiles = counted.tile_type(**(shortest | dict.fromkeys(kernel.streams, stream)))
    staying = set(shortest) - set(kernel.streams) - set(WHOLE)
    tiles = tiles._replace(**{edge: _shortest(edge, tiles) for edge in staying})
    shared, pressure, idle = 0, 1.0, 0.0
    for part in kernel.parts:
        choices = []
        for t in _lengths(part, tiles, max_edge, ON_ONE_GRID if options.listed else {}):
            needed = resources(part.footprint(t, sizes, options), dtype, card, warps, stages)
            choices.append(
                (
                    needed.shared_bytes > card.shared_bytes and needed.shared_bytes,
                    max(1.0, needed.pressure),  # up to 1, nothing spills
                    max(0.0, 1 - part.blocks(t, sizes) / (BUSY * card.multiprocessors)),
                    _words(name, direction, sizes, t),
                    needed.shared_bytes,
                    t,
                )
            )
        best = min(choices)
        shared, pressure, idle, tiles = max(shared, best[4]), max(pressure, best[1]), max(idle, best[2]), best[5]
    chunk = 0
    if kernel.spilled:
        arrays = kernel.spilled + (options.softcap and direction == "backward")  # the derivative is spilled, too
        tiles, chunk = _chunked(tiles, sizes, arrays * BYTES_PER_WORD[dtype], card)
    elif "span" in tiles._fields:
        tiles = _cut(tiles, sizes, card)
    launch = Launch(name, tiles, warps, stages, chunk, shared)
    if shared > card.shared_bytes:
        return launch
    words = _words(name, direction, sizes, tiles)
    preference = STAGES.index(stages), STREAMS.index(stream), WARPS.index(warps)
    if card.arch // 10 == 9:
        preference = stages == 1, STREAMS.index(stream), -stages, WARPS.index(warps)
    return _Choice((pressure, idle, round(math.log(words, ALIKE)), *preference, words), launch, words)


def _problem(direction: str, sizes: Sizes) -> Problem:
    n_q, n_k = max(1, sizes.n_q), max(1, sizes.n_k)
    return Problem(n_q=n_q, n_k=n_k, d=sizes.d, d_v=sizes.d_v, direction=_counted_as(direction))


def _counted_as(direction: str) -> str:
    """The pass of the schedule that counts the words of this direction."""
    return COUNTED_AS.get(direction, direction)


@lru_cache(maxsize=1 << 14)
def _words(name: str, direction: str, sizes: Sizes, tiles: Any) -> int:
    """Words that one stream moves."""
    return int(schedules.get(name).passes[_counted_as(direction)].cost(_problem(direction, sizes), tiles).words)


def _cut(tiles: Any, sizes: Sizes, card: Card) -> Any:
    """The tiles, with keys cut into spans if there are too few rows for all multiprocessors, as in decoding."""
    blocks = ceil_div(sizes.n_q * sizes.group, tiles.rows) * max(1, sizes.streams)
    spans = min(ceil_div(math.ceil(BUSY * card.multiprocessors), max(1, blocks)), sizes.n_k // MIN_SPAN)
    if spans < 2:
        return tiles
    return tiles._replace(span=ceil_div(ceil_div(sizes.n_k, spans), tiles.cols) * tiles.cols)


def _chunked(tiles: Any, sizes: Sizes, pair_bytes: int, card: Card) -> tuple[Any, int]:
    """The tiles with their spans of keys, and the rows of a chunk.

    P is spilled in chunks of rows. A chunk fills at most half of the L2 cache, unless this gives too few rows to occupy
    all multiprocessors. It spills at most MAX_SPILLED bytes, unless the fewest rows that a chunk can have spill more.
    A stream's rows are cut into equal chunks.
    pair_bytes: bytes spilled per pair.
    """
    rows, blocks, t = sizes.n_q * sizes.group, math.ceil(BUSY * card.multiprocessors), tiles._asdict()
    height, width, features = (
        (t["out_rows"], t["out_cols"], sizes.d_v) if "out_rows" in t else (t["dq_rows"], t["dq_cols"], sizes.d)
    )
    step = max(t["rows"], height, t["cols"], t["depth"])
    row_bytes = pair_bytes * max(1, sizes.n_k)
    in_l2, max_chunk = int(L2_SHARE * card.l2_bytes) // row_bytes, max(1, MAX_SPILLED // (row_bytes * step)) * step
    busy, all_rows = height * ceil_div(blocks, ceil_div(features, width)), max(1, ceil_div(rows, step)) * step
    chunk = min(ceil_div(max(in_l2, busy), step) * step, all_rows * max(1, sizes.streams), max_chunk)
    if chunk < rows:  # a short last chunk would leave multiprocessors idle
        times = max(rows // chunk, ceil_div(rows, max_chunk))
        chunk = ceil_div(ceil_div(rows, times), step) * step
    spans = ceil_div(blocks * t["rows"], chunk)  # pieces of the keys, if a chunk has too few blocks of rows
    edge = max(t["cols"], t["depth"])
    edges = {"span": max(edge, ceil_div(ceil_div(sizes.n_k, spans), edge) * edge), "chunk": min(chunk, max(1, rows))}
    return tiles._replace(**{name: length for name, length in edges.items() if name in t}), chunk


def _lengths(part: Part, tiles: Any, max_edge: int, tied: Mapping[str, str]) -> list[Any]:
    """The tiles with every power of two for the part's edges. tied: edges that must equal another edge, by name."""
    edges = (
        [getattr(tiles, tied[edge])] if edge in tied else _powers(_shortest(edge, tiles), max_edge)
        for edge in part.edges
    )
    return [tiles._replace(**dict(zip(part.edges, x, strict=True))) for x in product(*edges)]


def _shortest(edge: str, tiles: Any) -> int:
    """The shortest edge that may be tried. Tiles of P and dS are read back in whole slices of `depth`."""
    return max(MIN_EDGE, getattr(tiles, "depth", MIN_EDGE)) if edge in ("rows", "cols") else MIN_EDGE


def _powers(first: int, last: int) -> list[int]:
    return [first << i for i in range(max(1, (last // first).bit_length()))]
