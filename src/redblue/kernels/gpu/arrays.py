"""Triton helpers that load, store and multiply tiles of arrays (batch, heads, rows, columns).

A row is a query of one of the heads that share a key head: row r is query r // GROUP of head r % GROUP, as on the CPU.
Triton 3.3 allows no None inside a tuple that a kernel makes, so masks, which may be None, are parameters of their own.
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Array(NamedTuple):
    """A tensor (batch, heads, rows, columns) in the form for kernels: its first element, and strides in elements."""

    pointer: Any
    batch: Any
    head: Any
    row: Any
    col: Any


@triton.jit
def head_of(x, batch, head, ALIGN: tl.constexpr = 1):
    """The array from one head on: its pointer points to the first row of this head.

    ALIGN: from `alignment` (launch.py). Triton itself detects only run-time strides that are multiples of 16. Without
    ALIGN it would load arrays with other strides one element at a time, and would not prefetch them.
    """
    if ALIGN > 1 and ALIGN < 16:  # Triton detects 16 itself
        x = Array(x.pointer, multiple(x.batch, ALIGN), multiple(x.head, ALIGN), multiple(x.row, ALIGN), x.col)
    return Array(start(x, batch, head), x.batch, x.head, x.row, x.col)


@triton.jit
def multiple(i, OF: tl.constexpr):
    """i, with a hint to the compiler that it is a multiple of OF."""
    return i // OF * OF


@triton.jit
def start(x, batch, head):
    """Pointer to the first row of a batch entry's head. The offset is computed in 64 bits."""
    return x.pointer + wide(batch) * x.batch + wide(head) * x.head


@triton.jit
def wide(i):
    """The integer i, which may be a loop's index, in 64 bits."""
    return tl.full((), i, tl.int64)


INTERPRETED = tl.constexpr(not isinstance(start, triton.JITFunction))


@triton.jit
def index(i, WIDE: tl.constexpr):
    """Indices, in 64 bits if WIDE, because offsets computed from them could overflow 32 bits."""
    return i.to(tl.int64) if WIDE else i


@triton.jit
def row_offsets(x, i_row, GROUP: tl.constexpr):
    """Offsets of rows from the first row of their first head."""
    return i_row * x.row if GROUP == 1 else (i_row // GROUP) * x.row + (i_row % GROUP) * x.head


@triton.jit
def row_numbers(batch, head, kv_heads, n_q, i_row, GROUP: tl.constexpr):
    """Indices of rows in arrays with one number per row: (batch, heads, n_q)."""
    return ((wide(batch) * kv_heads + head) * GROUP + i_row % GROUP) * n_q + i_row // GROUP


# Masks of tiles; None: the whole tile ------------------------------------------------------------------------------


@triton.jit
def and_masks(a, b):
    """The conjunction of two masks."""
    # Triton 3.6 can return None only by returning nothing
    if a is None and b is not None:
        return b
    elif a is not None and b is None:
        return a
    elif a is not None:
        return a & b


@triton.jit
def tile_mask(m_row, m_col):
    """The mask of a tile, from the masks of its rows and of its columns."""
    return and_masks(None if m_row is None else m_row[:, None], None if m_col is None else m_col[None, :])


@triton.jit
def columns_mask(m_row, FROM: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr):
    """The mask of a tile of columns FROM .. FROM + WIDTH - 1: True for the columns below D, which exist."""
    i_col = tl.arange(0, WIDTH) + FROM
    if FROM + WIDTH > D:
        return (i_col < D)[None, :] if m_row is None else m_row[:, None] & (i_col < D)[None, :]
    elif m_row is not None:  # as in and_masks
        return m_row[:, None]


# Tiles --------------------------------------------------------------------------------------------------------------


@triton.jit
def load(x, offsets, m_row, FROM: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr):
    """Load columns FROM .. FROM + WIDTH - 1 of the rows at `offsets`; 0 where the row or the column does not exist."""
    p_x = x.pointer + offsets[:, None] + ((tl.arange(0, WIDTH) + FROM).to(offsets.dtype) * x.col)[None, :]
    return read(p_x, columns_mask(m_row, FROM, WIDTH, D))


@triton.jit
def load_from(x, offsets, m_row, begin, WIDTH: tl.constexpr, D: tl.constexpr):
    """Load columns begin .. begin + WIDTH - 1 as `load` does, where `begin` is known only at run time."""
    i_col = begin + tl.arange(0, WIDTH)
    p_x = x.pointer + offsets[:, None] + (i_col.to(offsets.dtype) * x.col)[None, :]
    return read(p_x, tile_mask(m_row, i_col < D if D % WIDTH else None))


@triton.jit
def store(x, offsets, b_x, m_row, FROM: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr):
    """Store columns FROM .. FROM + WIDTH - 1 of the rows at `offsets`, where row and column exist."""
    p_x = x.pointer + offsets[:, None] + ((tl.arange(0, WIDTH) + FROM).to(offsets.dtype) * x.col)[None, :]
    write(p_x, b_x, columns_mask(m_row, FROM, WIDTH, D))


@triton.jit
def read(p_x, m_x):
    """Load a tile; 0 where the mask is off."""
    if m_x is None:
        return tl.load(p_x)
    else:
        return tl.load(p_x, mask=m_x, other=0.0)


@triton.jit
def write(p_x, b_x, m_x):
    """Store a tile, converted to the pointers' type, where the mask is on."""
    tl.store(p_x, b_x.to(p_x.dtype.element_ty), mask=m_x)


@triton.jit
def product(a, b, acc, PRECISION: tl.constexpr):
    """acc + a b, summed in the type of acc. PRECISION: the precision of products of float32 numbers."""
    if INTERPRETED and a.dtype == tl.bfloat16:  # the interpreter would multiply bfloat16 as integers
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=acc.dtype)
