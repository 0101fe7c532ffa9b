"""The schedule `flash`, backward, in one kernel of five products.

A block of keys stays while rows stream by, as for dK and dV alone. Each tile of dS also gives a part of dQ, which is
added to a float32 array in global memory; other blocks of keys add to the same rows, in any order, so sums may differ
in their last bits from call to call. Two small kernels come before and after: `prepare` writes delta and the
log-sum-exp in units of log 2 and clears the sums; `finish_dq` turns sums into dQ.
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.arrays import head_of, load, product, read, store, wide
from redblue.kernels.gpu.launch import Run, array
from redblue.kernels.gpu.scores import LOG2E, load_lse


class FusedLaunch(NamedTuple):
    """Tiles and Triton's settings."""

    rows: int = 64
    cols: int = 128
    warps: int = 8
    stages: int = 2


class Gradients(NamedTuple):
    """The arrays of one backward pass: tensors (batch, heads, rows, columns) of any strides; lse (batch, heads, n_q).

    Query i attends keys i + first .. i + end - 1; None: without limit.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor
    dout: Tensor
    scale: float
    first: int | None
    end: int | None
    dq: Tensor
    dk: Tensor
    dv: Tensor
    dlse: Tensor | None = None


class Workspace(NamedTuple):
    """What the three kernels share, in float32, with n_q padded to whole tiles of `rows` queries.

    stats: (batch, heads, tiles, 2, rows): the log-sum-exp in units of log 2, +inf for rows without scores; and delta.
    sums: those of dQ, (batch, heads, tiles, rows * d); each tile in the order of `tile_of_sums` if `scattered`.
    """

    stats: Tensor
    sums: Tensor
    rows: int
    scattered: bool


def workspace(task: Gradients, rows: int, scattered: bool) -> Workspace:
    batch, heads, n_q, d = task.q.shape
    tiles = batch, heads, ceil_div(n_q, rows)
    stats, sums = (task.q.new_empty((*tiles, size), dtype=torch.float32) for size in (2 * rows, rows * d))
    return Workspace(stats, sums, rows, scattered)


def prepare_run(task: Gradients, work: Workspace) -> Run:
    batch, heads, n_q, d = task.q.shape
    arguments = {
        "out": array(task.out),
        "dout": array(task.dout),
        "lse": task.lse,
        "dlse": task.dlse,
        "stats": work.stats,
        "sums": work.sums,
        "heads": heads,
        "n_q": n_q,
        "D": d,
        "D_V": task.v.shape[-1],
        "ROWS": work.rows,
    }
    return Run(prepare, (ceil_div(n_q, work.rows) * batch * heads,), arguments, 4, 1)


def finish_run(task: Gradients, work: Workspace) -> Run:
    batch, heads, n_q, d = task.q.shape
    arguments = {
        "sums": work.sums,
        "dq": array(task.dq),
        "heads": heads,
        "n_q": n_q,
        "scale": task.scale,
        "SCATTERED": work.scattered,
        "D": d,
        "ROWS": work.rows,
    }
    return Run(finish_dq, (ceil_div(n_q, work.rows) * batch * heads,), arguments, 4, 1)


def fused_runs(task: Gradients, launch: FusedLaunch) -> list[Run]:
    """The three launches that write dq, dk and dv."""
    work = workspace(task, launch.rows, False)
    (batch, heads, n_q, d), (_, kv_heads, n_k, d_v) = task.q.shape, task.v.shape
    arguments = {
        "q": array(task.q),
        "k": array(task.k),
        "v": array(task.v),
        "dout": array(task.dout),
        "stats": work.stats,
        "sums": work.sums,
        "dk": array(task.dk),
        "dv": array(task.dv),
        "first": task.first,
        "end": task.end,
        "n_q": n_q,
        "n_k": n_k,
        "kv_heads": kv_heads,
        "scale": task.scale,
        "GROUP": heads // kv_heads,
        "D": d,
        "D_V": d_v,
        "ROWS": launch.rows,
        "COLS": launch.cols,
        "WHOLE_ROWS": n_q % launch.rows == 0,
        "WHOLE_COLS": n_k % launch.cols == 0,
    }
    grid = (ceil_div(n_k, launch.cols) * batch * kv_heads,)
    fused = Run(flash_fused_backward, grid, arguments, launch.warps, launch.stages)
    return [prepare_run(task, work), fused, finish_run(task, work)]


@triton.jit
def prepare(
    out, dout, lse, dlse, stats, sums, heads, n_q, D: tl.constexpr, D_V: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Write the stats of a tile of rows, and zeros to its sums. Delta is the row sum of dout * out, less dlse."""
    program = tl.program_id(0)
    tiles = tl.cdiv(n_q, ROWS)
    stream, tile = program // tiles, program % tiles
    i_line = tl.arange(0, ROWS)
    i = tile * ROWS + i_line
    m_row = i < n_q
    out, dout = head_of(out, stream // heads, stream % heads), head_of(dout, stream // heads, stream % heads)
    b_out = load(out, i.to(tl.int64) * out.row, m_row, 0, D_V, D_V).to(tl.float32)
    b_dout = load(dout, i.to(tl.int64) * dout.row, m_row, 0, D_V, D_V).to(tl.float32)
    b_delta = tl.sum(b_out * b_dout, 1)
    numbers = wide(stream) * n_q + i
    if dlse is not None:
        b_delta -= read(dlse + numbers, m_row)
    stats += wide(program) * (2 * ROWS)
    tl.store(stats + i_line, load_lse(lse + numbers, m_row))
    tl.store(stats + ROWS + i_line, b_delta)
    tl.store(sums + wide(program) * (ROWS * D) + tl.arange(0, ROWS * D), tl.zeros((ROWS * D,), tl.float32))


@triton.jit
def finish_dq(
    sums, dq, heads, n_q, scale, SCATTERED: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """A tile of dQ: its sums times the scale, in the type of dq."""
    program = tl.program_id(0)
    tiles = tl.cdiv(n_q, ROWS)
    stream, tile = program // tiles, program % tiles
    i = tile * ROWS + tl.arange(0, ROWS)
    b_sums = tl.load(sums + wide(program) * (ROWS * D) + tl.arange(0, ROWS * D))
    b_sums = tile_of_sums(b_sums, ROWS, D) if SCATTERED else tl.reshape(b_sums, (ROWS, D))
    dq = head_of(dq, stream // heads, stream % heads)
    store(dq, i.to(tl.int64) * dq.row, b_sums * scale, i < n_q, 0, D, D)


@triton.jit
def tile_of_sums(b_sums, ROWS: tl.constexpr, D: tl.constexpr):
    """A tile (ROWS, D) from its sums as Hopper's kernel scatters them (hopper/backward.py): thread by thread.

    Of a product's tile of 16 rows and 8 columns, a thread holds columns 2 t and 2 t + 1 of rows g and g + 8.
    """
    parts = tl.reshape(b_sums, (ROWS // 16, D // 8, 8, 4, 2, 2))  # sixteen rows, eight columns, g, t, half, column
    return tl.reshape(tl.permute(parts, (0, 4, 2, 1, 3, 5)), (ROWS, D))


@triton.jit
def flash_fused_backward(
    q,
    k,
    v,
    dout,
    stats,
    sums,
    dk,
    dv,
    first,
    end,
    n_q,
    n_k,
    kv_heads,
    scale,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    D_V: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    WHOLE_ROWS: tl.constexpr,
    WHOLE_COLS: tl.constexpr,
):
    """dK and dV of a block of COLS keys, and its part of dQ, added to its sums. Arrays as `prepare` describes.

    Query i attends keys i + first .. i + end - 1; None: without limit.
    """
    blocks = tl.cdiv(n_k, COLS)
    block, stream = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    batch, head = stream // kv_heads, stream % kv_heads
    first_key = block * COLS
    i_key = first_key + tl.arange(0, COLS)
    m_key = None if WHOLE_COLS else i_key < n_k
    k, v = head_of(k, batch, head), head_of(v, batch, head)
    m_load = m_key  # keys that no query attends may hold NaN
    if first is not None:
        m_load = i_key >= first if m_load is None else m_load & (i_key >= first)
    if end is not None:
        m_load = i_key < n_q - 1 + end if m_load is None else m_load & (i_key < n_q - 1 + end)
    b_k = load(k, i_key * k.row, m_load, 0, D, D)
    b_v = load(v, i_key * v.row, m_load, 0, D_V, D_V)
    b_dk, b_dv = tl.zeros((COLS, D), tl.float32), tl.zeros((COLS, D_V), tl.float32)
    q, dout = head_of(q, batch, head * GROUP), head_of(dout, batch, head * GROUP)
    padded = tl.cdiv(n_q, ROWS) * ROWS
    stats += wide(stream) * GROUP * padded * 2
    sums += wide(stream) * GROUP * padded * D
    low, high = 0, n_q
    if end is not None:
        low = tl.maximum(0, first_key - end + 1) // ROWS * ROWS
    if first is not None:
        high = tl.minimum(n_q, tl.minimum(first_key + COLS, n_k) - first)
    tiles = tl.cdiv(tl.maximum(high - low, 0), ROWS)
    turn = block % tl.maximum(tiles, 1)  # blocks of keys begin at different rows, so that they add to different sums
    for t in tl.range(0, tiles * GROUP):
        member, tile = t // tiles, t % tiles + turn
        tile = tl.where(tile >= tiles, tile - tiles, tile)
        i_line = tl.arange(0, ROWS)
        i_row = low + tile * ROWS + i_line
        place = member * padded + low + tile * ROWS
        m_row = None if WHOLE_ROWS else i_row < n_q
        b_q = load(q, member * q.head + i_row * q.row, m_row, 0, D, D)
        s = product(b_k, tl.trans(b_q), tl.zeros((COLS, ROWS), tl.float32), "ieee")
        b_lse = tl.load(stats + place * 2 + i_line)
        p = tl.exp2(s * (scale * LOG2E) - b_lse[None, :])
        m_pair = None if WHOLE_COLS else m_key[:, None]
        if first is not None:
            m_first = i_key[:, None] >= i_row[None, :] + first
            m_pair = m_first if m_pair is None else m_pair & m_first
        if end is not None:
            m_end = i_key[:, None] < i_row[None, :] + end
            m_pair = m_end if m_pair is None else m_pair & m_end
        if m_pair is not None:
            p = tl.where(m_pair, p, 0.0)
        b_dout = load(dout, member * dout.head + i_row * dout.row, m_row, 0, D_V, D_V)
        dp = product(b_v, tl.trans(b_dout), tl.zeros((COLS, ROWS), tl.float32), "ieee")
        b_dv = product(p.to(b_dout.dtype), b_dout, b_dv, "ieee")
        b_delta = tl.load(stats + place * 2 + ROWS + i_line)
        ds = (p * (dp - b_delta[None, :])).to(b_q.dtype)
        b_dk = product(ds, b_q, b_dk, "ieee")
        b_dq = product(tl.trans(ds), b_k, tl.zeros((ROWS, D), tl.float32), "ieee")
        at = place.to(tl.int64) * D + (i_line[:, None] * D + tl.arange(0, D)[None, :])
        tl.atomic_add(sums + at, b_dq, sem="relaxed")
    dk, dv = head_of(dk, batch, head), head_of(dv, batch, head)
    store(dk, i_key * dk.row, b_dk * scale, m_key, 0, D, D)
    store(dv, i_key * dv.row, b_dv, m_key, 0, D_V, D_V)
