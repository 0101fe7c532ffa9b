"""The backward pass of `flash` on Hopper: one kernel of five products, written in Gluon.

A block of COLS keys and values stays in shared memory while tiles of ROWS queries of all heads that share them stream
by. One warp asks for the tiles (TMA); two warpgroups multiply. Scores are tiles (keys, rows), so that probabilities and
dS are left operands of dV and dK in registers; dS also goes through shared memory to give a part of dQ, which is added
to float32 sums in global memory. Each product runs while the arithmetic on another one's result is done:

    products     dK of the last tile | S | dP            | dV                   | dQ | dK
    arithmetic                           | probabilities | dS, to shared memory |    | dQ to the sums
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
# pyright: reportCallIssue=false
from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.flash.fused import Gradients, finish_run, prepare_run, workspace
from redblue.kernels.gpu.launch import Run

LOG2E = gl.constexpr(1.4426950408889634)
SECTION = gl.constexpr(4)  # key heads whose rows and sums are used at the same time, so that they stay in L2


class Band(NamedTuple):
    """Query i attends keys i + first .. i + end - 1 below `keys`; None: without limit."""

    first: Any
    end: Any
    keys: Any


class Place(NamedTuple):
    """The block of keys of a program, and the tiles of queries that it visits for each head of its group."""

    batch: Any
    head: Any  # the key head
    stream: Any  # batch * key heads + head
    key: Any  # the first
    row: Any  # of the first tile
    leading: Any  # tiles at the beginning that need a mask
    whole: Any  # tiles after them, that need none
    tiles: Any  # all tiles: those after the whole ones need a mask, too
    turn: Any  # the tile to begin with, if none needs a mask


class Ring(NamedTuple):
    """Tiles that stream by, in shared memory, and barriers that tell when a stage is full and when it is empty."""

    q: Any
    stats: Any
    dout: Any
    q_full: Any
    dout_full: Any
    empty: Any


class Stay(NamedTuple):
    """What the multiplying warps hold for all tiles."""

    k: Any
    v: Any
    p: Any  # tiles of probabilities, if warpgroups share them, and of dS
    ds: Any
    scale: Any
    sums: Any  # pointer to the sums of dQ
    padded: Any
    band: Any


@gluon.jit
def _place(band, n_q, kv_heads, ROWS: gl.constexpr, COLS: gl.constexpr):
    """The block of this program. Longer blocks come first under a causal mask."""
    blocks, streams = gl.num_programs(0), gl.num_programs(1)
    program = gl.program_id(1) * blocks + gl.program_id(0)
    section = program // (blocks * SECTION)
    within = gl.minimum(SECTION, streams - section * SECTION)
    rest = program - section * (blocks * SECTION)
    block, stream = rest // within, section * SECTION + rest % within
    key = block * COLS
    last = key + COLS - 1
    low, high, inner_low, inner_high = key * 0, key * 0 + n_q, key * 0, key * 0 + n_q
    if band.end is not None:
        low = gl.maximum(0, key - band.end + 1)
        inner_low = gl.maximum(0, last - band.end + 1)
    if band.first is not None:
        high = gl.maximum(0, gl.minimum(n_q, gl.minimum(last, band.keys - 1) - band.first + 1))
        inner_high = gl.maximum(0, gl.minimum(n_q, key - band.first + 1))
    inner_high = gl.where(inner_high == n_q, gl.cdiv(n_q, ROWS), inner_high // ROWS)  # rows behind n_q need no mask
    row = low // ROWS
    tiles = gl.maximum(gl.cdiv(high, ROWS) - row, 0)
    leading = gl.minimum(gl.cdiv(inner_low, ROWS) - row, tiles)
    leading = gl.where(last >= band.keys, tiles, leading)
    whole = gl.maximum(gl.minimum(inner_high - row, tiles) - leading, 0)
    turn = block * 0
    if band.first is None and band.end is None:
        turn = block % gl.maximum(tiles, 1)
    return Place(stream // kv_heads, stream % kv_heads, stream, key, row * ROWS, leading, whole, tiles, turn)


@gluon.jit
def _row(place, t, ROWS: gl.constexpr):
    """The first row of tile t."""
    tile = t + place.turn
    return place.row + gl.where(tile >= place.tiles, tile - place.tiles, tile) * ROWS


@gluon.jit
def _load(
    q_desc, dout_desc, stats_desc, k_desc, v_desc, place, k_tile, v_tile, keys_full, ring, padded,
    GROUP: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr, D: gl.constexpr, D_V: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """The warp that asks for tiles."""
    mbarrier.expect(keys_full, COLS * (D + D_V) * 2)
    tma.async_copy_global_to_shared(k_desc, [place.batch, place.head, place.key, 0], keys_full, k_tile)
    tma.async_copy_global_to_shared(v_desc, [place.batch, place.head, place.key, 0], keys_full, v_tile)
    count = place.tiles * 0
    for member in range(GROUP):
        head = place.head * GROUP + member
        for t in range(place.tiles):
            row = _row(place, t, ROWS)
            stage, phase = count % STAGES, (count // STAGES) & 1
            full = ring.q_full.index(stage)
            mbarrier.wait(ring.empty.index(stage), phase ^ 1)
            mbarrier.expect(full, ROWS * D * 2 + 2 * ROWS * 4)
            tma.async_copy_global_to_shared(q_desc, [place.batch, head, row, 0], full, ring.q.index(stage))
            at = ((place.stream * GROUP + member) * padded + row) * 2
            tma.async_copy_global_to_shared(stats_desc, [at], full, ring.stats.index(stage))
            full = ring.dout_full.index(stage)
            mbarrier.expect(full, ROWS * D_V * 2)
            tma.async_copy_global_to_shared(dout_desc, [place.batch, head, row, 0], full, ring.dout.index(stage))
            count += 1


@gluon.constexpr_function
def _mma(lines, columns):
    """The layout of a product by eight warps: two warpgroups side by side if there are fewer than 128 lines."""
    down = min(8, lines // 16)
    return gl.NVMMADistributedLayout([3, 0], [down, 8 // down], [16, columns * down // 8, 16])


@gluon.jit
def _scores(left, right, LAYOUT: gl.constexpr):
    """The product of a block of keys, or values, and a tile of rows, under way."""
    LINES: gl.constexpr = left.shape[0]
    COLUMNS: gl.constexpr = right.shape[0]
    zeros = gl.zeros([LINES, COLUMNS], gl.float32, LAYOUT)
    return warpgroup_mma(left, right.permute([1, 0]), zeros, use_acc=False, is_async=True)


@gluon.jit
def _add(
    MASKED: gl.constexpr, place, member, begin, stop, count, dk, dv, stay, ring,
    GROUP: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr, D: gl.constexpr, D_V: gl.constexpr,
    STAGES: gl.constexpr,
    BY_KEYS: gl.constexpr, BY_ROWS: gl.constexpr, OF_DK: gl.constexpr, OF_DV: gl.constexpr,
):  # fmt: skip
    """Add tiles begin .. stop - 1 of one head to dK, dV and the sums of dQ.

    BY_KEYS, BY_ROWS, OF_DK, OF_DV: layouts of scores (keys, rows), of dQ, dK and dV.
    """
    ELEMENT: gl.constexpr = stay.k.dtype
    SHARED: gl.constexpr = COLS < 128  # each warpgroup needs all probabilities and all of dS
    band = stay.band
    numbers = (place.stream * GROUP + member) * stay.padded
    for t in range(begin, stop):
        row = _row(place, t, ROWS)
        stage, phase = count % STAGES, (count // STAGES) & 1
        q = ring.q.index(stage).reshape([ROWS, D])
        mbarrier.wait(ring.q_full.index(stage), phase)
        s = _scores(stay.k, q, BY_KEYS)
        mbarrier.wait(ring.dout_full.index(stage), phase)
        dout = ring.dout.index(stage).reshape([ROWS, D_V])
        dp = _scores(stay.v, dout, BY_KEYS)
        s = warpgroup_mma_wait(1, deps=[s])
        stats = ring.stats.index(stage)
        lse = stats.slice(0, ROWS).load(gl.SliceLayout(0, BY_KEYS))
        p = gl.exp2(s * stay.scale - lse[None, :])
        if MASKED:
            i_key = place.key + gl.arange(0, COLS, layout=gl.SliceLayout(1, BY_KEYS))
            i_row = row + gl.arange(0, ROWS, layout=gl.SliceLayout(0, BY_KEYS))
            attends = (i_key < band.keys)[:, None] & (i_row >= 0)[None, :]
            if band.first is not None:
                attends &= i_key[:, None] >= (i_row + band.first)[None, :]
            if band.end is not None:
                attends &= i_key[:, None] < (i_row + band.end)[None, :]
            p = gl.where(attends, p, 0.0)
        p16 = p.to(ELEMENT)
        if SHARED:
            stay.p.store(p16)
            fence_async_shared()
            dv = warpgroup_mma(stay.p, dout, dv, is_async=True)
        else:
            p_left = gl.convert_layout(p16, gl.DotOperandLayout(0, OF_DV, 2))
            dv = warpgroup_mma(p_left, dout, dv, is_async=True)
        dp = warpgroup_mma_wait(1, deps=[dp])
        delta = stats.slice(ROWS, ROWS).load(gl.SliceLayout(0, BY_KEYS))
        ds = (p16.to(gl.float32) * (dp - delta[None, :])).to(ELEMENT)
        stay.ds.store(ds)
        fence_async_shared()
        zeros_dq = gl.zeros([ROWS, D], gl.float32, BY_ROWS)
        dq = warpgroup_mma(stay.ds.permute([1, 0]), stay.k, zeros_dq, use_acc=False, is_async=True)
        if SHARED:
            dk = warpgroup_mma(stay.ds, q, dk, is_async=True)
        else:
            ds_left = gl.convert_layout(ds, gl.DotOperandLayout(0, OF_DK, 2))
            dk = warpgroup_mma(ds_left, q, dk, is_async=True)
        dv, dq = warpgroup_mma_wait(1, deps=[dv, dq])
        # Each thread's four neighbours, and each warp's, lie side by side in the sums
        parts = gl.reshape(dq, [ROWS // 16, 2, 8, D // 8, 4, 2])
        parts = gl.reshape(gl.permute(parts, [0, 3, 2, 4, 1, 5]), [ROWS * D])
        at = (numbers + row).to(gl.int64) * D
        gl.atomic_add(stay.sums + at + gl.arange(0, ROWS * D, layout=parts.type.layout), parts, sem="relaxed")
        dk = warpgroup_mma_wait(0, deps=[dk])
        gl.thread_barrier()
        mbarrier.arrive(ring.empty.index(stage), count=1)
        count += 1
    return dk, dv, count


@gluon.jit
def _multiply(
    dk_desc, dv_desc, place, k_tile, v_tile, keys_full, stay, ring, dk_scale, TAIL: gl.constexpr,
    GROUP: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr, D: gl.constexpr, D_V: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """The warps that multiply."""
    BY_KEYS: gl.constexpr = _mma(COLS, ROWS)
    BY_ROWS: gl.constexpr = _mma(ROWS, D)
    OF_DK: gl.constexpr = _mma(COLS, D)
    OF_DV: gl.constexpr = _mma(COLS, D_V)
    mbarrier.wait(keys_full, 0)
    dk = gl.zeros([COLS, D], gl.float32, OF_DK)
    dv = gl.zeros([COLS, D_V], gl.float32, OF_DV)
    count = place.tiles * 0
    for member in range(GROUP):
        if stay.band.end is not None or TAIL:
            dk, dv, count = _add(
                True, place, member, 0, place.leading, count, dk, dv, stay, ring,
                GROUP, ROWS, COLS, D, D_V, STAGES, BY_KEYS, BY_ROWS, OF_DK, OF_DV
            )  # fmt: skip
        dk, dv, count = _add(
            False, place, member, place.leading, place.leading + place.whole, count, dk, dv, stay, ring,
            GROUP, ROWS, COLS, D, D_V, STAGES, BY_KEYS, BY_ROWS, OF_DK, OF_DV
        )  # fmt: skip
        if stay.band.first is not None:
            dk, dv, count = _add(
                True, place, member, place.leading + place.whole, place.tiles, count, dk, dv, stay, ring,
                GROUP, ROWS, COLS, D, D_V, STAGES, BY_KEYS, BY_ROWS, OF_DK, OF_DV
            )  # fmt: skip
    gl.thread_barrier()  # until then another warpgroup may read the keys
    k_tile.reshape([COLS, D]).store((dk * dk_scale).to(stay.k.dtype))
    v_tile.reshape([COLS, D_V]).store(dv.to(stay.v.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(dk_desc, [place.batch, place.head, place.key, 0], k_tile)
    tma.async_copy_shared_to_global(dv_desc, [place.batch, place.head, place.key, 0], v_tile)
    tma.store_wait(0)


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
    band,
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
    """dK and dV of a block of COLS keys, and its part of dQ, added to the sums. TAIL: whether a block may be partial.

    Descriptors: of arrays (batch, heads, rows, features), and of stats (batch, heads, tiles, 2, ROWS): log-sum-exp in
    units of log 2, and delta. sums: (batch, heads, tiles, ROWS * D), in the order of `sums_to_dq`.
    """
    ELEMENT: gl.constexpr = q_desc.dtype
    k_tile = gl.allocate_shared_memory(ELEMENT, k_desc.block_shape, k_desc.layout)
    v_tile = gl.allocate_shared_memory(ELEMENT, v_desc.block_shape, v_desc.layout)
    q_tiles = gl.allocate_shared_memory(ELEMENT, [STAGES] + q_desc.block_shape, q_desc.layout)  # noqa: RUF005
    dout_tiles = gl.allocate_shared_memory(ELEMENT, [STAGES] + dout_desc.block_shape, dout_desc.layout)  # noqa: RUF005
    stats = gl.allocate_shared_memory(gl.float32, [STAGES] + stats_desc.block_shape, stats_desc.layout)  # noqa: RUF005
    OF_DS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([COLS, ROWS], ELEMENT)
    ds = gl.allocate_shared_memory(ELEMENT, [COLS, ROWS], OF_DS)
    p = ds
    if COLS < 128:
        p = gl.allocate_shared_memory(ELEMENT, [COLS, ROWS], OF_DS)
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
    gl.thread_barrier()
    place = _place(band, n_q, kv_heads, ROWS, COLS)
    ring = Ring(q_tiles, stats, dout_tiles, q_full, dout_full, empty)
    stay = Stay(k_tile.reshape([COLS, D]), v_tile.reshape([COLS, D_V]), p, ds, scale * LOG2E, sums, padded, band)
    gl.warp_specialize(
        [
            (_multiply, (
                dk_desc, dv_desc, place, k_tile, v_tile, keys_full, stay, ring, scale, TAIL,
                GROUP, ROWS, COLS, D, D_V, STAGES,
            )),
            (_load, (
                q_desc, dout_desc, stats_desc, k_desc, v_desc, place, k_tile, v_tile, keys_full, ring, padded,
                GROUP, ROWS, COLS, D, D_V, STAGES,
            )),
        ],
        [1],
        [24],
    )  # fmt: skip


def hopper_runs(task: Gradients, rows: int, cols: int, stages: int = 2, apart: int = 0) -> list[Run]:
    """The three launches that write dq, dk and dv, with tiles of `rows` queries and blocks of `cols` keys."""
    low = max(0, task.first or 0)  # no query attends the keys before it
    first, end = (None if x is None else x - low for x in (task.first, task.end))
    dk, dv = task.dk[:, :, low:], task.dv[:, :, low:]
    q, dout = _readable(task.q), _readable(task.dout)
    k, v = _readable(task.k)[:, :, low:], _readable(task.v)[:, :, low:]
    (batch, heads, n_q, d), (_, kv_heads, n_k, d_v) = q.shape, v.shape
    keys = n_k if end is None else min(n_k, n_q - 1 + end)
    if low:
        task.dk[:, :, :low].zero_()
        task.dv[:, :, :low].zero_()
    if keys <= 0 or not q.numel():
        for x in (task.dq, task.dk, task.dv):
            x.zero_()
        return []
    work, block = workspace(task, rows, True), 64 if apart else cols
    arguments = {
        "q_desc": _descriptor(q, n_q, rows),
        "dout_desc": _descriptor(dout, n_q, rows),
        "stats_desc": TensorDescriptor(
            work.stats.view(-1), [work.stats.numel()], [1], [2 * rows], gl.NVMMASharedLayout(0, 32, 1)
        ),
        "k_desc": _descriptor(k, keys, block),  # keys that no query attends may hold NaN: zeros are read in their place
        "v_desc": _descriptor(v, keys, block),
        "dk_desc": _descriptor(dk, n_k, block),
        "dv_desc": _descriptor(dv, n_k, block),
        "sums": work.sums,
        "band": Band(first, end, keys),
        "n_q": n_q,
        "padded": work.stats.shape[2] * rows,
        "kv_heads": kv_heads,
        "scale": task.scale,
        "TAIL": keys < n_k or n_k % cols != 0,
        "GROUP": heads // kv_heads,
        "ROWS": rows,
        "COLS": cols,
        "D": d,
        "D_V": d_v,
        "STAGES": stages,
    }
    grid = ceil_div(n_k, cols), batch * kv_heads
    if apart:
        from redblue.kernels.gpu.hopper.apart import hopper_backward_apart

        fused = Run(hopper_backward_apart, grid, arguments | {"BUFFERS": 2, "REGISTERS": apart}, 4, 1)
    else:
        fused = Run(hopper_backward, grid, arguments, 8, 1)
    return [prepare_run(task, work), fused, finish_run(task, work)]


def _readable(x: Tensor) -> Tensor:
    """The tensor, or a copy whose strides the memory accelerator can read."""
    strides = [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]
    aligned = x.data_ptr() % 16 == 0 and all(stride > 0 and stride % 8 == 0 for stride in strides[:-1])
    return x if aligned and x.stride(-1) == 1 else x.contiguous()


def _descriptor(x: Tensor, rows: int, block: int) -> TensorDescriptor:
    """Describes tiles of `block` of the first `rows` rows of the heads of a tensor (batch, heads, rows, features)."""
    shape, tile = [*x.shape[:2], rows, x.shape[3]], [1, 1, block, x.shape[3]]
    strides = [stride if size > 1 else 8 for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True)]
    layout = gl.NVMMASharedLayout.get_default_for(tile, gl.float16)  # of any type of 16 bits
    return TensorDescriptor(x, shape, [*strides, 1], tile, layout)
