"""The float64 reference of attention on a paged cache, and inputs of it."""

from __future__ import annotations

import numpy as np

from redblue.lab import reference
from redblue.paged_problem import PagedProblem


def example(stream: PagedProblem, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return standard normal inputs of one stream, by name, and the float64 reference of every output, by name.

    Rows of pages that no query attends are NaN. Unused entries of the page table are -1.
    """
    k, v = np.full((stream.cells, stream.d), np.nan), np.full((stream.v_cells, stream.d_v), np.nan)
    for page, ranges in stream.used_rows.items():
        for first, stop in ranges:
            for cells in (k, v) if stream.v_cells else (k,):
                part = cells[page * stream.page + first : page * stream.page + stop]
                part[...] = rng.standard_normal(part.shape)
    table = np.full((stream.sequences, stream.most_pages), -1)
    for row, pages in zip(table, stream.table, strict=True):
        row[: len(pages)] = pages
    arrays = {"q": rng.standard_normal((stream.n_q, stream.d)), "k_pages": k, "v_pages": v, "page_table": table}
    return arrays, forward(stream, arrays["q"], k, k[:, : stream.d_v] if stream.v_in_k else v)


def forward(stream: PagedProblem, q: np.ndarray, k_cells: np.ndarray, v_cells: np.ndarray) -> dict[str, np.ndarray]:
    """Return out and lse of one stream: each sequence attends a copy of its keys and values.

    q: the rows of all sequences. k_cells, v_cells: the rows of all pages.
    """
    out, lse, start = np.zeros((stream.n_q, stream.d_v)), np.zeros(stream.n_q), 0
    for b, keys in enumerate(stream.keys):
        rows = slice(start, start + stream.group * stream.queries[b])
        places = np.arange(keys)
        cells = np.asarray(stream.table[b], np.int64)[places // stream.page] * stream.page + places % stream.page
        attends = stream.band(b).dense(range(rows.stop - start), range(keys))
        unused = ~np.any(attends, axis=0)
        k, v = k_cells[cells], v_cells[cells]
        k[unused], v[unused] = 0.0, 0.0
        result = reference.forward(q[rows], k, v, attends)
        out[rows], lse[rows], start = result.out, result.lse, rows.stop
    return {"out": out, "lse": lse}
