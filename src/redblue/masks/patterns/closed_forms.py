"""Closed forms for the number of pairs that periodic masks keep."""

from __future__ import annotations

from redblue.base.integers import clip


def diagonals(n_q: int, n_k: int, step: int, count: int) -> int:
    """Count the pairs of n_q x n_k on the diagonals j = i - t step, for t = 0 .. count - 1.

    Diagonal t has n_q - t step pairs, limited to 0 .. n_k.
    """
    whole = clip((n_q - n_k) // step + 1, 0, count)  # diagonals of n_k pairs
    live = clip(-(-n_q // step), whole, count)  # diagonals of at least one pair
    return whole * n_k + (live - whole) * n_q - step * (live * (live - 1) - whole * (whole - 1)) // 2


def periodic(n_q: int, n_k: int, n: int, m: int) -> int:
    """Count the pairs (i, j) of n_q x n_k with (i + j) mod m < n, by inclusion and exclusion of three triangles."""
    return _triangle(n_q + n_k, n, m) - _triangle(n_q, n, m) - _triangle(n_k, n, m)


def _triangle(end: int, n: int, m: int) -> int:
    """Sum, over x < end, the number of y < x with y mod m < n."""
    periods, rest = divmod(end, m)
    # Within one period, the number grows by 1 with x until it is n.
    whole, part = (min(x, n) * (min(x, n) - 1) // 2 + max(0, x - n) * n for x in (m, rest))
    return m * n * (periods * (periods - 1) // 2) + periods * whole + rest * n * periods + part
