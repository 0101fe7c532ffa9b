"""Calls of the compiled core's attention on keys that lie in pages."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from redblue.base.dtypes import DTYPE_CODES
from redblue.compiled import _core
from redblue.kernels.cpu.call import Array, isa, pack_sizes, pack_tile, plan_tile
from redblue.kernels.cpu.plan import Tile
from redblue.kernels.sizes import Sizes

# The tile does not depend on a call's lengths: it is planned for sequences of this many queries and keys.
PLANNED = 1 << 16


class Cache(NamedTuple):
    """K and V: arrays (pages, heads, rows of a page, width). v_in_k: the column of K at which V begins; -1: nowhere."""

    k: Array
    v: Array
    v_in_k: int


@lru_cache(maxsize=256)
def tile_for(kv_heads: int, group: int, d: int, d_v: int, dtype: str) -> Tile:
    """The plan's tile. It depends only on the heads, so no sequence's result depends on the other sequences."""
    return plan_tile("forward", Sizes((), kv_heads, group, PLANNED, PLANNED, d, d_v), dtype)


def call_of(
    sizes: Sizes,
    dtype: str,
    q: Array,
    cache: Cache,
    out: Array,
    lse: Array,
    *,
    sequences: _core.Sequences,
    threads: int = 1,
    tile: Tile | None = None,
    **options: Any,
) -> _core.PagedCall:
    """Make the core's call. sizes: the sizes of one sequence; their leading dimension is the number of sequences.

    q, out, lse: (heads, queries of all sequences, width). options: keyword arguments of _core.Call.
    """
    tile = tile or tile_for(sizes.kv_heads, sizes.group, sizes.d, sizes.d_v, dtype)
    return _core.PagedCall(
        DTYPE_CODES[dtype],
        pack_sizes(sizes),
        pack_tile(tile),
        threads,
        sequences,
        q,
        cache.k,
        cache.v,
        out,
        lse,
        cache.v_in_k,
        **options,
    )


def forward(call: _core.PagedCall, row: _core.Isa | None = None) -> tuple[int, int]:
    """Write `out` and `lse`. Returns the words that move between tiles and arrays: words read, and words written.

    The words read include entries of page tables.
    """
    return _core.attention_paged(row or isa(), call)


def forward_on(call: _core.PagedCall, threads: int, *addresses: int) -> tuple[int, int]:
    """Run `forward` with this number of threads and with q, k, v, out and lse at these addresses. lse: 0 for none."""
    return _core.attention_paged_on(isa(), call, threads, *addresses)
