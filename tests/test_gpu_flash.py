"""The Triton kernels of `flash` against float64: under Triton's interpreter, or, with TRITON_INTERPRET=0, on a GPU."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import redblue as rb  # noqa: E402
from redblue.kernels import gpu  # noqa: E402
from redblue.kernels.gpu import call  # noqa: E402
from redblue.kernels.gpu.plan import Launch  # noqa: E402
from redblue.schedules import flash  # noqa: E402
from test_torch_op import TOLERANCE, check_close, textbook  # noqa: E402

DEVICE = "cpu" if call.knobs.runtime.interpret else "cuda"
# The interpreter computes lanes that are masked off, too
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

TILES = {"forward": flash.ForwardTiles(16, 16), "backward": flash.BackwardTiles(16, 16, 16, 16)}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(call, "plan", lambda direction, *_: Launch("flash", TILES[direction]))


@pytest.fixture(autouse=True)
def nan_in_new_memory():
    """What a kernel does not write is NaN."""
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    yield
    torch.use_deterministic_algorithms(False)


def normal(*shape, dtype=torch.float64, grad=False):
    return torch.randn(shape, dtype=dtype, device=DEVICE, requires_grad=grad)


def check_forward(q, k, v, **options):
    got = gpu.attention(q, k, v, **options, return_lse=True)
    expected = textbook(q, k, v, **options, return_lse=True)
    for x, y in zip(got, expected, strict=True):
        check_close(x, y, q.dtype)
    return got


MASKS = [
    rb.Mask.full(),
    rb.Mask.causal(),
    rb.Mask.causal(align="bottom-right"),
    rb.Mask.sliding_window(5, 3),
    rb.Mask.sliding_window(20, 2, align="bottom-right"),
]


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("sizes", [(21, 37), (37, 21)], ids=str)
def test_bands(mask, sizes):
    n_q, n_k = sizes
    check_forward(normal(1, 3, n_q, 5), normal(1, 1, n_k, 5), normal(1, 1, n_k, 4), mask=mask)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_types(dtype):
    q, k, v = normal(2, 17, 9, dtype=dtype), normal(2, 33, 9, dtype=dtype), normal(2, 33, 24, dtype=dtype)
    out, lse = check_forward(q, k, v, scale=-0.3)
    assert out.dtype == dtype
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize(("d", "d_v"), [(1, 16), (16, 17), (40, 33), (80, 72), (72, 48)])
def test_head_dimensions(d, d_v):
    check_forward(normal(1, 5, d), normal(1, 18, d), normal(1, 18, d_v))


@pytest.mark.parametrize(
    ("q", "k"),
    [
        ((5, 3), (7, 3)),
        ((2, 3, 1, 5, 3), (2, 3, 1, 7, 3)),
        ((2, 2, 5, 3), (2, 1, 1, 7, 3)),
        ((2, 2, 2, 5, 3), (2, 1, 1, 7, 3)),  # leading dimensions that are no one dimension
        ((2, 3, 0, 4), (2, 3, 7, 4)),
        ((2, 3, 5, 4), (2, 3, 0, 4)),
        ((0, 3, 5, 4), (0, 3, 7, 4)),
    ],
)
def test_shapes(q, k):
    if 0 in q or 0 in k:
        out, lse = gpu.attention(normal(*q), normal(*k), normal(*k), return_lse=True)
        assert not out.any()
        assert (lse == -torch.inf).all()
    else:
        check_forward(normal(*q), normal(*k), normal(*k))


def test_strides_are_read_in_place():
    q = normal(2, 5, 3, 8).transpose(1, 2)
    k = normal(2, 3, 4, 19).mT
    v = normal(1, 1, 19, 8)[..., ::2].expand(2, 3, 19, 4)
    out, _ = check_forward(q[..., ::2], k, v)
    assert out.stride() == q.new_empty(2, 5, 3, 4).transpose(1, 2).stride()


@pytest.mark.skipif(DEVICE == "cuda", reason="of CPU tensors")
def test_the_interpreter_must_be_on(monkeypatch):
    monkeypatch.setattr(call.knobs.runtime, "interpret", False)
    with pytest.raises(rb.RedblueError, match="TRITON_INTERPRET=1"):
        gpu.attention(normal(2, 3), normal(2, 3), normal(2, 3))
