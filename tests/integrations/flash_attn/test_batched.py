"""Padded batches against float64: outputs, log-sum-exps and gradients."""

import math

import pytest

torch = pytest.importorskip("torch")

from redblue import RedblueError
from redblue.integrations.flash_attn import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    probabilities,
)
from support.flash_reference import OPTIONS, case, check_close, gradients, reference, with_slopes


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_number_types(dtype):
    tensors, options = case(33, 41, dtype), with_slopes(OPTIONS["all"])
    out = flash_attn_func(*tensors, **options)
    expected, _ = reference(*tensors, **options)
    assert out.dtype == dtype
    check_close(out, expected, dtype)
    for got, right in zip(gradients(out, tensors), gradients(expected, tensors), strict=True):
        check_close(got, right, dtype)


@pytest.mark.parametrize(
    "sizes", [{"kv_heads": 1}, {"kv_heads": 4}, {"d": 59}, {"d": 40, "d_v": 24}, {"batch": 0}, {"n_q": 0}, {"n_k": 0}]
)
def test_heads_widths_and_empty_batches(sizes):
    sizes = {"n_q": 9, "n_k": 14} | sizes
    tensors = case(**sizes)
    out, lse, _ = flash_attn_func(*tensors, causal=True, return_attn_probs=True)
    expected, expected_lse = reference(*tensors, causal=True)
    check_close(out, expected, torch.float32)
    check_close(lse, expected_lse, torch.float32)
    for got, right in zip(gradients(out, tensors), gradients(expected, tensors), strict=True):
        check_close(got, right, torch.float32)


def test_rows_without_keys_give_0_and_minus_infinity():
    tensors = case(6, 2)
    out, lse, _ = flash_attn_func(*tensors, causal=True, return_attn_probs=True)
    assert not out[:, :4].any()
    assert (lse[:, :, :4] == -math.inf).all()
    dq, _, _ = gradients(out, tensors)
    assert not dq[:, :4].any()


def test_tensors_of_any_strides():
    q, k, v = case(12, 12)
    wide = torch.stack([q, q], -1)[..., 0]  # with a stride in the last dimension
    turned = k.transpose(1, 2).contiguous().transpose(1, 2)
    assert not wide.is_contiguous()
    check_close(flash_attn_func(wide, turned, v), flash_attn_func(q, k, v), torch.float64)


@pytest.mark.parametrize("options", [OPTIONS["causal"], OPTIONS["all"]])
def test_packed_tensors(options):
    options = with_slopes(options)
    q, k, v = case(21, 21, kv_heads=4)
    expected = flash_attn_func(q, k, v, **options)
    right = gradients(expected, [q, k, v])
    qkv = torch.stack([q, k, v], 2).detach().requires_grad_()
    kv = torch.stack([k, v], 2).detach().requires_grad_()
    out = flash_attn_qkvpacked_func(qkv, **options)
    assert torch.equal(out, expected)
    (dqkv,) = gradients(out, [qkv])
    assert torch.equal(dqkv, torch.stack(right, 2))
    out = flash_attn_kvpacked_func(q, kv, **options)
    assert torch.equal(out, expected)
    dq, dkv = gradients(out, [q, kv])
    assert torch.equal(dq, right[0])
    assert torch.equal(dkv, torch.stack(right[1:], 2))


@pytest.mark.parametrize("options", [{}, OPTIONS["causal window"], OPTIONS["all"]])
def test_dropout_and_the_signs_of_s_dmask(options):
    options, share = with_slopes(options), 0.25
    tensors = case(70, 90)
    torch.manual_seed(0)
    out, _, s_dmask = flash_attn_func(*tensors, share, **options, return_attn_probs=True)
    assert s_dmask.shape == (2, 4, 128, 128)
    s_dmask = s_dmask[:, :, :70, :90]
    kept, attended = ~s_dmask.signbit(), s_dmask != 0
    assert abs(1 - kept[attended].double().mean() - share) < 0.02
    expected, _ = reference(*tensors, **options, kept=kept, dropout_p=share)
    check_close(out, expected, torch.float32)
    for got, right in zip(gradients(out, tensors), gradients(expected, tensors), strict=True):
        check_close(got, right, torch.float32)
    probabilities, lse = reference(
        tensors[0], tensors[1], torch.eye(90).expand(2, 2, 90, 90).transpose(1, 2), **options
    )
    check_close(s_dmask.abs().transpose(1, 2), probabilities, torch.float32)
    assert lse.isfinite().any()


