"""Tests on a real GPU: TRITON_INTERPRET=0 python -m pytest tests/kernels/gpu/test_device_*.py, as `make gpu` does.

They compare values and gradients of every option with float64. The other files test PyTorch's functions and transforms,
and streams, CUDA graphs and several devices.
"""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import redblue as rb
from redblue.base.integers import ceil_div
from redblue.kernels.gpu import replay
from redblue.kernels.gpu.planning import tune
from redblue.kernels.gpu.planning.card import card_of, planning_for
from redblue.kernels.gpu.planning.footprints import KERNELS
from redblue.kernels.gpu.planning.plan import plan
from redblue.kernels.sizes import Sizes
from redblue.op.pytorch.paged import gpu as paged_gpu
from support.on_device import MASKS, N_K, N_Q, ON_GPU, TOLERANCE, check, check_close, normal
from support.textbook import textbook

pytestmark = ON_GPU


@pytest.mark.parametrize(
    ("d", "d_v"),
    [(16, 16), (40, 40), (64, 64), (80, 80), (128, 128), (192, 128), (256, 256), (320, 320), (512, 512), (576, 512)],
)
def test_head_dimensions(d, d_v):
    check(normal(1, 2, N_Q, d), normal(1, 1, N_K, d), normal(1, 1, N_K, d_v), mask=rb.Mask.causal())


@pytest.mark.parametrize("d", [1024, 2048, 4112])
def test_head_dimensions_beyond_shared_memory(d):
    check(normal(1, 1, 150, d), normal(1, 1, 200, d), normal(1, 1, 200, d))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_masks_in_every_dtype(mask, dtype):
    q, k, v = (normal(2, h, n, 64, dtype=dtype) for h, n in ((4, N_Q), (2, N_K), (2, N_K)))
    check(q, k, v, mask=mask)


@pytest.mark.parametrize("d", [64, 512])
def test_every_option_at_once(d):
    bias, sinks = normal(4, 1, N_K, dtype=torch.float32), normal(4, dtype=torch.float32)
    q, k, v = normal(2, 4, N_Q, d), normal(2, 2, N_K, d), normal(2, 2, N_K, d)
    check(q, k, v, bias, sinks, bias=bias, sinks=sinks, softcap=5.0, scale=0.2, mask=MASKS["documents"])


def test_dropout_drops_the_same_pairs_as_on_the_cpu():
    q, k, v = (normal(2, 2, n, 64, grad=False) for n in (N_Q, N_K, N_K))
    out = rb.attention(q, k, v, dropout=0.3, seed=11)
    check_close(out, rb.attention(q.cpu(), k.cpu(), v.cpu(), dropout=0.3, seed=11), torch.float16)


@pytest.mark.parametrize("n_q", [0, 1, 3])
@pytest.mark.parametrize("n_k", [0, 1, 5000])
def test_few_or_no_queries_and_keys(n_q, n_k):
    q, k, v = normal(2, 8, n_q, 128), normal(2, 2, n_k, 128), normal(2, 2, n_k, 128)
    if n_q and n_k:
        check(q, k, v)
        return
    out, lse = rb.attention(q, k, v, return_lse=True)
    assert not out.any()
    assert (lse == -torch.inf).all()
    for gradient in torch.autograd.grad(out, (q, k, v), torch.ones_like(out)):
        assert not gradient.any()


def test_strided_inputs():
    q = normal(2, N_Q, 4, 64, grad=False).transpose(1, 2).requires_grad_()
    k = normal(2, 4, 64, N_K, grad=False).mT.requires_grad_()
    v = normal(1, 1, N_K, 128, grad=False)[..., ::2].expand(2, 4, N_K, 64).requires_grad_()
    check(q, k, v)
    assert rb.attention(q, k, v).stride() == q.stride()


def test_offsets_beyond_two_to_the_31():
    rows, step = 300, 2**23
    if torch.cuda.mem_get_info()[0] < 3 * 2 * rows * step:
        pytest.skip("needs 15 GB of GPU memory")
    k = torch.empty(rows * step, dtype=torch.float16, device="cuda").as_strided((1, 1, rows, 64), (0, 0, step, 1))
    k.copy_(torch.randn(1, 1, rows, 64))
    q, v = normal(1, 1, 100, 64, grad=False), normal(1, 1, rows, 64, grad=False)
    check_close(rb.attention(q, k, v), rb.attention(q, k.contiguous(), v), q.dtype)
    check_close(rb.attention(q, v, k), rb.attention(q, v, k.contiguous()), q.dtype)


@pytest.mark.parametrize("d", [64, 512])
def test_output_gradients_with_strides_of_0(d):
    q, k, v = (normal(2, 2, n, d) for n in (N_Q, N_K, N_K))
    out = rb.attention(q, k, v)
    ones = torch.ones_like(out)
    expanded = ones[:1, :1, :1, :1].expand_as(out)
    contiguous_and_expanded = (torch.autograd.grad(out, (q, k, v), x, retain_graph=True) for x in (ones, expanded))
    for x, y in zip(*contiguous_and_expanded, strict=True):
        check_close(x, y, q.dtype)  # other kernels may run: TMA cannot read an array with a stride of 0


