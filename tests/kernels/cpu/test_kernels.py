"""The CPU kernels against float64, on every instruction set that this CPU can run."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import redblue as rb
from redblue import Mask
from redblue.base.dtypes import DTYPE_CODES
from redblue.kernels.cpu import call as cpu
from redblue.kernels.cpu.mask_form import attended, gathers
from redblue.kernels.sizes import Sizes
from redblue.lab import reference
from support.attention import DTYPES, Case, backward, described, drawn, forward, kept, running
from support.drawn_calls import cases
from support.examples import thorough
from support.tolerances import check_backward, check_forward, in_sums, unfused, worst

SPILLED = cpu.SPILLED
TWO_PASSES = cpu.TwoPassTile(5, 7, 1, 9)  # dkv_rows is the kernel's own
SPILLING = [cpu.SpillTile(stays, 8, 8, 4, 8, 5, 6, 3, 7, 4, chunk) for stays, chunk in ((True, 16), (False, 8))]


def example(q_shape, k_shape, d_v=None, dtype="float32", times=1.0, start=0, **options):
    """A call on random arrays: q and dout (..., H, n_q, d), k and v (..., H_kv, n_k, d)."""
    rng = np.random.default_rng(start)
    d_v, dtype = d_v or q_shape[-1], DTYPES[dtype]
    shapes = (q_shape, k_shape, (*k_shape[:-1], d_v), (*q_shape[:-1], d_v))
    q, k, v, dout = (rng.standard_normal(shape) for shape in shapes)
    return Case(*(x.astype(dtype) for x in (q * times, k * times, v, dout)), options)


@drawn()
@given(case=cases())
def test_forward_is_as_close_to_float64_as_the_unfused_expression(isa, case):
    check_forward(case)


@drawn()
@given(case=cases())
def test_backward_is_as_close_to_float64_as_the_unfused_expression(isa, case):
    check_backward(case)


def typical(got, expected):
    """Return the root mean square error; the largest error varies by a factor of 3 between equally good kernels."""
    return np.sqrt(np.mean((got.astype(np.float64) - expected) ** 2))


@pytest.mark.parametrize("schedule", ["flash", *SPILLED])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "options",
    [thorough({}), {"mask": Mask.causal()}, thorough({"softcap": 3.0})],
    ids=["plain", "causal", "softcap"],
)
def test_typical_errors_are_below_twice_the_unfused_ones_without_any_floor(isa, dtype, options, schedule):
    case = example((2, 150, 48), (2, 170, 48), dtype=dtype, schedule=schedule, **options)
    out, lse = forward(case)
    dlse = np.random.default_rng(1).standard_normal(lse.shape).astype(lse.dtype)
    exact = reference.forward(case.q, case.k, case.v, **case.arguments())
    gradients = reference.backward(case.q, case.k, case.v, case.dout, dlse=dlse, **case.arguments())
    naive, results = unfused(case, dlse), backward(case, out, lse, dlse)
    assert typical(out, exact.out) <= 2 * typical(naive["out"], exact.out)
    assert typical(lse, exact.lse) <= 2 * typical(unfused(in_sums(case))["lse"], exact.lse)
    for name, got, expected in zip(("dq", "dk", "dv"), results, gradients[:3], strict=True):
        assert typical(got, expected) <= 2 * typical(naive[name], expected), name


@pytest.mark.parametrize(("d", "d_v"), [(4096, 3), (1, 4096), (1025, 577)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("schedule", ["flash", *SPILLED])
def test_large_head_dimensions(isa, d, d_v, dtype, schedule):
    case = example((1, 5, d), (1, 7, d), d_v, dtype, mask=Mask.causal(), schedule=schedule)
    check_forward(case)
    check_backward(case)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tile", SPILLING, ids=("hybrid", "small_cache"))
def test_panels_of_spilled_scores_that_would_lie_a_power_of_two_apart(isa, dtype, tile):
    case = example((1, 40, 5), (1, 128, 5), 3, dtype, schedule="hybrid" if tile.stays else "small_cache")
    case = replace(case, tile=tile)
    check_forward(case)
    check_backward(case)


def test_as_many_leading_dimensions_as_promised(isa):
    case = example((2, 1, 1, 2, 1, 1, 1, 2, 2, 5, 4), (1, 1, 1, 2, 1, 1, 1, 2, 1, 6, 4))
    check_forward(case)
    check_backward(case)


# Masks, and rows that attend nothing ----------------------------------------------------------------


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize(
    "options",
    [
        {"mask": Mask.causal(align="bottom-right")},  # 9 queries, 4 keys: the first 5 attend no key
        {"mask": Mask.sliding_window(1, 0)},  # the last 4 attend no key
        {"mask": Mask.sliding_window(1, 0), "scale": -1.0},
        {"mask": Mask.sliding_window(1, 0), "scale": 0.0},
        {"bias": np.zeros((9, 4), bool)},
        {"bias": np.full((1, 4), -np.inf, np.float32)},
    ],
    ids=["causal", "window", "negative", "zero", "boolean", "infinite"],
)
@pytest.mark.parametrize(
    "tile", [None, cpu.Tile(1, 1), TWO_PASSES, *SPILLING], ids=["plan", "tiny", "two passes", *SPILLED]
)
def test_rows_that_attend_nothing_give_zero(isa, dtype, options, tile):
    case = example((2, 9, 3), (2, 4, 3), dtype=dtype, **options)
    if dtype == "float64" and "bias" in options and options["bias"].dtype != bool:
        case.options["bias"] = options["bias"].astype(np.float64)
    case.tile = tile
    out, lse = check_forward(case)
    dq, dk, dv = check_backward(case)
    empty = np.isneginf(reference.forward(case.q, case.k, case.v, **case.arguments()).lse)
    assert empty.any()
    assert (out[empty] == 0).all()
    assert np.isneginf(lse[empty]).all()
    assert (dq[empty] == 0).all()
    assert all(np.isfinite(x.astype(np.float32)).all() for x in (dq, dk, dv))


def test_no_keys_and_no_queries(isa):
    for n_q, n_k in ((3, 0), (0, 3), (0, 0)):
        case = example((2, n_q, 4), (2, n_k, 4), 5, sinks=np.array([0.5, -np.inf], np.float32))
        out, lse = forward(case)
        assert out.shape == (2, n_q, 5)
        assert (out == 0).all()
        assert np.array_equal(lse, np.broadcast_to(case.options["sinks"][:, None], (2, n_q)))
        assert all((x == 0).all() for x in backward(case, out, lse))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_scores_of_ten_thousand(isa, dtype):
    case = example((2, 20, 16), (2, 30, 16), dtype=dtype, times=60.0)
    s = case.q.astype(float) @ case.k.astype(float).swapaxes(-1, -2) / 4
    assert np.abs(s).max() > 1e4
    check_forward(case)
    check_backward(case)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("schedule", ["auto", *SPILLED, "gather"])
@pytest.mark.parametrize(("heads", "n_q"), [(1, 1), (1, 8), (1, 9), (1, 513), (8, 1), (4, 3)])
def test_where_one_key_outweighs_all_others_it_has_the_whole_gradient(isa, dtype, heads, n_q, schedule):
    """Scores of a million have rounding errors above 1, so both passes must round them alike."""
    times = 100.0 if dtype == "float16" else 1000.0
    case = example((heads, n_q, 72), (1, 70, 72), dtype=dtype, times=times, schedule=schedule)
    check_one_key_has_it_all(case)


@pytest.mark.parametrize("transposed", ["q", "k"])
@pytest.mark.parametrize("schedule", ["auto", *SPILLED, "gather"])
def test_one_key_has_the_whole_gradient_with_transposed_arrays(isa, transposed, schedule):
    case = example((2, 20, 72), (1, 70, 72), times=1000.0, schedule=schedule)
    setattr(case, transposed, np.ascontiguousarray(getattr(case, transposed).swapaxes(-1, -2)).swapaxes(-1, -2))
    check_one_key_has_it_all(case)


def test_backward_keeps_the_form_of_forward_if_scores_are_large(isa):
    """With large scores, backward uses forward's form of the mask; otherwise each direction uses the cheaper form."""
    mask = Mask.global_tokens([0]) | Mask.sliding_window(3, 5)
    case = example((4, 9, 257), (1, 300, 257), times=1000.0, mask=mask)
    sizes = Sizes((), 1, 4, 9, 300, 257, 257)
    ways = [gathers(mask, sizes, cpu.isa().lanes(DTYPE_CODES["float32"]), way) for way in ("forward", "backward")]
    if ways != [True, False]:
        pytest.skip("both directions take the same form here")
    check_one_key_has_it_all(case)


