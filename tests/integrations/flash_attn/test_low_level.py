"""The separate passes that ring-flash-attn, yunchang and diffusers call, against autograd and float64."""

import inspect

import pytest

torch = pytest.importorskip("torch")

from redblue import RedblueError
from redblue.integrations.flash_attn import flash_attn_func, flash_attn_varlen_func, low_level
from support.flash_reference import check_close, gradients, reference

# The parameters of flash-attn 2.8, which callers read with inspect
BATCHED = "dropout_p softmax_scale causal window_size_left window_size_right softcap alibi_slopes"
SEQUENCES = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
PARAMETERS = {
    "_flash_attn_forward": f"q k v {BATCHED} return_softmax",
    "_flash_attn_backward": f"dout q k v out softmax_lse dq dk dv {BATCHED} deterministic rng_state",
    "_flash_attn_varlen_forward": f"q k v {SEQUENCES} {BATCHED} return_softmax block_table leftpad_k seqused_k "
    "zero_tensors",
    "_flash_attn_varlen_backward": f"dout q k v out softmax_lse dq dk dv {SEQUENCES} {BATCHED} deterministic rng_state "
    "zero_tensors",
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_of_flash_attn(name):
    assert inspect.getfullargspec(getattr(low_level, name)).args == PARAMETERS[name].split()


def normal(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def options(causal=False, left=-1, right=-1, share=0.0, softcap=0.0, slopes=None):
    return share, 0.3, causal, left, right, softcap, slopes


@pytest.mark.parametrize("slopes", [None, torch.tensor([0.1, 0.2, 0.3, 0.4])])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_both_passes_are_those_of_autograd(share, slopes):
    q, k, v, dout = normal(2, 9, 4, 8, seed=0), normal(2, 12, 2, 8, seed=1), normal(2, 12, 2, 8, seed=2), None
    asked = options(causal=True, left=7, share=share, softcap=4.0, slopes=slopes)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    torch.manual_seed(3)
    expected, expected_lse, s = flash_attn_func(*leaves, share, 0.3, True, (7, -1), 4.0, slopes, False, True)
    torch.manual_seed(3)
    out, lse, s_dmask, rng_state = low_level._flash_attn_forward(q, k, v, *asked, share > 0)
    assert all(torch.equal(a, b) for a, b in ((out, expected), (lse, expected_lse), (s, s_dmask)))
    assert rng_state.shape == (2,)
    dout = normal(*out.shape, seed=5)
    right = torch.autograd.grad(expected, leaves, dout)
    wide = torch.full((2, 20, 4, 8), float("nan"))
    dq, dk, dv = wide[:, :9], torch.empty_like(k), torch.empty_like(v)
    delta = low_level._flash_attn_backward(dout, q, k, v, out, lse, dq, dk, dv, *asked, False, rng_state)
    for got, exact in zip((dq, dk, dv), right, strict=True):
        assert torch.equal(got, exact)
    assert wide[:, 9:].isnan().all()
    check_close(delta, (dout * out).sum(-1).transpose(1, 2), torch.float32)
    low_level._flash_attn_backward(dout, q, k, v, out, lse, None, None, dv.zero_(), *asked, False, rng_state)
    assert torch.equal(dv, right[2])


def test_gradients_of_a_part_of_the_keys_follow_from_the_merged_outputs():
    """The step of a ring: outputs of two blocks are merged, each block's gradients come from the merged outputs."""
    q, k, v, dout = (normal(2, 10, 4, 8, seed=seed).requires_grad_() for seed in range(4))
    expected, expected_lse = reference(q, k, v, softmax_scale=0.3)
    right = gradients(expected, [q, k, v])
    q, k, v, dout = (x.detach() for x in (q, k, v, dout))
    dout = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).float()
    blocks = [slice(0, 3), slice(3, 10)]
    parts = [low_level._flash_attn_forward(q, k[:, own], v[:, own], *options(), False) for own in blocks]
    lse = torch.logaddexp(parts[0][1], parts[1][1])
    out = sum((part[1] - lse).exp().transpose(1, 2)[..., None] * part[0] for part in parts)
    check_close(out, expected, torch.float32)
    check_close(lse, expected_lse, torch.float32)
    dq, got = torch.zeros_like(q), [torch.empty_like(q) for _ in range(3)]
    for own in blocks:
        part = got[0], got[1][:, own], got[2][:, own]
        low_level._flash_attn_backward(dout, q, k[:, own], v[:, own], out, lse, *part, *options(), False)
        dq += got[0]
    for result, other in zip((dq, got[1], got[2]), right, strict=True):
        check_close(result, other, torch.float32)


@pytest.mark.parametrize("infinity", [float("inf"), -float("inf")])
def test_rows_without_keys_have_no_gradient(infinity):
    q, k, v, dout = normal(1, 6, 2, 8, seed=0), normal(1, 2, 2, 8, seed=1), normal(1, 2, 2, 8, seed=2), None
    out, lse, _, _ = low_level._flash_attn_forward(q, k, v, *options(causal=True), False)
    assert (lse[:, :, :4] == -float("inf")).all()
    lse[:, :, :4] = infinity  # flash-attn's unsplit kernel marks these rows with +inf
    dout = normal(*out.shape, seed=3)
    got = [torch.full_like(x, float("nan")) for x in (q, k, v)]
    low_level._flash_attn_backward(dout, q, k, v, out, lse, *got, *options(causal=True), False)
    assert not got[0][:, :4].any()
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    expected, _ = reference(*leaves, causal=True, softmax_scale=0.3)
    for gradient, other in zip(got, torch.autograd.grad(expected, leaves, dout.double()), strict=True):
        check_close(gradient, other, torch.float32)


STARTS, KEY_STARTS = torch.tensor([0, 5, 5, 12, 15]), torch.tensor([0, 8, 11, 11, 14])


@pytest.mark.parametrize("slopes", [None, torch.linspace(0.1, 0.4, 4), torch.linspace(0.1, 0.8, 16).reshape(4, 4)])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_packed_passes_are_those_of_autograd(share, slopes):
    q, k, v = normal(17, 4, 8, seed=0), normal(16, 2, 8, seed=1), normal(16, 2, 8, seed=2)
    sequences = STARTS, KEY_STARTS, 7, 8
    asked = options(causal=True, share=share, slopes=slopes)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    torch.manual_seed(3)
    expected = flash_attn_varlen_func(*leaves, *sequences, share, 0.3, True, (-1, -1), 0.0, slopes, False, True)
    torch.manual_seed(3)
    out, lse, s_dmask, rng_state = low_level._flash_attn_varlen_forward(q, k, v, *sequences, *asked, share > 0)
    assert all(torch.equal(a, b) for a, b in zip((out, lse, s_dmask), expected, strict=True))
    dout = normal(*out.shape, seed=5)
    right = torch.autograd.grad(expected[0], leaves, dout)
    got = [torch.full_like(x, float("nan")) for x in (q, k, v)]
    delta = low_level._flash_attn_varlen_backward(dout, q, k, v, out, lse, *got, *sequences, *asked, False, rng_state)
    for gradient, other in zip(got, right, strict=True):
        assert torch.equal(gradient, other)
    check_close(delta[:, :15], (dout * out).sum(-1).T[:, :15], torch.float32)


def test_used_and_padded_keys_of_packed_sequences():
    q, k, v = normal(15, 4, 8, seed=0), normal(14, 2, 8, seed=1), normal(14, 2, 8, seed=2)
    used, first = torch.tensor([6, 3, 0, 2]), torch.tensor([1, 3, 0, 0])
    run = low_level._flash_attn_varlen_forward
    out, lse, _, _ = run(
        q, k, v, STARTS, KEY_STARTS, 7, 8, *options(causal=True), False, seqused_k=used, leftpad_k=first
    )
    rows = torch.cat([torch.arange(KEY_STARTS[i] + first[i], KEY_STARTS[i] + used[i]) for i in range(4)])
    starts = torch.nn.functional.pad((used - first).cumsum(0), (1, 0))
    expected = run(q, k[rows], v[rows], STARTS, starts, 7, 8, *options(causal=True), False)
    assert torch.equal(out, expected[0])
    assert torch.equal(lse, expected[1])


def test_nothing_records_gradients():
    q = normal(1, 3, 2, 8, seed=0).requires_grad_()
    out, lse, *_ = low_level._flash_attn_forward(q, q, q, *options(), False)
    assert not out.requires_grad
    assert not lse.requires_grad


def test_dropout_without_the_seed_is_refused():
    q = normal(1, 3, 2, 8, seed=0)
    out, lse, *_ = low_level._flash_attn_forward(q, q, q, *options(share=0.5), False)
    with pytest.raises(RedblueError, match="rng_state must be the result of the forward pass if dropout_p is above 0"):
        low_level._flash_attn_backward(out, q, q, q, out, lse, None, None, None, *options(share=0.5), False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seqused_k": [9, 0, 0, 0]}, r"seqused_k must be 0 to the sequence's length, \[8, 3, 0, 3\], got"),
        ({"leftpad_k": [9, 0, 0, 0]}, r"leftpad_k must be 0 to the sequence's used keys, \[8, 3, 0, 3\], got"),
        ({"leftpad_k": [0]}, "leftpad_k must have one entry for each of 4 sequences, got 1"),
        ({"zero_tensors": 2}, "zero_tensors must be True or False"),
    ],
)
def test_bad_input_is_named(arguments, message):
    q, k = torch.zeros(15, 2, 8), torch.zeros(14, 2, 8)
    with pytest.raises(RedblueError, match=message):
        low_level._flash_attn_varlen_forward(q, k, k, STARTS, KEY_STARTS, 7, 8, *options(), False, **arguments)
