"""What a call's queries attend, in the form that the core takes: a band, runs of keys, or single pairs.

Bands are two numbers. Any other mask is lowered to runs of keys for each panel of rows, or, where panels would be
mostly empty, to lists of pairs. Which of the two is counted: a tile does all pairs of a panel's rows and the keys that
some of them attend, gathering does those that attend, each at the price of several of a tile's.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from redblue.base.errors import RedblueError
from redblue.compiled import _core
from redblue.kernels.cpu import call as cpu
from redblue.kernels.cpu.call import Attended, Edges, Pattern, Sizes
from redblue.masks import Mask
from redblue.masks.lowered import lowered
from redblue.masks.patterns.graph import Graph
from redblue.masks.patterns.pattern import Pattern as Laid
from redblue.masks.patterns.tiling import tiling
from redblue.masks.rules.bands import Window
from redblue.masks.rules.rule import Rule
from redblue.masks.rules.stack import planes

# What a gathered pair costs, in pairs of a tile: for its arithmetic, and, over d + d_v, for all else (measured, Zen 5).
GATHER_PRICE = {"forward": (5.0, 440.0), "backward": (7.0, 900.0)}
# Tiles and pairs round scores differently: where lse is rounded by more than this, e to the difference would show.
LARGE = 2.0**-13
SAMPLED_PANELS = 64
KEPT = 8  # masks, with sizes, whose forms are kept: those of a graph are as large as it is
SHORT_RUN = 24  # keys: of runs shorter than this on average, the core copies several together


def attended(
    mask: Mask | None,
    sizes: Sizes,
    dtype: str,
    direction: str = "forward",
    bias_gradient: bool = False,
    schedule: str = "auto",
    lse: np.ndarray | None = None,
) -> Attended:
    """Raises RedblueError for a mask that does not fit the sizes.

    schedule: "flash" by tiles, "gather" by pairs. A bias's gradient is summed tile by tile, whatever the schedule.
    lse: for backward, what forward gave. Where it is large, "auto" takes the form that forward took: it rounds alike.
    """
    if schedule == "gather" and not bias_gradient:
        mask = mask or Mask.full()
        check_lead(mask, sizes)
        return in_pairs(mask, sizes)
    if mask is None:
        return Attended(-sizes.n_q, sizes.n_k + 1)
    if isinstance(mask.rule, Window):
        band = mask.rule.on(sizes.n_q, sizes.n_k, 1)
        return Attended(band.first, band.end)
    check_lead(mask, sizes)
    lanes = cpu.isa().lanes(cpu.NUMBERS[dtype])
    if schedule == "auto" and not bias_gradient:
        pairs = gathers(mask, sizes, lanes, direction)
        if lse is not None and pairs != gathers(mask, sizes, lanes, "forward") and _is_large(lse):
            pairs = not pairs
        if pairs:
            return in_pairs(mask, sizes)
    return in_tiles(mask, sizes, lanes, bias_gradient)


def _is_large(lse: np.ndarray) -> bool:
    size = np.abs(lse, where=np.isfinite(lse), out=np.zeros_like(lse)).max(initial=0)
    return bool(size * np.finfo(lse.dtype).eps > LARGE)


def check_lead(mask: Mask, sizes: Sizes) -> None:
    """Raise RedblueError unless the mask's planes broadcast to (lead..., heads)."""
    full = (*sizes.lead, sizes.kv_heads * sizes.group)
    lead = (1,) * (len(full) - len(mask.lead)) + mask.lead
    if len(lead) != len(full) or any(a not in (1, b) for a, b in zip(lead, full, strict=True)):
        raise RedblueError(f"the mask is one for each of {mask.lead}, which must broadcast to (..., heads) = {full}")
    if per_head(mask) and sizes.group > 1:
        raise RedblueError("heads that share a key head must have one mask: repeat k and v for masks of their own")


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


@lru_cache(maxsize=2 * KEPT)  # both directions
def gathers(mask: Mask, sizes: Sizes, lanes: int, direction: str) -> bool:
    """Whether pairs cost less one by one than in tiles, by counting both."""
    parts, each = planes(mask.rule)
    share = np.bincount(each.ravel(), minlength=len(parts)) / max(1, each.size)  # of the streams, each plane
    nnz = sizes.group * mask.nnz(sizes.n_q, sizes.n_k) / max(1, each.size)
    arithmetic, overhead = GATHER_PRICE[direction]
    price = arithmetic + overhead / (sizes.d + sizes.d_v)
    if price * nnz >= sizes.n_q * sizes.group * sizes.n_k:  # cheaper than that are tiles of everything
        return False
    in_tiles = sum(times * _pairs_in_tiles(part, sizes, lanes) for part, times in zip(parts, share, strict=True))
    return in_tiles > price * nnz


