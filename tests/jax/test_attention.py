"""redblue.jax.dot_product_attention: outputs and gradients of every option, against float64 and JAX."""

from functools import partial

import numpy as np
import pytest

pytest.importorskip("jax.numpy")

import jax
import jax.numpy as jnp

import redblue as rb
from redblue import Mask
from redblue.jax import dot_product_attention
from support.jax_calls import WITH_GRADIENT, arrays, check, with_gradients

enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
B, T, S, N, K = 2, 5, 7, 4, 2
RNG = np.random.default_rng(7)
CAUSAL = np.tri(T, S, dtype=bool)
WINDOW = CAUSAL & ~np.tri(T, S, -3, dtype=bool) | np.eye(T, S, 1, dtype=bool)  # keys t - 2 .. t + 1
SOME = RNG.random((B, 1, T, S)) < 0.7
QUERIES, KEYS = np.array([3, 5], np.int32), np.array([7, 4], np.int32)
REAL = (np.arange(T)[:, None] < QUERIES[:, None, None, None]) & (np.arange(S) < KEYS[:, None, None, None])
PER_HEAD = Mask.per_head([Mask.causal(), Mask.full(), Mask.sliding_window(1, 1), Mask.documents([2, 3], [4, 3])])
GRAPH = Mask.from_dense(RNG.random((T, S)) < 0.4)


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


# name: (options, the pairs that attend)
OPTIONS = {
    "none": ({}, None),
    "scale": ({"scale": -0.3}, None),
    "causal": ({"is_causal": True}, CAUSAL),
    "window": ({"local_window_size": (2, 1)}, WINDOW),
    "causal window": ({"local_window_size": 2, "is_causal": True}, CAUSAL & WINDOW),
    "boolean mask": ({"mask": SOME}, SOME),
    "boolean mask and causal": ({"mask": SOME[0, 0], "is_causal": True}, SOME[0, 0] & CAUSAL),
    "bias of every pair": ({"bias": normal(B, N, T, S)}, None),
    "bias of heads": ({"bias": normal(N, 1, S)}, None),
    "bias of keys, bfloat16": ({"bias": normal(B, 1, 1, S).astype(jnp.bfloat16)}, None),
    "bias and mask": ({"bias": normal(1, N, T, 1), "mask": SOME}, SOME),
    "query lengths": ({"query_seq_lengths": QUERIES}, REAL.any(3, keepdims=True) & np.ones(S, bool)),
    "key lengths": ({"key_value_seq_lengths": KEYS}, REAL.any(2, keepdims=True) & np.ones((T, 1), bool)),
    "lengths beyond the arrays": (
        {"key_value_seq_lengths": np.array([9, -1], np.int32)},
        np.array([True, False])[:, None, None, None] & np.ones((T, S), bool),
    ),
    "lengths, causal": (
        {"query_seq_lengths": QUERIES, "key_value_seq_lengths": KEYS, "is_causal": True},
        REAL & CAUSAL,
    ),
    "lengths, alibi": (
        {"query_seq_lengths": QUERIES, "key_value_seq_lengths": KEYS, "alibi": normal(N)},
        REAL,
    ),
    "lengths, bias with gradient": ({"key_value_seq_lengths": KEYS, "bias": normal(1, 1, T, S)}, REAL.any(2)[:, None]),
    "lengths, boolean mask": (
        {"query_seq_lengths": QUERIES, "key_value_seq_lengths": KEYS, "mask": SOME, "is_causal": True},
        REAL & CAUSAL & SOME,
    ),
    "lengths, mask": ({"query_seq_lengths": QUERIES, "mask": GRAPH}, REAL.any(3, keepdims=True) & GRAPH.to_dense(T, S)),
    "Mask": ({"mask": Mask.causal("bottom-right")}, Mask.causal("bottom-right").to_dense(T, S)),
    "Mask and window": ({"mask": GRAPH, "local_window_size": (2, 1)}, GRAPH.to_dense(T, S) & WINDOW),
    "Mask per head": ({"mask": PER_HEAD}, PER_HEAD.to_dense(T, S)),
    "softcap, sinks": ({"softcap": 1.5, "sinks": normal(N)}, None),
    "sinks, Mask": ({"sinks": normal(N, dtype=np.float16), "mask": GRAPH}, GRAPH.to_dense(T, S)),
    "alibi": ({"alibi": normal(B, N)}, None),
    "dropout": ({"dropout": 0.4, "seed": 3 * 2**40 + 5}, None),
    "dropout, lengths": ({"dropout": 0.4, "seed": 5, "key_value_seq_lengths": KEYS}, REAL.any(2)[:, None]),
    "hybrid": ({"schedule": "hybrid", "is_causal": True}, CAUSAL),
    "gather": ({"schedule": "gather", "mask": GRAPH}, GRAPH.to_dense(T, S)),
}


