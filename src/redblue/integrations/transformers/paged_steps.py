"""The places of sequences in transformers' paged cache, for one step of continuous batching and a group of layers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor


class Step(NamedTuple):
    """The sequences of a step, B of them. All layers of a group share it.

    starts: (B + 1,), the first packed row of each sequence's new tokens, and their total. past: (B,), the number of
    attended keys before the new tokens. table: (B, most pages), the pages of all keys of each sequence; None if no
    sequence has keys before its new tokens. The table of rings has rows only for the sequences with one new token.
    old: for rings, the places of each sequence's keys before the new tokens, in the order of the tokens; else empty.
    """

    starts: np.ndarray
    past: np.ndarray
    table: np.ndarray | None
    old: list[np.ndarray]

    @property
    def queries(self) -> np.ndarray:
        """The number of new tokens of each sequence, (B,)."""
        return np.diff(self.starts)


def step_of(bounds: tuple[Tensor, Tensor], read: Tensor, write: Tensor, table: Any, page: int, ring: bool) -> Step:
    """The step of a group of layers.

    bounds: cu_seq_lens of queries and keys. read: the concatenated places (rows of the cache) of the keys of all
    sequences; empty if no sequence has keys yet. write: the places of the new keys. table: transformers' block table,
    or None. page: tokens of a page. ring: whether each sequence keeps its newest tokens in a ring of rows. If so, a
    sequence's places to read end with one meaningless entry for each new token.
    """
    starts, key_starts = (x.cpu().numpy().astype(np.int64) for x in bounds)
    past = np.diff(key_starts) - np.diff(starts)
    if table is not None:
        return Step(starts, past, table.cpu().numpy(), [])
    if not read.numel():
        return Step(starts, past, None, [])
    places, new = read.cpu().numpy(), write.cpu().numpy()
    if not ring:
        return Step(starts, past, _pages(places, key_starts, page), [])
    old = [places[first : first + count] for first, count in zip(key_starts[:-1], past, strict=True)]
    rings = [_ring(np.append(old[b], new[starts[b]]), page) for b in np.flatnonzero(np.diff(starts) == 1)]
    return Step(starts, past, _rows(rings), old)


def _pages(places: np.ndarray, key_starts: np.ndarray, page: int) -> np.ndarray:
    """The pages of each sequence, whose keys fill one page after the other, so that every page begins with a key."""
    parts = [places[first:stop:page] // page for first, stop in pairwise(key_starts)]
    return _rows(parts)


def _ring(places: np.ndarray, page: int) -> np.ndarray:
    """The pages of a ring that holds keys at these places, in any order; the page that is not full comes last.

    A single query attends all keys of its ring, so that their order does not matter.
    """
    pages, rows = places // page, places % page
    # The page that is not full ends before row len(places) % page; all other pages have a key in that row
    full = pages[rows == len(places) % page]
    return np.append(full, np.setdiff1d(pages[rows == 0], full))


def _rows(parts: list[np.ndarray]) -> np.ndarray:
    """The parts as rows of one table, padded with 0."""
    table = np.zeros((len(parts), max(map(len, parts), default=0)), np.int64)
    for row, part in zip(table, parts, strict=True):
        row[: len(part)] = part
    return table
