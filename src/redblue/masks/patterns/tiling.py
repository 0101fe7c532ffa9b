"""The exact pairs of ranges of rows: keys that all rows of a range attend, bits for keys that only some rows attend."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.estimates import check_fits, count_text
from redblue.masks.patterns import spans
from redblue.masks.patterns.bit_words import below
from redblue.masks.patterns.pattern import Pattern

MAX_WORDS = 1 << 28  # words that one tiling may store: 2 GiB
MAX_TESTED = 1 << 32  # (range, key) pairs that one tiling may test
MAX_UNSAID = 1 << 20  # ranges: the cost of longer lists is estimated and announced
SAMPLE = 256  # ranges from which the cost is estimated
RUN_BYTES, RUN_SECONDS = 200, 5e-7  # per run: peak memory and time (measured on BigBird masks)


class Tiling(NamedTuple):
    """The exact pairs of ranges of at most 64 rows each. Positions number (range, key), as in `spans`.

    full: edges of the keys that all rows of a range attend.
    positions: the other keys that some row attends, ascending.
    words: uint64 for each of `positions`: bit b says whether row b of the range attends the key. All bits may be set.
    lengths: rows of each range.
    """

    full: np.ndarray
    positions: np.ndarray
    words: np.ndarray
    lengths: np.ndarray


def tiling(pattern: Pattern, first: np.ndarray, stop: np.ndarray, group: int) -> Tiling:
    """Test the pairs of the ranges of rows first[i] .. stop[i] - 1, of at most 64 rows each.

    group: consecutive rows that belong to one query.
    Raises RedblueError if too many pairs must be tested or stored: the pattern is partly attended nearly everywhere.
    """
    queries = first // group, (stop - 1) // group + 1
    _announce(pattern, *queries)
    outer, full = pattern.outer(*queries), pattern.inner(*queries)
    partial = spans.difference(outer, full)
    lengths, count = stop - first, int((stop - first).max(initial=0))
    width, valid = spans.stride(len(first), pattern.n_k), below(lengths)
    tested = int((partial[1::2] - partial[::2]).sum())
    # Where `outer` is exact, every tested key is stored, so the number of words is known before any test.
    if tested > (MAX_WORDS if pattern.exact[0] else MAX_TESTED):
        raise too_many_words(pattern)
    stored = 0
    position_parts: list[np.ndarray] = [spans.EMPTY]
    word_parts: list[np.ndarray] = [np.zeros(0, np.uint64)]
    for positions in spans.chunks(partial):
        i = positions // width
        words = pattern.words(first[i], count, group, positions - i * width) & valid[i]
        nonzero = words != 0
        position_parts.append(positions[nonzero])
        word_parts.append(words[nonzero])
        stored += len(position_parts[-1])
        if stored > MAX_WORDS:
            raise too_many_words(pattern)
    return Tiling(full, np.concatenate(position_parts), np.concatenate(word_parts), lengths)


def _announce(pattern: Pattern, first: np.ndarray, stop: np.ndarray) -> None:
    """Announce the cost of listing very many ranges, estimated from a sample; refuse a list that exceeds memory."""
    if len(first) <= MAX_UNSAID:
        return
    sample = np.linspace(0, len(first) - 1, SAMPLE).astype(np.int64)
    runs = len(pattern.outer(first[sample], stop[sample])) / 2 / SAMPLE * len(first)
    task = f"listing a mask of n_q = {pattern.n_q:,} and n_k = {pattern.n_k:,} in {count_text(runs)} runs"
    check_fits(task, RUN_BYTES * runs, RUN_SECONDS * runs)


def too_many_words(pattern: Pattern) -> RedblueError:
    """The error for a pattern that takes more than MAX_WORDS words of bits."""
    return RedblueError(
        f"nearly every tile of the mask is attended in part: n_q = {pattern.n_q:,} and n_k = {pattern.n_k:,} need more "
        f"than {MAX_WORDS:,} words of bits; give smaller sizes, or a sparser mask"
    )
