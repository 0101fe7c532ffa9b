"""The comparison with float64 before a contender is timed."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from benchmarks.common.failures import Red
from benchmarks.gpu import calls
from benchmarks.gpu.gate import ENDS, EVERYTHING, MAX_LSE, band_mask, gate, launch_gate, launched, worst


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


def drawn(heads=6, kv_heads=3, n_q=20, n_k=30, d=16, dtype=torch.bfloat16):
    """q, k, v and dout of two sequences."""
    torch.manual_seed(0)
    shapes = (heads, n_q), (kv_heads, n_k), (kv_heads, n_k), (heads, n_q)
    return [torch.randn(2, *shape, d, dtype=torch.float64).to(dtype) for shape in shapes]


def rounded(results, dtype=torch.bfloat16):
    """The results as a perfect kernel writes them."""
    return {name: x.float() if name == "lse" else x.to(dtype) for name, x in results.items()}


BANDS = {"full": (None, None), "causal": (None, 1), "window": (-7, 3), "late": (15, 40), "none": (40, 50)}


@pytest.mark.parametrize("name", BANDS)
def test_exact_results_of_launches_are_those_of_pytorch(name):
    q, k, v, dout = drawn()
    mask = band_mask(20, 30, *BANDS[name], "cpu")
    results = launched(q, k, v, dout, mask, torch.float64)
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    attends = torch.ones(20, 30, dtype=torch.bool) if mask is None else mask
    first, end = (limit if limit is not None else other for limit, other in zip(BANDS[name], (-99, 99), strict=True))
    assert attends.tolist() == [[i + first <= j < i + end for j in range(30)] for i in range(20)]
    s = (leaves[0].unflatten(1, (3, 2)) @ leaves[1][:, :, None].mT / 4).flatten(1, 2)
    rows = attends.any(1)
    out = torch.nn.functional.scaled_dot_product_attention(*leaves, attn_mask=attends, enable_gqa=True)
    out = torch.where(rows[:, None], out, 0.0)
    grads = torch.autograd.grad(out, leaves, dout.double())
    for each, x in zip(("out", "dq", "dk", "dv"), (out, *grads), strict=True):
        torch.testing.assert_close(results[each], x.detach().nan_to_num())
    torch.testing.assert_close(results["lse"], s.detach().masked_fill(~attends, -torch.inf).logsumexp(-1))


@pytest.mark.parametrize("parts", [ENDS, [EVERYTHING]], ids=["ends", "everything"])
def test_a_wrong_element_of_a_launch_is_seen(parts):
    q, k, v, dout = drawn()
    mask = band_mask(20, 30, -7, 3, "cpu")
    right = rounded(launched(q, k, v, dout, mask, torch.float64))
    k[:, :, ~mask.any(0)] = torch.nan
    known = launch_gate(q, k, v, dout, mask, parts)
    assert known.check(right) == known.verdict(right).errors
    assert {*known.allowed} == {"lse"} | {
        f"{norm}{x}" for norm in ("", "largest of ") for x in ("out", "dq", "dk", "dv")
    }
    for name, x in right.items():
        for place in ((0, 0), (-1, -1)):
            for change in (0.1, torch.nan):
                wrong = x.clone()
                wrong[place].view(-1)[0] += change * x.abs().max()
                assert not known.verdict({name: wrong}).right
                with pytest.raises(Red, match=name):
                    known.check(right | {name: wrong})


def test_a_wrong_element_of_a_large_array_is_seen_by_the_largest_error():
    q, k, v, _ = drawn(1, 1, 900, 100, 64)
    wrong = rounded(launched(q, k, v, None, None, torch.float64))["out"]
    known = launch_gate(q, k, v)
    wrong[0, 0, 5, 7] += 0.1 * wrong.abs().max()
    errors, allowed = known.verdict({"out": wrong})
    assert errors["out"] < allowed["out"]
    assert errors["largest of out"] > allowed["largest of out"]


def test_results_of_launches_must_be_finite_beyond_the_compared_heads():
    q, k, v, _ = drawn()
    right = rounded(launched(q, k, v, None, None, torch.float64))
    known = launch_gate(q, k, v)
    for name in ("out", "lse"):
        wrong = right[name].clone()
        wrong[0, 3].view(-1)[0] = torch.nan
        assert not known.verdict({name: wrong}).right
    wrong = right["out"].clone()
    wrong[0, 3] = 0.0  # only the parts are compared
    assert known.verdict({"out": wrong}).right


def test_rows_without_keys_must_have_no_weight():
    q, k, v, _ = drawn()
    mask = band_mask(20, 30, 25, 40, "cpu")
    right = rounded(launched(q, k, v, None, mask, torch.float64))
    known = launch_gate(q, k, v, None, mask)
    assert known.verdict(right).right
    assert right["lse"][0, 0, 10] == -torch.inf
    for wrong in (0.0, torch.nan):
        lse = right["lse"].clone()
        lse[0, 0, 10] = wrong
        assert not known.verdict({"lse": lse}).right
    lse = right["lse"].clone()
    lse[0, 0, 0] += 2 * MAX_LSE
    assert not known.verdict({"lse": lse}).right
