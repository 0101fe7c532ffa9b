"""GPU tensors, tested without a GPU: PyTorch's fake tensors, and kernels that only record their calls.

Tests on a real device: kernels/gpu/test_device_values.py and its neighbours.
"""

import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: N812
from torch._subclasses.fake_tensor import FakeTensorMode

import redblue as rb
from redblue.kernels.mask_argument import MaskArgument
from redblue.kernels.options import Options
from redblue.op.pytorch import dispatch, ops
from support.textbook import OpRecorder

OPEN = Options(MaskArgument())


@pytest.fixture
def fake(monkeypatch):
    """Make tensors of any device, without data."""
    monkeypatch.setattr(ops, "gpu_kernels", lambda: None)
    with FakeTensorMode():
        yield


@pytest.fixture
def autocast():
    """Autocast to bfloat16 on GPUs, without torch.autocast, which requires a GPU."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    yield
    torch.set_autocast_enabled("cuda", before[0])
    torch.set_autocast_dtype("cuda", before[1])


@pytest.fixture
def no_kernels(monkeypatch):
    """Simulate that Triton is not installed."""

    def gpu_kernels():
        raise rb.RedblueError("tensors on a GPU need Triton")

    monkeypatch.setattr(ops, "gpu_kernels", gpu_kernels)


@pytest.fixture
def recorded(monkeypatch):
    """Replace the kernels by functions that record (direction, current device, arguments)."""
    calls, current = [], []

    def device(index):
        current.append(index)
        return nullcontext()

    def kernel(direction):
        return lambda *arguments: calls.append((direction, current[-1], arguments)) or (direction, None)

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(
        ops, "gpu_kernels", lambda: SimpleNamespace(forward=kernel("forward"), backward=kernel("backward"))
    )
    return calls


def on(device, *shape, dtype=torch.float16):
    return torch.empty(shape, dtype=dtype, device=device)


# The operator --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["redblue::attention", "redblue::attention_backward"])
def test_the_ops_have_kernels_for_gpus(op):
    assert torch._C._dispatch_has_kernel_for_dispatch_key(op, "CUDA")
    assert torch._C._dispatch_has_kernel_for_dispatch_key(op, "Meta")


@pytest.mark.parametrize("n_q", [0, 1, 700])
def test_shapes_types_and_devices(fake, n_q):
    q, k, v = on("cuda:1", 2, 8, n_q, 576), on("cuda:1", 2, 2, 300, 576), on("cuda:1", 2, 2, 300, 512)
    options = {"bias": on("cuda:1", n_q, 300), "sinks": on("cuda:1", 8), "dropout": 0.1, "return_lse": True}
    out, lse = rb.attention(q, k, v, mask=rb.Mask.documents([n_q, 0], [100, 200]), **options)
    assert (out.shape, out.dtype, str(out.device)) == ((2, 8, n_q, 512), torch.float16, "cuda:1")
    assert (lse.shape, lse.dtype, str(lse.device)) == ((2, 8, n_q), torch.float32, "cuda:1")
    arguments = out, lse, q, k, v, out, lse, *OPEN._replace(bias=options["bias"]).flat, True
    dq, dk, dv, dbias, delta = torch.ops.redblue.attention_backward(*arguments)
    assert [x.shape for x in (dq, dk, dv, dbias, delta)] == [q.shape, k.shape, v.shape, (n_q, 300), (2, 8, n_q)]
    assert {str(x.device) for x in (dq, dk, dv, dbias, delta)} == {"cuda:1"}


@pytest.mark.parametrize("seed", [None, -3, 2**64 - 1])
def test_the_seed_of_dropout_never_leaves_the_device(fake, seed):
    q = on("cuda", 1, 2, 8, 16)
    with OpRecorder() as recorder:
        rb.attention(q, q, q, dropout=0.1, seed=seed)
    assert recorder.ours
    assert not {"aten::_local_scalar_dense", "aten::_to_copy", "aten::copy_", "aten::lift_fresh"} & set(recorder.names)


def test_outputs_are_laid_out_as_inputs_are(fake):
    q = on("cuda", 2, 5, 3, 8).transpose(1, 2)
    assert rb.attention(q, q, q).stride() == q.stride()


def test_autocast(fake, autocast):
    q, k = on("cuda", 1, 2, 8, 16, dtype=torch.float32), on("cuda", 1, 2, 8, 16)
    assert rb.attention(q, k, k).dtype == torch.bfloat16
    with pytest.raises(rb.RedblueError, match="must be of one type"):
        rb.attention(*(on("cpu", *x.shape, dtype=x.dtype) for x in (q, k, k)))


def test_devices_that_differ_are_named(fake):
    q = on("cuda:0", 1, 2, 8, 16)
    for other in "cuda:1", "cpu":
        with pytest.raises(rb.RedblueError, match=f"k must be on the device of q .cuda:0., got {other}"):
            rb.attention(q, on(other, 1, 2, 8, 16), q)
        with pytest.raises(rb.RedblueError, match="all tensors must be on one device, got"):
            ops.forward(q, q, q, OPEN._replace(bias=on(other, 8, 8)))
    with pytest.raises(rb.RedblueError, match=r"bias must be on the device of q .cuda:0., got cpu"):
        rb.attention(q, q, q, bias=on("cpu", 8, 8))
    with pytest.raises(rb.RedblueError, match="q is on xpu:0: there are kernels for the CPU and for CUDA and ROCm"):
        rb.attention(*[on("xpu:0", 1, 2, 8, 16)] * 3)


def test_without_triton_it_says_what_to_install(fake, no_kernels):
    q = on("cuda", 1, 2, 8, 16)
    with pytest.raises(rb.RedblueError, match="need Triton"):
        rb.attention(q, q, q)


@pytest.mark.parametrize(("module", "message"), [(None, "need Triton"), ("3.2.9", r"3\.3 or newer, got 3\.2\.9")])
def test_triton_missing_or_old(monkeypatch, module, message):
    monkeypatch.setitem(sys.modules, "triton", module and SimpleNamespace(__version__=module))
    with pytest.raises(rb.RedblueError, match=message):
        ops.gpu_kernels.__wrapped__()


def test_kernels_run_where_their_tensors_are(fake, recorded):
    q = on("cuda:1", 1, 2, 8, 16)
    ops.forward(q, q, q, OPEN)
    ops._on_gpu("backward", q, None, q, q, q, q, q, OPEN, False)
    assert [(direction, str(device)) for direction, device, _ in recorded] == [
        ("forward", "cuda:1"),
        ("backward", "cuda:1"),
    ]
    assert [arguments[3 if direction == "forward" else 7] for direction, _, arguments in recorded] == [OPEN, OPEN]


def test_plain_tensors_of_a_gpu_go_around_the_dispatcher(fake, monkeypatch):
    q, k = on("cuda:1", 1, 2, 8, 16), on("cuda:0", 1, 2, 8, 16)
    monkeypatch.setattr(dispatch, "_PLAIN", {type(q)})
    monkeypatch.setattr(dispatch, "_dispatch_modes", lambda: 0)
    assert dispatch.is_plain(q, q, q)
    assert not dispatch.is_plain(q, k, q)
    assert not dispatch.is_plain(q, on("cpu", 1, 2, 8, 16), q)


def test_autocast_goes_through_the_dispatcher(autocast):
    assert not dispatch.is_plain(torch.ones(1, 2, 3))


@pytest.mark.thorough
def test_nothing_touches_triton_or_cuda_before_a_tensor_is_on_a_gpu():
    code = """if True:
        import sys
        import redblue as rb
        import torch
        with rb.sdpa():
            assert "triton" not in sys.modules
        q = torch.ones(1, 2, 5, 8, requires_grad=True)
        with rb.sdpa():
            torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
        rb.attention(q, q, q, mask=rb.Mask.documents([2, 3]), dropout=0.5).sum().backward()
        loaded = {name for name in sys.modules if name.startswith("redblue.kernels.gpu.")}
        assert loaded <= {"redblue.kernels.gpu.versions"}
        assert "redblue.op.pytorch.gpu" not in sys.modules
        assert not torch.cuda.is_initialized()
    """
    subprocess.run([sys.executable, "-c", code], check=True)


# The override --------------------------------------------------------------------------------------------------------


def test_the_override_is_there_for_gpus_and_gone_after():
    def kernels():
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        return [has("aten::scaled_dot_product_attention", key) for key in ("CUDA", "AutogradCUDA")]

    assert kernels() == [False, False]
    with rb.sdpa():
        assert kernels() == [True, True]
    assert kernels() == [False, False]


TAKEN = {
    "plain": {},
    "causal": {"is_causal": True},
    "wide": {"d": 512},
    "wider than the CPU's kernels take": {"d": 4100},
    "no multiple of 8": {"d": 77},
    "values of another width": {"d": 192, "d_v": 128},
    "added": {"attn_mask": torch.float16},
    "masked": {"attn_mask": torch.bool},
    "dropout": {"dropout_p": 0.1},
    "grouped": {"enable_gqa": True},
    "float32": {"dtype": torch.float32},
    "bfloat16": {"dtype": torch.bfloat16},
}
LEFT = {
    "types that differ": {"other": torch.bfloat16},
    "a mask of whole numbers": {"attn_mask": torch.int64},
}


def call(*, d=64, d_v=None, dtype=torch.float16, other=None, attn_mask=None, enable_gqa=False, **options):
    q = on("cuda", 2, 4, 9, d, dtype=dtype)
    heads = 2 if enable_gqa else 4
    k, v = on("cuda", 2, heads, 7, d, dtype=other or dtype), on("cuda", 2, heads, 7, d_v or d, dtype=dtype)
    mask = None if attn_mask is None else on("cuda", 9, 7, dtype=attn_mask)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=enable_gqa, **options)


def shape_of_pytorchs(**options):
    """The shape of PyTorch's own result; None if PyTorch requires a driver, as CUDA builds do from 2.15 on."""
    try:
        return call(**options).shape
    except getattr(torch, "AcceleratorError", ()):
        return None


