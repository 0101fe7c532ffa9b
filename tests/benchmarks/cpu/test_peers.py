"""The contenders on contiguous arrays: each installed one is right, or refuses the call."""

import pytest

torch = pytest.importorskip("torch")

from benchmarks.common.failures import Red, Refused
from benchmarks.common.gate import REDBLUE
from benchmarks.cpu.calls import Call, Inputs, in_torch, inputs
from benchmarks.cpu.gate import check, gate
from benchmarks.cpu.models import others
from benchmarks.cpu.peers import JAX, MODULES, ONNXRUNTIME, OPENVINO, PYTORCH, as_tensors, contender, missing

SHAPES = {
    "square": Call(8, n_q=6, n_k=6, heads=3),
    "causal": Call(8, n_q=6, n_k=6, heads=3, causal=True),
    "cross": Call(8, n_q=3, n_k=9, heads=2),
    "decode": Call(8, n_q=1, n_k=9, heads=2),
}


@pytest.mark.parametrize("direction", ["forward", "backward", "training"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("peer", [REDBLUE, *MODULES])
def test_every_contender_is_right_or_refuses(peer, shape, direction):
    if missing(peer):
        pytest.skip(f"{peer} is not installed")
    call = Call(**SHAPES[shape].to_json() | {"direction": direction})
    try:
        run = contender(peer, call)
    except Refused:
        assert direction == "backward" if peer == JAX else direction != "forward"
        assert peer not in (REDBLUE, PYTORCH)
        return
    assert not gate(call, range(call.heads)).check(peer, as_tensors(run()))


@pytest.mark.parametrize(
    ("peer", "call"),
    [
        (ONNXRUNTIME, Call(8, "bfloat16")),
        (OPENVINO, Call(8, "float16")),
        (OPENVINO, Call(8, "bfloat16", n_q=1)),
        (JAX, Call(8, "float16")),
    ],
)
def test_calls_that_a_peer_lacks_are_refused_before_its_library_is_called(peer, call):
    if peer == JAX and missing(peer):
        pytest.skip("JAX is not installed")
    with pytest.raises(Refused):
        contender(peer, call)


def test_results_are_compared_on_the_named_heads():
    call = SHAPES["square"]
    known = gate(call, [0, 2])
    (out,) = contender(REDBLUE, call)()
    out[:, 1] = torch.nan
    assert not known.check(PYTORCH, [out])
    out[:, 2] = 0
    assert "too far from float64" in known.check(PYTORCH, [out])
    with pytest.raises(Red, match=r"redblue, fp32 forward, H 3, n 6, d 8: too far"):
        known.check(REDBLUE, [out])


def test_a_check_names_the_peers_that_fail(monkeypatch):
    errors, wrong = check(SHAPES["square"], [REDBLUE, PYTORCH])
    assert errors.keys() == {"unfused", REDBLUE, PYTORCH}
    assert not wrong
    monkeypatch.setattr("benchmarks.cpu.peers.pytorch", lambda call, x: lambda: [torch.zeros_like(x.q)])
    errors, wrong = check(SHAPES["square"], [REDBLUE, PYTORCH])
    assert errors.keys() == {"unfused", REDBLUE}
    assert wrong.keys() == {PYTORCH}


@pytest.fixture
def fusion():
    """Leaves oneDNN's fusion as it was."""
    before = torch.jit.onednn_fusion_enabled()
    yield
    torch.jit.enable_onednn_fusion(before)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.usefixtures("fusion")
def test_both_ways_of_the_newest_pytorch_are_right(monkeypatch):
    for way in (0, -1):
        monkeypatch.setattr(others, "fastest", lambda ways, way=way: ways[way])
        for call in (SHAPES["square"], SHAPES["decode"], SHAPES["causal"]):
            run = others.newest_pytorch(call, inputs(call))
            for _ in range(3):  # torch.jit fuses after the first calls
                assert not gate(call, range(call.heads)).check("PyTorch 2.15", run())


def test_vllm_attends_with_all_heads_in_one_sequence_or_one_sequence_per_head(monkeypatch):
    ways = []

    def attention(q, caches, order, causal):
        """The op, without pages: q (B, n_q, H, d), keys and values (n_k, H, d)."""
        assert len(order) == len(caches)  # 32 keys per page
        assert len(caches) == len(q)
        ways.append(q.shape)
        k, v = (torch.stack(arrays).transpose(1, 2) for arrays in zip(*caches, strict=True))
        x = Inputs(q.transpose(1, 2), k, v, q)
        sdpa = torch.nn.functional.scaled_dot_product_attention
        run = in_torch("forward", x, lambda q, k, v: sdpa(q, k, v, is_causal=causal))
        return lambda: run()[0].transpose(1, 2)

    monkeypatch.setattr(others, "vllm_attention", attention)
    call = SHAPES["causal"]
    for place in (0, 1):
        monkeypatch.setattr(others, "fastest", lambda runs, place=place: runs[place])
        assert not gate(call, range(call.heads)).check("vLLM", others.make("vLLM", call.to_json())())
    assert ways[:2] == [(1, 6, 3, 8), (3, 6, 1, 8)]


@pytest.mark.parametrize("peer", ["vLLM", "zentorch"])
def test_peers_without_a_backward_pass_refuse_training(peer):
    with pytest.raises(Refused, match="no backward pass"):
        others.make(peer, Call(8, direction="training").to_json())
