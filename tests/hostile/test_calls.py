"""Random hostile calls of the operator: each equals the float64 reference or raises RedblueError.

With tensors, a TypeError or ValueError of PyTorch is allowed, too. Every call is drawn from a seed.
"""

import math

import numpy as np
import pytest

import redblue as rb
from redblue.lab import reference
from support.examples import nightly

SIZES = (0, 1, 2, 3, 7, 17)
TOLERANCE = {"float64": 1e-11, "float32": 2e-5, "float16": 8e-3}
ODD_NUMBERS = (None, math.inf, -math.inf, math.nan, 0.0, -1.0, 1e-300, 5e-324, 1e39, 1e300, "1", 1j, True, [], 0.5, 3)
ODD_THINGS = (None, 1.5, "x", [[1.0]], object(), np.float32(1), {}, np.array(None))
MASKS = (None, rb.Mask.causal(), rb.Mask.sliding_window(2, 1, align="bottom-right"), rb.Mask.n_of_m(1, 2), "causal", 3)

SCHEDULES = ("flash", "gather", "hybrid", "small_cache", "fast", None, 1)


class Subclass(np.ndarray):
    """An array of another class."""


def shaped(rng, heads, n, d):
    """Draw a shape that fits most of the time."""
    shape = [int(rng.choice([1, 2])), heads, n, d][int(rng.choice([0, 1, 1, 1])) :]
    if rng.random() < 0.05:
        shape[int(rng.integers(len(shape)))] += 1
    return tuple(shape[2:] if rng.random() < 0.03 else shape)


def laid_out(rng, x):
    """Return an array with the same numbers in another layout or of another class."""
    kind = rng.integers(9)
    if kind == 0:
        x = np.asfortranarray(x)
    elif kind == 1:
        x = np.repeat(x, 2, axis=-1)[..., ::2]
    elif kind == 2:
        x = x[..., ::-1, :].copy()[..., ::-1, :] if x.ndim > 1 else x
    elif kind == 3:
        x.flags.writeable = False
    elif kind == 4:
        x = x.view(Subclass)
    elif kind == 5 and x.ndim > 1:  # all rows share the same memory
        x = np.broadcast_to(x[..., :1, :], x.shape) if x.shape[-2] else x
    elif kind == 6 and x.ndim > 1:  # rows overlap each other
        row = np.ascontiguousarray(x).ravel()
        if x.shape[-1] > 1 and row.size > sum(x.shape):
            steps = tuple(row.itemsize for _ in x.shape)
            x = np.lib.stride_tricks.as_strided(row, x.shape, steps)
    elif kind == 7:  # not aligned to its own type
        memory = np.zeros(x.nbytes + 1, np.uint8)
        unaligned = memory[1:].view(x.dtype) if x.nbytes % x.itemsize == 0 else memory
        unaligned[: x.size] = x.ravel()
        x = unaligned.reshape(x.shape)
    return x


def array(rng, shape, dtype):
    """Draw an array, sometimes with unusual numbers or of an unusual type."""
    x = np.asarray(rng.standard_normal(shape)).astype(dtype)
    if x.size and rng.random() < 0.15:
        x.flat[int(rng.integers(x.size))] = rng.choice([np.nan, np.inf, -np.inf, 1e4, 5e-324])
    odd = rng.random()
    if odd < 0.02:
        return ODD_THINGS[int(rng.integers(len(ODD_THINGS)))]
    if odd < 0.05:
        return x.astype(rng.choice(["int64", "bool", "complex64", "object", "float32", ">f4"]))
    if odd < 0.06:
        return np.ma.masked_array(x)
    return laid_out(rng, x)


def drawn(rng):
    """Draw the arguments of a call: q, k, v and options."""
    heads, shared = int(rng.choice([1, 2, 4])), int(rng.choice([1, 1, 2]))
    n_q, n_k, d, d_v = (int(rng.choice(SIZES)) for _ in range(4))
    dtype = rng.choice(list(TOLERANCE))
    q = array(rng, shaped(rng, heads * shared, n_q, max(d, int(rng.random() < 0.9))), dtype)
    k, v = (array(rng, shaped(rng, heads, n_k, max(x, int(rng.random() < 0.9))), dtype) for x in (d, d_v))
    options = {}
    for name in ("scale", "softcap", "dropout"):
        if rng.random() < 0.15:
            options[name] = ODD_NUMBERS[int(rng.integers(len(ODD_NUMBERS)))]
    if rng.random() < 0.3:
        options["mask"] = MASKS[int(rng.integers(len(MASKS)))]
    if rng.random() < 0.15:
        options["bias"] = array(rng, (n_q, n_k) if rng.random() < 0.8 else (n_k,), rng.choice([dtype, "bool"]))
    if rng.random() < 0.1:
        options["sinks"] = array(rng, (heads * shared,), dtype)
    if rng.random() < 0.1:
        options["alibi"] = array(rng, (heads * shared,), dtype)
    if rng.random() < 0.15:
        options["schedule"] = rng.choice(
            np.array(["flash", "gather", "hybrid", "small_cache", "fast", None, 1], object)
        )
    if rng.random() < 0.1:
        options["seed"] = rng.choice(np.array([0, -1, 2**63, 2**70, 1.5, "x", None], object))
    return q, k, v, options


