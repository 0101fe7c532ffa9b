"""The operator on NumPy arrays: accepted inputs, and the errors for all others."""

import numpy as np
import pytest

import redblue as rb
from redblue import Mask, RedblueError
from redblue.lab import reference
from support.attention import DTYPES


def arrays(heads=2, kv_heads=2, n_q=5, n_k=7, d=4, d_v=3, dtype="float32", lead=()):
    rng = np.random.default_rng(0)
    shapes = ((*lead, heads, n_q, d), (*lead, kv_heads, n_k, d), (*lead, kv_heads, n_k, d_v))
    return [rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in shapes]


def cut(index, key):
    """Return valid arguments, except that argument `index` is cut to the slice `key`."""
    inputs = arrays()
    inputs[index] = inputs[index][key]
    return inputs


def typed(index, dtype):
    inputs = arrays()
    inputs[index] = inputs[index].astype(dtype)
    return inputs


BAD_ARRAYS = {
    "d of k": (cut(1, np.s_[..., :3]), r"head dimension of k \(3\) must equal that of q \(4\)"),
    "keys of v": (cut(2, np.s_[:, :6]), r"v must have as many keys as k \(7\), got 6"),
    "heads": (arrays(heads=3), r"heads of q \(3\) must be a multiple of the heads of k and v \(2\)"),
    "heads of v": (cut(2, np.s_[[0, 1, 1]]), r"v must have as many heads as k \(2\), got 3"),
    "one dimension": (cut(0, np.s_[0, 0]), r"q must have at least 2 dimensions .*\(4,\)"),
    "no d": (arrays(d=0), r"d, the last dimension of q and k, must be at least 1, got 0"),
    "too large d": (arrays(d=4097), r"d, the last dimension of q and k, must be 1 to 4096 on the CPU, got 4097"),
    "too large d_v": (arrays(d_v=4097), r"d_v, the last dimension of v, must be 1 to 4096 on the CPU, got 4097"),
    "lead": ([arrays(lead=(2,))[0], *arrays(lead=(3,))[1:]], r"leading dimensions must broadcast.*\(2, .*\(3, "),
    "too many dimensions": (arrays(lead=(1,) * 9), r"q may have at most 11 dimensions"),
    "dtype of k": (typed(1, np.float64), r"of one type, got float32 and, for k, float64"),
    "integers": (typed(0, np.int64), r"q must be of type .*, got int64"),
    "complex": (typed(2, np.complex64), r"v must be of type .*, got complex64"),
    "booleans": (typed(1, bool), r"k must be of type .*, got bool"),
    "byte order": (typed(1, np.dtype(np.float32).newbyteorder()), r"k must be in this machine's byte order"),
    "no array": ([[[1.0]], *arrays()[1:]], r"q must be an array .*, got list"),
    "None": ([None, *arrays()[1:]], r"q must be an array .*, got NoneType"),
}
BAD_OPTIONS = {
    "scale nan": ({"scale": float("nan")}, r"scale must be finite, got nan"),
    "scale inf": ({"scale": float("inf")}, r"scale must be finite, got inf"),
    "scale text": ({"scale": "1"}, r"scale must be a number, got '1'"),
    "softcap 0": ({"softcap": 0.0}, r"softcap must be above 0, or None, got 0.0"),
    "softcap below 0": ({"softcap": -2.0}, r"softcap must be above 0, or None, got -2.0"),
    "softcap nan": ({"softcap": float("nan")}, r"softcap must be finite, got nan"),
    "dropout 1": ({"dropout": 1.0, "seed": 0}, r"dropout must be at least 0 and below 1, got 1.0"),
    "dropout below 0": ({"dropout": -0.1, "seed": 0}, r"dropout must be at least 0 and below 1, got -0.1"),
    "dropout true": ({"dropout": True, "seed": 0}, r"dropout must be a number, got True"),
    "no seed": ({"dropout": 0.1}, r"dropout on NumPy arrays needs a seed"),
    "seed": ({"dropout": 0.1, "seed": 1.5}, r"seed must be a whole number.*1.5"),
    "schedule": ({"schedule": "fast"}, r"schedule must be one of auto, flash.*, got 'fast'"),
    "mask text": ({"mask": "causal"}, r"mask must be a redblue.Mask.*, got (str|'causal')"),
    "mask array": ({"mask": np.ones((5, 7), bool)}, r"mask must be a redblue.Mask.*, got (ndarray|array)"),
    "block mask": (
        {"mask": Mask.blocks(np.eye(3, dtype=bool), 4)},
        r"the mask's layout has 3 x 3 blocks of 4 queries x 4 keys, but n_q = 5 and n_k = 7",
    ),
    "bias shape": (
        {"bias": np.zeros((5, 6), np.float32)},
        r"bias must broadcast to .* = \(2, 5, 7\), got shape \(5, 6\)",
    ),
    "bias dimensions": ({"bias": np.zeros((1, 2, 5, 7), np.float32)}, r"bias must broadcast to .*\(1, 2, 5, 7\)"),
    "bias integers": ({"bias": np.zeros((5, 7), int)}, r"bias must be of type bool, .*, got int64"),
    "bias float64": ({"bias": np.zeros((5, 7))}, r"bias of type float64 needs float64 arrays, got float32"),
    "bias no array": ({"bias": 1.0}, r"bias must be an array .*, got float"),
    "sinks": ({"sinks": np.zeros(3, np.float32)}, r"sinks must have shape \(2,\), one per head of q, got \(3,\)"),
    "sinks integers": ({"sinks": np.zeros(2, int)}, r"sinks must be of type .*, got int64"),
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_arrays_that_do_not_fit_are_named(name):
    inputs, message = BAD_ARRAYS[name]
    with pytest.raises(RedblueError, match=message):
        rb.attention(*inputs)


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_options_that_do_not_fit_are_named(name):
    options, message = BAD_OPTIONS[name]
    with pytest.raises(RedblueError, match=message):
        rb.attention(*arrays(), **options)


@pytest.mark.parametrize("sides", [(-1, 0), (0, -1), (1.5, 0)])
def test_a_window_below_zero_is_refused_where_it_is_made(sides):
    with pytest.raises(RedblueError, match=r"(left|right) must be a whole number of at least 0, got"):
        Mask.sliding_window(*sides)


def test_strides_that_are_no_whole_elements():
    packed = np.zeros((2, 5), dtype=[("x", np.float32, 4), ("tag", np.int8)])
    with pytest.raises(RedblueError, match="strides must be whole elements"):
        rb.attention(packed["x"], *arrays()[1:])


# The backward pass ---------------------------------------------------------------------------------


def backward_arguments():
    q, k, v = arrays()
    out, lse = rb.attention(q, k, v, return_lse=True)
    return {"dout": np.ones_like(out), "q": q, "k": k, "v": v, "out": out, "lse": lse}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("dout", lambda x: x[:, :4], r"dout must be \(2, 5, 3\) of float32, got \(2, 4, 3\)"),
        ("dout", lambda x: x.astype(np.float64), r"dout must be .* of float32, got .* of float64"),
        ("out", lambda x: x[..., :2], r"out must be \(2, 5, 3\) of float32, got \(2, 5, 2\)"),
        ("lse", lambda x: x[:1], r"lse must be \(2, 5\) of float32 or float64, got \(1, 5\)"),
        ("lse", lambda x: list(x), r"lse must be an array"),
        ("k", lambda x: x[..., :3], r"head dimension of k \(3\) must equal"),
        ("dlse", lambda x: np.ones((2, 4), np.float32), r"dlse must be \(2, 5\) of float32 or float64, got \(2, 4\)"),
    ],
)
def test_backward_names_arguments_that_do_not_fit(name, change, message):
    arguments = backward_arguments()
    arguments[name] = change(arguments.get(name))
    with pytest.raises(RedblueError, match=message):
        rb.attention_backward(**arguments)


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_backward_checks_options(name):
    options, message = BAD_OPTIONS[name]
    with pytest.raises(RedblueError, match=message):
        rb.attention_backward(**backward_arguments(), **options)


