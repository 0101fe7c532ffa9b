"""The comparison with float64 before a contender is timed."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from benchmarks.common.failures import Red
from benchmarks.gpu import calls
from benchmarks.gpu.gate import gate, worst


def test_the_first_and_the_last_head_are_checked():
    for call in (
        calls.Call(16, "backward", n=20, heads=3, dtype="float32"),
        calls.Call(16, n=20, heads=4, kv_heads=2, batch=2, queries=1, dtype="float32"),
    ):
        arrays = calls.inputs(call, "cpu")
        known = gate(call, arrays)
        q, k, v = (x.double().requires_grad_() for x in arrays[:3])
        k, v = (x.repeat_interleave(call.heads // call.kv_heads, 1) for x in (k, v))
        out = (q @ k.mT * 0.25).softmax(-1) @ v
        right = (
            [out.detach()]
            if call.direction == "forward"
            else list(torch.autograd.grad(out, (q, k, v), arrays[3].double()))
        )
        assert not known.check(calls.PLANNED, right)
        errors = worst(known.errors(right))
        assert len(errors) == len(right)
        assert max(errors) < 1e-12
        for head in (0, -1):
            wrong = [x.clone() for x in right]
            wrong[-1][head, head, 0, 0] += 1
            with pytest.raises(Red):
                known.check(calls.PLANNED, wrong)