def check_one_key_has_it_all(case):
    """Check that the key with the largest score gets all of dout as dV; ambiguous rows get a dout of 0."""
    s = case.q.astype(float) @ case.k.astype(float).swapaxes(-1, -2) * case.q.shape[-1] ** -0.5
    if "mask" in case.options:
        s[:, ~case.options["mask"].to_dense(*case.full[-2:])] = -np.inf
    second, first = np.moveaxis(np.sort(s, -1)[..., -2:], -1, 0)
    clear = first - second > 100 + 1e-5 * np.abs(s[np.isfinite(s)]).max()
    assert clear.mean() > 0.8
    case.dout[~clear] = 0
    out, lse = forward(case)
    dq, dk, dv = backward(case, out, lse)
    expected = np.zeros(dv.shape)
    np.add.at(expected[0], s.argmax(-1).ravel(), case.dout.astype(float).reshape(-1, dv.shape[-1]))
    epsilon = float(ml_dtypes.finfo(dv.dtype).eps)
    assert np.abs(dv.astype(float) - expected).max() <= 8 * epsilon * np.abs(expected).max()
    assert all(np.isfinite(x.astype(float)).all() for x in (dq, dk))


# Gradients that only the compiled core returns ------------------------------------------------------


@drawn()
@given(data=st.data())
def test_gradients_of_bias_sinks_and_lse(isa, data):
    case = data.draw(cases())
    lead, n_q, n_k = case.full[:-3], *case.full[-2:]
    kv_heads = case.k.shape[-3]
    if 0 in lead:
        return
    if case.options["mask"] is not None and case.options["mask"].lead:
        case.options["mask"] = case.options["mask"].plane(0)  # the core has one mask for heads that share a key head
    case.q, case.k, case.v, case.dout = (
        np.broadcast_to(x, (*lead, *x.shape[-3:])) for x in (case.q, case.k, case.v, case.dout)
    )
    sums = np.float64 if case.q.dtype == np.float64 else np.float32
    rng = np.random.default_rng(0)
    shape = tuple(1 if data.draw(st.booleans()) else size for size in case.full)
    case.options["bias"] = rng.standard_normal(shape).astype(sums)
    out, lse = forward(case)
    dlse = rng.standard_normal(lse.shape).astype(sums)

    sizes = Sizes(lead, kv_heads, case.full[-3] // kv_heads, n_q, n_k, case.q.shape[-1], case.v.shape[-1])
    written = [np.full(x.shape, np.nan, x.dtype) for x in (case.q, case.k, case.v, lse[..., None])]
    dbias = np.full(shape, np.nan, sums)
    options = case.options
    slopes = None if options.get("alibi") is None else options["alibi"].astype(sums)
    cpu.backward(
        sizes,
        case.q.dtype.name,
        *(described(x) for x in (case.q, case.k, case.v, out, lse[..., None], case.dout, *written)),
        mask=attended(options["mask"], sizes, case.q.dtype.name, "backward", True),
        scale=case.q.shape[-1] ** -0.5 if options["scale"] is None else options["scale"],
        softcap=options["softcap"] or 0.0,
        bias=described(np.broadcast_to(options["bias"], case.full)),
        bias_number=DTYPE_CODES[np.dtype(sums).name],
        dbias=described(np.broadcast_to(dbias, case.full)),
        dlse=described(dlse[..., None]),
        alibi=None if slopes is None else described(np.broadcast_to(slopes[..., None, None], (*case.full[:-2], 1, 1))),
        dropout=options.get("dropout", 0.0),
        seed=options.get("seed", 0),
        threads=case.threads,
        tile=case.tile,
    )
    exact = reference.backward(case.q, case.k, case.v, case.dout, dlse=dlse, **case.arguments())
    # dS is computed from 16-bit values, whose products are exact, and summed in float32; P and dS are not rounded here.
    terms = np.abs(case.dout.astype(float)).sum(-1).max(initial=0) * np.abs(case.v.astype(float)).max(initial=0)
    size = 1 + np.abs(case.q.astype(float)).sum(-1).max(initial=0) * np.abs(case.k.astype(float)).max(initial=0)
    many = np.prod(case.full) / max(1, np.prod(shape))
    rounded = np.finfo(case.q.dtype).eps if case.q.dtype.kind == "f" else 2.0**-7  # out is rounded, so delta is
    allowed = (20 * np.finfo(sums).eps * size + rounded) * (terms * 10 + 4) * max(1, many)
    assert worst(dbias, exact.dbias) <= allowed
    if options.get("sinks") is not None:
        delta = written[3][..., 0]
        shares = np.exp(options["sinks"][:, None] - np.where(np.isneginf(lse), 0, lse))
        dsinks = reference.summed_to((-shares * delta).sum(axis=-1), (case.full[-3],))
        assert worst(dsinks, exact.dsinks) <= allowed * max(1, n_q * np.prod(lead))


# NaN and infinity, as PyTorch treats them -----------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["q", "k", "v", "bias"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "tile", [None, cpu.Tile(2, 3), TWO_PASSES, *SPILLING], ids=["plan", "tiny", "two passes", *SPILLED]
)
def test_nan_and_infinity_spread_as_in_the_expression(isa, value, name, dtype, tile):
    case = example((2, 5, 3), (2, 7, 3), dtype=dtype)
    case.tile = tile
    if name == "bias":
        kind = np.float64 if dtype == "float64" else np.float32
        case.options["bias"] = np.zeros((2, 5, 7), kind)
        case.options["bias"][1, 2, 4] = value
    else:
        getattr(case, name)[1, 2, 1] = value
    out, lse = forward(case)
    exact = reference.forward(case.q, case.k, case.v, **case.arguments())
    assert np.array_equal(np.isnan(out.astype(float)), np.isnan(exact.out))
    assert np.array_equal(np.isnan(lse), np.isnan(exact.lse))
    assert np.array_equal(np.isinf(out.astype(float)), np.isinf(exact.out))
    gradients = reference.backward(case.q, case.k, case.v, case.dout, **case.arguments())
    for gradient, expected in zip(backward(case, out, lse), gradients[:3], strict=True):
        assert np.array_equal(np.isfinite(gradient.astype(float)), np.isfinite(expected))


