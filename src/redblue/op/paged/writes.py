"""Checks of a write to a paged cache: it must change the rows of the new keys, and nothing else."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from redblue.base.errors import RedblueError
from redblue.kernels.cpu.arrays import element_strides
from redblue.op import api
from redblue.op.paged.forms import address_of, meet, span_of
from redblue.op.paged.pages import Sequences


def check_writable(name: str, cache: Any) -> None:
    """Raise RedblueError for a read-only array, and for an array in which two entries share memory."""
    on_torch = api.is_torch(cache)
    if not on_torch and not cache.flags.writeable:
        raise RedblueError(f"{name} must be writable, got a read-only array: keys are written in place")
    strides = cache.stride() if on_torch else element_strides(cache)
    if 0 in cache.shape:
        return
    reach = 0  # memory that the dimensions with smaller strides span
    for stride, size in sorted((abs(stride), int(size)) for stride, size in zip(strides, cache.shape, strict=True)):
        if size > 1 and stride <= reach:
            raise RedblueError(
                f"{name} must have separate memory for each entry, but strides {tuple(strides)} of shape "
                f"{tuple(cache.shape)} overlap: give a copy"
            )
        reach += stride * (size - 1)


def column_of(k_pages: Any, v_pages: Any) -> int | None:
    """The column of k_pages at which v_pages begins, if it is a slice of these columns; else None."""
    column = _shared_column(k_pages, v_pages)
    d, d_v = (int(x.shape[-1]) for x in (k_pages, v_pages))
    return None if column is None or not 0 <= column <= d - d_v else column


def check_columns(k: Any, v: Any, column: int) -> None:
    """Raise RedblueError unless v is the columns of k from this column on."""
    columns = k[..., column : column + int(v.shape[-1])]
    if _same_memory(columns, v):
        return
    if not bool(((columns == v) | ((columns != columns) & (v != v))).all()):
        where = f"columns {column} to {column + int(v.shape[-1]) - 1}"
        raise RedblueError(f"v must be {where} of k, because v_pages are these columns of k_pages")


def _same_memory(a: Any, b: Any) -> bool:
    if address_of(a) != address_of(b) or a.dtype != b.dtype:
        return False
    return a.stride() == b.stride() if api.is_torch(a) else a.strides == b.strides


class _Described:
    """The memory of an array, or of a tensor of any type and device, which NumPy describes without reading it."""

    def __init__(self, x: Any) -> None:
        on_torch = api.is_torch(x)
        itemsize = x.element_size() if on_torch else x.itemsize
        self.__array_interface__ = {
            "data": (x.data_ptr() if on_torch else x.ctypes.data, True),
            "shape": tuple(x.shape),
            "strides": tuple(itemsize * s for s in x.stride()) if on_torch else x.strides,
            "typestr": f"|V{itemsize}",
            "version": 3,
        }


def _memory(x: Any) -> np.ndarray:
    """An array with the addresses of x, only for comparing addresses: its entries must not be read."""
    return np.asarray(_Described(x))


def _shared_column(k_pages: Any, v_pages: Any) -> int | None:
    """The column of k_pages at which v_pages begins, if their strides are equal; else None.

    The column may lie outside of k_pages. None also if no column begins at v_pages' address.
    """
    k, v = _memory(k_pages), _memory(v_pages)
    between, step = v.ctypes.data - k.ctypes.data, k.strides[-1]
    return None if k.strides != v.strides or not step or between % step else between // step


def check_apart(
    k_pages: Any, v_pages: Any, pages: np.ndarray, rows: np.ndarray, sequences: Sequences, lengths: np.ndarray
) -> None:
    """Raise RedblueError if writing new keys would overwrite values, or writing new values would overwrite keys.

    Caches that overlap elsewhere are accepted: an engine may keep keys and values in alternate pages of one array.
    lengths: the keys of each sequence before the write.
    """
    keys, values = _memory(k_pages), _memory(v_pages)
    if not np.shares_memory(keys, values):
        return
    new_keys, new_values = (_ranges(x, pages, rows) for x in (keys, values))
    if _meet(new_keys, new_values):
        raise RedblueError(f"{_APART}, but new values would share memory with new keys: give separate caches")
    for name, new, others, cache in (("values", new_values, "keys", keys), ("keys", new_keys, "values", values)):
        near = _pages_at(cache, new, sequences.table)
        count = _held_rows(near, sequences, lengths)[near]
        held_rows = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        if _meet(_ranges(cache, np.repeat(near, count), held_rows), new):
            raise RedblueError(f"{_APART}, but new {name} would overwrite {others} of a sequence: give a copy")


_APART = "v_pages must be columns of k_pages or have separate memory"


class _Ranges(NamedTuple):
    """Ranges of memory: their first addresses, and the bytes of each."""

    begin: np.ndarray
    size: int


def _meet(a: _Ranges, b: _Ranges) -> bool:
    """Whether a range of a overlaps a range of b. The ranges of a do not overlap each other."""
    begin = np.sort(a.begin)
    last = np.searchsorted(begin, b.begin + b.size) - 1  # the last range of a that begins before the range of b ends
    if not len(begin):
        return False
    return bool(((last >= 0) & (begin[np.maximum(last, 0)] + a.size > b.begin)).any())


def _pages_at(x: np.ndarray, ranges: _Ranges, table: np.ndarray) -> np.ndarray:
    """The pages of a cache that may overlap these ranges, ascending.

    These are all pages of the table if pages interleave, or if a range may span several pages.
    """
    within = [(size - 1) * stride for size, stride in zip(x.shape[1:], x.strides[1:], strict=True)]
    low, extent = x.ctypes.data + sum(min(0, offset) for offset in within), sum(map(abs, within)) + x.itemsize
    if max(extent, ranges.size) > x.strides[0]:
        pages = np.unique(table)
    else:
        pages = np.unique((np.concatenate([ranges.begin, ranges.begin + ranges.size - 1]) - low) // x.strides[0])
    return pages[(pages >= 0) & (pages < len(x))]


def _ranges(x: np.ndarray, pages: np.ndarray, rows: np.ndarray) -> _Ranges:
    """The memory of these rows of these pages in a cache."""
    begin = x.ctypes.data + pages * x.strides[0] + rows * x.strides[1]
    begin = begin[:, None] + np.arange(x.shape[2]) * x.strides[2]
    if x.strides[3] == x.itemsize:
        return _Ranges(begin.ravel(), x.shape[3] * x.itemsize)
    return _Ranges((begin[..., None] + np.arange(x.shape[3]) * x.strides[3]).ravel(), x.itemsize)


def copies_outside(new: tuple[Any, Any], caches: tuple[Any, Any]) -> list[Any]:
    """New keys and values, copied if they may lie in a cache, where writing could change them before they are read."""
    spans = [span_of(cache) for cache in caches]
    separate = []
    for x in new:
        own = span_of(x)
        if meet(own, spans[0]) or meet(own, spans[1]):
            x = x.clone() if api.is_torch(x) else x.copy()
        separate.append(x)
    return separate


def check_places(pages: np.ndarray, rows: np.ndarray, sequences: Sequences, lengths: np.ndarray) -> None:
    """Raise RedblueError unless each new key has its own place, in which no sequence holds a key.

    pages, rows: the places of the new keys. lengths: the keys of each sequence before the write.
    """
    starts, page = sequences.starts, sequences.page
    places = pages * page + rows
    order = np.argsort(places, kind="stable")
    same = np.flatnonzero(np.diff(places[order]) == 0)
    if len(same):
        a, b = (_sequence_of(x, starts) for x in order[same[0] : same[0] + 2])
        twice, shared = f"sequence {a} lists page {pages[order[same[0]]]} twice", f"sequences {a} and {b} share one"
        raise RedblueError(
            f"page_table must give each new key its own place, but {twice if a == b else shared}: give separate pages"
        )
    held_until = _held_rows(pages, sequences, lengths)
    taken = np.flatnonzero(rows < held_until[pages])
    if len(taken):
        i = taken[0]
        raise RedblueError(
            f"page_table must give new keys free places, but for sequence {_sequence_of(i, starts)}, row "
            f"{rows[i]} of page {pages[i]} holds a key of a sequence: give it a copy of the page"
        )


def _held_rows(pages: np.ndarray, sequences: Sequences, lengths: np.ndarray) -> np.ndarray:
    """For each page up to the last one of `pages`: the number of rows with keys of sequences; 0 if not in `pages`."""
    table, page = sequences.table, sequences.page
    held = np.zeros(int(pages.max(initial=-1)) + 1, np.int64)
    written = np.zeros(len(held), bool)
    written[pages] = True
    used = np.arange(table.shape[1]) < -(-lengths // max(1, page))[:, None]
    owners, entries = np.nonzero(used & (table < len(held)))
    of = table[owners, entries]
    own = np.flatnonzero(written[of])
    np.maximum.at(held, of[own], np.minimum(lengths[owners[own]] - entries[own] * page, page))
    return held


def _sequence_of(row: int, starts: np.ndarray) -> int:
    """The sequence to which a packed row belongs."""
    return int(np.searchsorted(starts, row, side="right")) - 1