@pytest.mark.parametrize("schedule", ["flash", "hybrid", "small_cache"])
@pytest.mark.parametrize("scale", [1e20, -1e30])
def test_a_dominant_score_gets_weight_1(scale, schedule):
    """This holds even if the compiler fuses products and sums.

    Only dV is checked; dQ and dK are only rounding errors.
    """
    q, k, v = (normal(1, 2, n, 64, dtype=torch.float32) for n in (N_Q, N_K, N_K))
    out = rb.attention(q, k, v, scale=scale, mask=MASKS["blocks"], schedule=schedule)
    doubles = [x.detach().cpu().double().requires_grad_() for x in (q, k, v)]
    expected = textbook(*doubles, scale=scale, mask=MASKS["blocks"])
    check_close(out, expected, q.dtype)
    dout = torch.randn_like(out)
    (dv,), (reference,) = (
        torch.autograd.grad(out, v, dout),
        torch.autograd.grad(expected, doubles[2], dout.double().cpu()),
    )
    check_close(dv, reference, q.dtype)


def test_two_runs_are_bitwise_equal():
    q, k, v = (normal(2, 2, n, 64) for n in (N_Q, N_K, N_K))

    def results():
        out = rb.attention(q, k, v, mask=MASKS["blocks"])
        return (out, *torch.autograd.grad(out.float().sin().sum(), (q, k, v)))

    assert all(torch.equal(x, y) for x, y in zip(results(), results(), strict=True))


def max_allocated_bytes(n, d, card):
    """Return the most bytes that a 16-bit call of one head may allocate, by its plan."""
    spilled = []
    for direction in ("forward", "backward"):
        launch = plan(direction, Sizes((1,), 1, 1, n, n, d, d), "float16", card)
        tiles = ceil_div(n, launch.tiles.cols)  # per row; each has a float32 maximum, as has each of the fewer spans
        spilled.append(launch.chunk * (n * 2 * KERNELS[launch.kernel, direction].spilled + 2 * 4 * tiles))
    results = n * d * (2 * 6 + 4 * 2)  # out, dout, dq, dk, dv and a copy of one; sums of dK and dV
    return max(spilled) + results + n * 4 * 4


def test_memory_is_far_below_that_of_all_scores():
    n, d = 1 << 17, 512
    q, k, v = (normal(1, 1, n, d) for _ in range(3))
    max_bytes = max_allocated_bytes(n, d, card_of(q.device))
    assert max_bytes < n * n / 2  # a quarter of the scores in 16 bits
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    rb.attention(q, k, v).sum().backward()
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before <= max_bytes


def test_tuned_launches_are_correct_and_stored(monkeypatch, tmp_path):
    torch.use_deterministic_algorithms(False)
    monkeypatch.setenv("REDBLUE_TUNE", "1")
    monkeypatch.setattr(tune.platformdirs, "user_cache_path", lambda name: tmp_path / name)
    tune.forget()
    q, k, v = (normal(1, 2, n, 64) for n in (N_Q, N_K, N_K))
    check(q, k, v, mask=rb.Mask.causal())
    stored = list(tmp_path.rglob("*.json"))
    assert len(stored) == 2
    check(q, k, v, mask=rb.Mask.causal())
    tune.forget()


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("d", [64, 128, 256, 512])
def test_replayed_calls(d, mask, deterministic):
    """Calls with other tensors of the same shapes. So many heads occupy the card, as kernels for Hopper require."""
    torch.use_deterministic_algorithms(deterministic)
    replay.forget()
    for _ in range(3):
        check(normal(1, 24, 600, d), normal(1, 12, 600, d), normal(1, 12, 600, d), mask=MASKS[mask])
        assert len(replay._kept) == 2
    q, k, v = (normal(1, 2, n, d) for n in (1, 5000, 5000))
    for _ in range(2):
        check(q, k, v)
        q, k, v = (torch.randn_like(x).requires_grad_() for x in (q, k, v))


@pytest.mark.parametrize("on_device", [True, False])
def test_replayed_calls_on_pages(on_device):
    lengths = [700, 0, 33, 2049]
    table = torch.randperm(4 * 129).view(4, 129)
    for number in range(3):
        q = normal(4, 1, 8, 64, grad=False)
        keys, values = normal(2, 4 * 129, 16, 2, 64, grad=False)
        given = table.cuda() if on_device else table
        out = rb.attention_paged(q, keys, values, given, lengths)
        assert paged_gpu.replays.kept
        for b, n in enumerate(lengths):
            k, v = (x[table[b].cuda()].flatten(0, 1)[:n].transpose(0, 1)[None] for x in (keys, values))
            check_close(out[b : b + 1].transpose(1, 2), rb.attention(q[b : b + 1].transpose(1, 2), k, v), q.dtype)
        lengths[2] += number  # the last two calls have other lengths


def test_a_card_with_less_shared_memory():
    q, k, v = (normal(1, 1, n, 256) for n in (200, 300, 300))
    with planning_for(card_of(q.device)._replace(shared_bytes=48 << 10)):
        check(q, k, v)
