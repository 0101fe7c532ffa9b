"""Triton helpers that sum products over slices of features, so that registers and shared memory do not grow with d.

A tile of the result stays while slices of both factors stream by, as in the schedules.
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from redblue.kernels.gpu.arrays import index, product, read, tile_mask


class Panel(NamedTuple):
    """Rows of an array: the array of one head, and each row's offset from the head's first."""

    x: Any  # Array
    offsets: Any


class SliceConstants(NamedTuple):
    """Numbers known at compile time that score_tile needs. Construct it in a loop's call, like flash's Constants."""

    SLICES: Any  # slices of the left rows held on chip; 0: the left rows stream by
    DEPTH: Any  # features of a slice
    WHOLE: Any  # whether DEPTH divides the features
    WIDE: Any
    PRECISION: Any


@triton.jit
def pointers(panel, i_col, WIDE: tl.constexpr):
    """Pointers to these columns of the panel."""
    return panel.x.pointer + panel.offsets[:, None] + (index(i_col, WIDE) * panel.x.col)[None, :]


@triton.jit
def load_slices(panel, m_row, features, SLICES: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr):
    """Load the panel's rows as a tuple of SLICES slices of DEPTH features. The tuple is empty if SLICES is 0."""
    b_held = ()
    for f in tl.static_range(SLICES):
        i_f = f * DEPTH + tl.arange(0, DEPTH)
        b_held = b_held + (read(pointers(panel, i_f, WIDE), tile_mask(m_row, i_f < features)),)  # noqa: RUF005 (Triton unpacks none)
    return b_held


@triton.jit
def score_tile(b_held, left, m_left, right, m_right, features, s, c):
    """s + left right^T, summed over slices of features. b_held: the left rows, from load_slices."""
    DEPTH: tl.constexpr = c.DEPTH
    if c.SLICES:
        for f in tl.static_range(c.SLICES):
            i_f = f * DEPTH + tl.arange(0, DEPTH)
            m_f = None if c.WHOLE else i_f < features
            b_right = read(pointers(right, i_f, c.WIDE), tile_mask(m_right, m_f))
            s = product(b_held[f], tl.trans(b_right), s, c.PRECISION)
    else:
        for first in range(0, features, DEPTH):
            i_f = first + tl.arange(0, DEPTH)
            m_f = None if c.WHOLE else i_f < features
            b_left = read(pointers(left, i_f, c.WIDE), tile_mask(m_left, m_f))
            b_right = read(pointers(right, i_f, c.WIDE), tile_mask(m_right, m_f))
            s = product(b_left, tl.trans(b_right), s, c.PRECISION)
    return s
