"""torch.nn.attention.varlen on the CPU, through redblue's kernels for the ops that it calls."""

import pytest

torch = pytest.importorskip("torch")
varlen = pytest.importorskip("torch.nn.attention.varlen")

import inspect

import redblue as rb
from redblue.op.pytorch.usage import Usage

PARAMETERS = inspect.signature(varlen.varlen_attn).parameters
STARTS = torch.tensor([0, 5, 5, 12, 20], dtype=torch.int32)
GROUPED = {"enable_gqa": True} if "enable_gqa" in PARAMETERS else {}


def needs(option):
    return pytest.mark.skipif(option not in PARAMETERS, reason=f"this PyTorch's varlen_attn has no {option}")


def inputs(kv_heads=4):
    torch.manual_seed(0)
    return tuple(torch.randn(20, heads, 16, requires_grad=True) for heads in (4, kv_heads, kv_heads))


def attend(q, k, v, *options, function=varlen.varlen_attn, **more):
    return function(q, k, v, STARTS, STARTS, 8, 8, *options, **more)


def ours(q, k, v, mask=None, **options):
    return rb.attention_varlen(q, k, v, STARTS, mask=mask, **options)


def same(got, wanted, tensors):
    assert (got - wanted).abs().max() < 2e-6
    for x, y in zip(*(torch.autograd.grad(out.sin().sum(), tensors) for out in (got, wanted)), strict=True):
        assert (x - y).abs().max() < 2e-6


def causal(left=None):
    """The option that makes varlen_attn causal: is_causal in older versions, window_size in newer ones."""
    if "window_size" in PARAMETERS:
        return {"window_size": (-1 if left is None else left, 0)}
    return {"is_causal": True}


def test_gradients():
    q, k, v = inputs()
    with rb.flash_ops() as used:
        same(attend(q, k, v, scale=0.3) if "scale" in PARAMETERS else attend(q, k, v), ours(
            q, k, v, scale=0.3 if "scale" in PARAMETERS else None), (q, k, v))  # fmt: skip
        same(attend(q, k, v, **causal()), ours(q, k, v, rb.Mask.causal()), (q, k, v))
    assert used == Usage(2)


@needs("window_size")
@needs("enable_gqa")
def test_windows_and_grouped_heads():
    q, k, v = inputs(kv_heads=2)
    with rb.flash_ops():
        for left, right in ((2, 0), (3, 1), (-1, 2)):
            window = rb.Mask.sliding_window(None if left < 0 else left, right)
            same(attend(q, k, v, window_size=(left, right), **GROUPED), ours(q, k, v, window), (q, k, v))


def test_lse():
    q, k, v = inputs()
    with rb.flash_ops():
        _, lse = attend(q, k, v, return_aux=varlen.AuxRequest(lse=True), **causal())
    _, wanted = ours(q, k, v, rb.Mask.causal(), return_lse=True)
    assert (lse - wanted).abs().max() < 2e-6


@needs("block_table")
@torch.no_grad()
def test_pages():
    q, pool, values = torch.randn(20, 4, 16), torch.randn(7, 4, 2, 16), torch.randn(7, 4, 2, 16)
    table, used = torch.tensor([[3, 1], [0, 0], [5, 2], [6, 4]]), torch.tensor([7, 0, 5, 8])
    k, v = (torch.cat([x[row].flatten(0, 1)[:n] for row, n in zip(table, used, strict=True)]) for x in (pool, values))
    starts = torch.cat((torch.zeros(1, dtype=torch.int64), used.cumsum(0)))
    mask = rb.Mask.causal(align="bottom-right")
    wanted = rb.attention_varlen(q, k, v, STARTS, starts, mask=mask)
    with rb.flash_ops():
        paged = {"seqused_k": used.int(), "block_table": table.int(), "window_size": (-1, 0), **GROUPED}
        for key_starts in (None, starts.int()):
            got = varlen.varlen_attn(q, pool, values, STARTS, key_starts, 8, 8, **paged)
            assert (got - wanted).abs().max() < 2e-6


@pytest.mark.skipif(not hasattr(varlen, "varlen_attn_out"), reason="this PyTorch has no varlen_attn_out")
@torch.no_grad()
def test_into_a_given_output():
    q, k, v = inputs()
    out = torch.full((20, 4, 16), torch.nan)
    with rb.flash_ops() as used:
        result = varlen.varlen_attn_out(out, q, k, v, STARTS, STARTS, 8, 8, window_size=(-1, 0))
        assert result is out or torch.equal(result, out)
        assert torch.equal(out, attend(q, k, v, **causal()))
        with pytest.raises(rb.RedblueError, match="out must be"):
            torch.ops.aten._flash_attention_forward_no_dropout_inplace(
                out[1:], q, k, v, STARTS, STARTS, 8, 8, 0.0, False, False
            )
        with pytest.raises(rb.RedblueError, match="dropout_p must be 0"):
            torch.ops.aten._flash_attention_forward_no_dropout_inplace(
                out, q, k, v, STARTS, STARTS, 8, 8, 0.5, False, False
            )
    assert (used.served, used.refused) == (2, 2)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # warnings of PyTorch's compiler
def test_compiled():
    q, k, v = inputs()

    def model(q, k, v):
        return attend(2 * q, k, v, **causal()).sin()

    with rb.flash_ops():
        same(torch.compile(model, fullgraph=True, backend="aot_eager")(q, k, v), model(q, k, v), (q, k, v))


@pytest.mark.thorough
def test_checkpointed_and_bfloat16():
    """The call of torchtitan's varlen backend: bfloat16, and recomputed in the backward pass."""
    q, k, v = (x.detach().bfloat16().requires_grad_() for x in inputs())
    run = lambda q, k, v: attend(q, k, v, **causal())  # noqa: E731
    with rb.flash_ops():
        wanted = torch.autograd.grad(run(q, k, v).float().square().sum(), (q, k, v))
        out = torch.utils.checkpoint.checkpoint(run, q, k, v, use_reentrant=False)
        for x, y in zip(torch.autograd.grad(out.float().square().sum(), (q, k, v)), wanted, strict=True):
            assert torch.equal(x, y)
