"""The backward pass of `flash` on Hopper for d = 64: five products, in warpgroups that do not wait for each other.

A block of 128 keys and values stays in shared memory, 64 for each of two warpgroups, while tiles of ROWS queries of all
heads that share them stream by. Such a warpgroup computes scores (keys, rows), so that probabilities and dS are left
operands of dV and dK in registers, and writes dS to shared memory. A third warpgroup multiplies dS by the keys and adds
the product to the float32 sums of dQ in global memory. One warp asks for the tiles (TMA). So while one warpgroup
computes exponentials, others multiply; only barriers in shared memory order them.
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
# pyright: reportCallIssue=false
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

KEYS = gl.constexpr(64)  # of a warpgroup
GROUPS = gl.constexpr(2)  # warpgroups that have keys


class Shared(NamedTuple):
    """Tiles in shared memory, and barriers. Tiles of keys, values and dS: one for each warpgroup."""

    k: Any
    v: Any
    q: Any
    stats: Any
    dout: Any
    ds: Any  # [buffer * GROUPS + warpgroup]
    keys_full: Any
    q_full: Any
    dout_full: Any
    empty: Any  # a stage of q, stats and dout
    ds_full: Any
    ds_empty: Any
    done: Any  # all products with the keys


@gluon.jit
def _load(
    q_desc, dout_desc, stats_desc, k_desc, v_desc, place, shared, padded,
    GROUP: gl.constexpr, ROWS: gl.constexpr, D: gl.constexpr, D_V: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The warp that asks for tiles."""
    mbarrier.expect(shared.keys_full, GROUPS * KEYS * (D + D_V) * 2)
    for i in gl.static_range(GROUPS):
        key = place.key + i * KEYS
        load_tile(k_desc, [place.batch, place.head, key, 0], shared.keys_full, shared.k.index(i))
        load_tile(v_desc, [place.batch, place.head, key, 0], shared.keys_full, shared.v.index(i))
    count = place.tiles * 0
    for member in range(GROUP):
        head = place.head * GROUP + member
        for t in range(place.tiles):
            row = row_of(place, t, ROWS)
            stage, phase = count % STAGES, (count // STAGES) & 1
            full = shared.q_full.index(stage)
            mbarrier.wait(shared.empty.index(stage), phase ^ 1)
            mbarrier.expect(full, ROWS * D * 2 + 2 * ROWS * 4)
            load_tile(q_desc, [place.batch, head, row, 0], full, shared.q.index(stage))
            at = ((place.stream * GROUP + member) * padded + row) * 2
            load_tile(stats_desc, [at], full, shared.stats.index(stage))
            full = shared.dout_full.index(stage)
            mbarrier.expect(full, ROWS * D_V * 2)
            load_tile(dout_desc, [place.batch, head, row, 0], full, shared.dout.index(stage))
            count += 1


@gluon.constexpr_function
def _mma(columns):
    """The layout of a product by the four warps of a warpgroup."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])


@gluon.jit
def _add_to_dq(
    place, shared, sums, padded,
    GROUP: gl.constexpr, ROWS: gl.constexpr, D: gl.constexpr, BUFFERS: gl.constexpr,
):  # fmt: skip
    """The warpgroup that multiplies dS by the keys, and adds the products to the sums of dQ."""
    LAYOUT: gl.constexpr = _mma(D)
    mbarrier.wait(shared.keys_full, 0)
    count = place.tiles * 0
    for member in range(GROUP):
        numbers = (place.stream * GROUP + member) * padded
        for t in range(place.tiles):
            row = row_of(place, t, ROWS)
            buffer, phase = count % BUFFERS, (count // BUFFERS) & 1
            mbarrier.wait(shared.ds_full.index(buffer), phase)
            dq = gl.zeros([ROWS, D], gl.float32, LAYOUT)
            for i in gl.static_range(GROUPS):
                ds = shared.ds.index(buffer * GROUPS + i).permute([1, 0])
                dq = warpgroup_mma(ds, shared.k.index(i).reshape([KEYS, D]), dq, use_acc=i > 0, is_async=True)
            dq = warpgroup_mma_wait(0, deps=[dq])
            meet()
            mbarrier.arrive(shared.ds_empty.index(buffer), count=1)
            add_to_sums(sums, numbers + row, dq, ROWS, D)
            count += 1
    meet()
    mbarrier.arrive(shared.done, count=1)


@gluon.jit
def _add(
    MASKED: gl.constexpr, WHICH: gl.constexpr, place, band, scale, begin, stop, count, dk, dv, shared,
    ROWS: gl.constexpr, D: gl.constexpr, D_V: gl.constexpr, STAGES: gl.constexpr, BUFFERS: gl.constexpr,
):  # fmt: skip
    """Add tiles begin .. stop - 1 of one head to dK and dV of warpgroup WHICH's keys, and hand over their dS."""
    LAYOUT: gl.constexpr = _mma(ROWS)
    ELEMENT: gl.constexpr = shared.k.dtype
    k, v = shared.k.index(WHICH).reshape([KEYS, D]), shared.v.index(WHICH).reshape([KEYS, D_V])
    for t in range(begin, stop):
        row = row_of(place, t, ROWS)
        stage, phase = count % STAGES, (count // STAGES) & 1
        zeros = gl.zeros([KEYS, ROWS], gl.float32, LAYOUT)
        mbarrier.wait(shared.q_full.index(stage), phase)
        q = shared.q.index(stage).reshape([ROWS, D])
        s = warpgroup_mma(k, q.permute([1, 0]), zeros, use_acc=False, is_async=True)
        mbarrier.wait(shared.dout_full.index(stage), phase)
        dout = shared.dout.index(stage).reshape([ROWS, D_V])
        dp = warpgroup_mma(v, dout.permute([1, 0]), zeros, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(1, deps=[s])
        stats = shared.stats.index(stage)
        lse = stats.slice(0, ROWS).load(gl.SliceLayout(0, LAYOUT))
        p = gl.exp2(s * scale - lse[None, :])
        if MASKED:
            i_key = place.key + WHICH * KEYS + gl.arange(0, KEYS, layout=gl.SliceLayout(1, LAYOUT))
            i_row = row + gl.arange(0, ROWS, layout=gl.SliceLayout(0, LAYOUT))
            p = masked(p, band, i_key, i_row)
        p = p.to(ELEMENT)
        dv = warpgroup_mma(gl.convert_layout(p, gl.DotOperandLayout(0, _mma(D_V), 2)), dout, dv, is_async=True)
        dp = warpgroup_mma_wait(1, deps=[dp])
        delta = stats.slice(ROWS, ROWS).load(gl.SliceLayout(0, LAYOUT))
        ds = (p.to(gl.float32) * (dp - delta[None, :])).to(ELEMENT)
        buffer = count % BUFFERS
        mbarrier.wait(shared.ds_empty.index(buffer), ((count // BUFFERS) & 1) ^ 1)
        shared.ds.index(buffer * GROUPS + WHICH).store(ds)
        fence_async_shared()
        meet()
        mbarrier.arrive(shared.ds_full.index(buffer), count=1)
        dk = warpgroup_mma(gl.convert_layout(ds, gl.DotOperandLayout(0, _mma(D), 2)), q, dk, is_async=True)
        dv, dk = warpgroup_mma_wait(0, deps=[dv, dk])
        meet()
        mbarrier.arrive(shared.empty.index(stage), count=1)
        count += 1
    return dk, dv, count


@gluon.jit
def _multiply(
    WHICH: gl.constexpr, dk_desc, dv_desc, place, band, shared, scale, TAIL: gl.constexpr,
    GROUP: gl.constexpr, ROWS: gl.constexpr, D: gl.constexpr, D_V: gl.constexpr,
    STAGES: gl.constexpr, BUFFERS: gl.constexpr,
):  # fmt: skip
    """Warpgroup WHICH of those that have keys."""
    mbarrier.wait(shared.keys_full, 0)
    dk = gl.zeros([KEYS, D], gl.float32, _mma(D))
    dv = gl.zeros([KEYS, D_V], gl.float32, _mma(D_V))
    count, whole = place.tiles * 0, place.leading + place.whole
    for _ in range(GROUP):
        if band.end is not None or TAIL:
            dk, dv, count = _add(
                True, WHICH, place, band, scale * LOG2E, 0, place.leading, count, dk, dv, shared,
                ROWS, D, D_V, STAGES, BUFFERS
            )  # fmt: skip
        dk, dv, count = _add(
            False, WHICH, place, band, scale * LOG2E, place.leading, whole, count, dk, dv, shared,
            ROWS, D, D_V, STAGES, BUFFERS
        )  # fmt: skip
        if band.first is not None:
            dk, dv, count = _add(
                True, WHICH, place, band, scale * LOG2E, whole, place.tiles, count, dk, dv, shared,
                ROWS, D, D_V, STAGES, BUFFERS
            )  # fmt: skip
    key = place.key + WHICH * KEYS
    v_tile = shared.v.index(WHICH)
    v_tile.reshape([KEYS, D_V]).store(dv.to(shared.v.dtype))
    fence_async_shared()
    meet()
    store_tile(dv_desc, [place.batch, place.head, key, 0], v_tile)
    mbarrier.wait(shared.done, 0)
    k_tile = shared.k.index(WHICH)
    k_tile.reshape([KEYS, D]).store((dk * scale).to(shared.k.dtype))
    fence_async_shared()
    meet()
    store_tile(dk_desc, [place.batch, place.head, key, 0], k_tile)
    tma.store_wait(0)


@gluon.jit
def backward_apart(
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
    BUFFERS: gl.constexpr,
    REGISTERS: gl.constexpr,
):
    """dK and dV of a block of COLS keys, and its part of dQ, added to the sums.

    Descriptors: of arrays (batch, heads, rows, features), and of the stats (sums.py). Query i attends keys i + first ..
    i + end - 1 below `keys`; None: without limit. TAIL: whether some block has keys that do not exist, or are not below
    `keys`. STAGES: tiles of queries, and of dout, in shared memory at once.
    REGISTERS: of a thread of the warpgroups that have keys.
    """
    ELEMENT: gl.constexpr = q_desc.dtype
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    OF_DS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, ROWS], ELEMENT)
    shared = Shared(
        gl.allocate_shared_memory(ELEMENT, [GROUPS] + k_desc.block_shape, k_desc.layout),  # noqa: RUF005
        gl.allocate_shared_memory(ELEMENT, [GROUPS] + v_desc.block_shape, v_desc.layout),  # noqa: RUF005
        gl.allocate_shared_memory(ELEMENT, [STAGES] + q_desc.block_shape, q_desc.layout),  # noqa: RUF005
        gl.allocate_shared_memory(gl.float32, [STAGES] + stats_desc.block_shape, stats_desc.layout),  # noqa: RUF005
        gl.allocate_shared_memory(ELEMENT, [STAGES] + dout_desc.block_shape, dout_desc.layout),  # noqa: RUF005
        gl.allocate_shared_memory(ELEMENT, [BUFFERS * GROUPS, KEYS, ROWS], OF_DS),
        gl.allocate_shared_memory(gl.int64, [1], BARRIER),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER),
        gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], BARRIER),
        gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], BARRIER),
        gl.allocate_shared_memory(gl.int64, [1], BARRIER),
    )
    mbarrier.init(shared.keys_full, count=1)
    mbarrier.init(shared.done, count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(shared.q_full.index(i), count=1)
        mbarrier.init(shared.dout_full.index(i), count=1)
        mbarrier.init(shared.empty.index(i), count=GROUPS)
    for i in gl.static_range(BUFFERS):
        mbarrier.init(shared.ds_full.index(i), count=GROUPS)
        mbarrier.init(shared.ds_empty.index(i), count=1)
    fence_async_shared()
    meet()
    band = Band(first, end, keys)
    place = place_of(band, n_q, kv_heads, ROWS, COLS)
    gl.warp_specialize(
        [
            (_add_to_dq, (place, shared, sums, padded, GROUP, ROWS, D, BUFFERS)),
            (_multiply, (
                0, dk_desc, dv_desc, place, band, shared, scale, TAIL, GROUP, ROWS, D, D_V, STAGES, BUFFERS,
            )),
            (_multiply, (
                1, dk_desc, dv_desc, place, band, shared, scale, TAIL, GROUP, ROWS, D, D_V, STAGES, BUFFERS,
            )),
            (_load, (
                q_desc, dout_desc, stats_desc, k_desc, v_desc, place, shared, padded, GROUP, ROWS, D, D_V, STAGES,
            )),
        ],
        [4, 4, 1],
        [REGISTERS, REGISTERS, 24],
    )  # fmt: skip
