"""merge_attention: parts of the keys give the whole, in any order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import redblue as rb
from support.attention import DTYPES
from support.examples import examples
from support.paged import array, tensor

LIBRARIES = pytest.mark.parametrize("library", ["NumPy", "PyTorch"])
TOLERANCE = {"float64": 1e-14, "float32": 1e-6, "bfloat16": 1.6e-2, "float16": 2e-3}  # a few roundings of outs near 1


def merged(library, *arrays):
    if library == "NumPy":
        return rb.merge_attention(*arrays)
    pytest.importorskip("torch")
    return tuple(array(x) for x in rb.merge_attention(*map(tensor, arrays)))


def parts(seed, sizes, dtype="float64"):
    """The results (out, lse) of attention on each part of the keys, and on all keys."""
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((2, 3, 5, 8)).astype(DTYPES[dtype])
    k, v = (rng.standard_normal((2, 3, sum(sizes), width)).astype(DTYPES[dtype]) for width in (8, 4))
    ends = np.cumsum(sizes)
    of = [
        rb.attention(q, k[..., end - n : end, :], v[..., end - n : end, :], return_lse=True)
        for n, end in zip(sizes, ends, strict=True)
    ]
    return of, rb.attention(q, k, v, return_lse=True)


def check_close(got, expected, dtype="float64"):
    for x, y, tolerance in zip(
        got, expected, (TOLERANCE[dtype], TOLERANCE["float64" if dtype == "float64" else "float32"]), strict=True
    ):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), rtol=0, atol=4 * tolerance)


@LIBRARIES
@pytest.mark.parametrize("dtype", list(DTYPES))
@examples(15)
@given(seed=st.integers(0, 2**32 - 1), sizes=st.lists(st.integers(0, 9), min_size=2, max_size=2))
def test_two_parts_give_the_whole(library, dtype, seed, sizes):
    (a, b), whole = parts(seed, sizes, dtype)
    check_close(merged(library, *a, *b), whole, dtype)


@LIBRARIES
@examples(15)
@given(seed=st.integers(0, 2**32 - 1), sizes=st.lists(st.integers(0, 9), min_size=3, max_size=3))
def test_the_order_of_merging_changes_only_rounding(library, seed, sizes):
    (a, b, c), whole = parts(seed, sizes)
    left = merged(library, *merged(library, *a, *b), *c)
    right = merged(library, *a, *merged(library, *b, *c))
    back = merged(library, *c, *merged(library, *b, *a))
    for result in (left, right, back):
        check_close(result, whole)


@LIBRARIES
def test_swapped_parts_give_the_same_bits(library):
    (a, b), _ = parts(0, [5, 3], "float32")
    for x, y in zip(merged(library, *a, *b), merged(library, *b, *a), strict=True):
        assert x.tobytes() == y.tobytes()


@LIBRARIES
@pytest.mark.parametrize("empty", [0.0, np.nan])
def test_a_part_without_keys_changes_nothing_whatever_its_out_holds(library, empty):
    (a, _), _ = parts(0, [5, 3], "float32")
    nothing = np.full_like(a[0], empty), np.full_like(a[1], -np.inf)
    for order in ((*a, *nothing), (*nothing, *a)):
        for x, y in zip(merged(library, *order), a, strict=True):
            np.testing.assert_array_equal(x, y)
    out, lse = merged(library, *nothing, *nothing)
    assert not out.any()
    assert (lse == -np.inf).all()


@LIBRARIES
def test_nan_is_not_hidden(library):
    (a, b), _ = parts(0, [5, 3])
    a[1][0, 0, 0] = np.nan
    out, lse = merged(library, *a, *b)
    assert np.isnan(lse[0, 0, 0])
    assert np.isnan(out[0, 0, 0]).all()
    assert np.isfinite(lse).sum() == lse.size - 1
    assert np.isfinite(out[1]).all()


@LIBRARIES
def test_lse_far_apart_do_not_overflow(library):
    (a, b), _ = parts(0, [5, 3], "float32")
    out, lse = merged(library, a[0], np.full_like(a[1], 1e30), b[0], np.full_like(b[1], -1e30))
    np.testing.assert_array_equal(out, a[0])
    assert (lse == np.float32(1e30)).all()


@LIBRARIES
def test_a_prefix_of_pages_and_the_rest_give_the_whole(library):
    """Queries attend all keys of the prefix, and the rest causally."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape) for shape in ((2, 3, 4, 8), (9, 4, 2, 8), (9, 4, 2, 5)))
    table, lengths = np.array([[0, 1, 2, 3], [0, 1, 7, 8]]), np.array([15, 12])
    of = tensor if library == "PyTorch" else lambda x: x

    def call(table, lengths, mask=None):
        results = rb.attention_paged(*map(of, (q, k, v)), table, lengths, mask=mask, return_lse=True)
        return [array(x) if library == "PyTorch" else x for x in results]

    prefix, rest = call(table[:, :2], [8, 8], rb.Mask.full()), call(table[:, 2:], lengths - 8)
    check_close(merged(library, *prefix, *rest), call(table, lengths))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"out_b": np.zeros((2, 5))}, r"out_a and out_b must be \(..., d_v\), of one shape and type, got \(2, 4\) of"),
        ({"out_b": np.zeros((2, 4), np.float32)}, r"out_a and out_b must be \(..., d_v\), of one shape and type"),
        ({"out_a": np.zeros(()), "out_b": np.zeros(())}, r"out_a and out_b must be \(..., d_v\)"),
        (
            {"out_a": np.zeros((2, 4), int), "out_b": np.zeros((2, 4), int)},
            r"out_a must be of type float64, .* got int64",
        ),
        ({"lse_b": np.zeros(4)}, r"lse_b must be \(2,\), the shape of out_a without d_v, got \(4,\): is it transposed"),
        ({"lse_a": np.zeros(2, int)}, r"lse_a must have the type of the other lse, float32 or float64, got int64"),
        (
            {"lse_b": np.zeros(2, np.float32)},
            r"lse_b must have the type of the other lse, float32 or float64, got float32",
        ),
        ({"lse_b": None}, r"lse_b must be an array"),
    ],
)
def test_wrong_arguments_are_refused_by_name(change, message):
    parts = {"out_a": np.zeros((2, 4)), "lse_a": np.zeros(2), "out_b": np.zeros((2, 4)), "lse_b": np.zeros(2)}
    with pytest.raises(rb.RedblueError, match=message):
        rb.merge_attention(**parts | change)


def test_mixed_libraries_and_devices_are_refused():
    torch = pytest.importorskip("torch")
    out, lse = torch.zeros(2, 4), torch.zeros(2)
    with pytest.raises(rb.RedblueError, match="must be PyTorch tensors, or all arrays"):
        rb.merge_attention(out, lse, out, lse.numpy())
    with pytest.raises(rb.RedblueError, match="must be on one device, got cpu, meta"):
        rb.merge_attention(out, lse, out, lse.to("meta"))
