"""Positions of a call's queries and keys in a whole problem, of which the call computes a block.

Kernels read them as one array of int64, which is an option of a call like any other array: a header of HEADER_SIZE
numbers (the whole's queries, keys and heads, and the call's first head among these), the position of each query, and
the position of each key.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import int64_array, whole_number
from redblue.kernels.sizes import Sizes

HEADER_SIZE = 4
MAX_LENGTH = 2**31  # queries, and keys, of a whole problem


class Positions(NamedTuple):
    """The position of a block of attention in a whole problem, on which alibi and dropout depend.

    queries, keys: whole numbers (n_q,) and (n_k,), arrays or tensors: the index of each query of the call among the
    whole's queries, and of each key among the whole's keys, in any order. Positions on a GPU, and positions in a
    compiled graph for a GPU, are not checked, because this would wait for the GPU.
    n_q, n_k: the numbers of queries and keys of the whole; alibi aligns the last query with the last key. If only one
    is given, the other is equal to it; if neither is given, alibi's distances are |queries - keys|, and dropout is not
    possible.
    first_head: the index of the call's first head among the whole's heads. If the call begins at a later batch entry
    than the whole, add the heads of the entries before.
    heads: the number of heads in each batch entry of the whole; if None, the call's number of heads.
    """

    queries: Any
    keys: Any
    n_q: int | None = None
    n_k: int | None = None
    first_head: int = 0
    heads: int | None = None


def positions_of(value: Any) -> Positions:
    """A user's positions as the record. Raises RedblueError for anything but a record or a pair (queries, keys)."""
    if isinstance(value, Positions):
        return value
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        description = f"{len(value)} of them" if isinstance(value, (tuple, list)) else type(value).__name__
        raise RedblueError(f"positions must be a pair (queries, keys) or a redblue.Positions, got {description}")
    return Positions(*value)


def numbers_of(positions: Positions, heads: int, dropout: float) -> tuple[int, int, int, int]:
    """Return n_q, n_k, heads and first_head of the whole, for a call of `heads` heads.

    Raises RedblueError, which names the field.
    """
    _, _, n_q, n_k, first_head, all_heads = positions
    if dropout and n_q is None and n_k is None:
        raise RedblueError(
            "positions must have n_q for dropout, because the dropped probabilities depend on the number of queries of "
            "the whole problem: give redblue.Positions(queries, keys, n_q, n_k)"
        )
    n_q = MAX_LENGTH if n_q is None and n_k is None else n_q
    n_q, n_k = n_k if n_q is None else n_q, n_q if n_k is None else n_k
    n_q, n_k = (whole_number(f"positions.{name}", x, 0, MAX_LENGTH) for name, x in (("n_q", n_q), ("n_k", n_k)))
    first_head = whole_number("positions.first_head", first_head, 0)
    all_heads = heads if all_heads is None else whole_number("positions.heads", all_heads, 0)
    if heads and (all_heads < heads or first_head % all_heads + heads > all_heads):
        raise RedblueError(
            f"positions must hold the {heads} heads of the call in a batch entry of the whole, got {all_heads} heads "
            f"and first_head {first_head}"
        )
    return n_q, n_k, all_heads, first_head


def check_length(name: str, length: int, wanted: int) -> None:
    """Raise RedblueError unless there is a position for each query (or key)."""
    if length != wanted:
        token, of = ("query", "q") if name == "queries" else ("key", "k")
        raise RedblueError(f"positions.{name} must have one number for each {token} of {of} ({wanted}), got {length}")


def packed(positions: Positions, sizes: Sizes, dropout: float) -> np.ndarray:
    """The positions in the form for kernels. Raises RedblueError for positions that do not fit the call."""
    parts = [np.array(numbers_of(positions, sizes.heads, dropout), np.int64)]
    for name, value, length in (("queries", positions.queries, sizes.n_q), ("keys", positions.keys, sizes.n_k)):
        part = int64_array(f"positions.{name}", value, f"whole numbers, one for each of the {length} {name}")
        check_length(name, len(part), length)
        parts.append(part)
    return np.concatenate(parts)


def check_places(places: np.ndarray, sizes: Sizes) -> None:
    """Raise RedblueError unless all places of packed positions lie in the whole problem."""
    for name, part, size in (
        ("queries", places[HEADER_SIZE : HEADER_SIZE + sizes.n_q], places[0]),
        ("keys", places[HEADER_SIZE + sizes.n_q :], places[1]),
    ):
        if not part.size or (part.min() >= 0 and part.max() < size):
            continue
        i = int(np.flatnonzero((part < 0) | (part >= size))[0])
        raise RedblueError(f"positions.{name}[{i}] must be at least 0 and below {size}, got {part[i]}")
