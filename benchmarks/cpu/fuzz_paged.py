"""A random call of attention on a paged cache, on memory whose borders and unused pages are protected."""

from __future__ import annotations

import numpy as np

from benchmarks.cpu.guarded import Guarded, GuardedNumbers, GuardedPages
from redblue.base.dtypes import COMPUTED, DTYPE_CODES, sum_dtype
from redblue.compiled import _core
from redblue.kernels.cpu import call as cpu
from redblue.kernels.cpu import paged
from redblue.kernels.sizes import Sizes

GARBAGE = (-1, -(2**63), 2**62, 10**9)  # entries of a table that no key needs


def one_of(rng: np.random.Generator, *numbers: int) -> int:
    return numbers[rng.integers(len(numbers))]


def paged_call(rng: np.random.Generator) -> str:
    """Make a random call. Returns its description."""
    rows = [row for row in _core.list_isas() if row.supported]
    row = rows[rng.integers(len(rows))]
    dtype = str(rng.choice(COMPUTED))
    sums = sum_dtype(dtype)
    batch, page = int(rng.integers(1, 6)), one_of(rng, int(rng.integers(1, 6)), int(rng.integers(1, 49)), 16, 32)
    kv_heads, group = int(rng.integers(1, 3)), int(rng.choice([1, 2, 4, 7, 16]))
    d, d_v = (one_of(rng, int(rng.integers(1, 10)), int(rng.integers(1, 140)), 64) for _ in range(2))
    lengths = rng.integers(0, int(rng.choice([4, 60, 300, 2500])) + 1, batch)
    each = one_of(rng, 0, 1, 1, 4, int(rng.integers(1, 80)))
    same = rng.random() < 0.5
    queries = np.full(batch, each) if same else rng.choice([0, 1, 4, each], batch)
    table, pages, prefix, lengths = tables(rng, lengths, page)
    used = np.zeros(pages, bool)
    for b, count in enumerate(-(-lengths // page)):
        used[table[b, :count]] = True
    total, heads, longest = int(queries.sum()), kv_heads * group, int(lengths.max())
    alias = rng.random() < 0.25
    d_v = min(d, d_v) if alias else d_v
    k = GuardedPages(rng, dtype, (pages, kv_heads, page, d), used)
    v, column = GuardedPages(rng, dtype, (pages, kv_heads, page, d_v), used), -1
    v_pages = v.described
    if alias:
        column = int(rng.integers(0, d - d_v + 1))
        v_pages = k.columns(column)
        column = column if v_pages.strides[-1] == 1 else -1
    q, out = (Guarded(rng, dtype, (1, heads, total, width)) for width in (d, d_v))
    lse = Guarded(rng, sums, (1, heads, total, 1), "plain")
    bias_dtype = str(rng.choice(["bool", "float32", sums]))
    bias = Guarded(rng, bias_dtype, (batch, heads, each, longest), "broadcast") if same and rng.random() < 0.3 else None
    alibi = Guarded(rng, sums, (1, 1, batch, heads), "broadcast") if rng.random() < 0.3 else None
    sinks = Guarded(rng, sums, (1, 1, 1, heads), "plain") if rng.random() < 0.3 else None
    newest = int(rng.choice([0, 1, 7, 70]))
    tree = GuardedNumbers(rng.random((total, newest)) < 0.6) if rng.random() < 0.3 else None
    left, right = (-1 if rng.random() < 0.6 else int(rng.integers(0, 80)) for _ in range(2))
    starts, keys, entries = (
        GuardedNumbers(x.astype(np.int64)) for x in (np.append(0, np.cumsum(queries)), lengths, table)
    )
    sequences = _core.Sequences(
        batch,
        starts.address,
        keys.address,
        entries.address,
        table.shape[1],
        page,
        -1 if tree else left,
        -1 if tree else right if rng.random() < 0.5 else 0,
        tree.address if tree else 0,
        newest if tree else 0,
        prefix,
    )
    sizes = Sizes((batch,), kv_heads, group, each if same else 1, longest, d, d_v)
    tile = cpu.Tile(int(rng.integers(1, 200)), int(rng.integers(1, 200))) if rng.random() < 0.6 else None
    options = {
        "scale": float(rng.choice([0.3, -0.2, 0.0, 1.0])),
        "softcap": float(rng.choice([0.0, 0.0, 3.0])),
        "bias": bias.described if bias else None,
        "bias_number": DTYPE_CODES[bias_dtype],
        "alibi": cpu.Array(alibi.described.address, (*alibi.described.strides[2:], 0, 0)) if alibi else None,
        "sinks": cpu.Array(sinks.described.address, (0, *sinks.described.strides[1:])) if sinks else None,
    }
    q_rows, out_rows, lse_rows = (cpu.Array(x.described.address, x.described.strides[1:]) for x in (q, out, lse))
    call = paged.call_of(
        sizes,
        dtype,
        q_rows,
        paged.Cache(k.described, v_pages, column),
        out_rows,
        lse_rows,
        sequences=sequences,
        threads=int(rng.integers(1, 4)),
        tile=tile,
        **options,
    )
    if total:  # the operator does not call the core without queries
        paged.forward(call, row)
    return f"paged {row.name} {dtype} {sizes} {lengths} {queries} pages of {page}, prefix {prefix} {tile} {options}"


def tables(rng: np.random.Generator, lengths: np.ndarray, page: int) -> tuple[np.ndarray, int, int, np.ndarray]:
    """A random table, the number of its pages, the core's prefix_pages, and lengths.

    Sequences may share leading pages.
    """
    prefix, shared = -1, 0
    if rng.random() < 0.5:
        shared = int(rng.integers(1, 200 // page + 2))
        lengths = lengths + shared * page
        prefix = int(rng.choice([-1, shared, int(rng.integers(0, shared + 1))]))
    needed = -(-lengths // page)
    pages = int(needed.sum()) + int(rng.integers(1, 4))
    table = rng.choice(GARBAGE, (len(lengths), int(needed.max()) + int(rng.integers(0, 3))))
    free = list(rng.permutation(pages))
    for b, count in enumerate(needed):
        table[b, :count] = [free.pop() for _ in range(count)]
        table[b, :shared] = table[0, :shared]
    return table, pages, 0 if not shared and rng.random() < 0.3 else prefix, lengths
