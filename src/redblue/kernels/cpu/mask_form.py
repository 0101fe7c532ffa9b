"""A call's mask in the form that the core takes: a band, runs of keys, or single pairs.

A band is two numbers. Any other mask is lowered to runs of keys for each panel of rows, or, where panels would be
mostly empty, to lists of pairs. The cheaper form is chosen by counting pairs: a tile computes all pairs of a panel's
rows and of the keys that any of these rows attends; gathering computes only the pairs that attend, but each of them
costs as much as several pairs of a tile.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from redblue.base.dtypes import DTYPE_CODES
from redblue.base.errors import RedblueError
from redblue.compiled import _core
from redblue.kernels.cpu import call as cpu
from redblue.kernels.cpu.arrays import element_strides
from redblue.kernels.cpu.call import Attended, Edges, Pattern
from redblue.kernels.mask_planes import check_lead
from redblue.kernels.sizes import Sizes
from redblue.masks import Mask
from redblue.masks.lowered import lowered
from redblue.masks.patterns.graph import Graph
from redblue.masks.patterns.pattern import Pattern as MaskPattern
from redblue.masks.patterns.tiling import tiling
from redblue.masks.rules.bands import Window
from redblue.masks.rules.dense import Dense
from redblue.masks.rules.rule import Rule
from redblue.masks.rules.stack import planes

# (a, b): a gathered pair costs as much as a + b / (d + d_v) pairs of a tile; a is its arithmetic, b its overhead
# (measured on Zen 5).
GATHER_PRICE = {"forward": (5.0, 440.0), "backward": (7.0, 900.0)}
# Tiles and pairs round scores differently. Where lse is rounded by more than this, the difference shows in gradients.
LARGE = 2.0**-13
SAMPLED_PANELS = 64
KEPT = 8  # forms in a cache, by mask and sizes; few, because the form of a graph is as large as the graph
SHORT_RUN = 24  # keys: if runs are shorter than this on average, the core copies several together


def attended(
    mask: Mask | None,
    sizes: Sizes,
    dtype: str,
    direction: str = "forward",
    bias_gradient: bool = False,
    schedule: str = "auto",
    lse: np.ndarray | None = None,
) -> Attended:
    """The mask in the form that the core takes. Raises RedblueError for a mask that does not fit the sizes.

    schedule: "flash" takes tiles, "gather" pairs, "auto" the cheaper of the two. A bias's gradient is always summed
    tile by tile. lse: the forward result, for backward. Where it is large, "auto" takes the form that forward took,
    because both passes must round scores alike.
    """
    if schedule == "gather" and not bias_gradient:
        mask = Mask.full() if mask is None else mask
        check_lead(mask, sizes)
        return in_pairs(mask, sizes)
    if mask is None:
        return Attended(-sizes.n_q, sizes.n_k + 1)
    if isinstance(mask.rule, Window):
        band = mask.rule.on(sizes.n_q, sizes.n_k, 1)
        return Attended(band.first, band.end)
    check_lead(mask, sizes)
    lanes = cpu.isa().lanes(DTYPE_CODES[dtype])
    if schedule == "auto" and not bias_gradient:
        pairs = gathers(mask, sizes, lanes, direction)
        if lse is not None and pairs != gathers(mask, sizes, lanes, "forward") and _is_large(lse):
            pairs = not pairs
        if pairs:
            return in_pairs(mask, sizes)
    return in_tiles(mask, sizes, lanes, bias_gradient)


def bias_gradient_is_apart(mask: Mask | None, sizes: Sizes, dtype: str, schedule: str, lse: np.ndarray) -> bool:
    """Whether the gradient of a bias needs a backward pass of its own, in which all other gradients are thrown away.

    It does if forward gathered pairs and lse is large: then tiles round scores too differently for dQ, whose error
    would exceed dQ itself at scores of 1e4 in float32. The gradient of the bias hardly suffers.
    """
    if not _is_large(lse):
        return False
    if schedule != "auto" or mask is None or isinstance(mask.rule, Window):
        return schedule == "gather"
    return gathers(mask, sizes, cpu.isa().lanes(DTYPE_CODES[dtype]), "forward")


def _is_large(lse: np.ndarray) -> bool:
    """Whether some log-sum-exp is so large that its rounding affects the gradients."""
    size = np.abs(lse, where=np.isfinite(lse), out=np.zeros_like(lse)).max(initial=0)
    return bool(size * np.finfo(lse.dtype).eps > LARGE)


@lru_cache(maxsize=KEPT)
def in_tiles(mask: Mask, sizes: Sizes, lanes: int, bias_gradient: bool) -> Attended:
    """The mask as runs of keys for each panel of `lanes` rows."""
    pattern, arrays = _runs(mask, sizes, sizes.group, lanes)
    by_query, query_arrays = None, None
    if bias_gradient:
        by_query, query_arrays = (pattern, None) if sizes.group == 1 else _runs(mask, sizes, 1, lanes)
    return Attended(-sizes.n_q, sizes.n_k + 1, pattern, by_query, held=(arrays, query_arrays))


@lru_cache(maxsize=KEPT)
def in_pairs(mask: Mask, sizes: Sizes) -> Attended:
    """The mask as lists of pairs."""
    edges, planes, arrays = _edges(mask, sizes)
    return Attended(-sizes.n_q, sizes.n_k + 1, Pattern(0, 0, 0, planes, 1, 0, 1, False), edges=edges, held=arrays)


@lru_cache(maxsize=2 * KEPT)  # twice KEPT, for both directions
def gathers(mask: Mask, sizes: Sizes, lanes: int, direction: str) -> bool:
    """Whether gathering the pairs costs less than computing tiles."""
    rules, stream_planes = planes(mask.rule)
    streams = max(1, stream_planes.size)
    shares = np.bincount(stream_planes.ravel(), minlength=len(rules)) / streams  # the share of streams on a plane
    nnz = sizes.group * mask.nnz(sizes.n_q, sizes.n_k) / streams
    arithmetic, overhead = GATHER_PRICE[direction]
    price = arithmetic + overhead / (sizes.d + sizes.d_v)
    if price * nnz >= sizes.n_q * sizes.group * sizes.n_k:  # even tiles of all pairs cost less
        return False
    return float(shares @ _pairs_in_tiles(mask, rules, sizes, lanes)) > price * nnz


def _pairs_in_tiles(mask: Mask, rules: tuple[Rule, ...], sizes: Sizes, lanes: int) -> np.ndarray:
    """The number of pairs that tiles compute, for each rule of the mask.

    A panel's tiles compute all pairs of its rows and of the keys that any of these rows attends.
    """
    if not all(isinstance(rule, Dense) for rule in rules):
        return np.array([_pairs_in_tiles_of(rule, sizes, lanes) for rule in rules])
    low = lowered(mask, sizes.n_q, sizes.n_k, sizes.group, lanes)  # fast for arrays; the tiles use the cached result
    keys_before = np.append(0, np.cumsum(low.runs[:, 1] - low.runs[:, 0]))
    return lanes * np.diff(keys_before[low.starts[:: -(-sizes.n_q * sizes.group // lanes)]])


def _pairs_in_tiles_of(rule: Rule, sizes: Sizes, lanes: int) -> float:
    """The number of pairs that tiles compute for one rule.

    The tiles of a graph may take gigabytes. So only a graph's densest panels and a sample of its other panels are
    counted.
    """
    pattern, group = rule.pattern(sizes.n_q, sizes.n_k), sizes.group
    rows = sizes.n_q * group
    first = np.arange(0, rows, lanes)
    counted, rest = first, 0.0
    if isinstance(pattern, Graph) and len(first) > 2 * SAMPLED_PANELS:
        stop = np.minimum(first + lanes, rows)
        pairs = pattern.indptr[(stop - 1) // group + 1] - pattern.indptr[first // group]
        order = np.argsort(pairs, kind="stable")
        counted, others = first[order[-SAMPLED_PANELS:]], order[:-SAMPLED_PANELS]
        sample = np.random.default_rng(0).choice(others, SAMPLED_PANELS, replace=False)
        rest = _keys_in_tiles(pattern, first[sample], rows, lanes, group) / SAMPLED_PANELS * len(others)
    return lanes * (_keys_in_tiles(pattern, counted, rows, lanes, group) + rest)


def _keys_in_tiles(pattern: MaskPattern, first: np.ndarray, rows: int, lanes: int, group: int) -> int:
    """The number of keys that any row of a panel attends, summed over the panels that begin at rows `first`."""
    tiles = tiling(pattern, np.sort(first), np.minimum(np.sort(first) + lanes, rows), group)
    return int((tiles.full[1::2] - tiles.full[::2]).sum()) + len(tiles.positions)


def _runs(mask: Mask, sizes: Sizes, group: int, lanes: int) -> tuple[Pattern, object]:
    """The runs of the mask's lowered form, and the arrays that hold them."""
    low = lowered(mask, sizes.n_q, sizes.n_k, group, lanes)
    arrays = low.starts, low.runs, low.bits
    table, plane_memory = _planes(low.planes, sizes)
    panels = -(-sizes.n_q * group // lanes)
    keys = int((low.runs[:, 1] - low.runs[:, 0]).sum())
    scattered = keys < SHORT_RUN * len(low.runs)
    count = 1 + int(low.planes.max(initial=0))
    starts, runs, bits = (x.ctypes.data for x in arrays)
    return Pattern(starts, runs, bits, table, lanes, panels, count, scattered), (arrays, plane_memory)


def _edges(mask: Mask, sizes: Sizes) -> tuple[Edges, cpu.Array | None, object]:
    """The mask's pairs as lists, the planes, and the arrays that hold both."""
    rules, stream_planes = planes(mask.rule)
    if sizes.n_q > 2**31 - 1 or sizes.n_k > 2**31 - 1:
        raise RedblueError(
            f"a mask of single pairs takes at most 2^31 - 1 queries and keys, got {sizes.n_q} and {sizes.n_k}: cut "
            "the queries, or the keys, into several calls"
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
    table, plane_memory = _planes(stream_planes, sizes)
    return Edges(starts, keys, key_starts, queries), table, (joined, plane_memory)


def _planes(stream_planes: np.ndarray, sizes: Sizes) -> tuple[cpu.Array | None, object]:
    """The array of every stream's plane for the core, and its memory. Strides are 0 where the mask broadcasts.

    None, None if the mask has one plane for all streams.
    """
    if not stream_planes.ndim or stream_planes.size == 1:
        return None, None
    memory = np.ascontiguousarray(stream_planes, np.int64)
    heads = sizes.kv_heads * sizes.group if memory.shape[-1] > 1 else 1
    broadcast = np.broadcast_to(memory, (*sizes.lead, heads))
    strides = list(element_strides(broadcast))
    if heads == 1:
        strides[-1] = 0
    return cpu.Array(memory.ctypes.data, (*strides, 0, 0)), memory
