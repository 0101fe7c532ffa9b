"""ALiBi on NumPy arrays against float64: every type, schedule and kind of mask, combined with each other option."""

from itertools import pairwise

import numpy as np
import pytest

import redblue as rb
from redblue import Mask, RedblueError
from support.attention import DTYPES, Case, backward, forward
from support.tolerances import check_backward

MASKS = {
    "none": None,
    "causal": Mask.causal(),
    "causal, bottom right": Mask.causal(align="bottom-right"),
    "window": Mask.sliding_window(5, 3, align="bottom-right"),
    "documents": Mask.documents([4, 13, 6], [9, 7, 15]),
}


def call(dtype="float32", heads=4, kv_heads=2, n_q=23, n_k=31, slopes=(4,), **options):
    rng = np.random.default_rng(0)
    shapes = ((2, heads, n_q, 9), (2, kv_heads, n_k, 9), (2, kv_heads, n_k, 5), (2, heads, n_q, 5))
    alibi = np.asarray(np.exp2(-rng.uniform(1, 8, slopes)), np.float32)
    arrays = (rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in shapes)
    return Case(*arrays, {"alibi": alibi, **options})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("schedule", ["auto", "hybrid", "small_cache", "gather"])
def test_every_type_and_schedule(dtype, schedule):
    check_backward(call(dtype, slopes=(2, 4), schedule=schedule, mask=Mask.causal(align="bottom-right")))


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("gathers", [False, True])
def test_every_kind_of_mask_in_tiles_and_in_pairs(mask, gathers):
    case = call(mask=mask)
    case.gathers = gathers
    check_backward(case, np.random.default_rng(1).standard_normal((2, 4, 23)))


@pytest.mark.parametrize("slopes", [(), (1,), (4,), (1, 4), (2, 1), (2, 4)])
@pytest.mark.parametrize("sizes", [{}, {"kv_heads": 4}, {"kv_heads": 1}, {"n_q": 1}, {"n_q": 40, "n_k": 17}])
def test_slopes_of_any_broadcastable_shape(slopes, sizes):
    check_backward(call("float64", slopes=slopes, **sizes))


OPTIONS = {
    "bias": {"bias": np.random.default_rng(2).standard_normal((4, 23, 31)).astype(np.float32)},
    "boolean bias": {"bias": np.random.default_rng(2).random((23, 31)) < 0.7},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": np.array([0.5, -np.inf, 2.0, -1.0], np.float32)},
    "dropout": {"dropout": 0.3, "seed": 7},
}


@pytest.mark.parametrize("options", [*OPTIONS.values(), {k: v for o in OPTIONS.values() for k, v in o.items()}])
def test_together_with_other_options(options):
    check_backward(call("float64", **options))


def test_slopes_of_another_type_and_with_strides():
    case = call()
    expected = forward(case)[0]
    case.options["alibi"] = np.repeat(case.options["alibi"].astype(np.float64), 2)[::2]
    assert np.array_equal(forward(case)[0], expected)


def test_slopes_of_zero_and_of_nan():
    case = call(slopes=(2, 4))
    case.options["alibi"][:] = 0
    plain = Case(case.q, case.k, case.v, case.dout)
    for x, y in zip(forward(case), forward(plain), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)
    case.options["alibi"][1, 2] = np.nan
    out, lse = forward(case)
    assert np.isnan(out[1, 2]).all()
    assert np.isfinite(np.delete(out.reshape(8, -1), 6, 0)).all()
    assert np.isnan(backward(case, out, lse)[0][1, 2]).all()


def test_two_dimensions_are_one_head():
    q = np.random.default_rng(0).standard_normal((7, 4))
    expected = rb.attention(q[None], q[None], q[None], alibi=np.array([0.5]))[0]
    assert np.array_equal(rb.attention(q, q, q, alibi=np.array([0.5])), expected)


@pytest.mark.parametrize(
    ("alibi", "message"),
    [
        (np.zeros(3, np.float32), r"alibi must broadcast to \(\.\.\., heads\) = \(2, 4\), got shape \(3,\)"),
        (np.zeros((2, 2, 4), np.float32), r"alibi must broadcast to .*, got shape \(2, 2, 4\)"),
        (np.zeros(4, int), r"alibi must be of type float64, .*, got int64"),
        (np.zeros(4, bool), r"alibi must be of type float64, .*, got bool"),
        (0.5, r"alibi must be an array .*, got float"),
    ],
)
def test_bad_slopes_are_named(alibi, message):
    case = call()
    case.options["alibi"] = alibi
    with pytest.raises(RedblueError, match=message):
        forward(case)
    with pytest.raises(RedblueError, match=message):
        backward(case, case.dout, np.zeros((2, 4, 23), np.float32))


