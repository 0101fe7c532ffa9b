"""The words that kernels load and store, counted under Triton's interpreter, against their schedules' closed forms.

Index lists of masks are counted apart: they are no words of the arrays.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch

from redblue import Mask, schedules
from redblue.kernels.cpu import Sizes
from redblue.kernels.gpu.call import KERNELS
from redblue.kernels.gpu.plan import Launch
from redblue.kernels.gpu.task import Task
from redblue.masks.bands import Window
from redblue.meter.interpreter import counting
from redblue.problem import Problem

MASKS = {
    "full": None,
    "causal": Mask.causal(),
    "causal from the end": Mask.causal(align="bottom-right"),
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
CASES = [
    *(("plain", mask, 16, 16) for mask in MASKS),
    *(("groups", mask, 32, 16) for mask in ("full", "window", "blocks")),
    *(("odd", mask, 16, 64) for mask in ("full", "causal", "dilated")),
    *(("one row", mask, 16, 16) for mask in ("full", "causal from the end", "n of m")),
]
# Cut into spans, the tiles that lists name are shared out evenly instead, so that words may differ there
BANDS = ("full", "causal", "causal from the end", "window")
every_case = pytest.mark.parametrize(("shape", "mask", "stay", "stream"), CASES)


def task_of(shape, mask):
    """Tensors of these sizes, and what the mask is to kernels."""
    batch, kv_heads, group, n_q, n_k, d, d_v = shape
    rows, keys = (batch, kv_heads * group, n_q), (batch, kv_heads, n_k)
    made = torch.Generator().manual_seed(0)
    shapes = {"q": (*rows, d), "k": (*keys, d), "v": (*keys, d_v), "out": (*rows, d_v), "dout": (*rows, d_v)}
    shapes |= {"dq": (*rows, d), "dk": (*keys, d), "dv": (*keys, d_v), "lse": rows, "delta": rows}
    arrays = {name: torch.randn(x, generator=made) for name, x in shapes.items()}
    band = mask.rule.on(n_q, n_k, 1) if mask is not None and isinstance(mask.rule, Window) else None
    seen = {"mask": mask} if band is None else {"first": band.first, "end": band.end}
    return Task(sizes=Sizes((batch,), kv_heads, group, n_q, n_k, d, d_v), scale=d**-0.5, **arrays, **seen)


def problem_of(shape, mask, direction):
    batch, kv_heads, group, n_q, n_k, d, d_v = shape
    heads = {"heads": kv_heads * group, "kv_heads": kv_heads}
    return Problem(n_q, n_k, d, d_v, batch, **heads, dtype="float32", mask=mask or Mask.full(), direction=direction)


def counted(kernel, direction, shape, mask, edges, chunk=0):
    """Words of the kernel, and of its schedule, with these tiles."""
    problem, schedule = problem_of(shape, mask, direction), schedules.get(kernel)
    tiles = schedule.make_tiles(problem, edges)
    with counting() as tally:
        for run in getattr(KERNELS[kernel], direction)(task_of(shape, mask), Launch(kernel, tiles, chunk=chunk)):
            run()
    lists = [name for name in tally.tensors if name.startswith("lists")]
    found, wanted = tally.total(without=lists), schedule.cost(problem, tiles)
    return (found.reads, found.writes), (wanted.reads, wanted.writes)


@every_case
def test_flash_forward(shape, mask, stay, stream):
    found, wanted = counted("flash", "forward", SHAPES[shape], MASKS[mask], {"rows": stay, "cols": stream})
    assert found == wanted


@every_case
def test_flash_forward_in_spans(shape, mask, stay, stream):
    edges = {"rows": stay, "cols": 16, "span": 32}
    found, wanted = counted("flash", "forward", SHAPES[shape], MASKS[mask], edges)
    assert found == wanted


@every_case
def test_flash_backward(shape, mask, stay, stream):
    edges = {"rows": stay, "cols": stream, "dkv_rows": stream, "dkv_cols": stay}
    found, wanted = counted("flash", "backward", SHAPES[shape], MASKS[mask], edges)
    assert found == wanted


@pytest.mark.parametrize("kernel", ["hybrid", "small_cache"])
@pytest.mark.parametrize(("shape", "mask", "stay", "stream"), [case for case in CASES if case[1] in BANDS])
def test_spilled_forward_in_spans_and_chunks(kernel, shape, mask, stay, stream):
    edges = {"rows": stay, "cols": stream, "depth": 16, "out_rows": stay, "out_cols": 16, "span": 2 * stream}
    found, wanted = counted(kernel, "forward", SHAPES[shape], MASKS[mask], edges, chunk=32)
    assert found == wanted
