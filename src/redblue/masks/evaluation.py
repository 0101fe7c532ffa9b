"""The pairs of a rule on given sizes, over all batch entries and heads: their number, dense arrays and CSR arrays."""

from __future__ import annotations

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import whole_number
from redblue.masks.patterns import spans
from redblue.masks.patterns.graph import csr
from redblue.masks.patterns.pairs import Pairs
from redblue.masks.rules.rule import Rule
from redblue.masks.rules.stack import planes

PIECE = 1 << 17  # pairs that are tested at once


def complete_sizes(rule: Rule, group: int, n_q: int | None, n_k: int | None) -> tuple[int, int]:
    """Return n_q and n_k in rows and keys. A size that is None is taken from the rule.

    Raises RedblueError if the rule does not fix that size, or if n_q is no multiple of `group`.
    """
    queries, keys = rule.sizes
    fixed = {"n_q": None if queries is None else queries * group, "n_k": keys}
    sizes = {name: fixed[name] if n is None else n for name, n in (("n_q", n_q), ("n_k", n_k))}
    missing = [name for name, n in sizes.items() if n is None]
    if missing:
        raise RedblueError(f"{rule!r} is for any sizes: give {' and '.join(missing)}")
    n_q, n_k = (whole_number(name, n, 0) for name, n in sizes.items())
    if n_q % group:
        raise RedblueError(f"n_q must be a multiple of the mask's {group} rows per query, got {n_q}")
    return n_q, n_k


def pair_count(rule: Rule, group: int, n_q: int, n_k: int) -> int:
    """Count the attending pairs of n_q rows and n_k keys, over all batch entries and heads."""
    rules, index = planes(rule)
    counts = [part.on(n_q, n_k, group).nnz for part in rules]
    return sum(counts[i] for i in index.flat)


def dense_array(rule: Rule, group: int, n_q: int, n_k: int) -> np.ndarray:
    """Return a boolean array (batch entries and heads..., n_q, n_k), True where the row attends the key."""
    rules, index = planes(rule)
    result = np.empty((*index.shape, n_q, n_k), bool)
    by_plane = result.reshape(index.size, n_q, n_k)  # a view
    written: dict[int, int] = {}  # for each rule, a plane that holds it
    for plane, i in enumerate(index.flat):
        if i in written:
            by_plane[plane] = by_plane[written[i]]
        else:
            _write(rules[i].on(n_q, n_k, group), by_plane[plane])
            written[i] = plane
    return result


def _write(pairs: Pairs, result: np.ndarray) -> None:
    """Write all pairs of a mask into a boolean array, in pieces, because a test takes many bytes per pair."""
    n_q, n_k = result.shape
    cols = min(n_k, PIECE) or 1
    rows = PIECE // cols
    for i in range(0, n_q, rows):
        for j in range(0, n_k, cols):
            piece = result[i : i + rows, j : j + cols]
            piece[:] = pairs.dense(range(i, i + len(piece)), range(j, j + piece.shape[1]))


def csr_arrays(rule: Rule, group: int, n_q: int, n_k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (indptr, indices), int64: row i attends the keys indices[indptr[i]:indptr[i+1]], which ascend.

    Raises RedblueError for a rule with batch entries or heads.
    """
    indptr, indices = csr(rule.pattern(n_q // group, n_k))
    if group == 1:
        return indptr, indices
    counts, query = np.diff(indptr), np.arange(n_q) // group
    _, entries = spans.expand(indptr[query], counts[query])
    return np.append(0, np.cumsum(counts[query])), indices[entries]
