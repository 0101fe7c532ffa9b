"""Gradients by the Triton kernels of `hybrid` and `small_cache` against float64; see test_forward.py."""

import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import redblue as rb
from redblue import schedules
from redblue.kernels.gpu.launch import Task
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.sizes import Sizes
from redblue.meter.interpreter import counting
from redblue.op.pytorch import gpu, interpreted
from redblue.schedules import hybrid, small_cache
from redblue.schedules.spilled import ForwardTiles
from support.attention import keys_seen
from support.gpu import MASKS, SPARSE, check, interpreted_only, normal
from support.textbook import TOLERANCE

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter computes masked lanes, too
    pytest.mark.usefixtures("bfloat16_to_nearest", "nan_in_new_memory"),
]

FORWARD = ForwardTiles(16, 32, 16, 16, 16, 256)
GRADIENT_TILES = {"dq_rows": 32, "dq_cols": 16, "dk_rows": 16, "dk_cols": 32, "chunk": 32, "span": 64}
TILES = {
    "small_cache": small_cache.BackwardTiles(rows=16, cols=32, depth=16, dv_rows=32, dv_cols=16, **GRADIENT_TILES),
    "hybrid": hybrid.BackwardTiles(rows=16, cols=32, depth=16, **GRADIENT_TILES),
}
both_kernels = pytest.mark.parametrize("kernel", TILES)


@pytest.fixture
def launch(monkeypatch):
    """Return a function that sets the kernel to launch and the edges of its tiles."""

    def launch(kernel="small_cache", **edges):
        tiles = TILES[kernel]._replace(**edges)
        planned = {"forward": Launch(kernel, FORWARD, chunk=1000), "backward": Launch(kernel, tiles, chunk=tiles.chunk)}
        monkeypatch.setattr(gpu, "plan", lambda direction, *_: planned[direction])

    return launch


@both_kernels
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_bands(launch, kernel, mask):
    launch(kernel)
    check(normal(1, 3, 19, 20), normal(1, 1, 37, 20), normal(1, 1, 37, 4), mask=mask)


@both_kernels
def test_rows_without_keys(launch, kernel):
    launch(kernel)
    mask = rb.Mask.sliding_window(0, 4)
    check(normal(1, 3, 25, 5), normal(1, 1, 10, 5), normal(1, 1, 10, 4), mask=mask)


@both_kernels
@pytest.mark.parametrize(("d", "d_v"), [(1, 80), (40, 33), (80, 1)])
def test_head_dimensions(launch, kernel, d, d_v):
    launch(kernel)
    check(normal(1, 5, d), normal(1, 34, d), normal(1, 34, d_v))


@both_kernels
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_dtypes(launch, kernel, dtype):
    launch(kernel)
    q, k, v = (normal(1, n, d, dtype=dtype) for n, d in ((40, 20), (33, 20), (33, 24)))
    check(q, k, v, scale=-0.3)


@pytest.mark.parametrize("edges", [{"chunk": 1000}, {"chunk": 48, "dq_rows": 16, "span": 32}, {"chunk": 112}], ids=str)
def test_chunks_and_spans(launch, edges):
    launch(**edges)
    q, k, v = normal(2, 3, 17, 5), normal(2, 1, 37, 5), normal(2, 1, 37, 4)
    check(q, k, v, mask=rb.Mask.causal())


@both_kernels
def test_every_option(launch, kernel):
    launch(kernel)
    q, k, v = normal(1, 4, 13, 5), normal(1, 2, 37, 5), normal(1, 2, 37, 4)
    bias, sinks = normal(4, 13, 37), torch.tensor([-1.0, 0.5, -torch.inf, 20.0], device=q.device)
    check(q, k, v, bias, softcap=3.0, scale=2.0, bias=bias, sinks=sinks, mask=rb.Mask.causal())


@both_kernels
def test_dropout_drops_the_same_pairs_as_on_the_cpu(launch, kernel):
    launch(kernel)
    q, k, v = normal(2, 13, 5), normal(1, 37, 5), normal(1, 37, 4)
    check(q, k, v, dropout=0.3, seed=3)


@both_kernels
@pytest.mark.parametrize("mask", SPARSE.values(), ids=SPARSE)
def test_listed_masks(launch, kernel, mask):
    launch(kernel)
    n = 48 if mask is SPARSE["blocks"] else 37
    check(normal(1, 3, n, 5), normal(1, 1, n, 5), normal(1, 1, n, 4), mask=mask)


@both_kernels
@pytest.mark.parametrize("mask", [rb.Mask.causal(), SPARSE["documents"]], ids=str)
def test_slices_longer_than_tiles_are_cut(launch, monkeypatch, kernel, mask):
    monkeypatch.setattr(sys.modules[__name__], "FORWARD", FORWARD._replace(depth=64, cols=16, span=48))
    launch(kernel, depth=64, cols=16, rows=32, span=48)
    check(normal(37, 5), normal(37, 5), normal(37, 4), mask=mask)


def test_listed_masks_in_tiles_of_several_words(launch):
    launch(rows=64, cols=128, depth=64, chunk=128, span=128)
    mask = rb.Mask.from_dense(np.random.default_rng(0).random((150, 280)) < 0.5) | rb.Mask.blocks(
        [[True, False, False]], (150, 100)
    )
    check(normal(1, 150, 5), normal(1, 280, 5), normal(1, 280, 4), mask=mask)


@interpreted_only
@both_kernels
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("edges", [{}, {"rows": 32, "chunk": 64, "span": 128, "cols": 64}], ids=str)
def test_words_equal_the_schedules_count(launch, kernel, mask, edges):
    launch(kernel, **edges)
    problem = rb.Problem(13, keys_seen(mask, 13, 70), 17, 20, heads=3, kv_heads=1, mask=mask, direction="backward")
    q, k, v = normal(3, 13, 17), normal(1, 70, 17), normal(1, 70, 20)
    out = interpreted.attention(q, k, v, mask=mask)
    with counting() as tally:
        out.backward(torch.ones_like(out))
    expected = schedules.get(kernel).cost(problem, TILES[kernel]._replace(**edges))
    assert (tally.total().reads, tally.total().writes) == (expected.reads, expected.writes)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_small_cache_compiles_the_same_kernels_for_any_head_dimension(direction):
    """Registers and shared memory then do not grow with d. The names of compile-time arguments are in capitals."""
    tiles = {"forward": FORWARD, "backward": TILES["small_cache"]}[direction]

    def compiled(d):
        shapes = {"q": (64, d), "k": (64, d), "v": (64, d), "out": (64, d), "dout": (64, d), "dq": (64, d)}
        shapes |= {"dk": (64, d), "dv": (64, d), "lse": (64,), "delta": (64,)}
        arrays = {name: torch.empty(1, 1, *shape, device="meta") for name, shape in shapes.items()}
        task = Task(sizes=Sizes((1,), 1, 1, 64, 64, d, d), **arrays)
        runs = getattr(gpu.KERNELS["small_cache"], direction)(task, Launch("small_cache", tiles, chunk=32))
        return [(run.kernel, {name: x for name, x in run.arguments.items() if name.isupper()}) for run in runs]

    assert compiled(512) == compiled(4096)
