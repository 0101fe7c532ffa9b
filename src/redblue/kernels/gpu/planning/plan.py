"""From a card to a kernel and its tiles: of all launches that fit, the one that moves the fewest words.

A launch fits if its shared memory is there and its results lie in registers (`needs`). Its words are those of its
schedule's closed form, between shared memory and what is behind it. Before them goes that all multiprocessors have
something to do; what they leave open goes by what is known to keep one busy: two or three stages, streaming tiles of
64, few warps. On sm_90 three rather than two: with two, Triton asks for the next tiles after a step's last product and
waits for them at once; but the streaming tiles come first, since short ones feed wgmma too slowly.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

from redblue import schedules
from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div
from redblue.kernels.cpu.call import Sizes
from redblue.kernels.gpu.launch import Options
from redblue.kernels.gpu.planning.card import Card, card_named, card_of
from redblue.kernels.gpu.planning.footprints import KERNELS, LEAST, LEAST_SPAN, ON_ONE_GRID, Part
from redblue.kernels.gpu.planning.needs import BYTES, need, pipelines
from redblue.problem import Problem
from redblue.schedules.schedule import WHOLE

__all__ = ["Card", "Launch", "Unplanned", "candidates", "card_named", "card_of", "launches", "plan"]

WARPS, STREAMS, STAGES = (4, 8), (64, 128, 32, 16), (2, 3, 1)  # the best first, where words do not decide
L2_SHARE = 0.5  # for what is spilled of a chunk of rows, so that it is read from there
MOST_SPILLED = 1 << 31  # bytes of a chunk, or what one step of rows takes: however long sequences are
BUSY = 0.75  # share of the multiprocessors that have a block: more need not be
ALIKE = 1.03  # words within this factor do not decide
NEAR = 2.0  # candidates may move so many times the words of the first
MOST_CANDIDATES = 6
LESS = 0.75  # of the shared memory of a launch that a card refused, for the next one
PLAIN = Options()


class Launch(NamedTuple):
    """What runs: a kernel by name, and its tiles by the names of its schedule."""

    kernel: str  # "flash", "hybrid", "small_cache"
    tiles: Any
    warps: int = 4
    stages: int = 2
    chunk: int = 0  # rows (stacked) whose probabilities are in memory at once, where they are spilled
    shared_bytes: int = 0


class Unplanned(RedblueError):
    """A kernel of which no tile fits on a card: what the smallest would need, and what a block of the card has."""

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
    direction: str, sizes: Sizes, dtype: str, card: Card, options: Options = PLAIN, schedule: str = "auto"
) -> Launch:
    """The first of the candidates."""
    return candidates(direction, sizes, dtype, card, options, schedule)[0]


def candidates(
    direction: str, sizes: Sizes, dtype: str, card: Card, options: Options = PLAIN, schedule: str = "auto"
) -> tuple[Launch, ...]:
    """At most MOST_CANDIDATES launches, the best by the plan first; the same for all lengths of one magnitude.

    schedule: the kernel that is to run; "auto": any. Where it cannot run on this card, one that can takes its place,
    with a warning the first time. Raises Unplanned where none can.
    """
    return _warned(direction, _alike(sizes), dtype, card, options, schedule)


def launches(
    direction: str, sizes: Sizes, dtype: str, card: Card, options: Options = PLAIN, schedule: str = "auto"
) -> Iterator[Launch]:
    """The candidates, then what is planned for ever less shared memory, down to the smallest tiles there are."""
    found = candidates(direction, sizes, dtype, card, options, schedule)
    while True:
        yield from found
        less = card._replace(shared_bytes=int(LESS * min(launch.shared_bytes for launch in found)))
        try:
            found = _candidates(direction, _alike(sizes), dtype, less, options, schedule)[0][:1]
        except Unplanned:
            return


def _alike(sizes: Sizes) -> Sizes:
    rows, keys, streams = (_magnitude(x) for x in (sizes.n_q * sizes.group, sizes.n_k, sizes.streams))
    return Sizes((1,), streams, 1, rows, keys, sizes.d, sizes.d_v)


@lru_cache(maxsize=4096)
def _warned(
    direction: str, sizes: Sizes, dtype: str, card: Card, options: Options, schedule: str
) -> tuple[Launch, ...]:
    found, why = _candidates(direction, sizes, dtype, card, options, schedule)
    if why:
        warnings.warn(f"{why}; {found[0].kernel} runs instead", stacklevel=3)
    return found


@lru_cache(maxsize=4096)
def _candidates(
    direction: str, sizes: Sizes, dtype: str, card: Card, options: Options, schedule: str
) -> tuple[tuple[Launch, ...], Unplanned | None]:
    """And why they are not of the kernel that was asked for."""
    ranked = {name: _ranked(name, direction, sizes, dtype, card, options) for name, way in KERNELS if way == direction}
    asked = ranked.get(schedule)
    if isinstance(asked, list):
        return _few(asked), None
    found = [choice for choices in ranked.values() if isinstance(choices, list) for choice in choices]
    if not found:
        raise asked or next(why for why in reversed(ranked.values()) if isinstance(why, Unplanned))
    return _few(sorted(found, key=_rank)), asked


class _Choice(NamedTuple):
    rank: tuple[float, ...]  # less is better
    launch: Launch
    words: int


def _rank(choice: _Choice) -> tuple[float, ...]:
    return choice.rank


def _few(ranked: list[_Choice]) -> tuple[Launch, ...]:
    """The first, and those that come next and differ from it in one respect."""
    first, near = ranked[0], [choice for choice in ranked if choice.words <= NEAR * ranked[0].words]
    respects = [lambda x: x.kernel, lambda x: x.stages, lambda x: x.warps, *map(_edge, range(len(first.launch.tiles)))]
    found = {first.launch: None}
    for respect in respects:
        other = next((each.launch for each in near if respect(each.launch) != respect(first.launch)), None)
        found |= {other: None} if other else {}
    return tuple(found)[:MOST_CANDIDATES]


def _edge(i: int) -> Any:
    return lambda launch: launch.tiles[i] if i < len(launch.tiles) else None


def _ranked(
    name: str, direction: str, sizes: Sizes, dtype: str, card: Card, options: Options
) -> list[_Choice] | Unplanned:
    """The kernel's launches that fit, the best first."""
    stages = STAGES if pipelines(card) else (1,)
    streams = [x for x in STREAMS if x <= max(LEAST, sizes.n_q, sizes.n_k)]
    tried = [
        _fitted(name, direction, sizes, dtype, card, options, *setting)
        for setting in product(WARPS, stages, streams, KERNELS[name, direction].most)
    ]
    found = {choice.launch: choice for choice in tried if isinstance(choice, _Choice)}
    if found:
        return sorted(found.values(), key=_rank)
    least = min((each for each in tried if isinstance(each, Launch)), key=lambda launch: launch.shared_bytes)
    return Unplanned(direction, sizes, dtype, card, least)