def expected(q, k, v, options):
    """Return the reference's output in float64, head by head; None if dropout makes it random."""
    if options.get("dropout"):
        return None
    wide = [np.asarray(x, np.float64) for x in (q, k, v)]
    q, k, v = (x[None] if x.ndim == 2 else x for x in wide)
    lead = np.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    kv_heads = max(k.shape[-3], v.shape[-3])
    heads = kv_heads if q.shape[-3] == 1 else q.shape[-3]
    n_q, n_k = q.shape[-2], k.shape[-2]
    q = np.broadcast_to(q, (*lead, heads, *q.shape[-2:]))
    k, v = (np.broadcast_to(x, (*lead, kv_heads, *x.shape[-2:])).repeat(heads // kv_heads, axis=-3) for x in (k, v))
    out = np.zeros((*lead, heads, n_q, v.shape[-1]))
    alibi = options.get("alibi")
    alibi = None if alibi is None else np.broadcast_to(np.asarray(alibi, np.float64), (*lead, heads))
    bias = options.get("bias")
    bias = None if bias is None else np.broadcast_to(np.asarray(bias), (*lead, heads, n_q, n_k))
    mask = options.get("mask")
    attends = np.ones((n_q, n_k), bool) if mask is None or not (n_q and n_k) else mask.to_dense(n_q, n_k)
    scale = q.shape[-1] ** -0.5 if options.get("scale") is None else float(options["scale"])
    for index in np.ndindex(*lead, heads):
        s = q[index] @ k[index].T * scale
        if options.get("softcap"):
            s = options["softcap"] * np.tanh(s / options["softcap"])
        if alibi is not None:
            distance = np.abs(np.arange(n_q)[:, None] + n_k - n_q - np.arange(n_k))
            s = s - alibi[index] * distance
        if bias is not None:
            s = np.where(bias[index], s, -np.inf) if bias.dtype == bool else s + bias[index]
        s = np.where(attends, s, -np.inf)
        sink = None if options.get("sinks") is None else np.float64(np.asarray(options["sinks"])[index[-1]])
        out[index] = softmax(s, sink) @ v[index] if n_k else 0.0
    return out[0] if all(x.ndim == 2 for x in wide) else out


def softmax(s, sink):
    """Return the probabilities of each row; zeros for a row without scores.

    sink: an additional score without a value.
    """
    if not s.size:
        return s
    top = s.max(-1, keepdims=True) if sink is None else np.maximum(s.max(-1, keepdims=True), sink)
    dead = top == -np.inf
    p = np.exp(s - np.where(dead, 0, top))
    total = p.sum(-1, keepdims=True) + (0 if sink is None else np.exp(sink - np.where(dead, 0, top)))
    return np.where(dead, 0, p / np.where(dead, 1, total))


def is_right(out, q, k, v, options):
    """Whether the output equals the reference.

    A row with NaN or infinity in either needs only to have one in the output.
    """
    wanted = expected(q, k, v, options)
    if wanted is None:
        return True
    if out.shape != wanted.shape or out.dtype != q.dtype:
        return False
    finite = [x for x in (q, k, v, *(options.get(name) for name in ("bias", "sinks", "alibi"))) if x is not None]
    if not all(np.isfinite(np.asarray(x, np.float64)).all() for x in finite):
        return True  # a NaN may reach rows that do not attend it (docs/guide/attention.md, "Guarantees")
    large = max((float(np.abs(np.asarray(x, np.float64)).max(initial=0)) for x in finite), default=0) > 100
    if large or not np.isfinite(wanted).all():
        return True  # scores beyond the type's precision
    tolerance = TOLERANCE[out.dtype.name] * max(1.0, float(np.abs(wanted).max(initial=0)))
    scale = options.get("scale")
    if scale is not None and not abs(scale) <= 10:
        return True
    return bool(np.abs(out.astype(np.float64) - wanted).max(initial=0) <= tolerance)


def attempt(attention, q, k, v, options, refusals):
    """Return the output, or None if the call raises an allowed error."""
    try:
        return attention(q, k, v, **options)
    except refusals:
        return None


def torch_call():
    """Return the operator for tensors: arrays that PyTorch can take become tensors."""
    torch = pytest.importorskip("torch")

    def tensor(x):
        return torch.from_numpy(x) if type(x) is np.ndarray and x.dtype.kind in "fib" else x

    def call(q, k, v, **options):
        out = rb.attention(*map(tensor, (q, k, v)), **{name: tensor(x) for name, x in options.items()})
        return out.numpy() if isinstance(out, torch.Tensor) else out

    return call


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("calls", [300, nightly(5_000)], ids=["some", "many"])
@pytest.mark.parametrize("arrays", ["NumPy", "PyTorch"])
def test_right_or_refused(arrays, calls):
    attention, refusals = (
        (rb.attention, rb.RedblueError) if arrays == "NumPy" else (torch_call(), (ValueError, TypeError))
    )
    served = tried = 0
    with np.errstate(all="ignore"):
        for seed in range(calls):
            tried += 1
            q, k, v, options = drawn(np.random.default_rng([seed, 26]))
            out = attempt(attention, q, k, v, options, refusals)
            if out is not None:
                served += 1
                assert is_right(out, q, k, v, options), f"call {seed}: {options}"
    print(f"{tried} calls, {served} served")
    assert tried == calls
    assert tried / 10 < served < tried


def test_the_reference_is_the_laboratorys():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((5, 4)) for _ in range(3))
    wanted = reference.forward(q, k, v, rb.Mask.causal().to_dense(5, 5)).out
    assert np.allclose(expected(q, k, v, {"mask": rb.Mask.causal()}), wanted, rtol=1e-13)