FAST = ("causal", "bias and mask", "lengths, alibi", "lengths, boolean mask", "lengths, mask", "Mask per head")
FAST += ("lengths beyond the arrays", "softcap, sinks", "dropout")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FAST else pytest.mark.thorough) for n in OPTIONS])
def test_outputs_and_gradients(name):
    options, attends = OPTIONS[name]
    got = check(arrays(), options, None if attends is None else np.asarray(attends))
    assert set(got) == {"out", "lse", "dq", "dk", "dv", *(f"d{n}" for n in WITH_GRADIENT if n in options)}


@pytest.mark.parametrize("name", ["cut", "alibi", "bias", "mask"])
def test_nan_in_padding_does_not_spread(name):
    options = {
        "cut": {},
        "alibi": {"alibi": normal(N)},
        "bias": {"bias": normal(1, N, 1, 23)},
        "mask": {"mask": Mask.documents([9, 12], [11, 12])},
    }[name]
    options = options | {"query_seq_lengths": np.array([13, 21]), "key_value_seq_lengths": np.array([23, 8])}
    dlse = np.zeros((B, 21, N), np.float32)
    clean = arrays(n_q=21, n_k=23)
    padded = [x.copy() for x in clean]
    for x, lengths in zip(padded, ([13, 21], [23, 8], [23, 8], [13, 21]), strict=True):
        for entry, n in enumerate(lengths):
            x[entry, n:] = np.nan
    expected, got = (with_gradients(inputs, dlse, options) for inputs in (clean, padded))
    assert {"out", "lse", "dq", "dk", "dv"} <= set(expected)
    for result in expected:
        assert not np.isnan(expected[result]).any(), result
        np.testing.assert_array_equal(got[result], expected[result], err_msg=result)


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.thorough)])
def test_types_of_16_bits(dtype):
    got = check(arrays(dtype=dtype), {"bias": normal(1, N, 1, S), "is_causal": True}, CAUSAL)
    assert got["out"].dtype.name == dtype
    assert got["lse"].dtype == np.float32


def test_float64_is_computed_in_float64():
    with enable_x64(True):
        options = {"bias": RNG.standard_normal((N, T, S)), "sinks": normal(N), "is_causal": True}
        got = check(arrays(dtype="float64"), options, CAUSAL)
        assert got["lse"].dtype == got["dbias"].dtype == np.float64


@pytest.mark.thorough
@pytest.mark.parametrize(("heads", "kv_heads", "d_v"), [(3, 3, 5), (4, 1, 8)])
def test_heads(heads, kv_heads, d_v):
    got = check(arrays(heads=heads, kv_heads=kv_heads, d_v=d_v, n_q=33, n_k=17), {})
    assert got["out"].shape == (*got["dq"].shape[:-1], d_v) == (2, heads, 33, d_v)
    assert got["dk"].shape[:-1] == got["dv"].shape[:-1] == (2, kv_heads, 17)


@pytest.mark.parametrize(
    ("batch", "n_q", "n_k"), [(2, 0, 3), (2, 3, 0), pytest.param(0, 3, 3, marks=pytest.mark.thorough)]
)
def test_empty_arrays(batch, n_q, n_k):
    inputs = arrays(batch=batch, n_q=n_q, n_k=n_k)
    options = {"bias": np.ones((1, n_q, n_k), np.float32), "is_causal": True}
    got = with_gradients(inputs, np.zeros((batch, n_q, N), np.float32), options)
    assert [got[f"d{n}"].shape for n in "qkv"] == [x.shape for x in inputs[:3]]
    assert not any(np.asarray(got[n]).any() for n in ("out", "dq", "dk", "dv", "dbias"))
    assert np.isneginf(got["lse"]).all()


@pytest.mark.thorough
def test_rows_that_attend_nothing_give_0_where_jax_gives_the_mean():
    q, k, v, _ = arrays()
    mask = np.ones((T, S), bool)
    mask[1] = False
    out, residual = dot_product_attention(q, k, v, mask=mask, return_residual=True)
    assert not out[:, 1].any()
    assert np.isneginf(residual[:, 1]).all()
    theirs = jax.jit(jax.nn.dot_product_attention)(q, k, v, mask=mask[None, None])
    assert np.allclose(theirs[:, 1, 0], v.mean(1)[:, 0], atol=1e-6)


def test_one_batch_entry_without_a_batch_dimension():
    q, k, v, _ = arrays(batch=1)
    out, residual = dot_product_attention(q, k, v, return_residual=True)
    one, one_residual = dot_product_attention(q[0], k[0], v[0], return_residual=True)
    assert np.array_equal(out[0], one)
    assert np.array_equal(residual[0], one_residual)
    assert one_residual.shape == (T, N)


