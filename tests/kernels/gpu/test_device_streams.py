"""Streams, CUDA graphs and several devices, on real GPUs."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import redblue as rb
from redblue.kernels.gpu import mask_lists
from redblue.op.pytorch import gpu
from support.on_device import BLOCK_LAYOUT, MASKS, N_K, N_Q, ON_GPU, check, normal

pytestmark = ON_GPU


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_warm_call_does_not_synchronise():
    q, k, v = (normal(1, 2, n, 64) for n in (N_Q, N_K, N_K))

    def call():
        out = rb.attention(q, k, v, mask=MASKS["blocks"], dropout=0.1, seed=3)
        return torch.autograd.grad(out, q, torch.ones_like(out))

    call()
    try:
        torch.cuda.set_sync_debug_mode("error")
        call()
    finally:
        torch.cuda.set_sync_debug_mode("default")


# The last call runs on another stream than the calls before it.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
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
