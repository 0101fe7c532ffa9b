"""scale, softcap and dropout: CPUs and GPUs refuse the same numbers, and agree with the reference on all others."""

import itertools
import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import numpy as np

import redblue as rb
from redblue.op.pytorch import interpreted
from support.gpu import DEVICE, interpreted_only
from support.textbook import check_close, textbook

SCALES = (None, 0.0, -0.0, 5e-324, 1e-50, 1e-42, 9e-31, 1e-30, -0.5, 1e6, 1e38, -1e38, 1.1e38, 3e38, 1e39, 1e300)
SOFTCAPS = (None, -1.0, 0.0, 1e-300, 1e-42, 1e-30, 1e-5, 30.0, 1e10, 1e20, 1e29, 1e38, 1e39, 1e300)
NOT_FINITE = (math.inf, -math.inf, math.nan)
DTYPES = (torch.float32, torch.float64)


@pytest.fixture(scope="module")
def tensors():
    return torch.randn(3, 1, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 4


def outcome(attention, q, k, v, **options):
    """Return the output, or the message of its refusal."""
    try:
        return attention(q, k, v, **options)
    except rb.RedblueError as error:
        return str(error)


@interpreted_only
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter also computes masked lanes
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_same_on_both_devices(tensors, dtype):
    tried = served = 0
    for scale, softcap in itertools.product(SCALES, SOFTCAPS):
        tried += 1
        q, k, v = (x.to(dtype) for x in tensors)
        cpu = outcome(rb.attention, q, k, v, scale=scale, softcap=softcap)
        arrays = outcome(rb.attention, *(x.numpy() for x in (q, k, v)), scale=scale, softcap=softcap)
        if isinstance(cpu, str):
            assert arrays == cpu
            assert outcome(interpreted.attention, q, k, v, scale=scale, softcap=softcap) == cpu
            continue
        served += 1
        expected = textbook(q, k, v, scale=scale, softcap=softcap)
        check_close(cpu, expected, dtype)
        check_close(torch.from_numpy(np.asarray(arrays)), expected, dtype)
        if scale is None or (scale in (1e-30, 1e38) and softcap in (None, 1e29)):  # the interpreter is slow
            check_close(interpreted.attention(q, k, v, scale=scale, softcap=softcap), expected, dtype)
    assert tried == len(SCALES) * len(SOFTCAPS)
    assert 40 <= served < tried / 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"softcap": 1e300}, r"softcap must be 1e-30 to 1e\+38 in size, got 1e\+300: give a softcap"),
        ({"scale": 1e39}, r"scale must be 0, or 1e-30 to 1e\+38 in size, got 1e\+39"),
        ({"scale": -1e-31}, r"scale must be 0, or 1e-30 to 1e\+38 in size, got -1e-31"),
        ({"scale": 1e30, "softcap": 1e-20}, r"scale / softcap must be 0, or 1e-30 to 1e\+38 in size, got 1e\+50"),
        ({"scale": 1e-20, "softcap": 1e20}, r"scale / softcap must be 0, or 1e-30 to 1e\+38 in size, got 1e-40"),
        *(({name: x}, f"{name} must be") for name in ("scale", "softcap", "dropout") for x in NOT_FINITE),
    ],
    ids=str,
)
def test_numbers_out_of_range_are_refused(tensors, options, message):
    q, k, v = tensors.to(DEVICE)
    for attention in (rb.attention, interpreted.attention):
        with pytest.raises(rb.RedblueError, match=message):
            attention(q, k, v, **options)
    with pytest.raises(rb.RedblueError, match=message):
        rb.attention(*tensors.numpy(), **options)


@interpreted_only
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("size", [1e-9, 1e-3, 0.03, 0.069, 0.071, 0.3])
def test_tanh_near_0_in_float64_on_gpus(size):
    """With a large softcap, arguments of tanh are small, and their relative error is that of the scores."""
    q, k, v = torch.randn(3, 1, 16, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    k, softcap = k / (q @ k.mT).abs().max() * 2, 1 / size
    got, expected = interpreted.attention(q, k, v, softcap=softcap), textbook(q, k, v, softcap=softcap)
    check_close(got, expected, torch.float64, {torch.float64: 1e-14})


def test_a_softcap_out_of_range_is_not_advised_to_scale_q():
    q = np.ones((1, 4, 8), np.float32)
    with pytest.raises(
        rb.RedblueError, match=r"softcap must be 1e-30 to 1e.38 in size, got 1e.300: give a softcap nearer"
    ):
        rb.attention(q, q, q, softcap=1e300)