# Packed sequences -----------------------------------------------------------------------------------


def packed(lengths, key_lengths):
    rng = np.random.default_rng(0)
    shapes = (sum(lengths), 4, 6), (sum(key_lengths), 2, 6), (sum(key_lengths), 2, 3)
    starts = [np.append(0, np.cumsum(x)) for x in (lengths, key_lengths)]
    return [rng.standard_normal(shape) for shape in shapes], starts, np.array([0.5, 0.25, 0.1, 0.7])


@pytest.mark.parametrize(
    ("lengths", "key_lengths"),
    [
        ((5, 0, 9, 1), (5, 0, 9, 1)),
        ((5, 9, 2), (30, 9, 2)),
        ((5, 9, 3, 0), (5, 9, 0, 3)),
        ((4,), (9,)),
        ((5, 9, 2), (5, 9, 4)),  # not aligned as a whole: one call per aligned group
        ((1, 3, 0, 4, 2, 0, 5), (6, 3, 2, 0, 2, 7, 1)),
    ],
)
@pytest.mark.parametrize("mask", [None, Mask.causal(align="bottom-right")])
def test_packed_sequences_are_aligned_one_by_one(lengths, key_lengths, mask):
    (q, k, v), starts, alibi = packed(lengths, key_lengths)
    out = rb.attention_varlen(q, k, v, *starts, alibi=alibi, mask=mask)
    for (a, b), (c, d) in zip(*map(pairwise, starts), strict=True):
        alone = (x.swapaxes(0, 1) for x in (q[a:b], k[c:d], v[c:d]))
        expected = rb.attention(*alone, alibi=alibi, mask=mask)
        np.testing.assert_allclose(out[a:b].swapaxes(0, 1), expected, atol=1e-12)


@pytest.mark.parametrize(("lengths", "key_lengths"), [((5, 0, 9), (5, 0, 9)), ((1, 4, 2), (6, 3, 0)), ((3,), (5,))])
def test_slopes_for_every_packed_sequence(lengths, key_lengths):
    (q, k, v), starts, alibi = packed(lengths, key_lengths)
    alibi = alibi * np.arange(1, len(lengths) + 1)[:, None]
    out, lse = rb.attention_varlen(q, k, v, *starts, alibi=alibi, return_lse=True)
    for i, ((a, b), (c, d)) in enumerate(zip(*map(pairwise, starts), strict=True)):
        alone = (x.swapaxes(0, 1) for x in (q[a:b], k[c:d], v[c:d]))
        expected, expected_lse = rb.attention(*alone, alibi=alibi[i], return_lse=True)
        np.testing.assert_allclose(out[a:b].swapaxes(0, 1), expected, atol=1e-12)
        np.testing.assert_allclose(lse[:, a:b], expected_lse, atol=1e-12)


def test_unaligned_sequences_have_different_dropout():
    q, k = np.zeros((12, 4, 6)), np.zeros((13, 4, 6))
    v = np.concatenate([np.eye(6, 7), np.eye(7)])[:, None].repeat(4, 1)  # the output shows which pairs are kept
    starts, options = ([0, 6, 12], [0, 6, 13]), {"alibi": np.zeros(4), "dropout": 0.5}
    kept = rb.attention_varlen(q, k, v, *starts, **options, seed=3) != 0
    assert np.array_equal(kept, rb.attention_varlen(q, k, v, *starts, **options, seed=3) != 0)
    assert not np.array_equal(kept[:6, :, :6], kept[6:, :, :6])
    with pytest.raises(RedblueError, match="seed must be a whole number"):
        rb.attention_varlen(q, k, v, *starts, **options, seed="x")


def test_slopes_of_another_number_of_sequences_are_refused():
    arrays, starts, alibi = packed((5, 9), (5, 9))
    with pytest.raises(RedblueError, match=r"alibi must be \(heads,\) or \(sequences, heads\), of 2 sequences, got"):
        rb.attention_varlen(*arrays, *starts, alibi=np.tile(alibi, (3, 1)))
