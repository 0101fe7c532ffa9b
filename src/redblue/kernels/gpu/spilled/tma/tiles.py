"""Tiles of P, and of dS, computed like a matrix product: any program computes any tile, and TMA loads both factors.

A program works through many tiles, and the slices of its next tile arrive while it finishes one. Forward, P is
exp2(score - the row's reference), where the reference is the largest score among the row's first keys. So tiles need no
maxima of their own, and P V needs no rescaling: its rows are divided by the sums of P at the end.
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

from redblue.kernels.gpu.arrays import INTERPRETED, wide
from redblue.kernels.gpu.scores import LOG2E, load_lse

# Arguments that change from launch to launch, or from call to call; no kernel is specialized on their values
LAUNCH = ("stream", "streams", "heads", "per_pair", "begun", "ended")


@triton.jit
def multiply(a, b, acc):
    """acc + a b."""
    if INTERPRETED:  # the interpreter would multiply bfloat16 as integers
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc)


@triton.jit
def load_tile(x, batch, head, row, col, ROWS: tl.constexpr, COLS: tl.constexpr):
    """A tile (ROWS, COLS) of one head of a descriptor of (batch, heads, rows, columns); 0 beyond its edges."""
    return x.load([batch, head, row, col]).reshape(ROWS, COLS)


@triton.jit
def block_of(
    t, blocks, per_pair, n_q, n_k, end,
    BAND: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, TALL: tl.constexpr, LONG: tl.constexpr
):  # fmt: skip
    """The block of rows and the block of keys of tile t of a stream.

    The last block of rows is paired with the first, the last but one with the second, and so on. Under a causal band,
    these pairs have about equally many tiles: per_pair at most. Surplus tiles repeat the last tile.
    """
    if BAND:
        pair, t = t // per_pair, t % per_pair
        own = tiles_of(blocks - 1 - pair, n_q, n_k, end, ROWS, COLS, TALL, LONG)
        other = tiles_of(pair, n_q, n_k, end, ROWS, COLS, TALL, LONG)
        late = t >= own
        block = tl.where(late, pair, blocks - 1 - pair)
        col = tl.where(late, tl.minimum(t - own, other - 1), t)
        return block, tl.maximum(col, 0)
    else:
        return t // per_pair, t % per_pair


@triton.jit
def tiles_of(
    block, n_q, n_k, end, ROWS: tl.constexpr, COLS: tl.constexpr, TALL: tl.constexpr, LONG: tl.constexpr
):  # fmt: skip
    """The number of blocks of keys that a block of rows attends under a band of keys 0 .. i + end - 1.

    If any pair of a block of TALL rows x LONG keys is attended, all tiles of the block are computed, because sums may
    read the whole block.
    """
    keys = tl.minimum(n_k, tl.minimum((block * ROWS // TALL + 1) * TALL, n_q) - 1 + end)
    return tl.cdiv(tl.minimum(n_k, tl.cdiv(tl.maximum(keys, 0), LONG) * LONG), COLS)


@triton.jit(do_not_specialize=LAUNCH)
def references(
    q,
    k,
    reference,
    scale,
    stream,
    streams,
    heads,
    n_q,
    n_k,
    end,
    GROUP: tl.constexpr,
    BAND: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SLICES: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """The largest score of each row among its first KEYS keys, in units of log 2; 0 for a row without keys."""
    blocks = tl.cdiv(n_q, ROWS)
    local, row = tl.program_id(0) // blocks, tl.program_id(0) % blocks * ROWS
    batch, head = (stream + local) // heads, (stream + local) % heads
    s = tl.zeros((ROWS, KEYS), tl.float32)
    for f in range(SLICES):
        b_q = load_tile(q, batch, head, row, f * DEPTH, ROWS, DEPTH)
        b_k = load_tile(k, batch, head // GROUP, 0, f * DEPTH, KEYS, DEPTH)
        s = multiply(b_q, b_k.T, s)
    i_row, i_key = row + tl.arange(0, ROWS), tl.arange(0, KEYS)
    attended = (i_key < n_k)[None, :]
    if BAND:
        attended = attended & (i_key[None, :] < i_row[:, None] + end)
    s = tl.max(tl.where(attended, s * (scale * LOG2E), float("-inf")), 1)
    s = tl.where(s == float("-inf"), 0.0, s)
    tl.store(reference + wide(local) * n_q + i_row, s, mask=i_row < n_q)


@triton.jit(do_not_specialize=LAUNCH)
def score_tiles(
    q,
    k,
    p,
    ds,
    level,
    sums,
    delta,
    early,
    scale,
    stream,
    streams,
    heads,
    n_q,
    n_k,
    end,
    line,
    per_pair,
    pitch,
    apart,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    BAND: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    TALL: tl.constexpr,
    LONG: tl.constexpr,
    SLICES: tl.constexpr,
    DEPTH: tl.constexpr,
    PARTS: tl.constexpr,
    FLATTEN: tl.constexpr,
):
    """Tiles of P or dS of the heads stream .. stream + streams - 1, written to p or ds (streams, rows, keys).

    KIND: "p", or "ds", for which q and k are dout and v.
    level: forward, the references of the rows of these heads; backward, the log-sum-exp of all rows, with `line`
    numbers from one head to the next.
    sums: forward, (streams, blocks of keys, rows), receives the row sums of each tile; backward, None.
    delta: delta of all rows. PARTS: pieces in which a tile is stored, so that less shared memory is needed. early: a
    pointer to P if a tile of P is loaded into registers before the product; its rows are `pitch` numbers apart, and its
    heads `apart` numbers.
    """
    blocks = tl.cdiv(n_q, ROWS)
    of_stream = (tl.cdiv(blocks, 2) if BAND else blocks) * per_pair
    key_blocks = tl.cdiv(n_k, COLS)
    for t in tl.range(tl.program_id(0), of_stream * streams, tl.num_programs(0), flatten=FLATTEN):
        local = t // of_stream
        block, key_block = block_of(t % of_stream, blocks, per_pair, n_q, n_k, end, BAND, ROWS, COLS, TALL, LONG)
        batch, head = (stream + local) // heads, (stream + local) % heads
        row, key = block * ROWS, key_block * COLS
        i_row = row + tl.arange(0, ROWS)
        m_row = i_row < n_q
        if early is not None:
            i_key = key + tl.arange(0, COLS)
            p_early = early + wide(local) * apart + wide(row) * pitch + key
            p_early += tl.arange(0, ROWS)[:, None] * pitch + tl.arange(0, COLS)[None, :]
            b_early = tl.load(p_early, mask=m_row[:, None] & (i_key < pitch)[None, :], other=0.0)
        s = tl.zeros((ROWS, COLS), tl.float32)
        for f in range(SLICES):
            b_q = load_tile(q, batch, head, row, f * DEPTH, ROWS, DEPTH)
            b_k = load_tile(k, batch, head // GROUP, key, f * DEPTH, COLS, DEPTH)
            s = multiply(b_q, b_k.T, s)
        if KIND == "p":
            if sums is not None:
                b_level = tl.load(level + wide(local) * n_q + i_row, mask=m_row, other=0.0)
            else:
                b_level = load_lse(level + wide(stream + local) * line + i_row, m_row)
            x = tl.exp2(s * (scale * LOG2E) - b_level[:, None])
            if key + COLS > (tl.minimum(n_k, row + end) if BAND else n_k):
                i_key = key + tl.arange(0, COLS)
                attended = (i_key < n_k)[None, :]
                if BAND:
                    attended = attended & (i_key[None, :] < i_row[:, None] + end)
                x = tl.where(attended, x, 0.0)
            if sums is not None:
                p_sums = sums + (wide(local) * key_blocks + key_block) * n_q + i_row
                tl.store(p_sums, tl.sum(x, 1), mask=m_row)
            _store(p, x, local, row, key, PARTS)
        else:
            b_delta = tl.load(delta + wide(stream + local) * line + i_row, mask=m_row, other=0.0)
            s -= b_delta[:, None]
            if early is not None:
                _store(ds, tl.where(b_early == 0, 0.0, b_early.to(tl.float32) * s), local, row, key, PARTS)
            else:
                _store_ds(p, ds, s, local, row, key, PARTS)


@triton.jit(do_not_specialize=LAUNCH)
def p_and_ds(
    q,
    k,
    dout,
    v,
    p,
    ds,
    lse,
    delta,
    scale,
    stream,
    streams,
    heads,
    n_q,
    n_k,
    end,
    line,
    per_pair,
    GROUP: tl.constexpr,
    BAND: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    TALL: tl.constexpr,
    LONG: tl.constexpr,
    SLICES: tl.constexpr,
    SLICES_V: tl.constexpr,
    DEPTH: tl.constexpr,
    PARTS: tl.constexpr,
):
    """A tile of P, and the tile of dS computed from it while P is still in registers. Arguments as for score_tiles."""
    blocks = tl.cdiv(n_q, ROWS)
    of_stream = (tl.cdiv(blocks, 2) if BAND else blocks) * per_pair
    t = tl.program_id(0)
    local = t // of_stream
    block, key_block = block_of(t % of_stream, blocks, per_pair, n_q, n_k, end, BAND, ROWS, COLS, TALL, LONG)
    batch, head = (stream + local) // heads, (stream + local) % heads
    row, key = block * ROWS, key_block * COLS
    i_row = row + tl.arange(0, ROWS)
    m_row = i_row < n_q
    rows = wide(stream + local) * line + i_row
    s = tl.zeros((ROWS, COLS), tl.float32)
    for f in range(SLICES):
        b_q = load_tile(q, batch, head, row, f * DEPTH, ROWS, DEPTH)
        b_k = load_tile(k, batch, head // GROUP, key, f * DEPTH, COLS, DEPTH)
        s = multiply(b_q, b_k.T, s)
    s = tl.exp2(s * (scale * LOG2E) - load_lse(lse + rows, m_row)[:, None])
    if key + COLS > (tl.minimum(n_k, row + end) if BAND else n_k):
        i_key = key + tl.arange(0, COLS)
        attended = (i_key < n_k)[None, :]
        if BAND:
            attended = attended & (i_key[None, :] < i_row[:, None] + end)
        s = tl.where(attended, s, 0.0)
    b_p = s.to(p.dtype)
    p.store([local, row, key], b_p.reshape(1, ROWS, COLS))
    s = tl.zeros((ROWS, COLS), tl.float32)
    for f in range(SLICES_V):
        b_dout = load_tile(dout, batch, head, row, f * DEPTH, ROWS, DEPTH)
        b_v = load_tile(v, batch, head // GROUP, key, f * DEPTH, COLS, DEPTH)
        s = multiply(b_dout, b_v.T, s)
    b_delta = tl.load(delta + rows, mask=m_row, other=0.0)
    s = tl.where(b_p == 0, 0.0, b_p.to(tl.float32) * (s - b_delta[:, None]))
    _store(ds, s, local, row, key, PARTS)


@triton.jit
def _store_ds(p, ds, x, local, row, key, PARTS: tl.constexpr):
    """Store P times x, 0 where P is 0, piece by piece."""
    ROWS: tl.constexpr = x.shape[0]
    COLS: tl.constexpr = x.shape[1]
    if PARTS == 1:
        b_p = p.load([local, row, key]).reshape(ROWS, COLS)
        _store(ds, tl.where(b_p == 0, 0.0, b_p.to(tl.float32) * x), local, row, key, 1)
    else:
        left, right = x.reshape(ROWS, 2, COLS // 2).permute(0, 2, 1).split()
        _store_ds(p, ds, left, local, row, key, PARTS // 2)
        _store_ds(p, ds, right, local, row, key + COLS // 2, PARTS // 2)


@triton.jit
def _store(to, x, local, row, key, PARTS: tl.constexpr):
    """Store a tile in 1, 2 or 4 pieces of its columns, one after the other."""
    ROWS: tl.constexpr = x.shape[0]
    COLS: tl.constexpr = x.shape[1]
    if PARTS == 1:
        to.store([local, row, key], x.to(to.dtype).reshape(1, ROWS, COLS))
    else:
        left, right = x.reshape(ROWS, 2, COLS // 2).permute(0, 2, 1).split()
        _store(to, left, local, row, key, PARTS // 2)
        _store(to, right, local, row, key + COLS // 2, PARTS // 2)