# Dropout --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
def test_the_kept_share_is_what_was_asked_for(isa, dropout):
    full = (2, 3, 70, 130)
    is_kept = kept(full, dropout, seed=7)
    count, share = is_kept.size, 1 - dropout
    sigma = np.sqrt(share * dropout / count)
    assert abs(is_kept.mean() - share) < 5 * sigma
    for axis in range(4):  # the share is about the same for every head, row and key
        others = tuple(i for i in range(4) if i != axis)
        means = is_kept.mean(axis=others)
        assert np.abs(means - share).max() < 6 * np.sqrt(share * dropout * len(means) / count)
    # Neighbours are independent
    for axis in (2, 3):
        pairs = (np.take(is_kept, range(1, full[axis]), axis) & np.take(is_kept, range(full[axis] - 1), axis)).mean()
        assert abs(pairs - share**2) < 8 * sigma
    assert (is_kept != kept(full, dropout, seed=8)).mean() == pytest.approx(2 * share * dropout, abs=8 * sigma)


def test_dropout_scales_the_kept_probabilities(isa):
    n = 40
    case = example((1, 6, 4), (1, n, 4), dropout=0.25, seed=3)
    case.v = np.eye(n, dtype=np.float32)[None]
    out = rb.attention(case.q, case.k, case.v, **case.options)
    p = rb.attention(case.q, case.k, case.v)
    assert np.array_equal(out != 0, kept(case.full, 0.25, 3))
    assert np.allclose(out, np.where(out != 0, p / 0.75, 0), rtol=1e-6)


