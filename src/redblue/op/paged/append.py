"""The places of new keys and values in a paged cache, and the write."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from redblue.base.errors import RedblueError
from redblue.compiled import _core
from redblue.kernels.cpu.arrays import element_strides
from redblue.op import api
from redblue.op.paged.call import check_cache, packed_rows
from redblue.op.paged.forms import address_of
from redblue.op.paged.pages import Sequences, checked_lengths, table_of
from redblue.op.paged.writes import check_apart, check_columns, check_places, check_writable, column_of, copies_outside


class _Target(NamedTuple):
    """The write to one cache, k_pages or v_pages. packed: the shape of the new rows, (total, heads, width).

    copy: the core's copy task; None if the cache is not on the CPU. Like `Ready` of redblue.op.paged.cpu, a target is
    valid for all arrays of the same shapes, strides and types.
    """

    packed: tuple[int, ...]
    is_packed: bool  # whether new rows already have this shape
    copy: _core.RowCopy | None


class Places(NamedTuple):
    """The checked places of new keys and values: pages and rows (total,), int64.

    ends: the new lengths. column: the column of K at which V begins, so that one write is enough; None: two writes.
    """

    pages: np.ndarray
    rows: np.ndarray
    ends: np.ndarray
    column: int | None
    targets: tuple[_Target, ...]

    @staticmethod
    def checked(k: Any, v: Any, k_pages: Any, v_pages: Any, page_table: Any, lengths_k: Any, cu_seqlens: Any) -> Places:
        """Check the arguments. Raises RedblueError, which names the argument, if they do not fit. v is not read."""
        check_cache({"k": k, "v": v, "k_pages": k_pages, "v_pages": v_pages})
        check_writable("k_pages", k_pages)
        check_writable("v_pages", v_pages)
        starts, flat = packed_rows("k", k, cu_seqlens, "cu_seqlens")
        _check_rows(k, v, k_pages, v_pages)
        lengths = checked_lengths("lengths_k", lengths_k, len(starts) - 1)
        ends = lengths + np.diff(starts)
        page = int(k_pages.shape[1])
        table = table_of(page_table, ends, page, int(k_pages.shape[0]), ("page_table", "the new lengths"))
        sequences = Sequences(starts, ends, table, page)
        parts = [sequences.places(b, int(lengths[b]), int(ends[b])) for b in range(len(sequences))]
        none = np.zeros(0, np.int64)
        pages, rows = (np.concatenate(part) for part in zip((none, none), *parts, strict=True))
        check_places(pages, rows, sequences, lengths)
        column = column_of(k_pages, v_pages)
        if column is None:
            check_apart(k_pages, v_pages, pages, rows, sequences, lengths)
        written = ((k, k_pages), (v, v_pages))[: 2 if column is None else 1]
        return Places(pages, rows, ends, column, tuple(_target(pages, rows, flat, *pair) for pair in written))

    def write(self, k: Any, v: Any, k_pages: Any, v_pages: Any) -> None:
        """Write the rows. Raises RedblueError if v must be columns of k, and is not."""
        if self.column is not None:
            check_columns(k, v, self.column)
        caches = k_pages, v_pages
        separate = copies_outside((k, v), caches)
        writes = zip(self.targets, (k, v), separate, caches, strict=False)  # one target if values are columns of keys
        for target, original, x, cache in writes:
            if x is not original:  # a copy has strides of its own
                target = _target(self.pages, self.rows, len(self.pages), x, cache)
            if not target.is_packed:
                x = x.reshape(target.packed)
            if target.copy is None:
                self._write_indexed(x, cache)
                continue
            target.copy.run(address_of(x), address_of(cache), api.default_threads())
            if api.is_torch(cache):
                _mark_changed(cache)

    def _write_indexed(self, new: Any, cache: Any) -> None:
        import torch

        cache[tuple(torch.from_numpy(x).to(cache.device) for x in (self.pages, self.rows))] = new


def _check_rows(k: Any, v: Any, k_pages: Any, v_pages: Any) -> None:
    if tuple(v.shape[:-1]) != tuple(k.shape[:-1]):
        raise RedblueError(f"v must have the rows and heads of k, {tuple(k.shape[:-1])}, got {tuple(v.shape[:-1])}")
    for name, new, cache in (("k", k, k_pages), ("v", v, v_pages)):
        if tuple(new.shape[-2:]) != tuple(cache.shape[2:]):
            raise RedblueError(
                f"{name} must have the heads and width of {name}_pages, {tuple(cache.shape[2:])}, "
                f"got {tuple(new.shape[-2:])}"
            )


def _target(pages: np.ndarray, rows: np.ndarray, flat: int, new: Any, cache: Any) -> _Target:
    packed = (flat, *new.shape[-2:])
    view = new.reshape(packed)
    is_packed = address_of(view) == address_of(new)
    if api.is_torch(cache) and not cache.is_cpu:
        return _Target(packed, is_packed, None)
    strides = [tuple(x.stride()) if api.is_torch(x) else element_strides(x) for x in (view, cache)]
    heads, width = packed[1:]
    pointers = pages.ctypes.data, rows.ctypes.data
    copy = _core.RowCopy(*pointers, flat, heads, width, cache.itemsize, strides[0], strides[1])
    return _Target(packed, is_packed, copy)


def _mark_changed(cache: Any) -> None:
    """Count the write, so that autograd refuses to use an earlier state of the cache."""
    import torch

    if not cache.is_inference():
        torch.autograd.graph.increment_version(cache)
