"""ALiBi in every Triton kernel, forward and backward, against float64.

ALiBi adds -slope * |position of the query - position of the key| to a score.
"""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import redblue as rb
from redblue.kernels.gpu import bias_gradient
from redblue.kernels.gpu.launch import Task
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.gpu.table import KERNELS
from redblue.kernels.sizes import Sizes
from redblue.masks.rules.bands import Window
from redblue.meter.interpreter import counting
from redblue.schedules import flash, hybrid, small_cache
from redblue.schedules.spilled import ForwardTiles
from support.gpu import DEVICE, SPARSE, check_close, interpreted_only
from support.textbook import textbook

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter computes masked lanes, too
    pytest.mark.usefixtures("nan_in_new_memory"),
]

SPILLED = ForwardTiles(rows=16, cols=16, depth=16, out_rows=16, out_cols=16, span=32)
GRADIENTS = {"dq_rows": 16, "dq_cols": 16, "dk_rows": 16, "dk_cols": 16, "chunk": 16, "span": 32}
TILES = {
    "flash": (flash.ForwardTiles(16, 16), flash.BackwardTiles(16, 16, 16, 16)),
    "flash in spans": (flash.ForwardTiles(16, 16, 16), flash.BackwardTiles(32, 16, 16, 32)),
    "hybrid": (SPILLED, hybrid.BackwardTiles(16, 16, 16, **GRADIENTS)),
    "small_cache": (SPILLED, small_cache.BackwardTiles(16, 16, 16, dv_rows=16, dv_cols=16, **GRADIENTS)),
}
every_kernel = pytest.mark.parametrize("kernel", TILES)
ROW_VECTORS = ("lse", "delta", "dlse")
BATCH, HEADS, D, D_V = 2, 2, 5, 4


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Use small tiles, so that tiny calls have many tiles."""
    monkeypatch.setattr(bias_gradient, "EDGE", 16)


def normal(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, device=DEVICE)


def slopes_of(shape):
    """Slopes (H,) or (B, H), expanded to (B, H) as the operator expands them."""
    return (0.1 + torch.rand(shape, dtype=torch.float64, device=DEVICE)).expand(BATCH, HEADS)


def as_bias(slopes, n_q, n_k):
    """ALiBi as a bias (B, H, n_q, n_k), with the last query at the position of the last key."""
    distance = torch.arange(n_q, device=DEVICE)[:, None] + n_k - n_q - torch.arange(n_k, device=DEVICE)
    return -slopes[..., None, None] * distance.abs()


def run(task, kernel, direction):
    """Launch the pass with the small tiles."""
    tiles = TILES[kernel][direction == "backward"]
    launch = Launch(kernel.split()[0], tiles, chunk=getattr(tiles, "chunk", 16))
    for launch_kernel in getattr(KERNELS[launch.kernel], direction)(task, launch):
        launch_kernel()


def task_for(n_q, n_k, kv_heads, slopes, mask=None, dtype=torch.float64, **options):
    """A task of random tensors, forward and backward."""
    rows, keys = (BATCH, HEADS, n_q), (BATCH, kv_heads, n_k)
    shapes = {"q": (*rows, D), "k": (*keys, D), "v": (*keys, D_V), "out": (*rows, D_V), "dout": (*rows, D_V)}
    shapes |= {"dq": (*rows, D), "dk": (*keys, D), "dv": (*keys, D_V)} | dict.fromkeys(ROW_VECTORS, rows)
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    arrays = {name: normal(*x, dtype=sums if name in ROW_VECTORS else dtype) for name, x in shapes.items()}
    if mask is not None and isinstance(mask.rule, Window):
        band = mask.rule.on(n_q, n_k, 1)
        options |= {"first": band.first, "end": band.end}
    elif mask is not None:
        options |= {"mask": mask}
    sizes = Sizes((BATCH,), kv_heads, HEADS // kv_heads, n_q, n_k, D, D_V)
    return Task.of(sizes=sizes, scale=D**-0.5, alibi=slopes.to(sums), **arrays, **options)


def check(task, kernel, mask=None):
    """Check outputs and gradients of the kernel against the float64 textbook with ALiBi as a bias."""
    dbias = None if task.record.bias is None else torch.zeros_like(task.record.bias)
    task = replace(task, dbias=dbias)
    run(task, kernel, "forward")
    run(task, kernel, "backward")
    results = {"out": task.out, "lse": task.lse, "dq": task.dq, "dk": task.dk, "dv": task.dv}
    if dbias is not None:
        bias_gradient.add_bias_gradient(task)
        results["dbias"] = dbias
    q, k, v = (x.double().requires_grad_() for x in (task.q, task.k, task.v))
    bias = as_bias(task.record.alibi.double(), task.sizes.n_q, task.sizes.n_k)
    task_bias = None if task.record.bias is None else task.record.bias.double().requires_grad_()
    bias = bias if task_bias is None else bias + task_bias
    options = {
        "scale": task.record.scale,
        "softcap": task.record.softcap or None,
        "sinks": task.record.sinks,
        "mask": rb.Mask.full() if mask is None else mask,
    }
    if task.record.seed is None:
        expected = textbook(q, k, v, bias=bias, **options, return_lse=True)
    else:  # the CPU's dropout is compared with the textbook elsewhere
        dropout = {"dropout": task.record.dropout, "seed": int(task.record.seed)}
        expected = rb.attention(q, k, v, bias=bias, **options, **dropout, return_lse=True)
    inputs = [x for x in (q, k, v, task_bias) if x is not None]
    gradients = torch.autograd.grad(expected, inputs, (task.dout.double(), task.dlse.double()))
    for (name, result), right in zip(results.items(), (*expected, *gradients), strict=True):
        assert result.isfinite().all() or name == "lse", name
        check_close(result, right.to(result.device), task.q.dtype)


MASKS = {
    "full": (5, 18, None),
    "more queries": (20, 17, rb.Mask.causal()),
    "causal": (18, 35, rb.Mask.causal()),  # the last keys are attended by no query
    "causal, bottom-right": (17, 21, rb.Mask.causal(align="bottom-right")),
    "window": (18, 35, rb.Mask.sliding_window(9, 3)),
    "listed": (37, 37, SPARSE["causal documents"]),
}


@every_kernel
@pytest.mark.parametrize("mask", MASKS)
def test_masks_and_lengths(kernel, mask):
    """Alternate between slopes (H,) and (B, H), and between one and two query heads per key head."""
    n_q, n_k, value = MASKS[mask]
    i = list(MASKS).index(mask)
    shape, kv_heads = ((HEADS,), (BATCH, HEADS))[i % 2], (1, 2)[i // 2 % 2]
    check(task_for(n_q, n_k, kv_heads, slopes_of(shape), value), kernel, value)


@every_kernel
def test_with_bias_softcap_and_sinks(kernel):
    sinks = torch.tensor([0.5, -torch.inf], dtype=torch.float64, device=DEVICE)
    options = {"bias": normal(BATCH, HEADS, 13, 18), "softcap": 2.0, "sinks": sinks}
    mask = rb.Mask.causal(align="bottom-right")
    check(task_for(13, 18, 1, slopes_of((BATCH, HEADS)), mask, **options), kernel, mask)


@every_kernel
def test_with_dropout(kernel):
    seed = torch.tensor(7, device=DEVICE)
    check(task_for(13, 18, 2, slopes_of((HEADS,)), dropout=0.3, seed=seed), kernel)


@every_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_dtypes(kernel, dtype):
    check(task_for(13, 18, 1, slopes_of((HEADS,)), dtype=dtype), kernel)


@every_kernel
def test_64_bit_offsets(kernel, monkeypatch):
    monkeypatch.setattr(Task, "wide", True)
    check(task_for(13, 18, 1, slopes_of((BATCH, HEADS)), rb.Mask.causal()), kernel, rb.Mask.causal())


@interpreted_only
@every_kernel
def test_alibi_moves_no_words_per_pair(kernel):
    """Except for the slopes themselves, a call with ALiBi moves the same words as one without."""
    task = task_for(18, 20, 1, slopes_of((HEADS,)), rb.Mask.causal())
    for direction in ("forward", "backward"):
        totals = []
        for variant in (task, replace(task, record=task.record._replace(alibi=None))):
            with counting() as tally:
                run(variant, kernel, direction)
            slopes = [name for name in tally.tensors if name.startswith("scores.alibi")]
            assert len(slopes) == (variant.record.alibi is not None)
            totals.append(tally.total(without=slopes))
        assert totals[0] == totals[1]
