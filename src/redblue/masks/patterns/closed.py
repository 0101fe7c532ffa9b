"""How many pairs periodic masks keep, in closed form: no tile is looked at, however many there are."""

from __future__ import annotations

from redblue.base.integers import clip


def diagonals(n_q: int, n_k: int, step: int, count: int) -> int:
    """Pairs of n_q x n_k that lie on the main diagonal or on one of the count - 1 below it, each `step` further.

    The t-th has n_q - t step pairs, but at most n_k and at least 0.
    """
    whole = clip((n_q - n_k) // step + 1, 0, count)  # those of n_k pairs
    live = clip(-(-n_q // step), whole, count)
    return whole * n_k + (live - whole) * n_q - step * (live * (live - 1) - whole * (whole - 1)) // 2


def periodic(n_q: int, n_k: int, n: int, m: int) -> int:
    """Pairs (i, j) of n_q x n_k with (i + j) mod m < n."""
    return _below(n_q + n_k, n, m) - _below(n_q, n, m) - _below(n_k, n, m)


def _below(end: int, n: int, m: int) -> int:
    """The sum over x < end of the number of y < x with y mod m < n."""
    periods, rest = divmod(end, m)
    # Within a period the number grows by one until it is n.
    whole, part = (min(x, n) * (min(x, n) - 1) // 2 + max(0, x - n) * n for x in (m, rest))
    return m * n * (periods * (periods - 1) // 2) + periods * whole + rest * n * periods + part