# Accepted inputs -----------------------------------------------------------------------------------


class Foreign:
    """An array that supports only DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_arrays_that_speak_dlpack():
    inputs = arrays()
    expected = rb.attention(*inputs)
    assert np.array_equal(rb.attention(*(Foreign(x) for x in inputs)), expected)


def test_a_dlpack_array_elsewhere_is_refused():
    class Elsewhere(Foreign):
        def __dlpack_device__(self):
            return (2, 0)  # a GPU

        def __dlpack__(self, **options):
            raise BufferError("it lies on a GPU")

    q, k, v = arrays()
    with pytest.raises(RedblueError, match="q cannot be read as an array on the CPU"):
        rb.attention(Elsewhere(q), k, v)


def test_two_dimensions_are_one_head():
    q, k, v = (x[0] for x in arrays())
    out, lse = rb.attention(q, k, v, return_lse=True)
    assert out.shape == (5, 3)
    assert lse.shape == (5,)
    stacked, stacked_lse = rb.attention(q[None], k[None], v[None], return_lse=True)
    assert np.array_equal(out, stacked[0])
    assert np.array_equal(lse, stacked_lse[0])
    gradients = rb.attention_backward(np.ones_like(out), q, k, v, out, lse)
    assert [x.shape for x in gradients] == [q.shape, k.shape, v.shape]


def test_one_array_as_all_three():
    x = arrays(d=4)[0]
    assert np.array_equal(rb.attention(x, x, x), rb.attention(x, x.copy(), x.copy()))


def test_leading_dimensions_broadcast_and_their_gradients_add_up():
    q, k, v = arrays(lead=(3, 2))
    k, v = k[:1], v[0]
    out, lse = rb.attention(q, k, v, return_lse=True)
    whole = [np.ascontiguousarray(np.broadcast_to(x, (3, 2, *x.shape[-3:]))) for x in (q, k, v)]
    assert np.array_equal(out, rb.attention(*whole))
    dq, dk, dv = rb.attention_backward(np.ones_like(out), q, k, v, out, lse)
    gradients = rb.attention_backward(np.ones_like(out), *whole, out, lse)
    assert np.array_equal(dq, gradients[0])
    assert np.allclose(dk, gradients[1].sum(axis=0, keepdims=True), atol=1e-6)
    assert np.allclose(dv, gradients[2].sum(axis=0), atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_of_broadcast_arrays_are_rounded_once(dtype):
    q, k, v = arrays(lead=(64,), dtype=dtype)
    out, lse = rb.attention(q, k[0], v[0], return_lse=True)
    dout = np.ones_like(out)
    _, _, dv = rb.attention_backward(dout, q, k[0], v[0], out, lse)
    wide = [x.astype(np.float64) for x in (dout, q, k[0], v[0])]
    exact = reference.backward(wide[1], wide[2], wide[3], wide[0]).dv
    step = np.spacing(np.abs(exact).astype(np.float32)) * 2.0 ** (16 if dtype == "bfloat16" else 13)
    assert (np.abs(dv.astype(np.float64) - exact) <= 1.5 * step).all()


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({}, {}),
        ({"is_causal": True}, {"mask": Mask.causal()}),
        ({"scale": 0.3}, {"scale": 0.3}),
        ({"attn_mask": np.arange(35).reshape(5, 7) % 3 > 0}, {"bias": np.arange(35).reshape(5, 7) % 3 > 0}),
        ({"attn_mask": np.ones((5, 1), np.float32)}, {"bias": np.ones((5, 1), np.float32)}),
    ],
)
def test_the_counterpart_of_pytorchs_function_equals_attention(theirs, ours):
    assert np.array_equal(rb.scaled_dot_product_attention(*arrays(), **theirs), rb.attention(*arrays(), **ours))


def test_the_counterpart_groups_heads_only_with_enable_gqa():
    inputs = arrays(heads=4)
    with pytest.raises(RedblueError, match=r"query has 4 heads, key 2 and value 2.*enable_gqa=True"):
        rb.scaled_dot_product_attention(*inputs)
    assert np.array_equal(rb.scaled_dot_product_attention(*inputs, enable_gqa=True), rb.attention(*inputs))


def test_the_counterpart_refuses_two_masks_and_names_arguments():
    with pytest.raises(RedblueError, match="attn_mask and is_causal=True were both given"):
        rb.scaled_dot_product_attention(*arrays(), attn_mask=np.ones((5, 7), bool), is_causal=True)
    with pytest.raises(RedblueError, match="query must have at least 2 dimensions"):
        rb.scaled_dot_product_attention(arrays()[0][0, 0], *arrays()[1:])
    with pytest.raises(RedblueError, match="query must be an array"):
        rb.scaled_dot_product_attention([1.0], *arrays()[1:])


MASKS_WITHOUT_HEADS = {
    "full": None,
    "band": Mask.causal(),
    "runs": Mask.random_blocks(0.5, block=5),
    "pairs": Mask.from_coo([0, 3], [1, 2], (5, 5)),
    "planes": Mask.key_lengths([4, 2]),
}


@pytest.mark.parametrize("schedule", ["auto", "flash", "gather"])
@pytest.mark.parametrize("name", MASKS_WITHOUT_HEADS)
def test_no_query_heads_but_key_heads(name, schedule):
    q, k, v = arrays(heads=0, n_k=5, lead=(2,))
    options = {"mask": MASKS_WITHOUT_HEADS[name], "schedule": schedule, "bias": np.zeros((5, 5), np.float32)}
    out, lse = rb.attention(q, k, v, return_lse=True, **options)
    assert (out.shape, lse.shape) == ((2, 0, 5, 3), (2, 0, 5))
    gradients = rb.attention_backward(out, q, k, v, out, lse, **options)
    assert [x.shape for x in gradients] == [q.shape, k.shape, v.shape]
    assert not any(x.any() for x in gradients)


def test_no_query_heads_but_key_heads_in_tensors():
    torch = pytest.importorskip("torch")
    for mask in MASKS_WITHOUT_HEADS.values():
        q, k, v = (torch.from_numpy(x).requires_grad_() for x in arrays(heads=0, n_k=5, lead=(2,)))
        out = rb.attention(q, k, v, mask=mask)
        gradients = torch.autograd.grad(out.sum(), (q, k, v))
        assert not any(x.any() for x in gradients)


def test_no_query_heads_in_packed_and_paged_calls():
    q, k, v = (x.swapaxes(-2, -3) for x in arrays(heads=0, n_k=5))
    assert rb.attention_varlen(q, k, v, [0, 2, 5], mask=Mask.causal()).shape == (5, 0, 3)
    assert rb.attention_paged(q[None], k[None], v[None], [[0]], [5]).shape == (1, 5, 0, 3)
