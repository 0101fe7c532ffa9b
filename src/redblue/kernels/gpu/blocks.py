"""The block of rows, or of keys, that a program of a kernel owns.

A stream is one key head of one batch entry. A chunk is the same rows of consecutive streams. Except in the kernels that
spill (spilled/chunks.py), the only chunk holds all rows of all streams.
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from redblue.kernels.gpu.arrays import row_numbers


class RowBlock(NamedTuple):
    """A block of rows of one stream."""

    batch: Any
    head: Any  # the key head
    local: Any  # the stream, counted from the chunk's first
    index: Any  # number of the block among the `blocks` blocks of its stream
    blocks: Any
    i: Any  # (rows,): indices of the rows in their stream
    i_local: Any  # (rows,): indices of the rows in the chunk
    numbers: Any  # (rows,): indices of the rows in arrays (batch, heads, n_q)
    first: Any  # the block holds rows first .. stop - 1 of the stream
    stop: Any


class KeyBlock(NamedTuple):
    """A block of keys of one stream."""

    batch: Any
    head: Any
    local: Any  # the stream, counted from the chunk's first
    index: Any  # number of the block among the `blocks` blocks of its stream
    blocks: Any
    i: Any  # (keys,): indices of the keys
    first: Any  # the block holds keys first .. stop - 1
    stop: Any


@triton.jit
def row_block(
    chunk, n_q, kv_heads, program, LAST_FIRST: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """The block of ROWS rows that program number `program` owns.

    chunk: its first stream, its first row, and its number of rows per stream. LAST_FIRST: whether the last block
    of a stream comes first, because it attends the most keys under a causal mask.
    """
    stream, row, rows = chunk
    in_chunk = tl.cdiv(rows, ROWS)
    block, local = program % in_chunk, program // in_chunk
    if LAST_FIRST:
        block = in_chunk - 1 - block
    batch, head = (stream + local) // kv_heads, (stream + local) % kv_heads
    i_local = block * ROWS + tl.arange(0, ROWS)
    i_row = row + i_local
    numbers = row_numbers(batch, head, kv_heads, n_q, i_row, GROUP)
    first, stop = row + block * ROWS, row + tl.minimum(block * ROWS + ROWS, rows)
    index, blocks = row // ROWS + block, tl.cdiv(n_q * GROUP, ROWS)
    return RowBlock(batch, head, local, index, blocks, i_row, i_local, numbers, first, stop)


@triton.jit
def key_block(stream, n_k, kv_heads, program, KEYS: tl.constexpr):
    """The block of KEYS keys that program number `program` owns. stream: the chunk's first stream."""
    blocks = tl.cdiv(n_k, KEYS)
    index, local = program % blocks, program // blocks
    batch, head = (stream + local) // kv_heads, (stream + local) % kv_heads
    first, stop = index * KEYS, tl.minimum(index * KEYS + KEYS, n_k)
    return KeyBlock(batch, head, local, index, blocks, first + tl.arange(0, KEYS), first, stop)
