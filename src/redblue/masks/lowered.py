"""What kernels take of a mask: for each panel of rows the runs of keys that it attends, in full or by bits."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div
from redblue.masks.mask import Mask
from redblue.masks.patterns import spans
from redblue.masks.patterns.pattern import MOST_ROWS, Tiling, below, popcount, tiling
from redblue.masks.rules.algebra import planes

SHORTEST = 8  # keys of a full run beside keys with bits: a shorter one would cost a kernel more than its bits do
KEPT = 16  # masks, with sizes, whose lowered form is kept


class Lowered(NamedTuple):
    """A mask as kernels take it.

    starts: int64 (planes * panels + 1). The runs of panel p of plane a are runs[starts[i] : starts[i + 1]] for
        i = a * panels + p; they ascend and do not overlap.
    runs: int64 (count, 3): the first key, the key beyond the last, and -1 if every row of the panel attends every key
        of the run, or else the index in `bits` of the first key's word.
    bits: uint64, for each key of a run that is not full a word: bit b says that row p * panel + b attends the key. None
        is 0.
    planes: int64, shape `mask.lead`: which plane an entry uses; equal planes share one.
    nnz: attending pairs of a (stacked) row and a key, over the planes that are stored: a shared one counts once.
    """

    starts: np.ndarray
    runs: np.ndarray
    bits: np.ndarray
    planes: np.ndarray
    nnz: int


@functools.lru_cache(maxsize=KEPT)
def lowered(mask: Mask, n_q: int, n_k: int, group: int, panel: int) -> Lowered:
    """The mask on n_q queries, each of which fills `group` consecutive rows, in panels of `panel` rows (at most 64).

    Rows beyond n_q * group attend nothing, and a full run is one that all rows there are attend. Arrays are read-only.
    Raises RedblueError where the mask does not fit, or is attended in part at more keys than memory holds.
    """
    if not 1 <= panel <= MOST_ROWS:
        raise RedblueError(f"panel must be 1 to {MOST_ROWS} rows, got {panel}")
    if group < 1:
        raise RedblueError(f"group must be at least 1 row per query, got {group}")
    if mask.group != 1:
        raise RedblueError(f"give the mask of the queries, and their rows as group; got one of {mask.group} rows each")
    parts, used = planes(mask.rule)
    first = spans.numbered(ceil_div(n_q * group, panel)) * panel
    stop = np.minimum(first + panel, n_q * group)
    each = [_runs(tiling(part.laid(n_q, n_k), first, stop, group), n_k) for part in parts]
    counts = np.concatenate([np.zeros(1, np.int64), *(found[0] for found in each)])
    before = 0
    for _, runs, bits, _ in each:
        runs[runs[:, 2] >= 0, 2] += before
        before += len(bits)
    result = Lowered(
        np.cumsum(counts),
        np.concatenate([found[1] for found in each]),
        np.concatenate([found[2] for found in each]),
        used,
        sum(found[3] for found in each),
    )
    for array in result[:4]:
        array.flags.writeable = False
    return result


def _runs(found: Tiling, n_k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Runs per panel, the runs, their bits, and the attending pairs of one plane."""
    full, at, words = _tidied(found, n_k)
    partial = spans.from_positions(at).reshape(-1, 2)
    full = full.reshape(-1, 2)
    lengths = partial[:, 1] - partial[:, 0]
    where = np.concatenate([np.full(len(full), -1), np.cumsum(lengths) - lengths])
    edges = np.concatenate([full, partial])
    order = np.argsort(edges[:, 0], kind="stable")
    panel, key = np.divmod(edges[order], n_k + 1)
    runs = np.column_stack([key, where[order]])
    rows = found.lengths[full[:, 0] // (n_k + 1)]
    nnz = int((rows * (full[:, 1] - full[:, 0])).sum()) + int(popcount(words).sum())
    return np.bincount(panel[:, 0], minlength=len(found.lengths)), runs, words, nnz


def _tidied(found: Tiling, n_k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Full edges, other positions and their words, such that runs are few.

    Keys with all bits set join the full ones, and what is then shorter than SHORTEST beside keys with bits gets bits.
    """
    valid = below(found.lengths)
    whole = found.words == valid[found.at // (n_k + 1)]
    full, at, words = found.full, found.at, found.words
    if whole.any():
        full = spans.union(full, spans.from_positions(at[whole]))
        at, words = at[~whole], words[~whole]
    first, stop = full[::2], full[1::2]
    short = np.flatnonzero(stop - first < SHORTEST)
    beside = _among(at, first[short] - 1) | _among(at, stop[short])
    short = short[beside]
    if len(short):
        mixed = spans.positions(np.stack([first[short], stop[short]], axis=1).ravel())
        full = np.delete(full.reshape(-1, 2), short, axis=0).ravel()
        order = np.argsort(np.concatenate([at, mixed]), kind="stable")
        at = np.concatenate([at, mixed])[order]
        words = np.concatenate([words, valid[mixed // (n_k + 1)]])[order]
    return full, at, words


def _among(known: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Which numbers are among the known, ascending ones."""
    if not len(known):
        return np.zeros(len(asked), bool)
    return known[np.minimum(np.searchsorted(known, asked), len(known) - 1)] == asked