def test_dropout_follows_pytorchs_generator():
    tensors = case(20, 20)
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(flash_attn_func(*tensors, dropout_p=0.5))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_large_scores_do_not_overflow():
    q, k, v = (x.detach() for x in case(67, 67, torch.float16))
    tensors = [x.requires_grad_() for x in (q * 30, k * 30, v)]
    out = flash_attn_func(*tensors, causal=True)
    expected, _ = reference(*tensors, causal=True)
    check_close(out, expected, torch.float16)
    for got, right in zip(gradients(out, tensors), gradients(expected, tensors), strict=True):
        assert got.isfinite().all()
        check_close(got, right, torch.bfloat16)  # they also have the rounding error of the log-sum-exp


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (1, 0, 3, 2), (3, 2, 1, 0)])
def test_gradients_of_outputs_with_any_strides(order):
    tensors = case(20, 30)
    out = flash_attn_func(*tensors, causal=True)
    dout = torch.randn(out.shape)
    undo = [order.index(i) for i in range(4)]
    strided = dout.permute(order).contiguous().permute(undo)
    right = torch.autograd.grad(out, tensors, dout, retain_graph=True)
    for got, exact in zip(torch.autograd.grad(out, tensors, strided), right, strict=True):
        check_close(got, exact, torch.float32)


def test_results_are_the_same_in_every_run():
    tensors = case(70, 90)
    runs = []
    for _ in range(3):
        out = flash_attn_func(*tensors, causal=True, deterministic=True)
        runs.append([out, *gradients(out, tensors)])
    assert all(torch.equal(a, b) for run in runs for a, b in zip(run, runs[0], strict=True))


def test_sinks_are_redblues():
    q, k, v = case(20, 30)
    sinks = torch.tensor([0.5, 2.0, -1.0, 0.0], requires_grad=True)
    out = flash_attn_func(q, k, v, causal=True, s_aux=sinks)
    plain, lse = reference(q, k, v, causal=True)
    expected = plain * (lse - sinks[:, None]).sigmoid().transpose(1, 2)[..., None]  # the share that the sink leaves
    check_close(out, expected, torch.float32)
    for got, right in zip(gradients(out, [q, sinks]), gradients(expected, [q, sinks]), strict=True):
        check_close(got, right, torch.float32)
    with pytest.raises(RedblueError, match=r"s_aux must be a tensor \(4,\), one sink for each head of q, got \(2,\)"):
        flash_attn_func(q, k, v, s_aux=sinks[:2])


def test_s_dmask_is_computed_in_parts_of_the_keys(monkeypatch):
    q, k, v = case(20, 30)
    results = []
    for columns in (7, 2048):
        monkeypatch.setattr(probabilities, "COLUMNS", columns)
        torch.manual_seed(0)
        results.append(flash_attn_func(q, k, v, 0.5, return_attn_probs=True)[2])
    assert torch.equal(results[0], results[1])


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_in_one_graph():
    tensors, options = case(20, 30), with_slopes(OPTIONS["all"])
    compiled = torch.compile(lambda *x: flash_attn_func(*x, **options), fullgraph=True, backend="aot_eager")
    out, expected = compiled(*tensors), flash_attn_func(*tensors, **options)
    assert torch.equal(out, expected)
    for got, right in zip(gradients(out, tensors), gradients(expected, tensors), strict=True):
        assert torch.equal(got, right)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter also computes masked lanes
