"""Sums of spilled P and dS times a matrix, by TMA: O = P V, dQ = dS K, dV = P^T dO and dK = dS^T Q."""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

from redblue.kernels.gpu.arrays import wide
from redblue.kernels.gpu.scores import LN2
from redblue.kernels.gpu.spilled.tma.tiles import LAUNCH, load_tile, multiply


@triton.jit(do_not_specialize=LAUNCH)
def row_sums(
    spilled,
    other,
    result,
    level,
    sums,
    lse,
    flags,
    scale,
    stream,
    streams,
    heads,
    n_q,
    n_k,
    features,
    end,
    line,
    GROUP: tl.constexpr,
    BAND: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    DEPTH: tl.constexpr,
    COLS: tl.constexpr,
    LIMIT: tl.constexpr,
):
    """A tile of O = P V, with its log-sum-exp; if sums is None, a tile of dQ = scale dS K.

    level, sums: for O, the references of rows (see tiles.py), and the row sums of P over blocks of COLS keys.
    flags (streams, blocks of rows) receives whether a sum of a block is above LIMIT or NaN.
    """
    blocks, tiles = tl.cdiv(n_q, ROWS), tl.cdiv(features, FEATURES)
    program = tl.program_id(0) // tiles  # programs that share rows of P run at once
    local, block = program // blocks, program % blocks
    if BAND:
        block = blocks - 1 - block  # the longest blocks first
    batch, head = (stream + local) // heads, (stream + local) % heads
    row, f = block * ROWS, tl.program_id(0) % tiles * FEATURES
    stop = n_k
    if BAND:
        stop = tl.minimum(n_k, tl.minimum(row + ROWS, n_q) - 1 + end)
    acc = tl.zeros((ROWS, FEATURES), tl.float32)
    for key in tl.range(0, stop, DEPTH):
        b_spilled = spilled.load([local, row, key]).reshape(ROWS, DEPTH)
        acc = multiply(b_spilled, load_tile(other, batch, head // GROUP, key, f, DEPTH, FEATURES), acc)
    if sums is not None:
        i_row = row + tl.arange(0, ROWS)
        m_row = i_row < n_q
        total = tl.zeros((ROWS,), tl.float32)
        p_sums = sums + wide(local) * tl.cdiv(n_k, COLS) * n_q + i_row
        for t in tl.range(0, tl.cdiv(stop, COLS)):
            total += tl.load(p_sums + wide(t) * n_q, mask=m_row, other=0.0)
        attends = total != 0
        acc = acc * tl.where(attends, 1.0 / tl.where(attends, total, 1.0), 0.0)[:, None]
        if f == 0:
            b_level = tl.load(level + wide(local) * n_q + i_row, mask=m_row, other=0.0)
            b_lse = tl.where(attends, (b_level + tl.log2(tl.where(attends, total, 1.0))) * LN2, float("-inf"))
            tl.store(lse + wide(stream + local) * line + i_row, b_lse, mask=m_row)
            tl.store(flags + local * blocks + block, tl.max(tl.where(total <= LIMIT, 0, 1), 0))
    else:
        acc = acc * scale
    result.store([batch, head, row, f], acc.to(result.dtype).reshape(1, 1, ROWS, FEATURES))


@triton.jit(do_not_specialize=LAUNCH)
def key_sums(
    spilled,
    other,
    result,
    running,
    scale,
    stream,
    streams,
    heads,
    n_q,
    n_k,
    features,
    end,
    begun,
    ended,
    GROUP: tl.constexpr,
    BAND: tl.constexpr,
    KEYS: tl.constexpr,
    FEATURES: tl.constexpr,
    DEPTH: tl.constexpr,
    TALL: tl.constexpr,
):
    """A tile of dV = P^T dO, or of dK = scale dS^T Q, summed over the heads that share a key head.

    running: if the rows are cut into pieces, the float32 sums (key heads, keys, features) over earlier pieces. begun:
    whether there were earlier pieces. ended: whether this is the last piece.
    TALL: under a band, P and dS are computed in blocks of TALL rows (see tiles_of), so sums begin at such a block.
    """
    blocks, tiles = tl.cdiv(n_k, KEYS), tl.cdiv(features, FEATURES)
    program = tl.program_id(0) // tiles  # programs that share keys of P run at once
    local, block = program // blocks * GROUP, program % blocks
    batch, head = (stream + local) // heads, (stream + local) % heads
    key, f = block * KEYS, tl.program_id(0) % tiles * FEATURES
    begin = 0
    if BAND:
        first = tl.maximum(key - end + 1, 0)
        begin = tl.where(first < n_q, first // TALL * TALL, n_q)
    steps = tl.cdiv(n_q - begin, DEPTH)
    acc = tl.zeros((KEYS, FEATURES), tl.float32)
    for t in tl.range(0, GROUP * steps):
        shared = t // steps if GROUP > 1 else 0
        row = begin + (t - shared * steps) * DEPTH
        b_spilled = spilled.load([local + shared, row, key]).reshape(DEPTH, KEYS)
        acc = multiply(b_spilled.T, load_tile(other, batch, head + shared, row, f, DEPTH, FEATURES), acc)
    if running is not None:
        i_key, i_f = key + tl.arange(0, KEYS), f + tl.arange(0, FEATURES)
        p_running = running + (wide(program // blocks) * n_k + i_key[:, None]) * features + i_f[None, :]
        m_running = (i_key < n_k)[:, None] & (i_f < features)[None, :]
        if begun:
            acc += tl.load(p_running, mask=m_running, other=0.0)
        if ended:
            _store_keys(result, acc * scale, batch, head // GROUP, key, f)
        else:
            tl.store(p_running, acc, mask=m_running)
    else:
        _store_keys(result, acc * scale, batch, head // GROUP, key, f)


@triton.jit
def _store_keys(result, x, batch, head, key, f):
    result.store([batch, head, key, f], x.to(result.dtype).reshape(1, 1, x.shape[0], x.shape[1]))
