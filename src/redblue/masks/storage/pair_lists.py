"""The attending pairs of a mask, one by one: their number in each row, and the list of all of them."""

from __future__ import annotations

import numpy as np

from redblue.base.errors import RedblueError
from redblue.masks.patterns.band import Band
from redblue.masks.patterns.graph import csr
from redblue.masks.patterns.layout import Layout
from redblue.masks.patterns.pairs import Pairs, Transposed
from redblue.masks.patterns.tiled import Tiled

MAX_ENTRIES = 1 << 26  # pairs in one list: half a gigabyte of columns


def degrees(pairs: Pairs) -> np.ndarray:
    """Count the attending pairs of every row, int64 (n_rows,). Bands and layouts have a closed form."""
    base = pairs.of if isinstance(pairs, Transposed) else pairs
    if isinstance(base, Band):
        row = np.arange(pairs.n_rows)
        if base is pairs:
            low, high = row // base.group + base.first, row // base.group + base.end
        else:
            low, high = base.group * (row - base.end + 1), base.group * (row - base.first + 1)
        return np.maximum(0, np.minimum(pairs.n_cols, high) - np.maximum(0, low))
    if isinstance(base, Layout):
        layout, (rows, cols) = base.rule.layout if base is pairs else base.rule.layout.T, pairs.steps
        widths = np.diff(np.minimum(np.arange(layout.shape[1] + 1) * cols, pairs.n_cols))
        return np.repeat(layout @ widths, rows)[: pairs.n_rows]
    if isinstance(base, Tiled):
        return base.degrees[base is not pairs]
    return np.diff(entries(pairs)[0])


def entries(pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    """List the pairs in CSR form: int64 pointers (n_rows + 1,) and columns (nnz,), ascending in each row.

    Raises RedblueError for more than MAX_ENTRIES pairs.
    """
    if pairs.nnz > MAX_ENTRIES:
        raise RedblueError(
            f"the mask has {pairs.nnz:,} pairs, at most {MAX_ENTRIES:,} are written out one by one: give fewer "
            f"queries and keys, or use a format that is not made of pairs"
        )
    if isinstance(pairs, Transposed):
        starts, cols = entries(pairs.of)
        order = np.argsort(cols, kind="stable")
        ends = np.cumsum(np.bincount(cols, minlength=pairs.n_rows))
        return np.append(0, ends), np.repeat(np.arange(pairs.n_cols), np.diff(starts))[order]
    if isinstance(pairs, Tiled) and pairs.group == 1:
        return csr(pairs.pattern)
    row_runs = [pairs.cols_of(range(row, row + 1)) for row in range(pairs.n_rows)]
    starts = np.cumsum([0, *(sum(map(len, runs)) for runs in row_runs)])
    cols = [np.arange(run.start, run.stop) for runs in row_runs for run in runs]
    return starts, np.concatenate([np.zeros(0, np.int64), *cols])