def test_a_seed_drops_the_same_for_all_tiles_threads_and_instruction_sets(isa):
    full, seeds = (2, 4, 37, 53), (0, 1, 2**63 + 5)
    with running(cpu._core.choose_isa("portable")):
        expected = [kept(full, 0.3, seed) for seed in seeds]
    for seed, mask in zip(seeds, expected, strict=True):
        for tile in (None, cpu.Tile(1, 1), cpu.Tile(5, 7), cpu.Tile(64, 50), cpu.Tile(16, 16, pieces=3), *SPILLING):
            for threads in (1, 3):
                assert np.array_equal(kept(full, 0.3, seed, tile, threads), mask)


@pytest.mark.parametrize("group", [1, 2])
def test_backward_drops_what_forward_dropped(isa, group):
    # dV = (P * kept)^T dout: if dout is the identity, dV shows the probabilities that backward keeps.
    n_q, n_k, full = 35, 21, (2, 35, 21)
    case = example((2, n_q, 3), (2 // group, n_k, 3), n_q, dropout=0.4, seed=11)
    expected = kept(full, 0.4, 11)
    for head in (0, 1):
        case.dout = np.zeros((2, n_q, n_q), np.float32)
        case.dout[head] = np.eye(n_q)
        for tile in (None, cpu.Tile(3, 5), cpu.Tile(64, 7), TWO_PASSES, *SPILLING):
            case.tile = tile
            out, lse = forward(case)
            _, _, dv = backward(case, out, lse)
            assert np.array_equal(dv[head // group].T != 0, expected[head])


def test_the_core_refuses_an_option_that_it_does_not_know():
    array = (np.ones(1, np.float32).ctypes.data, 0, 0, 0)
    with pytest.raises(TypeError):
        cpu.forward(Sizes((), 1, 1, 1, 1, 1, 1), "float32", *[array] * 5, mask=cpu.Attended(-1, 2), scale=1.0, cap=1.0)
