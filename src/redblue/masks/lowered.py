"""The form of a mask that kernels take: for each panel of rows, runs of keys that attend in full or by bits."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div
from redblue.compiled import _core
from redblue.masks.mask import Mask
from redblue.masks.patterns import spans
from redblue.masks.patterns.bit_words import WORD_BITS, below, popcount
from redblue.masks.patterns.pattern import Pattern
from redblue.masks.patterns.squares import Squares
from redblue.masks.patterns.tiling import MAX_WORDS, Tiling, tiling, too_many_words
from redblue.masks.rules.stack import planes

MIN_FULL_RUN = 8  # keys: a shorter full run next to keys with bits costs a kernel more than bits do
CACHED = 16  # lowered masks that are kept, counting each size of a mask


class Lowered(NamedTuple):
    """A mask in the form that kernels take.

    starts: int64 (planes * panels + 1). Panel p of plane a has the runs runs[starts[i] : starts[i + 1]], where
        i = a * panels + p. The runs of a panel ascend and do not overlap.
    runs: int64 (count, 3): the first key, the key after the last, and -1 if every row of the panel attends every key
        of the run; otherwise the index in `bits` of the first key's word.
    bits: uint64, one word for each key of a run that is not full: bit b says that row p * panel + b attends the key. No
        word is 0.
    planes: int64, shape `mask.lead`: the plane of each batch entry and head. Equal masks share a plane.
    nnz: attending pairs of a (stacked) row and a key, over the stored planes; a shared plane counts once.
    """

    starts: np.ndarray
    runs: np.ndarray
    bits: np.ndarray
    planes: np.ndarray
    nnz: int


@functools.lru_cache(maxsize=CACHED)
def lowered(mask: Mask, n_q: int, n_k: int, group: int, panel: int) -> Lowered:
    """Lower a mask on n_q queries, each of which fills `group` consecutive rows, to panels of `panel` rows.

    panel: 1 to 64. The last panel may be shorter; a run is full if all rows that exist attend it. The arrays are
    read-only. Raises RedblueError if the mask does not fit, or needs more words in `bits` than memory should hold.
    """
    if not 1 <= panel <= WORD_BITS:
        raise RedblueError(f"panel must be 1 to {WORD_BITS} rows, got {panel}")
    if group < 1:
        raise RedblueError(f"group must be at least 1 row per query, got {group}")
    if mask.group != 1:
        raise RedblueError(
            f"the mask must be one of queries, got {mask.group} rows per query: give the mask before for_group"
        )
    rules, plane_of_entry = planes(mask.rule)
    parts = [_plane(rule.pattern(n_q, n_k), group, panel) for rule in rules]
    words_before = 0
    for _, runs, bits, _ in parts:
        runs[runs[:, 2] >= 0, 2] += words_before
        words_before += len(bits)
    counts, runs, bits, nnz = zip(*parts, strict=True)
    starts = np.cumsum(np.concatenate([np.zeros(1, np.int64), *counts]))
    result = Lowered(starts, np.concatenate(runs), np.concatenate(bits), plane_of_entry, sum(nnz))
    for array in result[:4]:
        array.flags.writeable = False
    return result


def _plane(pattern: Pattern, group: int, panel: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Lower one plane. Returns (number of runs per panel, runs, bits, attending pairs)."""
    if isinstance(pattern, Squares) and pattern.is_array:
        try:
            counts, runs, bits, nnz = _core.lower_array(pattern.array, group, panel, MIN_FULL_RUN, MAX_WORDS)
        except ValueError:
            raise too_many_words(pattern) from None
        return counts, runs.reshape(-1, 3), bits, nnz
    rows = pattern.n_q * group
    first = spans.arange(ceil_div(rows, panel)) * panel
    return _runs(tiling(pattern, first, np.minimum(first + panel, rows), group), pattern.n_k)


def _runs(tiles: Tiling, n_k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Convert the tiling of one plane, with one range of rows per panel, to the arrays that `_plane` returns."""
    full, positions, words = _with_few_runs(tiles, n_k)
    partial = spans.from_positions(positions).reshape(-1, 2)
    full = full.reshape(-1, 2)
    lengths = partial[:, 1] - partial[:, 0]
    first_word = np.concatenate([np.full(len(full), -1), np.cumsum(lengths) - lengths])
    edges = np.concatenate([full, partial])
    order = np.argsort(edges[:, 0], kind="stable")
    panel, key = np.divmod(edges[order], n_k + 1)
    runs = np.column_stack([key, first_word[order]])
    rows = tiles.lengths[full[:, 0] // (n_k + 1)]
    nnz = int((rows * (full[:, 1] - full[:, 0])).sum()) + int(popcount(words).sum())
    return np.bincount(panel[:, 0], minlength=len(tiles.lengths)), runs, words, nnz


def _with_few_runs(tiles: Tiling, n_k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Move keys between full runs and keys with bits, so that there are few runs.

    Keys with all bits set become full. Full runs shorter than MIN_FULL_RUN next to keys with bits get bits.
    Returns (edges of the full runs, positions of the other keys, their words).
    """
    all_rows = below(tiles.lengths)
    has_all = tiles.words == all_rows[tiles.positions // (n_k + 1)]
    full, positions, words = tiles.full, tiles.positions, tiles.words
    if has_all.any():
        full = spans.union(full, spans.from_positions(positions[has_all]))
        positions, words = positions[~has_all], words[~has_all]
    first, stop = full[::2], full[1::2]
    short = np.flatnonzero(stop - first < MIN_FULL_RUN)
    short = short[_contains(positions, first[short] - 1) | _contains(positions, stop[short])]
    if len(short):
        moved = spans.positions(np.stack([first[short], stop[short]], axis=1).ravel())
        full = np.delete(full.reshape(-1, 2), short, axis=0).ravel()
        order = np.argsort(np.concatenate([positions, moved]), kind="stable")
        positions = np.concatenate([positions, moved])[order]
        words = np.concatenate([words, all_rows[moved // (n_k + 1)]])[order]
    return full, positions, words


def _contains(ascending: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return whether each value is in the sorted array."""
    if not len(ascending):
        return np.zeros(len(values), bool)
    return ascending[np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)] == values
