"""The forward Triton kernels of `hybrid` and `small_cache` against float64.

They run under Triton's interpreter, or, with TRITON_INTERPRET=0, on a GPU.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import redblue as rb
from redblue import schedules
from redblue.kernels.gpu.planning.plan import Launch
from redblue.meter.interpreter import counting
from redblue.op.pytorch import gpu, interpreted
from redblue.schedules.spilled import ForwardTiles
from support.attention import keys_seen
from support.examples import thorough
from support.gpu import MASKS, SPARSE, check_forward, interpreted_only, normal
from support.textbook import TOLERANCE

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter computes masked lanes, too
    pytest.mark.usefixtures("bfloat16_to_nearest", "nan_in_new_memory"),
]

TILES = ForwardTiles(rows=16, cols=32, depth=16, out_rows=32, out_cols=16, span=32)
both_kernels = pytest.mark.parametrize("kernel", ["hybrid", "small_cache"])


@pytest.fixture
def launch(monkeypatch):
    """Return a function that sets the kernel to launch, its tiles and the rows of a chunk."""

    def launch(kernel="small_cache", chunk=32, **edges):
        planned = Launch(kernel, TILES._replace(**edges), chunk=chunk)
        monkeypatch.setattr(gpu, "plan", lambda *_: planned)

    return launch


@both_kernels
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("sizes", [(21, 70), (37, 33)], ids=str)
def test_bands(launch, kernel, mask, sizes):
    n_q, n_k = sizes
    launch(kernel)
    check_forward(normal(1, 3, n_q, 5), normal(1, 1, n_k, 5), normal(1, 1, n_k, 4), mask=mask)


@both_kernels
@pytest.mark.parametrize(("d", "d_v"), [(1, 16), (16, 17), (40, 33), (80, 1)])
def test_head_dimensions(launch, kernel, d, d_v):
    launch(kernel)
    check_forward(normal(1, 5, d), normal(1, 34, d), normal(1, 34, d_v))


@both_kernels
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_dtypes(launch, kernel, dtype):
    launch(kernel)
    q, k, v = (normal(2, n, d, dtype=dtype) for n, d in ((17, 20), (33, 20), (33, 24)))
    check_forward(q, k, v, scale=-0.3)


@pytest.mark.parametrize("chunk", [16, 48, 112, 10_000])
@pytest.mark.parametrize("span", [32, 64, 128])
def test_chunks_and_spans(launch, chunk, span):
    launch(chunk=chunk, span=span, out_rows=16)
    check_forward(normal(2, 6, 17, 5), normal(2, 2, 70, 5), normal(2, 2, 70, 4), mask=rb.Mask.causal())


@pytest.mark.parametrize(("q", "k"), [((2, 3, 5, 4), (2, 3, 0, 4)), ((2, 3, 0, 4), (2, 3, 7, 4))])
def test_no_keys_or_no_queries(launch, q, k):
    launch()
    out, lse = interpreted.attention(normal(*q), normal(*k), normal(*k), return_lse=True)
    assert not out.any()
    assert (lse == -torch.inf).all()


@both_kernels
@pytest.mark.parametrize("span", [32, thorough(96)])
def test_softcap_bias_and_sinks(launch, kernel, span):
    launch(kernel, span=span)
    q, k, v = normal(2, 4, 19, 5), normal(2, 2, 70, 5), normal(2, 2, 70, 4)
    sinks = torch.tensor([-1.0, 0.5, -torch.inf, 20.0], device=q.device)
    check_forward(q, k, v, softcap=0.7, scale=2.0)
    check_forward(q, k, v, softcap=3.0, bias=normal(4, 19, 70), sinks=sinks, mask=rb.Mask.causal())
    check_forward(q, k, v, bias=normal(19, 70) > 0.5, sinks=sinks)


@both_kernels
def test_dropout_drops_the_same_pairs_as_on_the_cpu(launch, kernel):
    launch(kernel)
    check_forward(normal(2, 4, 19, 5), normal(2, 2, 70, 5), normal(2, 2, 70, 4), dropout=0.3, seed=3)


@both_kernels
@pytest.mark.parametrize("mask", SPARSE.values(), ids=SPARSE)
def test_listed_masks(launch, kernel, mask):
    launch(kernel)
    n = 48 if mask is SPARSE["blocks"] else 37
    check_forward(
        normal(1, 6, n, 5), normal(1, 2, n, 5), normal(1, 2, n, 4), mask=mask
    )  # so that a block holds rows of three heads


@pytest.mark.parametrize("span", [128, 384])
def test_listed_masks_in_tiles_of_several_words(launch, span):
    launch(rows=64, cols=128, depth=64, out_rows=32, chunk=64, span=span)
    mask = rb.Mask.from_dense(np.random.default_rng(0).random((150, 280)) < 0.5) | rb.Mask.blocks(
        [[True, False, False]], (150, 100)
    )
    check_forward(normal(1, 150, 5), normal(1, 280, 5), normal(1, 280, 4), mask=mask)


def test_scores_that_overflow_a_naive_exponential(launch):
    launch(span=96)
    q, k, v = (normal(1, n, 20, dtype=torch.float32) for n in (17, 70, 70))
    check_forward(q * 1e3, k, v, scale=1.0)


@interpreted_only
@both_kernels
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("edges", [{}, {"span": 128, "out_rows": 16, "rows": 32}, {"rows": 32, "depth": 32}], ids=str)
def test_words_equal_the_schedules_count(launch, kernel, mask, edges):
    launch(kernel, **edges)
    problem = rb.Problem(21, keys_seen(mask, 21, 70), 37, 20, heads=3, kv_heads=1, mask=mask)
    q, k, v = normal(3, 21, 37), normal(1, 70, 37), normal(1, 70, 20)
    with counting() as tally:
        interpreted.attention(q, k, v, mask=mask)
    expected = schedules.get(kernel).cost(problem, TILES._replace(**edges))
    assert (tally.total().reads, tally.total().writes) == (expected.reads, expected.writes)