@pytest.mark.thorough
def test_the_residual_is_that_of_jax():
    q, k, v, _ = arrays(dtype="bfloat16")
    ours = dot_product_attention(q, k, v, return_residual=True)[1]
    theirs = jax.jit(partial(jax.nn.dot_product_attention, return_residual=True))(q, k, v)[1]
    assert ours.dtype == theirs.dtype == jnp.bfloat16
    assert np.allclose(ours.astype(np.float32), theirs.astype(np.float32), atol=2.0**-6)
    gradient = jax.grad(lambda q: dot_product_attention(q, k, v, return_residual=True)[1].sum())(jnp.asarray(q))
    assert not gradient.any()


# Against JAX's implementation ------------------------------------------------------------------------------------

THEIRS = [
    "none",
    "scale",
    "causal",
    "window",
    "causal window",
    "boolean mask",
    "bias of every pair",
    "bias of heads",
    "bias and mask",
    "query lengths",
    "key lengths",
    "lengths, causal",
]


def compare_with_jax(options, **sizes):
    """Compare outputs and gradients with jax.nn.dot_product_attention, apart from rows that attend nothing."""
    *qkv, dout = (jnp.asarray(x) for x in arrays(**sizes))
    bias = None if options.get("bias") is None else jnp.asarray(options["bias"])
    others = {name: x for name, x in options.items() if name != "bias"}

    def run(attend):
        def both(q, k, v, bias):
            return attend(q, k, v, bias, **others, return_residual=True)

        (out, residual), backward = jax.vjp(both, *qkv, bias)
        empty = jnp.isneginf(residual) | (residual < -1e30)
        gradients = backward((jnp.where(empty[..., None], 0, dout), jnp.zeros_like(residual)))
        return jnp.where(empty[..., None], 0, out), jnp.where(empty, 0, residual), gradients

    ours, theirs = (jax.jit(run, static_argnums=0)(f) for f in (dot_product_attention, jax.nn.dot_product_attention))
    assert ours[0].any()  # some row attends some key
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype
        assert np.allclose(a.astype(np.float32), b.astype(np.float32), atol=5e-6, rtol=1e-5)


def test_it_means_what_jax_means():
    compare_with_jax(OPTIONS["lengths, causal"][0])


@pytest.mark.thorough
@pytest.mark.parametrize("name", THEIRS)
@pytest.mark.parametrize("sizes", [{}, {"heads": 3, "kv_heads": 3}, {"kv_heads": 1, "d": 33}], ids=str)
def test_it_means_what_jax_means_everywhere(name, sizes):
    options = OPTIONS[name][0]
    if "bias" in options and "heads" in sizes:
        pytest.skip("the bias has four heads")
    compare_with_jax(options, **{"d_v": sizes.get("d", 8), **sizes})


def test_the_signature_begins_as_that_of_jax():
    import inspect

    theirs = inspect.signature(jax.nn.dot_product_attention).parameters
    ours = inspect.signature(dot_product_attention).parameters
    assert [(p.name, p.kind, p.default) for p in theirs.values()] == [
        (p.name, p.kind, p.default) for p in list(ours.values())[: len(theirs)]
    ]


# Masks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    "mask",
    [
        Mask.documents([2, 3], [3, 4]),
        Mask.blocks(np.eye(3, dtype=bool), (2, 3)) | Mask.global_tokens([1]),
        Mask.dilated(1, 2) & Mask.causal(),
        ~Mask.strided(2),
        Mask.stack([GRAPH, Mask.causal()], (B, 1)),
        Mask.stack([GRAPH, Mask.causal(), Mask.full(), ~GRAPH] * 2, (B, N)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("schedule", ["auto", "gather", "flash"])
def test_masks(mask, schedule):
    got = check(arrays(), {"mask": mask, "schedule": schedule}, mask.to_dense(T, S))
    attends_some = np.broadcast_to(mask.to_dense(T, S).any(-1), got["lse"].shape)
    assert np.array_equal(np.isfinite(got["lse"]), attends_some)


def test_a_mask_is_a_static_argument():
    q, k, v, _ = arrays()
    traced = []

    def attend(q, mask):
        traced.append(mask)
        return dot_product_attention(q, k, v, mask=mask)

    attend = jax.jit(attend, static_argnames="mask")
    for mask in (Mask.documents([2, 3], [3, 4]), Mask.documents([2, 3], [3, 4]), Mask.causal()):
        heads_first = (x.swapaxes(1, 2) for x in (q, k, v))
        assert np.allclose(attend(q, mask=mask).swapaxes(1, 2), rb.attention(*heads_first, mask=mask), atol=1e-6)
    assert len(traced) == 2  # equal masks compile once