@pytest.mark.parametrize("options", TAKEN.values(), ids=TAKEN)
def test_calls_that_redblue_takes(fake, options):
    with rb.sdpa(), OpRecorder() as recorder:
        out = call(**options)
    assert recorder.ours
    assert (out.shape, out.device.type) == ((2, 4, 9, options.get("d_v") or options.get("d") or 64), "cuda")
    with OpRecorder() as recorder:
        shape_of_pytorchs(**options)
    assert not recorder.ours


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", LEFT.values(), ids=LEFT)
def test_calls_that_stay_with_pytorch(fake, options):
    def shape_or_error():
        try:
            return call(**options).shape
        except (RuntimeError, ValueError) as error:
            return type(error), str(error).splitlines()[0]

    expected = shape_or_error()
    with rb.sdpa():
        assert shape_or_error() == expected


def test_without_triton_everything_stays_pytorchs(fake, no_kernels):
    with rb.sdpa(), OpRecorder() as recorder:
        assert shape_of_pytorchs(d=512) in ((2, 4, 9, 512), None)
    assert not recorder.ours


def test_under_autocast(fake, autocast):
    with rb.sdpa(), OpRecorder() as recorder:
        assert call(dtype=torch.float32).dtype == torch.bfloat16
    assert recorder.ours