def _fitted(
    name: str,
    direction: str,
    sizes: Sizes,
    dtype: str,
    card: Card,
    options: Options,
    warps: int,
    stages: int,
    stream: int,
    most: int,
) -> _Choice | Launch:
    """The best launch with these, or, where nothing fits, the smallest."""
    kernel, one_pass = KERNELS[name, direction], schedules.get(name).passes[direction]
    problem = _problem(direction, sizes)
    shortest = {edge: getattr(problem, WHOLE[edge]) if edge in WHOLE else LEAST for edge in one_pass.edges}
    tiles = one_pass.tile_type(**(shortest | dict.fromkeys(kernel.streams, stream)))
    own = set(shortest) - set(kernel.streams) - set(WHOLE)
    tiles = tiles._replace(**{edge: _shortest(edge, tiles) for edge in own})
    shared, pressure, idle = 0, 1.0, 0.0
    for part in kernel.parts:
        choices = []
        for t in _lengths(part, tiles, most, ON_ONE_GRID if options.listed else {}):
            needed = need(part.phase(t, sizes, options), dtype, card, warps, stages)
            choices.append(
                (
                    needed.shared_bytes > card.shared_bytes and needed.shared_bytes,
                    max(1.0, needed.pressure),  # up to 1, nothing is spilled
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
        arrays = kernel.spilled + (options.softcap and direction == "backward")  # its derivative
        tiles, chunk = _chunked(tiles, sizes, arrays * BYTES[dtype], card)
    elif "span" in tiles._fields:
        tiles = _cut(tiles, sizes, card)
    launch = Launch(name, tiles, warps, stages, chunk, shared)
    if shared > card.shared_bytes:
        return launch
    words = _words(name, direction, sizes, tiles)
    likes = STAGES.index(stages), STREAMS.index(stream), WARPS.index(warps)
    if card.arch // 10 == 9:
        likes = stages == 1, STREAMS.index(stream), -stages, WARPS.index(warps)
    return _Choice((pressure, idle, round(math.log(words, ALIKE)), *likes, words), launch, words)


def _problem(direction: str, sizes: Sizes) -> Problem:
    return Problem(n_q=max(1, sizes.n_q), n_k=max(1, sizes.n_k), d=sizes.d, d_v=sizes.d_v, direction=direction)


@lru_cache(maxsize=1 << 14)
def _words(name: str, direction: str, sizes: Sizes, tiles: Any) -> int:
    """Of one stream."""
    return int(schedules.get(name).passes[direction].cost(_problem(direction, sizes), tiles).words)


def _cut(tiles: Any, sizes: Sizes, card: Card) -> Any:
    """The tiles with keys cut into spans where rows are too few for all multiprocessors, as in decoding."""
    blocks = ceil_div(sizes.n_q * sizes.group, tiles.rows) * max(1, sizes.streams)
    walks = min(ceil_div(math.ceil(BUSY * card.multiprocessors), max(1, blocks)), sizes.n_k // LEAST_SPAN)
    if walks < 2:
        return tiles
    return tiles._replace(span=ceil_div(ceil_div(sizes.n_k, walks), tiles.cols) * tiles.cols)


def _chunked(tiles: Any, sizes: Sizes, pair_bytes: int, card: Card) -> tuple[Any, int]:
    """The tiles with their spans of keys, and rows of a chunk: what stays in the L2, or more where that is too few for
    all multiprocessors, but no more than MOST_SPILLED; and so many that a stream's rows are equal chunks.

    pair_bytes: what is spilled of a pair.
    """
    rows, blocks, t = sizes.n_q * sizes.group, math.ceil(BUSY * card.multiprocessors), tiles._asdict()
    height, width, features = (
        (t["out_rows"], t["out_cols"], sizes.d_v) if "out_rows" in t else (t["dq_rows"], t["dq_cols"], sizes.d)
    )
    step = max(t["rows"], height, t["cols"], t["depth"])
    row_bytes = pair_bytes * max(1, sizes.n_k)
    in_l2, most = int(L2_SHARE * card.l2_bytes) // row_bytes, max(1, MOST_SPILLED // (row_bytes * step)) * step
    busy = height * ceil_div(blocks, ceil_div(features, width))
    chunk = min(ceil_div(max(in_l2, busy), step) * step, max(1, ceil_div(rows, step)) * step * max(1, sizes.streams))
    if min(chunk, most) < rows:  # a short last one would leave multiprocessors idle
        times = max(rows // min(chunk, most), ceil_div(rows, most))
        chunk = ceil_div(ceil_div(rows, times), step) * step
    walks = ceil_div(blocks * t["rows"], chunk)  # of each block of rows, where those are too few
    edge = max(t["cols"], t["depth"])
    edges = {"span": max(edge, ceil_div(ceil_div(sizes.n_k, walks), edge) * edge), "chunk": min(chunk, max(1, rows))}
    return tiles._replace(**{name: length for name, length in edges.items() if name in t}), chunk


def _lengths(part: Part, tiles: Any, most: int, tied: Mapping[str, str]) -> list[Any]:
    """The tiles with every power of two for the part's edges. tied: those that equal another, by its name."""
    edges = (
        [getattr(tiles, tied[edge])] if edge in tied else _powers(_shortest(edge, tiles), most) for edge in part.edges
    )
    return [tiles._replace(**dict(zip(part.edges, x, strict=True))) for x in product(*edges)]


def _shortest(edge: str, tiles: Any) -> int:
    """Tiles of P and dS are read back in slices of `depth`, so they are made of whole ones."""
    return max(LEAST, getattr(tiles, "depth", LEAST)) if edge in ("rows", "cols") else LEAST


def _powers(least: int, most: int) -> list[int]:
    return [least << i for i in range(max(1, (most // least).bit_length()))]


def _magnitude(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()
