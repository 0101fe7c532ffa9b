"""Blocks of the streaming axis that stay in the cache from one block of the other axis to the next.

In most schedules a block of rows stays, and all blocks of columns stream by, once for each block of rows. A schedule
that keeps some of these column blocks does not load them again for the next block of rows. This pays in two cases. If
an axis has few blocks, a part of the cache would otherwise be unused. Under a window, the next block of rows needs most
of the same columns.

The blocks that stay are the last ones that a block of rows attends. If all blocks of columns may stay, none is ever
released, so each is loaded once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div, clip, floor_sum, larger, smaller
from redblue.masks import Pairs, Runs
from redblue.masks.patterns.band import Band
from redblue.masks.patterns.pairs import Transposed
from redblue.schedules.schedule import Cost, blocks, overlap, whole_blocks
from redblue.schedules.search import cheapest, edges, spread

T = TypeVar("T")
MAX_BLOCKS = 1 << 20  # blocks of rows that are counted one by one
SHORT_EDGES = 1 << 9  # under a mask, the search tries the smallest SHORT_EDGES numbers of rows, and as many larger ones
OTHER_EDGES = 16  # numbers of rows that are tried under a mask that is neither full nor a band
OTHER_BLOCKS = 1 << 12  # under such a mask, a number of rows is tried only if it gives at most this many blocks of rows


class Kept(Generic[T]):
    """The tiles that stay. limit: number of blocks of columns that may stay. total: number of all blocks of columns.

    release(block, tiles): frees the tiles of a block that leaves the cache.
    """

    def __init__(self, n_cols: int, cols: int, keep: int, release: Callable[[range, T], object]) -> None:
        self.limit, self.total = ceil_div(keep, cols), ceil_div(n_cols, cols)
        self.tiles: dict[range, T] = {}
        self.release = release

    def visit(self, attended: list[range], load: Callable[[range], T], final: bool) -> Iterator[tuple[range, T]]:
        """Yield the blocks that a block of rows attends, with their tiles; blocks in the cache come first.

        A tile stays or is released after its visit. load(block): loads its tiles. final: no block of rows follows.
        """
        stay = set(self.tiles) if final else set(attended[-self.limit :])
        gone = set(self.tiles).difference(attended) if self.limit < self.total else ()
        for block in sorted(gone, key=lambda block: block.start):
            self.release(block, self.tiles.pop(block))
        for block in sorted(attended, key=lambda block: (block not in self.tiles, block.start)):
            tiles = self.tiles.pop(block, None) or load(block)
            yield block, tiles
            if block in stay:
                self.tiles[block] = tiles
            else:
                self.release(block, tiles)

    def clear(self) -> None:
        """Release all tiles."""
        while self.tiles:
            self.release(*self.tiles.popitem())


def loaded_cols(pairs: Pairs, rows: Any, cols: int, keep: Any) -> Any:
    """Count the columns that are loaded, over all blocks of rows, if the last `keep` columns stay.

    cols: columns of a block; keep is rounded up to whole blocks. rows, keep: numbers or, under a band, also arrays.
    """
    total = ceil_div(pairs.n_cols, cols)
    limit = smaller(ceil_div(keep, cols), total)
    if pairs.is_full:
        stay = pairs.n_cols - (total - limit) * cols * (limit < total)
        return ceil_div(pairs.n_rows, rows) * (pairs.n_cols - stay) + stay
    once, streamed = pairs.sums(pairs.n_rows, cols).cols, pairs.sums(rows, cols).cols
    band = pairs.of if isinstance(pairs, Transposed) else pairs
    if isinstance(band, Band):
        line = _line(band, isinstance(pairs, Transposed), rows, cols)
        saved = _saved_under_band((ceil_div(pairs.n_rows, rows), total), line, limit)
        saved = cols * saved[0] - (total * cols - pairs.n_cols) * saved[1]
    else:
        saved = streamed - once if limit == total else _saved(pairs, rows, cols, limit)
    return (limit == total) * once + (limit < total) * (streamed - saved)


class _Line(NamedTuple):
    """Linear formulas for the column blocks that row blocks attend under a band.

    Row block b attends column blocks from number floor((step b + first) / divisor) on. Row block b - 1 attends column
    blocks up to number floor((step b + end) / divisor) - 1. The formulas ignore the ends of the axis: a number may be
    negative, or beyond the last column block. last: the last row block whose first column exists.
    """

    step: Any
    divisor: int
    first: int
    end: int
    last: Any


def _line(band: Band, transposed: bool, rows: Any, cols: int) -> _Line:
    """Return the line of a band's blocks. transposed: use the band's transpose."""
    if transposed:
        first = band.group * (1 - band.end)
        step, end = rows * band.group, cols - 1 - band.group * band.first
        return _Line(step, cols, first, end, (band.n_rows - 1 - first) // step)
    first = band.group * band.first
    last = (band.n_cols * band.group - 1 - first) // rows
    return _Line(rows, band.group * cols, first, band.group * (band.end + cols - 1) - 1, last)


def _saved_under_band(blocks: tuple[Any, int], line: _Line, limit: Any) -> tuple[Any, Any]:
    """Count the column blocks that are not loaded again, and how often the last block of the axis is among them.

    blocks: the numbers of row blocks and of column blocks. `first` is the first column block of row block b, and `end`
    is one more than the last column block of row block b - 1. When row block b starts, min(limit, end - first) of its
    column blocks are in the cache: the count is the sum of this minimum over b. By _Line, `first` and `end` are linear
    in b with the same slope, rounded down, and clipped to 0 .. total. Where neither is clipped, their difference takes
    only two neighbouring values.
    """
    total, (step, divisor, low, high, last) = blocks[1], line
    stop = larger(1, smaller(blocks[0], last + 1))

    def reaching(offset: int, value: Any) -> Any:
        """The first block of rows, from 1 to stop, at which floor((step b + offset) / divisor) is at least `value`."""
        return clip(ceil_div(value * divisor - offset, step), 1, stop)

    def summed(offset: int, start: Any, end: Any) -> Any:
        return floor_sum(end - start, divisor, step, start * step + offset)

    # `first` is above 0 from row block `leaves` on; `end` equals `total` from row block `meets` on.
    leaves, meets = reaching(low, 1), reaching(high, total)
    both, either = larger(leaves, meets), smaller(leaves, meets)
    # Before `leaves`, `first` is 0 and the minimum is min(limit, end). It is `limit` from row block `fills` on.
    begins, fills = smaller(reaching(high, 1), either), smaller(reaching(high, limit), either)
    saved = summed(high, begins, fills) + limit * (either - fills) + limit * larger(0, leaves - meets)
    # From `leaves` to `meets`, if `leaves` comes first, end - first takes only two neighbouring values.
    few = 1 * ((high - low) // divisor < limit)  # else at least `limit` blocks are in the cache
    positive = 1 * (high >= low)
    inner = summed(high, leaves, both) - summed(low, leaves, both)
    between = 1 * (meets > leaves)
    saved = saved + between * (few * positive * inner + (1 - few) * limit * (meets - leaves))
    # After `leaves` and `meets`, `end` equals `total`, and `first` grows up to `total`.
    ends = clip(reaching(low, total - limit + 1), both, stop)
    saved = saved + limit * (ends - both) + total * (stop - ends) - summed(low, ends, stop)
    return saved, stop - meets


def _saved(pairs: Pairs, rows: int, cols: int, limit: int) -> int:
    """Count the columns that are not loaded again, block by block: for a mask of any form.

    Raises RedblueError if there are more than MAX_BLOCKS blocks of rows.
    """
    if ceil_div(pairs.n_rows, rows) > MAX_BLOCKS:
        raise RedblueError(f"under this mask, at most {MAX_BLOCKS:,} blocks of rows can be counted: give larger tiles")
    saved, kept = 0, ()
    few = ceil_div(pairs.n_rows, rows) <= OTHER_BLOCKS
    for runs in _attended(pairs, rows) if few else map(pairs.cols_of, blocks(pairs.n_rows, rows)):
        attended = tuple(whole_blocks(runs, cols, pairs.n_cols))
        saved += sum(len(part) for run in attended for part in overlap(run, kept))
        kept = _last(attended, cols, limit)
    return saved


@functools.lru_cache(maxsize=32)  # a search needs the same blocks of rows for each number of kept columns
def _attended(pairs: Pairs, rows: int) -> tuple[Runs, ...]:
    """Return the columns that each block of rows attends."""
    return tuple(map(pairs.cols_of, blocks(pairs.n_rows, rows)))


def _last(runs: Runs, cols: int, limit: int) -> Runs:
    """Return the last `limit` blocks of runs that consist of whole blocks."""
    last = []
    for run in reversed(runs):
        count = min(limit, ceil_div(len(run), cols))
        if count:
            last.append(range(max(run.start, (ceil_div(run.stop, cols) - count) * cols), run.stop))
        limit -= count
    return tuple(reversed(last))


def kept_peak(pairs: Pairs, sizes: tuple[Any, int, Any], stays: Callable[[Any], Any], tile: Callable[..., Any]) -> Any:
    """Return the most words held, exactly on a full mask and as an upper bound on any other.

    sizes: (rows that stay, columns of a block, columns kept). stays(rows): words held for the rows throughout.
    tile(rows, cols, first): words held while a block of columns is processed, the words of its columns included; first:
    whether the columns may be loaded for the first time. Kept columns hold tile(0, cols, False) words.
    """
    rows, cols, keep = sizes
    r, c, total = smaller(rows, pairs.n_rows), min(cols, pairs.n_cols), ceil_div(pairs.n_cols, cols)
    count = smaller(ceil_div(keep, cols), total)
    short = pairs.n_cols - (total - 1) * c if pairs.is_full else c  # the last block may be shorter
    later = smaller(
        r, pairs.n_rows - r
    )  # rows of the second block; 0 if there is only one block, so that no tile is kept
    if not pairs.is_full:
        later = r * (later > 0)

    def kept(blocks: Any, last: int) -> Any:
        words = tile(0, c, False) * larger(0, blocks - 1) + tile(0, last, False) * (blocks > 0)
        return smaller(words, tile(0, pairs.n_cols, False))

    filling = larger(kept(count - 2, c) + tile(r, c, True), kept(count - 1, c) + tile(r, short, True))
    again = tile(later, c, not pairs.is_full) - (count == total) * tile(0, c, False)  # a kept block is held once
    several = larger(stays(r) + filling, stays(later) + kept(count, short) + again)
    return (later > 0) * several + (later <= 0) * (stays(r) + tile(r, c, True))


def search_kept(
    pairs: Pairs,
    words: int,
    multiples: tuple[int, int, int],
    peak: Callable[[Any, int, Any], Any],
    cost: Callable[[Any, int, Any], Cost],
) -> tuple[int, int, int] | None:
    """Return the edges (rows that stay, columns of a block, columns kept) that move the fewest words; None if none fit.

    multiples: the numbers that the three edges must be multiples of. peak, cost: functions of the three edges; under a
    band, they take arrays. The words moved do not depend on the columns of a block, so blocks are as short as allowed.
    For each number of rows, as many columns stay as fit. Under a mask that is not a band, the cost is computed block by
    block, so few numbers of rows are tried.
    """
    cols, length = min(multiples[1], pairs.n_cols), pairs.n_cols
    step = math.lcm(cols, multiples[2])
    stay = edges(pairs.n_rows, multiples[0], not pairs.is_full)
    banded = isinstance(pairs.of if isinstance(pairs, Transposed) else pairs, Band)
    if not pairs.is_full:  # all short edges, whatever the length of the axis, and some of the longer ones
        short = multiples[0] * SHORT_EDGES
        stay = np.union1d(
            np.minimum(np.arange(multiples[0], short + 1, multiples[0]), pairs.n_rows), spread(stay, SHORT_EDGES)
        )
    count = np.zeros_like(stay)
    for bit in reversed(range(((length - 1) // step).bit_length())):
        trial = count + (1 << bit)
        count = np.where((trial * step < length) & (peak(stay, cols, trial * step) <= words), trial, count)
    some, whole = count > 0, peak(stay, cols, length) <= words
    rows = np.concatenate([stay[some], stay[whole]])
    keep = np.concatenate([(count * step)[some], np.full(whole.sum(), length)])
    if not len(rows):
        return None
    if banded:
        best = cheapest(cost(rows, cols, keep), (rows, cols, keep), words)
    elif whole.any() or ceil_div(pairs.n_rows, int(rows[-1])) > OTHER_BLOCKS:
        best = int(rows[-1]), cols, int(keep[-1])  # all columns if they fit, else the most rows
    else:
        few = spread(rows[ceil_div(pairs.n_rows, rows) <= OTHER_BLOCKS], OTHER_EDGES)
        tried = [(int(stay), cols, int(columns)) for stay, columns in zip(rows, keep, strict=True) if stay in few]
        best = min(tried, key=lambda edges: cost(*edges).words)
    return None if best is None else (best[0], cols, best[2])
