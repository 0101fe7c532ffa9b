"""What a call's queries attend, in the form that the core takes: a band, runs of keys, or single pairs.

Bands are two numbers. Any other mask is lowered to runs of keys for each panel of rows, or, where panels would be
mostly empty, to lists of pairs. Which of the two is counted: a tile does all pairs of a panel's rows and the keys that
some of them attend, gathering does those that attend, each at the price of several of a tile's.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np

from redblue import _core
from redblue.errors import RedblueError
from redblue.kernels import cpu
from redblue.kernels.cpu import Attended, Edges, Pattern, Sizes
from redblue.masks import Mask
from redblue.masks.bands import Window
from redblue.masks.lowered import lowered
from redblue.masks.pattern import tiling

# What a gathered pair costs, in pairs of a tile: for its arithmetic, and, over d + d_v, for all else (measured, Zen 5).
GATHER_PRICE = {"forward": (5.0, 440.0), "backward": (7.0, 900.0)}
SAMPLED_PANELS = 64
KEPT = 32  # masks, with sizes
SHORT_RUN = 24  # keys: of runs shorter than this on average, the core copies several together


def attended(
    mask: Mask | None, sizes: Sizes, dtype: str, direction: str = "forward", bias_gradient: bool = False
) -> Attended:
    """Raises RedblueError for a mask that does not fit the sizes."""
    if mask is None:
        return Attended(-sizes.n_q, sizes.n_k + 1)
    if isinstance(mask.rule, Window):
        band = mask.rule.on(sizes.n_q, sizes.n_k, 1)
        return Attended(band.first, band.end)
    check_lead(mask, sizes)
    if per_head(mask) and sizes.group > 1:
        raise RedblueError("heads that share a key head must have one mask: repeat k and v for masks of their own")
    lanes = cpu.isa().lanes(cpu.NUMBERS[dtype])
    if not bias_gradient and gathers(mask, sizes, lanes, direction):  # a bias's gradient is summed tile by tile
        return in_pairs(mask, sizes)
    return in_tiles(mask, sizes, lanes, bias_gradient)


def check_lead(mask: Mask, sizes: Sizes) -> None:
    """Raise RedblueError unless the mask's planes broadcast to (lead..., heads)."""
    full = (*sizes.lead, sizes.kv_heads * sizes.group)
    lead = (1,) * (len(full) - len(mask.lead)) + mask.lead
    if len(lead) != len(full) or any(a not in (1, b) for a, b in zip(lead, full, strict=True)):
        raise RedblueError(f"the mask is one for each of {mask.lead}, which must broadcast to (..., heads) = {full}")


def per_head(mask: Mask | None) -> bool:
    """Whether heads have masks of their own: then heads that share a key head cannot be computed as one."""
    return mask is not None and bool(mask.lead) and mask.lead[-1] > 1


@lru_cache(maxsize=KEPT)
def in_tiles(mask: Mask, sizes: Sizes, lanes: int, bias_gradient: bool) -> Attended:
    pattern, held = _runs(mask, sizes, sizes.group, lanes)
    by_query, more = None, None
    if bias_gradient:
        by_query, more = (pattern, None) if sizes.group == 1 else _runs(mask, sizes, 1, lanes)
    return Attended(-sizes.n_q, sizes.n_k + 1, pattern, by_query, held=(held, more))


@lru_cache(maxsize=KEPT)
def in_pairs(mask: Mask, sizes: Sizes) -> Attended:
    edges, planes, held = _edges(mask, sizes)
    return Attended(-sizes.n_q, sizes.n_k + 1, Pattern(0, 0, 0, planes, 1, 0, 1, False), edges=edges, held=held)


@lru_cache(maxsize=256)
def gathers(mask: Mask, sizes: Sizes, lanes: int, direction: str) -> bool:
    """Whether pairs cost less one by one than in tiles, by counting both; tiles by a sample of the panels."""
    rows, group = sizes.n_q * sizes.group, sizes.group
    nnz = mask.nnz(sizes.n_q, sizes.n_k) / max(1, prod(mask.lead)) * group
    if nnz * lanes >= rows * sizes.n_k:  # no panel can be so empty
        return False
    panels = -(-rows // lanes)
    first = np.unique(np.linspace(0, panels - 1, min(panels, SAMPLED_PANELS)).astype(np.int64)) * lanes
    pattern = mask.plane(0).rule.laid(sizes.n_q, sizes.n_k)
    found = tiling(pattern, first, np.minimum(first + lanes, rows), group)
    keys = int((found.full[1::2] - found.full[::2]).sum()) + len(found.at)
    tile_pairs = keys / max(1, len(first)) * panels * lanes
    arithmetic, overhead = GATHER_PRICE[direction]
    return tile_pairs > (arithmetic + overhead / (sizes.d + sizes.d_v)) * nnz


def _runs(mask: Mask, sizes: Sizes, group: int, lanes: int) -> tuple[Pattern, object]:
    found = lowered(mask, sizes.n_q, sizes.n_k, group, lanes)
    held = found.starts, found.runs, found.bits
    planes, kept = _planes(found.planes, sizes)
    panels = -(-sizes.n_q * group // lanes)
    keys = int((found.runs[:, 1] - found.runs[:, 0]).sum())
    scattered = keys < SHORT_RUN * len(found.runs)
    count = (len(found.starts) - 1) // max(1, panels)
    starts, runs, bits = (x.ctypes.data for x in held)
    return Pattern(starts, runs, bits, planes, lanes, panels, max(1, count), scattered), (held, kept)


def _edges(mask: Mask, sizes: Sizes) -> tuple[Edges, cpu.Array | None, object]:
    count = prod(mask.lead)
    distinct = list(dict.fromkeys(mask.plane(i) for i in range(count)))
    each = np.array([distinct.index(mask.plane(i)) for i in range(count)]).reshape(mask.lead)
    if sizes.n_q > 2**31 - 1 or sizes.n_k > 2**31 - 1:
        raise RedblueError(
            f"a mask of single pairs takes at most 2^31 - 1 queries and keys, got {sizes.n_q}, {sizes.n_k}"
        )
    parts, before = [], 0
    for plane in distinct:
        starts, keys = plane.to_csr(sizes.n_q, sizes.n_k)
        keys = np.ascontiguousarray(keys, np.int32)
        by_key, queries = _core.by_key(np.ascontiguousarray(starts), keys, sizes.n_k)
        parts.append((starts + before, keys, by_key + before, queries))
        before += len(keys)
    joined = [np.concatenate(part) for part in zip(*parts, strict=True)]
    starts, keys, key_starts, queries = (x.ctypes.data for x in joined)
    planes, kept = _planes(each, sizes)
    return Edges(starts, keys, key_starts, queries), planes, (joined, kept)


def _planes(planes: np.ndarray, sizes: Sizes) -> tuple[cpu.Array | None, object]:
    """Which plane each stream sees, with strides of 0 where the mask broadcasts."""
    if not planes.ndim or planes.size == 1:
        return None, None
    kept = np.ascontiguousarray(planes, np.int64)
    heads = sizes.kv_heads * sizes.group if kept.shape[-1] > 1 else 1
    laid = np.broadcast_to(kept, (*sizes.lead, heads))
    strides = [stride // 8 for stride in laid.strides]
    if heads == 1:
        strides[-1] = 0
    return (kept.ctypes.data, *strides, 0, 0), kept
