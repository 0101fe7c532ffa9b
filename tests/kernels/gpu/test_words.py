"""The words that kernels load and store, under Triton's interpreter, equal the closed forms of their schedules.

Every kernel runs on every kind of mask. The words of mask lists are not part of the closed forms.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import numpy as np
import torch

from redblue import Mask, schedules
from redblue.kernels.gpu import bias_gradient
from redblue.kernels.gpu.launch import Task
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.gpu.spilled import chunks
from redblue.kernels.gpu.table import KERNELS
from redblue.kernels.sizes import Sizes
from redblue.masks.rules.bands import Window
from redblue.meter.interpreter import counting
from redblue.problem import Problem
from redblue.schedules.gradient_bias import Tiles, gradient_bias_cost
from redblue.schedules.schedule import rows_walked
from support.attention import keys_seen
from support.examples import thorough

MASKS = {
    "full": None,
    "causal": Mask.causal(),
    "causal, bottom-right": Mask.causal(align="bottom-right"),
    "window": Mask.sliding_window(9, 3),
    "dilated": Mask.dilated(4, step=3),
    "n of m": Mask.n_of_m(2, 5),
    "blocks": Mask.random_blocks(0.4, block=16, seed=1),
}
SHAPES = {  # batch, key heads, group, n_q, n_k, d, d_v
    "plain": (1, 1, 1, 48, 48, 16, 16),
    "odd": (2, 1, 1, 37, 53, 24, 40),
    "groups": (1, 2, 3, 13, 48, 16, 32),
    "one row": (1, 2, 2, 1, 35, 16, 16),
}
CASES = [  # shape, mask, edge of the tiles that stay, edge of the streamed tiles
    *(("plain", mask, 16, 16) for mask in MASKS),
    *(("groups", mask, 32, 16) for mask in ("full", "window", "n of m")),
    *(("odd", mask, 16, 64) for mask in ("full", "causal", "dilated")),
    *(("one row", mask, 16, 16) for mask in ("full", "causal, bottom-right", "n of m")),
]
BANDS = ("full", "causal", "causal, bottom-right", "window")
SPILLED = ("hybrid", "small_cache")
# The interpreter computes masked lanes, too, and NumPy warns of their overflows
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
every_case = pytest.mark.parametrize(("shape", "mask", "stay", "stream"), CASES)


def task_of(shape, mask):
    """Make a task of random tensors, with the mask in the form that kernels read."""
    batch, kv_heads, group, n_q, n_k, d, d_v = shape
    rows, keys = (batch, kv_heads * group, n_q), (batch, kv_heads, n_k)
    generator = torch.Generator().manual_seed(0)
    shapes = {"q": (*rows, d), "k": (*keys, d), "v": (*keys, d_v), "out": (*rows, d_v), "dout": (*rows, d_v)}
    shapes |= {"dq": (*rows, d), "dk": (*keys, d), "dv": (*keys, d_v), "lse": rows, "delta": rows}
    arrays = {name: torch.randn(x, generator=generator) for name, x in shapes.items()}
    band = mask.rule.on(n_q, n_k, 1) if mask is not None and isinstance(mask.rule, Window) else None
    mask_fields = {"mask": mask} if band is None else {"first": band.first, "end": band.end}
    return Task(sizes=Sizes((batch,), kv_heads, group, n_q, n_k, d, d_v), **arrays, **mask_fields)


def problem_of(shape, mask, direction):
    batch, kv_heads, group, n_q, n_k, d, d_v = shape
    heads = {"heads": kv_heads * group, "kv_heads": kv_heads}
    mask = Mask.full() if mask is None else mask
    return Problem(n_q, n_k, d, d_v, batch, **heads, dtype="float32", mask=mask, direction=direction)


def words_moved(runs):
    """The words that the launches read and write, without those of mask lists."""
    with counting() as tally:
        for run in runs:
            run()
    indices = [name for name in tally.tensors if name.startswith(("lists", "cells"))]
    traffic = tally.total(without=indices)
    return traffic.reads, traffic.writes


def count(kernel, direction, shape, mask, edges, chunk=0, problem=None):
    """Return the words that the kernel moves, and those of its schedule.

    problem: the problem of the schedule, if its mask differs from the mask of the kernel's task.
    """
    cut = (*shape[:4], keys_seen(mask, *shape[3:5]), *shape[5:]) if kernel in SPILLED else shape
    problem, schedule = problem or problem_of(cut, mask, direction), schedules.get(kernel)
    tiles = schedule.make_tiles(problem, edges)
    runs = getattr(KERNELS[kernel], direction)(task_of(shape, mask), Launch(kernel, tiles, chunk=chunk))
    cost = schedule.cost(problem, tiles)
    return words_moved(runs), (cost.reads, cost.writes)


def in_whole_tiles(shape, mask, direction, rows, cols):
    """Return the problem with every tile of the mask full or empty, because a listed tile is spilled as a whole.

    The rows of the heads in a group are stacked, as in the kernels.
    """
    batch, kv_heads, group, n_q, n_k, d, d_v = shape
    dense = np.repeat(mask.to_dense(n_q, n_k), group, axis=0)
    assert dense.any()
    for start in range(0, len(dense), rows):
        for first in range(0, n_k, cols):
            tile = dense[start : start + rows, first : first + cols]
            tile[:] = tile.any()
    return problem_of((batch, kv_heads, 1, n_q * group, n_k, d, d_v), Mask.from_dense(dense), direction)


@every_case
def test_flash_forward(shape, mask, stay, stream):
    measured, expected = count("flash", "forward", SHAPES[shape], MASKS[mask], {"rows": stay, "cols": stream})
    assert measured == expected


@every_case
def test_flash_forward_in_spans(shape, mask, stay, stream):
    edges = {"rows": stay, "cols": 16, "span": 32}
    measured, expected = count("flash", "forward", SHAPES[shape], MASKS[mask], edges)
    assert measured == expected


@every_case
def test_flash_backward(shape, mask, stay, stream):
    edges = {"rows": stay, "cols": stream, "dkv_rows": stream, "dkv_cols": stay}
    measured, expected = count("flash", "backward", SHAPES[shape], MASKS[mask], edges)
    assert measured == expected


@pytest.mark.parametrize("kernel", SPILLED)
@pytest.mark.parametrize(("shape", "mask", "stay", "stream"), [case for case in CASES if case[1] in BANDS])
def test_spilled_forward_in_spans_and_chunks(kernel, shape, mask, stay, stream):
    edges = {"rows": stay, "cols": stream, "depth": 16, "out_rows": stay, "out_cols": 16, "span": 2 * stream}
    measured, expected = count(kernel, "forward", SHAPES[shape], MASKS[mask], edges, chunk=32)
    assert measured == expected


@pytest.mark.parametrize("kernel", SPILLED)
@pytest.mark.parametrize(("shape", "mask", "stay", "stream"), [case for case in CASES if case[1] in BANDS])
def test_spilled_backward_in_spans_and_chunks(kernel, shape, mask, stay, stream):
    edges = backward_edges(kernel, stay, stream) | {"span": 2 * stream}
    measured, expected = count(kernel, "backward", SHAPES[shape], MASKS[mask], edges, chunk=32)
    assert measured == expected


@pytest.fixture(autouse=True)
def same_chunks(monkeypatch):
    """Chunks that do not grow as fewer tiles are listed, like those of the schedules."""
    monkeypatch.setattr(chunks, "_density", lambda *_: 1.0)


def backward_edges(kernel, stay, stream):
    edges = {"rows": stay, "cols": stream, "depth": 16, "dq_rows": stay, "dk_rows": stream, "chunk": 32}
    edges |= {"dq_cols": 16, "dk_cols": 32} | ({"dv_rows": stream, "dv_cols": 16} if kernel == "small_cache" else {})
    return edges


LISTED = [
    case(shape, mask, stay, stream)
    for shape, mask in (("plain", "blocks"), ("plain", "n of m"), ("odd", "dilated"), ("groups", "n of m"))
    for stay, stream, case in ((16, 16, pytest.param), (32, 16, thorough), (16, 32, thorough), (32, 64, pytest.param))
]
every_list = pytest.mark.parametrize(("shape", "mask", "stay", "stream"), [*LISTED, ("one row", "n of m", 16, 16)])


@pytest.mark.parametrize("kernel", SPILLED)
@every_list
def test_spilled_forward_of_listed_tiles(kernel, shape, mask, stay, stream):
    edges = {"rows": stay, "cols": stream, "depth": 16, "out_rows": stay, "out_cols": 16}
    problem = in_whole_tiles(SHAPES[shape], MASKS[mask], "forward", stay, stream)
    measured, expected = count(kernel, "forward", SHAPES[shape], MASKS[mask], edges, 32, problem)
    assert measured == expected


@pytest.mark.parametrize("kernel", SPILLED)
@every_list
def test_spilled_backward_of_listed_tiles(kernel, shape, mask, stay, stream):
    problem = in_whole_tiles(SHAPES[shape], MASKS[mask], "backward", stay, stream)
    edges = backward_edges(kernel, stay, stream)
    measured, expected = count(kernel, "backward", SHAPES[shape], MASKS[mask], edges, 32, problem)
    assert measured == expected


@pytest.mark.parametrize("kernel", SPILLED)
@pytest.mark.parametrize("direction", ["forward", "backward"])
@every_list
def test_spans_of_a_listed_mask_get_equal_shares_of_its_tiles(kernel, direction, shape, mask, stay, stream):
    """Each span of a block loads the block's rows, while a schedule loads them only for spans that hold a tile."""
    problem = in_whole_tiles(SHAPES[shape], MASKS[mask], direction, stay, stream)
    pattern = problem.one_stream().mask.on(problem.n_q, problem.n_k)
    spans = -(-problem.n_k // stream)
    more_rows = problem.streams * (problem.n_q * spans - rows_walked(pattern, stay, stream)) if spans > 1 else 0
    if direction == "forward":
        edges = {"rows": stay, "cols": stream, "depth": 16, "out_rows": stay, "out_cols": 16}
        reads, writes = (problem.d + 1, 1) if kernel == "hybrid" else (1, 1)  # per row: q, and the span's log-sum-exp
    else:
        edges = backward_edges(kernel, stay, stream)
        reads, writes = (problem.d + 1, 0) if kernel == "hybrid" else (2, 0)  # per row: q and lse, or lse and delta
    measured, expected = count(kernel, direction, SHAPES[shape], MASKS[mask], edges | {"span": stream}, 32, problem)
    assert measured == (expected[0] + reads * more_rows, expected[1] + writes * more_rows)


@pytest.mark.parametrize("shared", [(), (0,), (0, 1), (2,), (3,), (0, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", [thorough("plain"), "odd", "one row"])
def test_gradient_of_a_bias(monkeypatch, shape, mask, shared):
    """shared: dimensions of (batch, heads, n_q, n_k) along which the bias is broadcast."""
    monkeypatch.setattr(bias_gradient, "EDGE", 16)
    batch, kv_heads, group, n_q, n_k, *_ = sizes = SHAPES[shape]
    heads, task = kv_heads * group, task_of(sizes, MASKS[mask])
    full = batch, heads, n_q, n_k
    small_bias = torch.zeros([1 if dim in shared else size for dim, size in enumerate(full)])
    bias = small_bias.expand(full)
    task = replace(task, record=task.record._replace(bias=bias), dbias=torch.zeros_like(small_bias).expand(full))
    with counting() as tally:
        bias_gradient.add_bias_gradient(task)
    indices = [name for name in tally.tensors if name.startswith(("lists", "cells"))]
    parts = [min(-(-n // 16), bias_gradient.SHARES) if dim in shared else n for dim, n in ((2, n_q), (3, n_k))]
    # Kernels add to dbias, so they read and write it
    dbias_words = small_bias.shape[0] * small_bias.shape[1] * parts[0] * parts[1]
    problem = problem_of((batch, heads, 1, *sizes[3:]), MASKS[mask], "backward")
    cost = gradient_bias_cost(problem.one_stream(), Tiles(16, 16, bias_gradient.TENSOR_CORES[0]))
    traffic = tally.total(without=indices)
    assert traffic.reads == batch * heads * (cost.reads - n_q * n_k) + dbias_words
    assert traffic.writes == dbias_words