def _pairs_in_tiles(rule: Rule, sizes: Sizes, lanes: int) -> float:
    """Pairs of a panel's rows with every key that some of them attend, over all panels.

    Of a graph, whose tiles may take gigabytes, the panels of most pairs and, for the others, a sample.
    """
    pattern, group = rule.pattern(sizes.n_q, sizes.n_k), sizes.group
    rows = sizes.n_q * group
    first = np.arange(0, rows, lanes)
    some, rest = first, 0.0
    if isinstance(pattern, Graph) and len(first) > 2 * SAMPLED_PANELS:
        stop = np.minimum(first + lanes, rows)
        pairs = pattern.indptr[(stop - 1) // group + 1] - pattern.indptr[first // group]
        order = np.argsort(pairs, kind="stable")
        some, others = first[order[-SAMPLED_PANELS:]], order[:-SAMPLED_PANELS]
        drawn = np.random.default_rng(0).choice(others, SAMPLED_PANELS, replace=False)
        rest = _keys_in_tiles(pattern, first[drawn], rows, lanes, group) / SAMPLED_PANELS * len(others)
    return lanes * (_keys_in_tiles(pattern, some, rows, lanes, group) + rest)


def _keys_in_tiles(pattern: Laid, first: np.ndarray, rows: int, lanes: int, group: int) -> int:
    found = tiling(pattern, np.sort(first), np.minimum(np.sort(first) + lanes, rows), group)
    return int((found.full[1::2] - found.full[::2]).sum()) + len(found.positions)


def _runs(mask: Mask, sizes: Sizes, group: int, lanes: int) -> tuple[Pattern, object]:
    found = lowered(mask, sizes.n_q, sizes.n_k, group, lanes)
    held = found.starts, found.runs, found.bits
    table, kept = _planes(found.planes, sizes)
    panels = -(-sizes.n_q * group // lanes)
    keys = int((found.runs[:, 1] - found.runs[:, 0]).sum())
    scattered = keys < SHORT_RUN * len(found.runs)
    count = 1 + int(found.planes.max(initial=0))
    starts, runs, bits = (x.ctypes.data for x in held)
    return Pattern(starts, runs, bits, table, lanes, panels, count, scattered), (held, kept)


def _edges(mask: Mask, sizes: Sizes) -> tuple[Edges, cpu.Array | None, object]:
    rules, each = planes(mask.rule)
    if sizes.n_q > 2**31 - 1 or sizes.n_k > 2**31 - 1:
        raise RedblueError(
            f"a mask of single pairs takes at most 2^31 - 1 queries and keys, got {sizes.n_q}, {sizes.n_k}"
        )
    parts, before = [], 0
    for rule in rules:
        starts, keys = Mask(rule).to_csr(sizes.n_q, sizes.n_k)
        keys = np.ascontiguousarray(keys, np.int32)
        by_key, queries = _core.by_key(np.ascontiguousarray(starts), keys, sizes.n_k)
        parts.append((starts + before, keys, by_key + before, queries))
        before += len(keys)
    joined = [np.concatenate(part) for part in zip(*parts, strict=True)]
    starts, keys, key_starts, queries = (x.ctypes.data for x in joined)
    table, kept = _planes(each, sizes)
    return Edges(starts, keys, key_starts, queries), table, (joined, kept)


def _planes(each: np.ndarray, sizes: Sizes) -> tuple[cpu.Array | None, object]:
    """Which plane each stream sees, with strides of 0 where the mask broadcasts."""
    if not each.ndim or each.size == 1:
        return None, None
    kept = np.ascontiguousarray(each, np.int64)
    heads = sizes.kv_heads * sizes.group if kept.shape[-1] > 1 else 1
    laid = np.broadcast_to(kept, (*sizes.lead, heads))
    strides = [stride // 8 for stride in laid.strides]
    if heads == 1:
        strides[-1] = 0
    return (kept.ctypes.data, *strides, 0, 0), kept
