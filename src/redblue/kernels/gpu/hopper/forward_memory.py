"""The tiles and barriers of the forward kernel on Hopper in shared memory, and its results in global memory."""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
# pyright: reportCallIssue=false, reportAssignmentType=false
from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon


class Operands(NamedTuple):
    """One thing for queries, one for keys and one for values: TMA maps, tiles in shared memory, or barriers."""

    q: Any
    k: Any
    v: Any


class Shared(NamedTuple):
    """The tiles in shared memory, and the barriers that order the warps that use them."""

    tiles: Operands
    filled: Operands
    free: Operands
    turns: Any  # a consumer waits for its own before it issues products


class Results(NamedTuple):
    """The output, with its strides, and the log-sum-exp."""

    out: Any
    batch: Any
    head: Any
    row: Any
    lse: Any


@gluon.jit
def matrix(tile):
    """A tile (1, rows, 1, columns), or (1, queries, heads, columns), in shared memory as a matrix (rows, columns)."""
    return tile.reshape([tile.shape[1] * tile.shape[2], tile.shape[3]])
