"""The backward pass of `flash_onepass` on Hopper: one kernel of five products, written in Gluon.

A block of 128 keys and values stays in shared memory while tiles of queries of all heads that share them stream by.
One warp loads the tiles by TMA; two warpgroups multiply. Scores are tiles (keys, rows), so that probabilities and dS
are left operands of dV and dK in registers. dS also goes through shared memory to give a part of dQ, which is added to
float32 sums in global memory. Each product overlaps with the arithmetic on the result of another product:

    products    S | dP            | dV                   | dQ | dK
    arithmetic    | probabilities | dS, to shared memory |    | dQ to the sums
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
# pyright: reportCallIssue=false, reportAssignmentType=false
from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from redblue.kernels.gpu.hopper.key_blocks import (
    LOG2E,
    Band,
    add_to_sums,
    load_tile,
    masked,
    meet,
    place_of,
    row_of,
    store_tile,
)


class Constants(NamedTuple):
    """The numbers and switches that a kernel is compiled for; hopper_backward explains them.

    It is constructed in the call of a helper. If it were in a variable, Triton would make run-time numbers of it.
    """

    TAIL: Any
    GROUP: Any
    ROWS: Any
    COLS: Any
    D: Any
    D_V: Any
    STAGES: Any


class Maps(NamedTuple):
    """The TMA descriptors of all arrays."""

    q: Any
    dout: Any
    stats: Any
    k: Any
    v: Any
    dk: Any
    dv: Any


class Keys(NamedTuple):
    """The block of keys and values in shared memory, and the barrier that tells when it is full."""

    k: Any
    v: Any
    full: Any


class Ring(NamedTuple):
    """Tiles that stream by, in shared memory, and barriers that signal when a stage is full and when it is empty."""

    q: Any
    stats: Any
    dout: Any
    q_full: Any
    dout_full: Any
    empty: Any


class Stay(NamedTuple):
    """Operands that the multiplying warps hold for all tiles."""

    k: Any
    v: Any
    ds: Any
    scale: Any
    sums: Any  # pointer to the sums of dQ
    padded: Any
    band: Any


@gluon.jit
def _load(maps, place, keys, ring, padded, c):
    """The loop of the warp that loads tiles."""
    mbarrier.expect(keys.full, c.COLS * (c.D + c.D_V) * 2)
    load_tile(maps.k, [place.batch, place.head, place.key, 0], keys.full, keys.k)
    load_tile(maps.v, [place.batch, place.head, place.key, 0], keys.full, keys.v)
    count = place.tiles * 0
    for member in range(c.GROUP):
        head = place.head * c.GROUP + member
        for t in range(place.tiles):
            row = row_of(place, t, c.ROWS)
            stage, phase = count % c.STAGES, (count // c.STAGES) & 1
            full = ring.q_full.index(stage)
            mbarrier.wait(ring.empty.index(stage), phase ^ 1)
            mbarrier.expect(full, c.ROWS * c.D * 2 + 2 * c.ROWS * 4)
            load_tile(maps.q, [place.batch, head, row, 0], full, ring.q.index(stage))
            first_stat = ((place.stream * c.GROUP + member) * padded + row) * 2
            load_tile(maps.stats, [first_stat], full, ring.stats.index(stage))
            full = ring.dout_full.index(stage)
            mbarrier.expect(full, c.ROWS * c.D_V * 2)
            load_tile(maps.dout, [place.batch, head, row, 0], full, ring.dout.index(stage))
            count += 1


@gluon.constexpr_function
def _mma(lines, columns):
    """The layout of a product by eight warps: two warpgroups side by side if there are only 64 rows."""
    down = min(8, lines // 16)
    return gl.NVMMADistributedLayout([3, 0], [down, 8 // down], [16, columns * down // 8, 16])


@gluon.jit
def _scores(left, right, LAYOUT: gl.constexpr):
    """Start the asynchronous product of a block of keys, or values, and a tile of rows."""
    LINES: gl.constexpr = left.shape[0]
    COLUMNS: gl.constexpr = right.shape[0]
    zeros = gl.zeros([LINES, COLUMNS], gl.float32, LAYOUT)
    return warpgroup_mma(left, right.permute([1, 0]), zeros, use_acc=False, is_async=True)


@gluon.jit
def _add(begin, stop, member, count, dk, dv, place, stay, ring, c, MASKED: gl.constexpr):
    """Add tiles begin .. stop - 1 of one head to dK, dV and the sums of dQ."""
    ROWS: gl.constexpr = c.ROWS
    COLS: gl.constexpr = c.COLS
    D: gl.constexpr = c.D
    BY_KEYS: gl.constexpr = _mma(COLS, ROWS)
    BY_ROWS: gl.constexpr = _mma(ROWS, D)
    ELEMENT: gl.constexpr = stay.k.dtype
    band = stay.band
    numbers = (place.stream * c.GROUP + member) * stay.padded
    for t in range(begin, stop):
        row = row_of(place, t, ROWS)
        stage, phase = count % c.STAGES, (count // c.STAGES) & 1
        q = ring.q.index(stage).reshape([ROWS, D])
        mbarrier.wait(ring.q_full.index(stage), phase)
        s = _scores(stay.k, q, BY_KEYS)
        mbarrier.wait(ring.dout_full.index(stage), phase)
        dout = ring.dout.index(stage).reshape([ROWS, c.D_V])
        dp = _scores(stay.v, dout, BY_KEYS)
        s = warpgroup_mma_wait(1, deps=[s])
        stats = ring.stats.index(stage)
        lse = stats.slice(0, ROWS).load(gl.SliceLayout(0, BY_KEYS))
        p = gl.exp2(s * stay.scale - lse[None, :])
        if MASKED:
            i_key = place.key + gl.arange(0, COLS, layout=gl.SliceLayout(1, BY_KEYS))
            i_row = row + gl.arange(0, ROWS, layout=gl.SliceLayout(0, BY_KEYS))
            p = masked(p, band, i_key, i_row)
        p16 = p.to(ELEMENT)
        p_left = gl.convert_layout(p16, gl.DotOperandLayout(0, dv.type.layout, 2))
        dv = warpgroup_mma(p_left, dout, dv, is_async=True)
        dp = warpgroup_mma_wait(1, deps=[dp])
        delta = stats.slice(ROWS, ROWS).load(gl.SliceLayout(0, BY_KEYS))
        ds = (p16.to(gl.float32) * (dp - delta[None, :])).to(ELEMENT)
        stay.ds.store(ds)
        fence_async_shared()
        zeros_dq = gl.zeros([ROWS, D], gl.float32, BY_ROWS)
        dq = warpgroup_mma(stay.ds.permute([1, 0]), stay.k, zeros_dq, use_acc=False, is_async=True)
        ds_left = gl.convert_layout(ds, gl.DotOperandLayout(0, dk.type.layout, 2))
        dk = warpgroup_mma(ds_left, q, dk, is_async=True)
        dv, dq = warpgroup_mma_wait(1, deps=[dv, dq])
        add_to_sums(stay.sums, numbers + row, dq, ROWS, D)
        dk = warpgroup_mma_wait(0, deps=[dk])
        meet()
        mbarrier.arrive(ring.empty.index(stage), count=1)
        count += 1
    return dk, dv, count


@gluon.jit
def _multiply(maps, place, keys, stay, ring, dk_scale, c):
    """The loop of the warps that multiply."""
    mbarrier.wait(keys.full, 0)
    dk = gl.zeros([c.COLS, c.D], gl.float32, _mma(c.COLS, c.D))
    dv = gl.zeros([c.COLS, c.D_V], gl.float32, _mma(c.COLS, c.D_V))
    count = place.tiles * 0
    for member in range(c.GROUP):
        stop = place.leading + place.whole
        if stay.band.end is not None or c.TAIL:
            dk, dv, count = _add(0, place.leading, member, count, dk, dv, place, stay, ring, c, True)
        dk, dv, count = _add(place.leading, stop, member, count, dk, dv, place, stay, ring, c, False)
        if stay.band.first is not None:
            dk, dv, count = _add(stop, place.tiles, member, count, dk, dv, place, stay, ring, c, True)
    meet()  # before this, another warpgroup may still read the keys
    keys.k.reshape([c.COLS, c.D]).store((dk * dk_scale).to(stay.k.dtype))
    keys.v.reshape([c.COLS, c.D_V]).store(dv.to(stay.v.dtype))
    fence_async_shared()
    store_tile(maps.dk, [place.batch, place.head, place.key, 0], keys.k)
    store_tile(maps.dv, [place.batch, place.head, place.key, 0], keys.v)
    tma.store_wait(0)


@gluon.jit
def _specialize_warps(maps, place, keys, stay, ring, scale, c):
    """Run the warps that multiply and the warp that asks for tiles side by side."""
    gl.warp_specialize(
        [
            (_multiply, (maps, place, keys, stay, ring, scale, c)),
            (_load, (maps, place, keys, ring, stay.padded, c)),
        ],
        [1],
        [24],
    )


@gluon.jit
def hopper_backward(
    q_desc,
    dout_desc,
    stats_desc,
    k_desc,
    v_desc,
    dk_desc,
    dv_desc,
    sums,
    first,
    end,
    keys,
    n_q,
    padded,
    kv_heads,
    scale,
    TAIL: gl.constexpr,
    GROUP: gl.constexpr,
    ROWS: gl.constexpr,
    COLS: gl.constexpr,
    D: gl.constexpr,
    D_V: gl.constexpr,
    STAGES: gl.constexpr,
):
    """dK and dV of a block of COLS keys, and its part of dQ, added to the sums.

    Descriptors: of arrays (batch, heads, rows, features), and of the stats (sums.py). Query i attends keys i + first ..
    i + end - 1 below `keys`; None: without limit. TAIL: whether some block contains keys at or beyond `keys`, or beyond
    the last key. STAGES: tiles of queries, and of dout, in shared memory at once.
    """
    ELEMENT: gl.constexpr = q_desc.dtype
    k_tile = gl.allocate_shared_memory(ELEMENT, k_desc.block_shape, k_desc.layout)
    v_tile = gl.allocate_shared_memory(ELEMENT, v_desc.block_shape, v_desc.layout)
    q_tiles = gl.allocate_shared_memory(ELEMENT, [STAGES] + q_desc.block_shape, q_desc.layout)  # noqa: RUF005
    dout_tiles = gl.allocate_shared_memory(ELEMENT, [STAGES] + dout_desc.block_shape, dout_desc.layout)  # noqa: RUF005
    stats = gl.allocate_shared_memory(gl.float32, [STAGES] + stats_desc.block_shape, stats_desc.layout)  # noqa: RUF005
    OF_DS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([COLS, ROWS], ELEMENT)
    ds = gl.allocate_shared_memory(ELEMENT, [COLS, ROWS], OF_DS)
    keys_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    dout_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(keys_full, count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
        mbarrier.init(dout_full.index(i), count=1)
    fence_async_shared()
    meet()
    band = Band(first, end, keys)
    place = place_of(band, n_q, kv_heads, ROWS, COLS)
    ring = Ring(q_tiles, stats, dout_tiles, q_full, dout_full, empty)
    stay = Stay(k_tile.reshape([COLS, D]), v_tile.reshape([COLS, D_V]), ds, scale * LOG2E, sums, padded, band)
    maps = Maps(q_desc, dout_desc, stats_desc, k_desc, v_desc, dk_desc, dv_desc)
    _specialize_warps(
        maps, place, Keys(k_tile, v_tile, keys_full), stay, ring, scale,
        Constants(TAIL, GROUP, ROWS, COLS, D, D_V, STAGES)
    )  # fmt: skip
