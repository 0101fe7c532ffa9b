"""Tests on a real GPU: TRITON_INTERPRET=0 python -m pytest tests/kernels/gpu/test_device.py, as `make gpu` does.

They compare values and gradients of every option with float64, and use CUDA streams, CUDA graphs, torch.compile and
several devices.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import torch.nn.functional as F  # noqa: N812

import redblue as rb
from redblue.op.pytorch import gpu
from support.textbook import Seen, textbook

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU"),
    pytest.mark.skipif(triton.knobs.runtime.interpret, reason="Triton interprets: set TRITON_INTERPRET=0"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script"),
]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 6e-3, torch.bfloat16: 4e-2}
BLOCK_LAYOUT = np.random.default_rng(0).random((8, 11)) < 0.4
MASKS = {
    "full": None,
    "causal": rb.Mask.causal(),
    "window": rb.Mask.sliding_window(100, 20, align="bottom-right"),
    "documents": rb.Mask.documents([100, 33, 200, 1, 166], [200, 40, 160, 99, 201]) & rb.Mask.causal(),
    "blocks": rb.Mask.blocks(BLOCK_LAYOUT, 64),
}
N_Q, N_K = 500, 700


@pytest.fixture(autouse=True)
def nan_in_new_memory(monkeypatch):
    """Fill new memory with NaN, which shows in every element that a kernel does not write."""
    monkeypatch.setenv("REDBLUE_TUNE", "0")
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def normal(*shape, dtype=torch.float16, grad=True, device="cuda"):
    return torch.randn(shape, dtype=dtype, device=device, requires_grad=grad)


def check_close(got, expected, dtype):
    assert got.shape == expected.shape
    got, expected = got.detach().double().cpu(), expected.detach().double().cpu()
    finite = expected.isfinite()
    assert torch.equal(got[~finite], expected[~finite])
    size = max(1.0, float(expected[finite].abs().max())) if finite.any() else 1.0
    error = float((got - expected)[finite].abs().max()) if finite.any() else 0.0
    assert error <= TOLERANCE[dtype] * size, f"error {error:.2e} of {size:.2e}"


def check(q, k, v, *more, **options):
    """Check outputs and gradients against float64 on the CPU."""
    inputs = [x for x in (q, k, v, *more) if x.requires_grad]
    doubles = [x.detach().cpu().double().requires_grad_() for x in inputs]
    double_of = {id(x): y for x, y in zip(inputs, doubles, strict=True)}
    on_cpu = {name: double_of.get(id(x), x.cpu() if isinstance(x, torch.Tensor) else x) for name, x in options.items()}
    got = rb.attention(q, k, v, **options, return_lse=True)
    expected = textbook(*doubles[:3], **on_cpu, return_lse=True)
    for x, y in zip(got, expected, strict=True):
        check_close(x, y, q.dtype)
    douts = [torch.randn_like(x) for x in got]
    gradients = torch.autograd.grad(got, inputs, douts)
    references = torch.autograd.grad(expected, doubles, [x.double().cpu() for x in douts])
    for x, y in zip(gradients, references, strict=True):
        check_close(x, y, q.dtype)


# Values ------------------------------------------------------------------------------------------------------------


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
        assert torch.equal(x, y)


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
    from redblue.base.integers import ceil_div
    from redblue.kernels.cpu.call import Sizes
    from redblue.kernels.gpu.planning.footprints import KERNELS
    from redblue.kernels.gpu.planning.plan import plan

    spilled = []
    for direction in ("forward", "backward"):
        launch = plan(direction, Sizes((1,), 1, 1, n, n, d, d), "float16", card)
        tiles = ceil_div(n, launch.tiles.cols)  # per row; each has a float32 maximum, as has each of the fewer spans
        spilled.append(launch.chunk * (n * 2 * KERNELS[launch.kernel, direction].spilled + 2 * 4 * tiles))
    results = n * d * (2 * 6 + 4 * 2)  # out, dout, dq, dk, dv and a copy of one; sums of dK and dV
    return max(spilled) + results + n * 4 * 4


def test_memory_is_far_below_that_of_all_scores():
    from redblue.kernels.gpu.planning.card import card_of

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


# PyTorch -----------------------------------------------------------------------------------------------------------

SDPA = {
    "wide": ((1, 2, N_Q, 512), {}),
    "wide, causal": ((1, 2, N_Q, 512), {"is_causal": True}),
    "masked": ((1, 2, N_Q, 64), {"attn_mask": "bool"}),
    "added": ((1, 2, N_Q, 64), {"attn_mask": "float"}),
    "plain": ((2, 2, N_Q, 64), {}),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(("shape", "options"), SDPA.values(), ids=SDPA)
def test_scaled_dot_product_attention_is_replaced(shape, options, inference):
    q, k, v = (normal(*shape) for _ in range(3))
    if options.get("attn_mask"):
        mask = normal(N_Q, N_Q, grad=False)
        options = {"attn_mask": mask > 0 if options["attn_mask"] == "bool" else mask}
    theirs = F.scaled_dot_product_attention(q, k, v, **options)
    with rb.sdpa(), torch.inference_mode(inference):
        ours = F.scaled_dot_product_attention(q, k, v, **options)
    check_close(ours, theirs, q.dtype)
    with rb.sdpa(), Seen() as seen:
        F.scaled_dot_product_attention(q, k, v, **options)
    assert seen.ours
    if not inference:
        dout = torch.randn_like(ours)
        for x, y in zip(*(torch.autograd.grad(out, (q, k, v), dout) for out in (ours, theirs)), strict=True):
            check_close(x, y, q.dtype)


def test_autocast():
    q, k, v = (normal(1, 2, 70, 64, dtype=torch.float32) for _ in range(3))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = rb.attention(q, k, v)
    assert out.dtype == torch.bfloat16
    check_close(out, rb.attention(q, k, v), torch.bfloat16)
    assert torch.autograd.grad(out.sum(), q)[0].dtype == torch.float32


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("mask", [None, MASKS["blocks"]], ids=["full", "blocks"])
def test_torch_compile(mode, mask):
    torch._dynamo.reset()

    def call(q, k, v):
        return rb.attention(q * 2, k, v, mask=mask, softcap=8.0) + 1

    compiled = torch.compile(call, fullgraph=True, mode=mode)
    for _ in range(4):  # warm-up, capture and replays
        q, k, v = (normal(1, 2, n, 64) for n in (N_Q, N_K, N_K))
        out = compiled(q, k, v).clone()
        expected = call(q, k, v)
        check_close(out, expected, q.dtype)
        dout = torch.randn_like(out)
        gradients = [x.clone() for x in torch.autograd.grad(out, (q, k, v), dout)]
        for x, y in zip(gradients, torch.autograd.grad(expected, (q, k, v), dout), strict=True):
            check_close(x, y, q.dtype)


def test_vmap_and_grad():
    q = normal(3, 2, 70, 64, grad=False)
    gradients = torch.func.vmap(torch.func.grad(lambda x: rb.attention(x, x, x).float().sin().sum()))(q)
    for got, one in zip(gradients, q, strict=True):
        one = one.clone().requires_grad_()
        (expected,) = torch.autograd.grad(rb.attention(one, one, one).float().sin().sum(), one)
        check_close(got, expected, torch.float16)


# Devices, streams, graphs --------------------------------------------------------------------------------------------


def test_a_warm_call_does_not_synchronise():
    q, k, v = (normal(1, 2, n, 64) for n in (N_Q, N_K, N_K))

    def call():
        out = rb.attention(q, k, v, mask=MASKS["blocks"], dropout=0.1, seed=3)
        return torch.autograd.grad(out, q, torch.ones_like(out))

    call()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("mask", [rb.Mask.causal(), MASKS["blocks"]], ids=["causal", "blocks"])
def test_cuda_graphs_replay_with_new_inputs(mask):
    q, k, v = (normal(1, 2, n, 64, grad=False) for n in (N_Q, N_K, N_K))
    inputs = [x.requires_grad_() for x in (q, k, v)]

    def call():
        out = rb.attention(*inputs, mask=mask)
        return (out, *torch.autograd.grad(out, inputs, torch.ones_like(out)))

    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    _forget_lists()
    filler = [torch.randn(1 << 16, device="cuda") for _ in range(64)]  # overwrites freed memory
    with torch.no_grad():
        for x in inputs:
            x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    assert len(filler) == 64
    for x, y in zip(captured, call(), strict=True):
        assert torch.equal(x, y)


def _forget_lists():
    from redblue.kernels.gpu import mask_lists

    mask_lists.forget()
    gpu._planes.cache_clear()


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_new_mask_cannot_be_captured():
    q = normal(1, 1, 128, 64, grad=False)
    rb.attention(q, q, q, mask=rb.Mask.documents([64, 64]))  # compiles the kernel
    _forget_lists()
    with pytest.raises(rb.RedblueError, match="call once with this mask"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        rb.attention(q, q, q, mask=rb.Mask.documents([60, 68]))
    torch.cuda.synchronize()


def test_each_replay_of_a_graph_draws_new_dropout():
    q = normal(1, 2, 70, 64, grad=False)
    rb.attention(q, q, q, dropout=0.5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = rb.attention(q, q, q, dropout=0.5)
    graph.replay()
    first = out.clone()
    graph.replay()
    assert not torch.equal(first, out)


def test_kernels_run_on_the_current_stream():
    q = normal(1, 2, N_Q, 64, grad=False)
    expected = rb.attention(q * 2, q, q, mask=MASKS["full"])
    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        torch.cuda._sleep(100_000_000)
        doubled = q * 2
        out = rb.attention(doubled, q, q)
    side_stream.synchronize()
    assert torch.equal(out, expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU only")
def test_a_device_that_is_not_the_current_one():
    q = normal(1, 2, N_Q, 64, device="cuda:1")
    assert torch.cuda.current_device() == 0
    check(q, q.detach().requires_grad_(), q.detach().requires_grad_(), mask=rb.Mask.blocks(BLOCK_LAYOUT[:, :8], 64))
    assert torch.cuda.current_device() == 0


def test_mixed_devices_and_unsupported_dtypes_are_refused():
    q = normal(1, 2, 8, 16, grad=False)
    with pytest.raises(rb.RedblueError, match=r"k must be on the device of q \(cuda:0\), got cpu"):
        rb.attention(q, q.cpu(), q)
    with pytest.raises(rb.RedblueError, match="q must be of type"):
        rb.attention(q.int(), q.int(), q.int())


def test_tuned_launches_are_correct_and_stored(monkeypatch, tmp_path):
    from redblue.kernels.gpu.planning import tune

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


def test_a_card_with_less_shared_memory():
    from redblue.kernels.gpu.planning.card import card_of, planning_for

    q, k, v = (normal(1, 1, n, 256) for n in (200, 300, 300))
    with planning_for(card_of(q.device)._replace(shared_bytes=48 << 10)):
        check(q, k, v)
