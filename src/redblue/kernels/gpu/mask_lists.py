"""Masks that are not bands, in the form for kernels: lists of the tiles that each block of rows, or of keys, visits.

Tiles lie on a grid of `rows` (stacked) x `cols` keys. In a full tile every row attends every key; a partial tile has
one bit for each pair.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div
from redblue.kernels.gpu.planning.device import copied
from redblue.masks import Mask
from redblue.masks.lowered import Lowered, lowered
from redblue.masks.patterns.bit_words import below

KEPT = 128  # lists in the cache; a mask needs about 4, one per kernel and tile size, and more during tuning
KEPT_BYTES = 512 << 20  # of all devices together; the bits of a dense mask of 16384 queries and keys take 32 MB
PAIRS_AT_ONCE = 1 << 24  # pairs whose bits are transposed together; bounds the memory of transposing
MAX_WORDS = 1 << 31  # words of bits, since kernels index these words in 32 bits


class Lists(NamedTuple):
    """Full and partial tiles of each block, in CSR form.

    full_starts, partial_starts: the tiles of block i in mask plane p are the entries starts[p * blocks + i] ..
    starts[p * blocks + i + 1] - 1 of `full` and of `partial`.
    full, partial: the tiles' indices along the streaming side (keys if rows stay, rows if keys stay).
    A partial tile has lines along each side: its rows and its keys.
    bits: words of 64 bits for each line of the side that stays; bit i tells whether the pair with streaming line i is
    attended.
    live: words of 64 bits for each partial tile; bit i tells whether streaming line i has an attended pair.
    planes: the mask plane of each stream, int32 (batch, key heads), None before a launch; its strides are plane_batch
    and plane_head. These are separate fields because Triton 3.6 loses a stride of 1 in a nested tuple.
    """

    full_starts: Any
    full: Any
    partial_starts: Any
    partial: Any
    live: Any
    bits: Any
    planes: Any = None
    plane_batch: Any = 0
    plane_head: Any = 0


LISTS = slice(6)  # the fields of Lists that hold lists


@lru_cache(maxsize=KEPT)
def first_plane(device: torch.device) -> torch.Tensor:
    """The array `planes` for a mask with one plane: (1, 1), of strides 0."""
    return copied(np.zeros(1, np.int32), device).as_strided((1, 1), (0, 0))


class _Key(NamedTuple):
    """The arguments of `lists`. span: None if one span holds all keys."""

    mask: Mask
    n_q: int
    n_k: int
    group: int
    rows: int
    cols: int
    by: str
    device: torch.device
    span: int | None


_recent: OrderedDict[_Key, Lists] = OrderedDict()  # the least recently used first
_lock = Lock()


def lists(
    mask: Mask, n_q: int, n_k: int, group: int, rows: int, cols: int, by: str, device: Any, span: int | None = None
) -> Lists:
    """The mask's lists on a device, without planes.

    by: the side that stays, "rows" or "cols". rows, cols: powers of two of at least 16. span: if rows stay, each block
    has one list for every `span` keys; None: one list for all keys. Raises RedblueError where the mask does not fit n_q
    and n_k, or where its partial tiles take MAX_WORDS words of bits or more.
    """
    key = _Key(mask, n_q, n_k, group, rows, cols, by, device, None if span is None or span >= n_k else span)
    with _lock:
        known = _recent.get(key)
        if known is not None:
            _recent.move_to_end(key)
            return known
    new = _build(key)
    with _lock:
        _recent[key] = new
        _evict(mask)
    return new


def forget() -> None:
    """Drop all cached lists."""
    with _lock:
        _recent.clear()


def _evict(newest: Mask) -> None:
    """Drop the least recently used lists beyond KEPT and KEPT_BYTES.

    Lists of the newest mask stay, whatever their size. Otherwise the two passes of one call evict each other's lists,
    and the call cannot be captured in a CUDA graph.
    """
    held = sum(map(_bytes, _recent.values()))
    for key in list(_recent):
        if len(_recent) <= KEPT and (held <= KEPT_BYTES or key.mask == newest):
            continue
        held -= _bytes(_recent.pop(key))


def _bytes(built: Lists) -> int:
    return sum(x.nbytes for x in built[LISTS])


def _build(key: _Key) -> Lists:
    mask, n_q, n_k, group, rows, cols, by, device, span = key
    panel = min(rows, 64)
    low = lowered(mask, n_q, n_k, group, panel)
    plane_arrays = [
        _plane(low, plane, ceil_div(n_q * group, panel), n_q * group, n_k, rows, cols, panel, by, span)
        for plane in range(1 + int(low.planes.max(initial=0)))
    ]
    starts = (np.cumsum(np.concatenate([[0], *(x[i] for x in plane_arrays)])).astype(np.int32) for i in (0, 2))
    full_starts, partial_starts = starts
    full, partial, live, bits = (np.concatenate([x[i] for x in plane_arrays]) for i in (1, 3, 4, 5))
    _check(len(bits))

    def on_device(array: np.ndarray) -> torch.Tensor:
        array = array.view(np.int64) if array.dtype == np.uint64 else array.astype(np.int32)
        return copied(array, device)

    return Lists(*map(on_device, (full_starts, full, partial_starts, partial, live, bits)))


def _check(words: int) -> None:
    if words >= MAX_WORDS:
        raise RedblueError(
            f"the mask's partial tiles take {words:,} words of bits, and a GPU kernel takes fewer than {MAX_WORDS:,}: "
            "give fewer queries, heads or batch entries at once, or a mask of fewer partial tiles"
        )


def _plane(
    low: Lowered,
    plane: int,
    panels: int,
    n_rows: int,
    n_k: int,
    rows: int,
    cols: int,
    panel: int,
    by: str,
    span: int | None,
) -> tuple[np.ndarray, ...]:
    """One plane's arrays: full tiles per block, their indices; the same for partial tiles; live; bits (see Lists)."""
    starts = low.starts[plane * panels : (plane + 1) * panels + 1]
    runs, of_panel = low.runs[starts[0] : starts[-1]], np.repeat(np.arange(panels), np.diff(starts))
    # Cut runs at the borders of tiles
    first_tile, last_tile = runs[:, 0] // cols, (runs[:, 1] - 1) // cols
    count = last_tile - first_tile + 1
    run = np.repeat(np.arange(len(runs)), count)
    tile = first_tile[run] + np.arange(len(run)) - np.repeat(np.cumsum(count) - count, count)
    begin, stop = np.maximum(runs[run, 0], tile * cols), np.minimum(runs[run, 1], (tile + 1) * cols)
    block, tiles, per_block = of_panel[run] * panel // rows, max(1, ceil_div(n_k, cols)), rows // panel

    numbers, entry = np.unique(block * tiles + tile, return_inverse=True)
    whole = runs[run, 2] < 0
    covered = np.bincount(entry, (stop - begin) * whole, len(numbers))
    row_block, col_block = numbers // tiles, numbers % tiles
    panels_there = np.minimum(per_block, panels - row_block * per_block)
    full = covered == panels_there * cols
    if by == "cols":  # rows stream by, so a full tile must not reach beyond the last row
        full &= (row_block + 1) * rows <= n_rows
    blocks, other = (row_block, col_block) if by == "rows" else (col_block, row_block)
    total = ceil_div(n_rows, rows) if by == "rows" else ceil_div(n_k, cols)
    if span is not None:
        blocks, total = blocks * ceil_div(n_k, span) + other * cols // span, total * ceil_div(n_k, span)
    order = np.lexsort((other, blocks))
    order_full, order_partial = order[full[order]], order[~full[order]]

    # Words of a partial tile: for each panel and key, the rows of the panel that attend the key
    _check(len(order_partial) * (rows * ceil_div(cols, 64) if by == "rows" else cols * per_block))
    place = np.full(len(numbers), -1)
    place[order_partial] = np.arange(len(order_partial))
    words = np.zeros((len(order_partial), per_block, cols), np.uint64)
    in_partial = np.flatnonzero(place[entry] >= 0)
    length = (stop - begin)[in_partial]
    piece = np.repeat(in_partial, length)
    key = begin[piece] + np.arange(len(piece)) - np.repeat(np.cumsum(length) - length, length)
    of, source = of_panel[run[piece]], runs[run[piece], 2]
    word = np.where(source < 0, 0, source + key - runs[run[piece], 0])
    valid = below(np.minimum(panel, n_rows - of * panel))
    bits = low.bits if len(low.bits) else np.zeros(1, np.uint64)
    words[place[entry[piece]], of % per_block, key % cols] = np.where(source < 0, valid, bits[word])

    if by == "rows":
        lines = _transpose_bits(words, panel)
        live = np.bitwise_or.reduce(lines, axis=1)
    else:
        lines = words.swapaxes(1, 2)
        live = np.bitwise_or.reduce(words, axis=2)
    return (
        np.bincount(blocks[order_full], minlength=total),
        other[order_full],
        np.bincount(blocks[order_partial], minlength=total),
        other[order_partial],
        live.reshape(-1),
        lines.reshape(-1),
    )


def _transpose_bits(words: np.ndarray, panel: int) -> np.ndarray:
    """Transpose words (tiles, panels, keys) of bits of rows into words (tiles, rows, words) of bits of keys."""
    tiles, panels, cols = words.shape
    result = np.zeros((tiles, panels * panel, ceil_div(cols, 64)), np.uint64)
    step = max(1, PAIRS_AT_ONCE // (panels * cols * 64))
    for i in range(0, tiles, step):
        part = np.ascontiguousarray(words[i : i + step]).view(np.uint8).reshape(-1, panels, cols, 8)
        by_row = np.unpackbits(part, axis=-1, bitorder="little")[..., :panel].transpose(0, 1, 3, 2)
        packed = np.packbits(by_row, axis=-1, bitorder="little").reshape(-1, panels * panel, cols // 8)
        padded = np.zeros((*packed.shape[:2], result.shape[2] * 8), np.uint8)
        padded[..., : cols // 8] = packed
        result[i : i + step] = padded.view(np.uint64)
    return result