def test_in_a_traced_graph(fake):
    from torch.fx.experimental.proxy_tensor import make_fx

    q = on("cuda", 2, 3, 9, 320)
    with rb.sdpa():
        graph = make_fx(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True))(q)
    assert next(node.target for node in graph.graph.nodes if node.op == "call_function") is ops.forward_op


# Memory that the kernels keep on a device ----------------------------------------------------------------------------


def test_lists_of_masks_are_refused_while_a_graph_is_captured(monkeypatch):
    pytest.importorskip("triton")
    from redblue.kernels.gpu.planning import device

    array = np.arange(6)[::2]
    assert device.copied(array, torch.device("cpu")).tolist() == [0, 2, 4]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(rb.RedblueError, match="call once with this mask and these sizes before"):
        device.copied(array, torch.device("cuda"))


def test_lists_that_a_captured_graph_reads_are_kept_and_recorded_on_other_streams(monkeypatch):
    pytest.importorskip("triton")
    from redblue.kernels.gpu.planning import device

    class Array:
        is_cuda, device = True, torch.device("cuda:1")

        def __init__(self, at):
            self.at, self.streams = at, []

        def data_ptr(self):
            return self.at

        def record_stream(self, stream):
            self.streams.append(stream)

    kept = {}
    monkeypatch.setattr(device, "_of_graphs", kept)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda of: f"stream of {of}")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: bool(capturing))
    capturing, x, y = [], Array(1), Array(2)
    device.in_use([x, None, torch.ones(1)])
    assert (x.streams, kept) == (["stream of cuda:1"], {})
    capturing.append(True)
    device.in_use([y, None])
    device.in_use([y])
    assert (y.streams, kept) == ([], {2: y})


