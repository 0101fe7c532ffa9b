"""The blocks of rows of the forward kernel on Hopper: their order, and the tiles of keys that each one attends."""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
# pyright: reportCallIssue=false, reportAssignmentType=false
from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

EDGE = gl.constexpr(64)  # rows of a warpgroup


class Constants(NamedTuple):
    """The numbers and switches that a kernel is compiled for; forward_kernel.py explains those without a comment.

    It is constructed in the call of a helper. If it were in a variable, Triton would make run-time numbers of it.
    """

    FIRST: Any
    END: Any
    D_V: Any
    PACK: Any
    COLS: Any
    STAGES: Any
    PING_PONG: Any
    ORDERED: Any  # whether a tile's softmax precedes the wait for the products that overlap with it
    WHOLE_COLS: Any  # whether n_k is a multiple of COLS
    CONSUMERS: Any


class Call(NamedTuple):
    """The band and the sizes of a call, and the order of its blocks; hopper_forward explains them."""

    first: Any
    end: Any
    n_q: Any
    n_k: Any
    heads: Any
    batch_heads: Any
    group: Any
    blocks: Any
    section: Any


@gluon.jit
def key_tiles(call, row, stop, c):
    """The tiles of COLS keys that rows row .. stop - 1 attend: their borders low, full_low, full_high, high.

    Every row attends all keys of tiles full_low .. full_high - 1. There is at least one tile, even if no row
    attends its keys.
    """
    n_k = call.n_k
    low_key, high_key, full_low_key, full_high_key = 0, n_k, 0, n_k
    if c.FIRST:
        low_key = gl.maximum(0, row // c.PACK + call.first)
        full_low_key = gl.maximum(0, (stop - 1) // c.PACK + call.first)
    if c.END:
        high_key = gl.minimum(n_k, (stop - 1) // c.PACK + call.end)
        full_high_key = gl.maximum(0, gl.minimum(n_k, row // c.PACK + call.end))
    low = gl.minimum(low_key, n_k - 1) // c.COLS
    high = gl.maximum(low + 1, (gl.maximum(high_key, 0) + c.COLS - 1) // c.COLS)
    full_low = gl.minimum(high, (full_low_key + c.COLS - 1) // c.COLS)
    full_high = gl.maximum(full_low, gl.minimum(high, full_high_key // c.COLS))
    return low, full_low, full_high, high


@gluon.jit
def block_of(work, call, LAST_FIRST: gl.constexpr):
    """Return batch entry * heads + head, and the block of rows, of work item number `work`.

    Heads come in sections whose keys and values stay in the L2 cache. Within a section, the blocks that attend the most
    keys come first.
    """
    per_section = call.section * call.blocks
    first_stream = work // per_section * call.section
    width = gl.minimum(call.section, call.batch_heads - first_stream)
    within = work % per_section
    block = within // width
    if LAST_FIRST:
        block = call.blocks - 1 - block
    return first_stream + within % width, block
