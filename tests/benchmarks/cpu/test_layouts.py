"""The benchmark of layouts: equal numbers in other strides, and rows with both ratios. Its times mean nothing."""

import pytest

torch = pytest.importorskip("torch")

import redblue as rb
from benchmarks.common.failures import Red
from benchmarks.cpu import layouts
from benchmarks.cpu.calls import Call
from benchmarks.cpu.layouts import BATCHES, LAYOUTS, PACKED, ROWS_OUTSIDE, contiguous
from benchmarks.cpu.models.shapes import SHAPES

CALL = Call(8, n_q=5, n_k=5, heads=6)


@pytest.mark.parametrize("call", [CALL, Call(8, n_q=1, n_k=9, heads=6)], ids=["square", "decode"])
def test_layouts_hold_the_same_numbers_in_their_strides(call):
    x = contiguous(call, batch=2)
    assert x.q.shape == (2, 3, call.n_q, 8)
    made = {name: layout(x) for name, layout in LAYOUTS.items()}
    for arrays in made.values():
        assert all(a.equal(b) for a, b in zip(arrays, x, strict=True))
    assert made[ROWS_OUTSIDE].k.stride() == (call.n_k * 24, 8, 24, 1)
    q, k, v, dout = made[PACKED]
    assert {array.untyped_storage().data_ptr() for array in (k, v)} == {q.untyped_storage().data_ptr()}
    assert q.stride() == k.stride() == (call.n_k * 72, 8, 72, 1)
    assert dout.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("direction", ["forward", "training"])
def test_a_row_has_the_time_on_both_layouts_over_that_on_contiguous_arrays(direction):
    row = layouts.measure("CLIP text, b 8", "float32", direction, 1, 1e-4)
    assert [figure.what for figure in row.figures] == [ROWS_OUTSIDE, PACKED]
    slower = row.rates[layouts.CONTIGUOUS][0] / row.rates[PACKED][0]
    assert row.figures[1].value.median == slower
    assert row.figures[1].at_most
    assert f"| {slower:.2f} |" in layouts.table([row])


def test_a_wrong_result_on_one_layout_ends_the_run(monkeypatch):
    attention = rb.attention

    def wrong(q, k, v, mask):
        return attention(q, k, v, mask=mask) * (1.0 if q.is_contiguous() else 1.1)

    monkeypatch.setattr(rb, "attention", wrong)
    with pytest.raises(Red, match=r"\(B, n, H, d\), fp32 forward.*: too far"):
        layouts.right(CALL, contiguous(CALL, 2))


def test_batches_divide_the_heads_of_their_shapes():
    assert not [name for name, batch in BATCHES.items() if SHAPES[name][0] % batch]