@pytest.mark.filterwarnings("ignore:.torch.jit.script")
def test_the_kernels_for_gpus():
    pytest.importorskip("triton")
    from redblue.op.pytorch import interpreted

    tensors, options = case(20, 30), with_slopes(OPTIONS["all"])
    with interpreted.interpreted():
        out, lse, _ = flash_attn_func(*tensors, **options, return_attn_probs=True)
    expected, expected_lse = reference(*tensors, **options)
    check_close(out, expected, torch.float32)
    check_close(lse, expected_lse, torch.float32)
    for got, right in zip(gradients(out, tensors), gradients(expected, tensors), strict=True):
        check_close(got, right, torch.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(2, 5, 4)}, r"q must be \(batch, n, heads, d\), got shape \(2, 5, 4\)"),
        ({"q": None}, "q must be a PyTorch tensor, got NoneType"),
        ({"k": torch.zeros(1, 7, 2, 8)}, "k must have the batch of q, 2, got 1"),
        ({"k": torch.zeros(2, 7, 3, 8), "v": torch.zeros(2, 7, 3, 8)}, r"heads of q \(4\) must be a multiple"),
        ({"v": torch.zeros(2, 7, 1, 8)}, "v must have as many heads as k, 2, got 1"),
        ({"dropout_p": 1.0}, "dropout_p must be at least 0 and below 1, got 1.0"),
        ({"dropout_p": "x"}, "dropout_p must be a number, got 'x'"),
        ({"softmax_scale": math.nan}, "softmax_scale must be finite, got nan"),
        ({"softcap": -1.0}, "softcap must be above 0, or 0 or None for no softcap, got -1.0"),
        ({"causal": 1}, "causal must be True or False, got 1"),
        ({"deterministic": "yes"}, "deterministic must be True or False"),
        ({"return_attn_probs": 3}, "return_attn_probs must be True or False"),
        ({"window_size": 3}, r"window_size must be \(left, right\), -1 for no limit, got 3"),
        ({"window_size": (1, 2, 3)}, r"window_size must be \(left, right\)"),
        ({"window_size": (1.5, 0)}, r"window_size\[0\] must be a whole number, got 1.5"),
        ({"alibi_slopes": torch.zeros(2)}, r"alibi_slopes must be a tensor \(4,\) or \(2, 4\), got \(2,\)"),
        ({"alibi_slopes": torch.zeros(4, requires_grad=True)}, "alibi_slopes has no gradient: detach it"),
        ({"alibi_slopes": [1, 2, 3, 4]}, r"alibi_slopes must be a tensor .*, got list"),
        ({"alibi_slopes": torch.ones(4).long()}, "alibi_slopes must be of a floating-point type, got torch.int64"),
        ({"s_aux": torch.ones(4).long()}, "s_aux must be of a floating-point type, got torch.int64"),
    ],
)
def test_bad_input_is_named(change, message):
    arguments = {"q": torch.zeros(2, 5, 4, 8), "k": torch.zeros(2, 7, 2, 8), "v": torch.zeros(2, 7, 2, 8)} | change
    with pytest.raises(RedblueError, match=message):
        flash_attn_func(**arguments)


def test_packed_tensors_of_another_shape_are_named():
    with pytest.raises(RedblueError, match=r"qkv must be \(batch, n, 3, heads, d\), got shape \(2, 5, 2, 4, 8\)"):
        flash_attn_qkvpacked_func(torch.zeros(2, 5, 2, 4, 8))
    with pytest.raises(RedblueError, match=r"kv must be \(batch, n, 2, heads, d\), got shape \(2, 5, 4, 8\)"):
        flash_attn_kvpacked_func(torch.zeros(2, 5, 4, 8), torch.zeros(2, 5, 4, 8))
    with pytest.raises(TypeError, match="unexpected keyword argument 'scale'"):
        flash_attn_func(*case(2, 2), scale=1.0)
