"""redblue.jax.dot_product_attention: outputs and gradients of every option, against float64."""

import numpy as np
import pytest

pytest.importorskip("jax.numpy")

import jax

import redblue as rb
from redblue import Mask
from redblue.jax import dot_product_attention
from support.jax_calls import WITH_GRADIENT, arrays, check, with_gradients
from support.jax_options import CAUSAL, GRAPH, OPTIONS, RNG, B, N, S, T, normal

enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
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


@pytest.mark.parametrize("way", ["cut", "mask"])
def test_padding_with_sinks(way):
    """The log-sum-exp of padding is the sink. The sinks' gradients hold in a batch that is cut, as in one masked."""
    queries, keys = np.array([0, 13, 21]), np.array([9, 23, 0])
    lengths = {"query_seq_lengths": queries, "key_value_seq_lengths": keys}
    other = {"cut": {}, "mask": {"mask": Mask.from_dense(np.ones((21, 23), bool))}}[way]
    real = (np.arange(21)[:, None] < queries[:, None, None]) & (np.arange(23) < keys[:, None, None])
    sinks = normal(N)
    got = check(arrays(batch=3, n_q=21, n_k=23), {**lengths, **other, "sinks": sinks}, real[:, None])
    for rows in (got["lse"][0], got["lse"][1, :, 13:], got["lse"][2]):
        np.testing.assert_array_equal(rows, np.broadcast_to(sinks[:, None], rows.shape))


@pytest.mark.parametrize("seed", [-3, -1, 5, 2**31 - 1, -(2**31)])
def test_a_seed_drops_the_same_probabilities_under_jit(seed):
    *qkv, _ = arrays(n_q=21, n_k=23)

    def attend(seed):
        return dot_product_attention(*qkv, dropout=0.5, seed=seed)

    np.testing.assert_array_equal(jax.jit(attend)(seed), attend(seed))
    if abs(seed) < 100:
        np.testing.assert_array_equal(attend(jax.numpy.int8(seed)), attend(seed))


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
    single, one_residual = dot_product_attention(q[0], k[0], v[0], return_residual=True)
    assert np.array_equal(out[0], single)
    assert np.array_equal(residual[0], one_residual)
    assert one_residual.shape == (T, N)


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
