"""ALiBi in the CPU kernels, called directly, against float64: all kernels, both passes, all instruction sets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue import Mask
from redblue.base.dtypes import DTYPE_CODES
from redblue.kernels.cpu import call as cpu
from redblue.kernels.cpu.arrays import described
from redblue.kernels.cpu.mask_form import in_pairs, in_tiles
from redblue.kernels.sizes import Sizes
from redblue.lab import reference
from support.attention import drawn
from support.drawn_calls import SPILL_TILES, TILES, TWO_PASS_TILES
from support.tolerances import worst


def run(sizes, arrays, slopes, mask, row, dlse=None, bias=None, **options):
    """Run both passes; return out, lse, the gradients of q, k, v and the bias, and the words of each pass."""
    q, k, v, dout = arrays
    heads = sizes.kv_heads * sizes.group
    spread = np.broadcast_to(slopes, (*sizes.lead, heads))
    strides = (*(stride // slopes.itemsize for stride in spread.strides), 0, 0)
    common = {"mask": mask, "scale": 0.4, "alibi": cpu.Array(spread.ctypes.data, strides), "row": row, **options}
    out, lse = np.full_like(dout, np.nan), np.full((*q.shape[:-1], 1), np.nan, slopes.dtype)
    written = [np.full_like(x, np.nan) for x in (q, k, v)] + [np.full_like(lse, np.nan)]
    more = {}
    if bias is not None:
        dbias = np.full_like(bias, np.nan)
        common |= {"bias": described(bias), "bias_number": DTYPE_CODES[bias.dtype.name]}
        more = {"dbias": described(dbias)}
    dtype, inputs = q.dtype.name, [described(x) for x in (q, k, v, out, lse)]
    moved = cpu.forward(sizes, dtype, *inputs, **common)
    gradients = [described(x) for x in (dout, *written)]
    moved += cpu.backward(sizes, dtype, *inputs, *gradients, dlse=dlse and described(dlse), **more, **common)
    return (out, lse[..., 0], *written[:3], None if bias is None else dbias), moved


@drawn()
@given(data=st.data())
def test_alibi_is_as_float64_says(isa, data):
    draw = data.draw
    dtype = np.dtype(draw(st.sampled_from([np.float32, np.float64])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    length, width = st.integers(1, 9) | st.sampled_from([33, 64, 97]), st.sampled_from([1, 3, 16, 40])
    n_q, n_k, d, d_v = draw(length), draw(length), draw(width), draw(width)
    kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    sizes = Sizes((2,), kv_heads, group, n_q, n_k, d, d_v)
    heads = kv_heads * group
    shapes = (2, heads, n_q, d), (2, kv_heads, n_k, d), (2, kv_heads, n_k, d_v), (2, heads, n_q, d_v)
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    slopes = (rng.random(draw(st.sampled_from([(heads,), (2, heads)]))) / 4).astype(dtype)
    softcap = draw(st.sampled_from([0.0, 3.0]))
    form = draw(st.sampled_from(["band", "tiles", "pairs"]))
    bias = rng.standard_normal((2, heads, n_q, n_k)).astype(dtype) if draw(st.booleans()) and form != "pairs" else None
    attends = np.ones((n_q, n_k), bool)
    mask = cpu.Attended(-n_q, n_k + 1)
    if form != "band":
        attends = rng.random((n_q, n_k)) < 0.4
        dense = Mask.from_dense(attends)
        lanes = isa.lanes(DTYPE_CODES[dtype.name])
        mask = in_pairs(dense, sizes) if form == "pairs" else in_tiles(dense, sizes, lanes, bias is not None)
    tile = draw(st.none() | TILES | TWO_PASS_TILES | SPILL_TILES)
    results, _ = run(sizes, arrays, slopes, mask, isa, bias=bias, softcap=softcap, tile=tile, threads=2)
    q, k, v, dout = arrays
    options = {"scale": 0.4, "softcap": softcap or None, "alibi": slopes, "bias": bias}
    exact = reference.forward(q, k, v, attends, **options)
    gradients = reference.backward(q, k, v, dout, attends, **options)
    expected = (exact.out, exact.lse, gradients.dq, gradients.dk, gradients.dv, gradients.dbias)
    for name, got, exact_result in zip(("out", "lse", "dq", "dk", "dv", "dbias"), results, expected, strict=True):
        if exact_result is None:
            continue
        allowed = 2000 * np.finfo(dtype).eps * (1 + np.abs(exact_result[np.isfinite(exact_result)]).max(initial=0))
        assert worst(got, exact_result) <= allowed, name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("schedule", ["flash", *cpu.SPILLED])
def test_alibi_in_16_bits_is_as_float64_says(isa, dtype, schedule):
    import ml_dtypes

    number = np.dtype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
    rng, sizes = np.random.default_rng(0), Sizes((1,), 1, 2, 50, 70, 16, 16)
    arrays = [rng.standard_normal((1, h, n, 16)).astype(number) for h, n in ((2, 50), (1, 70), (1, 70), (2, 50))]
    slopes = np.array([0.5, 0.125], np.float32)
    results, _ = run(sizes, arrays, slopes, cpu.Attended(-50, 71), isa, schedule=schedule)
    wide = [x.astype(np.float64) for x in arrays]
    exact = reference.forward(*wide[:3], scale=0.4, alibi=slopes)
    gradients = reference.backward(*wide, scale=0.4, alibi=slopes)
    assert worst(results[1], exact.lse) <= 1e-5
    for got, exact_result in zip((results[0], *results[2:5]), (exact.out, *gradients[:3]), strict=True):
        assert worst(got, exact_result) <= 4 * float(ml_dtypes.finfo(number).eps) * (1 + np.abs(exact_result).max())


def test_where_slopes_are_steep_each_query_has_its_own_key_and_its_whole_gradient(isa):
    """Rounding errors of scores in the thousands change exponentials noticeably: both passes must round alike."""
    n = 70
    rng, sizes = np.random.default_rng(1), Sizes((1,), 1, 1, n, n, 8, n)
    q, k = (1000 * rng.standard_normal((1, 1, n, 8)).astype(np.float32) for _ in range(2))
    v = dout = np.eye(n, dtype=np.float32)[None, None]
    slopes = np.array([1e9], np.float32)
    band, pairs = cpu.Attended(-n, n + 1), in_pairs(Mask.full(), sizes)
    for mask, tile in (
        (band, None),
        (band, cpu.TwoPassTile(33, 7, 1, 9)),
        (band, cpu.SpillTile(True, 8, 8, 4, 8, 5, 6, 3, 7, 4, 16)),
        (band, cpu.SpillTile(False, 8, 8, 4, 8, 5, 6, 3, 7, 4, 8)),
        (pairs, None),
    ):
        (out, _, _, _, dv, _), _ = run(sizes, (q, k, v, dout), slopes, mask, isa, tile=tile)
        assert np.array_equal(out, v)
        assert np.array_equal(dv, dout)


def test_a_slope_of_zero_changes_nothing_and_slopes_count_no_words(isa):
    rng, sizes = np.random.default_rng(2), Sizes((1,), 1, 2, 20, 30, 8, 8)
    arrays = [rng.standard_normal((1, h, n, 8)).astype(np.float32) for h, n in ((2, 20), (1, 30), (1, 30), (2, 20))]
    mask = cpu.Attended(-20, 31)
    with_none, moved = run(sizes, arrays, np.zeros(2, np.float32), mask, isa)
    sloped, also_moved = run(sizes, arrays, np.ones(2, np.float32), mask, isa)
    exact = reference.forward(*(x.astype(np.float64) for x in arrays[:3]), scale=0.4)
    assert worst(with_none[0], exact.out) < 1e-6
    assert worst(sloped[0], exact.out) > 1e-2
    assert moved == also_moved
