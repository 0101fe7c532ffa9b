"""Chunks of rows under listed masks."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import redblue as rb
from redblue.kernels.gpu.launch import Task
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.gpu.spilled import chunks
from redblue.kernels.sizes import Sizes
from redblue.schedules.spilled import ForwardTiles

LAUNCH = Launch("small_cache", ForwardTiles(16, 16, depth=16, out_rows=16, out_cols=16, span=32), chunk=32)


def task(mask, heads=8):
    sizes = Sizes((1,), heads, 1, 64, 64, 16, 16)
    q = torch.zeros(1, heads, 64, 16, dtype=torch.float16)
    return Task(sizes=sizes, q=q, k=q, v=q, out=q, lse=torch.zeros(1, heads, 64), mask=mask)


def blocks(attended):
    """A mask that attends `attended` of 16 tiles of 16 x 16, in every row of tiles the same number."""
    return rb.Mask.blocks([[i < attended // 4 for i in range(4)]] * 4, 16)


@pytest.mark.parametrize(("mask", "rows"), [(None, 32), (blocks(16), 32), (blocks(8), 64), (blocks(4), 128)])
def test_a_chunk_has_more_rows_if_fewer_tiles_are_listed(mask, rows):
    assert chunks.with_chunk(task(mask), LAUNCH, 1).chunk == rows


@pytest.mark.parametrize(("spilled", "rows"), [(1, 128), (2, 64), (3, 32), (9, 32)])
def test_the_spilled_arrays_of_a_chunk_stay_within_the_limit(monkeypatch, spilled, rows):
    monkeypatch.setattr(chunks, "MAX_SPILLED", 128 * 64 * 2)  # bytes of 128 rows of one array
    assert chunks.with_chunk(task(blocks(4)), LAUNCH, spilled).chunk == rows


def test_a_mask_without_any_pair_has_one_chunk():
    assert chunks.with_chunk(task(rb.Mask.blocks([[False] * 4] * 4, 16)), LAUNCH, 1).chunk == 32 * 16


@pytest.mark.parametrize(("heads", "planned", "rows"), [(6, 64, 3 * 64), (8, 64, 4 * 64), (1, 64, 64), (8, 16, 64)])
def test_chunks_are_about_equal(heads, planned, rows):
    """Chunks of four times the planned rows: six heads are cut into 3 and 3, not into 4 and 2."""
    launch = LAUNCH._replace(chunk=planned)
    assert chunks.with_chunk(task(blocks(4), heads), launch, 1).chunk == rows
