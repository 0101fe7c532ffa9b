"""The kernels' exponential over its whole range, and conversions of 16-bit numbers, on every instruction set."""

import numpy as np
import pytest

import redblue as rb
from redblue.compiled import _core
from support.attention import DTYPES

# By type: ln and log2 of the least normal number, and the largest argument with a guaranteed result.
MIN_ARGUMENT = {
    "exp": {np.float32: -87.33654, np.float64: -708.3964185322641},
    "exp2": {np.float32: -126, np.float64: -1022},
}
MAX_ARGUMENT = {"exp": {np.float32: 88.0, np.float64: 709.0}, "exp2": {np.float32: 127.0, np.float64: 1023.0}}
PROMISE = {np.float32: 4e-7, np.float64: 4e-16}

both = pytest.mark.parametrize("name", ["exp", "exp2"])


def power(name, x, row):
    result = x.copy()
    getattr(_core, name)(result, row)
    return result


def arguments(name, dtype):
    """Return every 499th float32, or a million float64, and all numbers near both ends and near 0."""
    if dtype == np.float32:
        spread = np.arange(0, 2**32, 499, np.uint64).astype(np.uint32).view(np.float32)
    else:
        spread = np.concatenate(
            [np.linspace(-1100, MAX_ARGUMENT[name][dtype], 1_000_003), -(2.0 ** np.linspace(-1074, 12, 10_007))]
        )
    ends = np.array(
        [MIN_ARGUMENT[name][dtype], MAX_ARGUMENT[name][dtype], 0, -0.34657359, 0.34657359, -0.5, 0.5, -1, 1, -50], dtype
    )
    steps = np.arange(-5000, 5000) * np.finfo(dtype).eps / 2
    near = (ends[:, None] + np.maximum(np.abs(ends[:, None]), 1) * steps.astype(dtype)).ravel().astype(dtype)
    return np.concatenate([spread, near])


@both
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_relative_error_over_the_whole_range(isa, name, dtype):
    x = arguments(name, dtype)
    x = x[np.isfinite(x) & (x < MAX_ARGUMENT[name][dtype])]
    got = power(name, x, isa)
    wide = np.float64 if dtype == np.float32 else np.longdouble
    if np.finfo(wide).eps > np.finfo(dtype).eps / 16:
        pytest.skip("this machine has no wider type than float64")
    with np.errstate(under="ignore"):
        exact = getattr(np, name)(x.astype(wide))
    tiny = np.finfo(dtype).tiny
    normal = exact >= tiny
    assert normal.sum() > 100_000
    assert (np.abs(got[normal] - exact[normal]) / exact[normal]).max() <= PROMISE[dtype]
    assert np.abs(got[~normal] - exact[~normal]).max() <= tiny


@both
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_values(isa, name, dtype):
    unsigned = {np.float32: np.uint32, np.float64: np.uint64}[dtype]
    nan = np.array([np.nan], dtype).view(unsigned)[0]
    payloads = np.array([nan, nan | 1, nan | 12345], unsigned)
    signs = unsigned(1) << (8 * unsigned().itemsize - 1)
    nans = np.concatenate([payloads, payloads | signs]).view(dtype)
    x = np.concatenate([np.array([-np.inf, 0.0, -0.0, -1e30], dtype), np.repeat(nans, 17)])
    got = power(name, x, isa)
    assert got[:3].tolist() == [0.0, 1.0, 1.0]
    assert 0 <= got[3] <= np.finfo(dtype).tiny
    assert np.isnan(got[4:]).all()


@pytest.mark.parametrize("count", [0, 1, 3, 15, 16, 17, 33])
def test_any_length_without_writes_beyond_it(isa, count):
    x = np.full(count + 8, 7.0, np.float32)
    _core.exp(x[:count], isa)
    assert x[:count] == pytest.approx(np.exp(7.0))
    assert (x[count:] == 7).all()


def copied(v):
    """Copy v, of shape (n, d_v), through the kernel: attention to a single key returns its value."""
    ones = np.ones((len(v), 1, 1), v.dtype)
    return rb.attention(ones, ones, v[:, None, :])[:, 0, :]


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("width", [64, 1, 7])
def test_every_16_bit_number_passes_unchanged(isa, name, width):
    bits = np.arange(2**16, dtype=np.uint16)
    bits = np.resize(bits, (-(-len(bits) // width), width))
    got = copied(bits.view(DTYPES[name]))
    size, subnormal = bits & 0x7FFF, (bits & {"bfloat16": 0x7F80, "float16": 0x7C00}[name]) == 0
    number = size <= {"bfloat16": 0x7F80, "float16": 0x7C00}[name]
    same = (got.view(np.uint16) == bits) | (size == 0) & (got == 0)  # 0 + -0 is 0
    if name == "bfloat16" and "bf16" in isa.name:
        same |= subnormal & (got == 0)  # instructions for dot products treat them as 0
    assert same[number].all()
    assert np.isnan(got[~number].astype(np.float32)).all()


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("width", [32, 5])
def test_results_are_rounded_to_nearest_even(isa, name, width):
    # Two keys of equal weight give half the sum of two neighbouring numbers, which lies halfway between them.
    dtype = DTYPES[name]
    top = {"bfloat16": 0x7E7F, "float16": 0x7BFF}[name]  # the sum of two such numbers fits float32
    low = np.arange(0x80 if name == "bfloat16" else 0, top, dtype=np.uint16)  # for bfloat16, only normal numbers
    low = np.resize(low, (-(-len(low) // width), width))
    v = np.stack([low.view(dtype), (low + 1).view(dtype)], axis=1)
    ones = np.ones((len(v), 2, 1), dtype)
    got = rb.attention(ones[:, :1], ones, v)[:, 0, :]
    even = (low + (low & 1)).view(dtype)
    assert np.array_equal(got, even)
