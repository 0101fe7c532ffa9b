"""The words that the kernel counts on paged keys equal the words of the schedule `paged`."""

import numpy as np
import pytest

import redblue as rb
from redblue.kernels.cpu.plan import Tile
from redblue.op.paged import cpu as paged_cpu
from redblue.op.paged.call import PagedCall
from redblue.op.signatures import options_of
from redblue.schedules import paged
from redblue.schedules.paged_nodes import MIN_SHARED_KEYS

PIECE, FEW = 1024, 256  # kPiece and kFewRows of cpp/attention/paged_passes.cpp
PAGES = 300


def drawn(seed):
    """A random problem, its mask, and the edge of its blocks of rows."""
    rng = np.random.default_rng(seed)
    pick = lambda *options: options[rng.integers(len(options))]  # noqa: E731
    sequences, page = int(rng.integers(1, 6)), pick(1, 3, 16, 48)
    keys = rng.integers(0, pick(200, 200, 2600) if page > 3 else 200, sequences).tolist()
    queries = rng.integers(0, pick(2, 5, 5, 120), sequences).tolist()
    kv_heads, group, d, v_in_k = pick(1, 2), pick(1, 3, 4), pick(8, 24), pick(False, False, True)
    table = []
    for length in keys:
        needed, begin = -(-length // page), []
        if table and rng.random() < 0.8:  # it shares a prefix with another sequence
            begin = pick(*table)[: rng.integers(0, needed + 1)]
        table.append([*begin, *rng.integers(0, PAGES, needed - len(begin)).tolist()])
    left, right = pick(None, None, int(rng.integers(0, 200))), pick(0, 0, None, 3)
    mask = rb.Mask.sliding_window(left, right, align="bottom-right")
    d_v = int(rng.integers(1, d + 1)) if v_in_k else pick(8, 16)
    problem = rb.PagedProblem(queries, keys, page, d, d_v, kv_heads * group, kv_heads, table, v_in_k, "float32", mask)
    return problem, pick(4, 8, 64, 512), rng


@pytest.mark.parametrize("prefix", [None, 0])
@pytest.mark.parametrize("seed", range(24))
def test_words_are_those_of_the_schedule(seed, prefix):
    problem, rows, rng = drawn(seed)
    if not sum(problem.queries):
        pytest.skip("drawn without queries")
    tiles = paged.Tiles(rows=rows, piece=PIECE, few=FEW)
    assert counted(problem, rows, rng, prefix) == paged.words(problem, tiles, prefix)


@pytest.mark.parametrize("common", [MIN_SHARED_KEYS - 1, MIN_SHARED_KEYS])
def test_the_core_and_the_schedule_share_runs_of_the_same_lengths(common):
    """Two sequences share `common` keys. The words of a schedule that decides otherwise differ."""
    keys = common + 16
    table, mask = [range(keys), [*range(common), *range(keys, keys + 16)]], rb.Mask.causal(align="bottom-right")
    problem = rb.PagedProblem([1, 1], [keys, keys], 1, 8, 8, 2, 1, [list(pages) for pages in table], mask=mask)
    tiles = paged.Tiles(rows=8, piece=PIECE, few=FEW)
    words = counted(problem, 8, np.random.default_rng(0), None)
    assert words == paged.words(problem, tiles)
    otherwise = common + 1 if common >= MIN_SHARED_KEYS else common
    assert words != paged.words(problem, tiles._replace(shared=otherwise))


def counted(problem, rows, rng, prefix):
    """The words read and written that the kernel counts. rows: the edge of its blocks of rows."""
    table = np.zeros((len(problem.keys), max(1, *map(len, problem.table))), np.int64)
    for row, pages in zip(table, problem.table, strict=True):
        row[: len(pages)] = pages
    k = rng.standard_normal((PAGES, problem.page, problem.kv_heads, problem.d), np.float32)
    v = k[..., : problem.d_v] if problem.v_in_k else np.ones((*k.shape[:-1], problem.d_v), np.float32)
    q = rng.standard_normal((sum(problem.queries), problem.heads, problem.d), np.float32)
    options = options_of("attention_paged", {"mask": problem.mask})
    starts = np.cumsum([0, *problem.queries])
    call = PagedCall.checked(q, k, v, table, list(problem.keys), starts, prefix, options)
    ready = paged_cpu.ready(call, call.q, tile=Tile(rows, 96, 1))
    return paged_cpu.run(ready, call.q, call.k, call.v)[2]
