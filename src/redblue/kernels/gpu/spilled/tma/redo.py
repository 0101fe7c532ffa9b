"""Recompute, with running maxima, rows whose scores exceed their reference by too much for the type of P."""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

from redblue.kernels.gpu.arrays import wide
from redblue.kernels.gpu.scores import LN2, LOG2E, LOWEST
from redblue.kernels.gpu.spilled.tma.tiles import LAUNCH, load_tile, multiply


@triton.jit(do_not_specialize=LAUNCH)
def redo(
    q,
    k,
    v,
    out,
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
    KEYS: tl.constexpr,
    FEATURES: tl.constexpr,
    SLICES: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """A tile of the output, and the log-sum-exp, of a flagged block of rows. Scores never leave registers."""
    blocks, tiles = tl.cdiv(n_q, ROWS), tl.cdiv(features, FEATURES)
    program = tl.program_id(0) // tiles
    local, block = program // blocks, program % blocks
    if tl.load(flags + program) != 0:
        batch, head = (stream + local) // heads, (stream + local) % heads
        row, f = block * ROWS, tl.program_id(0) % tiles * FEATURES
        i_row = row + tl.arange(0, ROWS)
        stop = n_k
        if BAND:
            stop = tl.minimum(n_k, tl.minimum(row + ROWS, n_q) - 1 + end)
        row_max, row_sum = tl.full((ROWS,), LOWEST, tl.float32), tl.zeros((ROWS,), tl.float32)
        acc = tl.zeros((ROWS, FEATURES), tl.float32)
        for key in tl.range(0, stop, KEYS):
            s = tl.zeros((ROWS, KEYS), tl.float32)
            for w in range(SLICES):
                b_q = load_tile(q, batch, head, row, w * DEPTH, ROWS, DEPTH)
                b_k = load_tile(k, batch, head // GROUP, key, w * DEPTH, KEYS, DEPTH)
                s = multiply(b_q, b_k.T, s)
            i_key = key + tl.arange(0, KEYS)
            attended = (i_key < n_k)[None, :]
            if BAND:
                attended = attended & (i_key[None, :] < i_row[:, None] + end)
            s = tl.where(attended, s * (scale * LOG2E), float("-inf"))
            new_max = tl.maximum(row_max, tl.max(s, 1))
            s = tl.exp2(s - new_max[:, None])
            shrink = tl.exp2(row_max - new_max)
            row_sum = row_sum * shrink + tl.sum(s, 1)
            row_max = new_max
            b_v = load_tile(v, batch, head // GROUP, key, f, KEYS, FEATURES)
            acc = multiply(s.to(b_v.dtype), b_v, acc * shrink[:, None])
        attends = row_sum != 0
        acc = acc * tl.where(attends, 1.0 / tl.where(attends, row_sum, 1.0), 0.0)[:, None]
        out.store([batch, head, row, f], acc.to(out.dtype).reshape(1, 1, ROWS, FEATURES))
        b_lse = tl.where(attends, (row_max + tl.log2(tl.where(attends, row_sum, 1.0))) * LN2, float("-inf"))
        tl.store(lse + wide(stream + local) * line + i_row, b_lse, mask=i_row < n_q)