def test_products_of_float32_follow_pytorchs_setting_by_either_name(monkeypatch):
    pytest.importorskip("triton")
    from redblue.op.pytorch import gpu

    x = torch.ones(1)
    for settings, precision in (
        ({"fp32_precision": "tf32"}, "tf32"),
        ({"fp32_precision": "none", "allow_tf32": True}, "ieee"),
        ({"allow_tf32": True}, "tf32"),
        ({"allow_tf32": False}, "ieee"),
    ):
        monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(**settings))
        assert gpu.precision_of(x) == precision
        assert gpu.precision_of(x.half()) == "ieee"


def test_plans_can_be_made_for_another_card():
    from redblue.kernels.gpu.planning.card import Card, card_of, planning_for

    card = card_of(torch.device("cpu"))
    with planning_for(Card(arch=75, shared_bytes=24 << 10)):
        assert card_of(torch.device("cpu")).shared_bytes == 24 << 10
    assert card_of(torch.device("cpu")) == card


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_fastest_candidate_runs(monkeypatch):
    """As on a GPU, each candidate runs once on the arrays of the call; then the chosen one runs."""
    pytest.importorskip("triton")
    from redblue.kernels.gpu.planning import tune
    from redblue.op.pytorch import gpu, interpreted

    q, k = torch.randn(1, 2, 20, 8, requires_grad=True), torch.randn(1, 1, 30, 8)
    expected = interpreted.attention(q, k, k, mask=rb.Mask.causal())
    (reference,) = torch.autograd.grad(expected.sum(), q)
    kinds, ran = [], []

    def chosen(kind, candidates, run):
        kinds.append(kind)
        for launch in candidates[:2]:
            run(launch)
            ran.append(launch)
        return candidates[1]

    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(tune, "chosen", chosen)
    monkeypatch.setenv(tune.VARIABLE, "1")
    arrays, causal = (q.detach(), k, k), Options(MaskArgument(right=0))
    out, lse = gpu.forward(*arrays, causal)
    dout = torch.ones_like(out)
    dq, *_ = gpu.backward(dout, None, *arrays, out, lse, causal, False)
    assert [(kind.direction, kind.mask, kind.dtype) for kind in kinds] == [
        ("forward", "band", "float32 ieee"),
        ("backward", "band", "float32 ieee"),
    ]
    assert len(ran) == 4
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(dq, reference)
