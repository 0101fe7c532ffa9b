"""ALiBi in the GPU kernels: under Triton's interpreter, or, with TRITON_INTERPRET=0, on a GPU."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import redblue as rb
from redblue.op.pytorch import interpreted
from support.examples import thorough
from support.gpu import DEVICE, MASKS, SPARSE, check_close, interpreted_only, normal
from support.textbook import textbook

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter also computes masked lanes
    pytest.mark.filterwarnings("ignore:.torch.jit.script"),
]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def slopes(*shape):
    return torch.rand(shape, dtype=torch.float64, device=DEVICE) / 4


def check(q, k, v, *more, schedule="auto", **options):
    """Check outputs, and gradients of q, k, v and `more`, against float64."""
    inputs = q, k, v, *more
    got = interpreted.attention(q, k, v, return_lse=True, schedule=schedule, **options)
    expected = textbook(q, k, v, return_lse=True, **options)
    douts = [torch.randn_like(x) for x in got]
    gradients = (torch.autograd.grad(outputs, inputs, douts) for outputs in (got, expected))
    for x, y in (*zip(got, expected, strict=True), *zip(*gradients, strict=True)):
        check_close(x, y, q.dtype)


@pytest.mark.parametrize(("schedule", "shape"), [("flash", (2, 4)), ("hybrid", (4,)), ("small_cache", (2, 1))])
def test_every_schedule_and_shape_of_slopes(schedule, shape):
    q, k, v = normal(2, 4, 19, 8), normal(2, 2, 37, 8), normal(2, 2, 37, 5)
    check(q, k, v, alibi=slopes(*shape), schedule=schedule, mask=rb.Mask.causal(align="bottom-right"))


@pytest.mark.parametrize(
    ("schedule", "mask"),
    [("flash", MASKS[4]), ("flash", SPARSE["causal documents"]), ("hybrid", SPARSE["documents"])],
)
def test_with_masks(schedule, mask):
    q, k, v = normal(1, 2, 37, 8), normal(1, 1, 37, 8), normal(1, 1, 37, 8)
    check(q, k, v, alibi=slopes(2), mask=mask, schedule=schedule)


@pytest.mark.parametrize("schedule", ["flash", "small_cache"])
def test_with_bias_softcap_and_sinks(schedule):
    q, k, v = normal(1, 4, 9, 8), normal(1, 2, 21, 8), normal(1, 2, 21, 8)
    bias, sinks = normal(4, 9, 21), normal(4)
    check(q, k, v, bias, sinks, bias=bias, sinks=sinks, softcap=2.0, alibi=slopes(1, 4), schedule=schedule)


@interpreted_only
@pytest.mark.parametrize("n_q", [thorough(1), 3])
def test_few_queries(n_q):
    q, k, v = normal(2, 4, n_q, 16), normal(2, 2, 150, 16), normal(2, 2, 150, 16)
    check(q, k, v, alibi=slopes(2, 4))


def test_leading_dimensions_that_cannot_be_joined():
    q, k = normal(2, 3, 2, 9, 8), normal(2, 1, 2, 11, 8)
    check(q, k, k, alibi=slopes(2, 3, 2))
    check(q, k, k, alibi=slopes(3, 1))
