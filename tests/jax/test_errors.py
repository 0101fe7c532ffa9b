"""Errors of redblue.jax.dot_product_attention: each names the argument, its value and what is allowed."""

import numpy as np
import pytest

pytest.importorskip("jax.numpy")

import jax
import jax.numpy as jnp

from redblue import Mask, RedblueError
from redblue.jax import dot_product_attention
from support.jax_calls import arrays

T, S, N = 5, 7, 4
Q, K, V, _ = arrays()
ONES = np.ones((2, N, T, S), np.float32)

BAD = {
    "no array": ({"query": "text"}, r"query must be an array, got str"),
    "dimensions": ({"key": K[0, 0]}, r"key must be \(batch, rows, heads, features\) .*, got \(2, 8\)"),
    "batch": ({"key": K[:1]}, r"key must be \(2, 7, 2, 8\) to fit query \(2, 5, 4, 8\) .* got \(1, 7, 2, 8\)"),
    "features": ({"key": K[..., :7]}, r"key must be \(2, 7, 2, 8\) to fit"),
    "keys": ({"value": V[:, :6]}, r"value must be \(2, 7, 2, 8\) to fit .* got \(2, 6, 2, 8\)"),
    "heads": ({"query": Q[:, :, :3]}, r"heads of query \(3\) must be a multiple of the heads of key and value \(2\)"),
    "type": (
        {"key": K.astype(np.float16)},
        r"query, key, value must be of one type, got float32 and, for key, float16",
    ),
    "integers": ({"query": Q.astype(np.int32)}, r"query must be of type float64, .*, got int32"),
    "bias shape": ({"bias": ONES[..., :6]}, r"bias must broadcast to .* = \(2, 4, 5, 7\), got shape \(2, 4, 5, 6\)"),
    "bias dimensions": ({"bias": ONES[None]}, r"bias must broadcast to .*, got shape \(1, 2, 4, 5, 7\)"),
    "boolean bias": ({"bias": ONES > 0}, r"bias must be of type .*, got bool: give it as mask"),
    "mask of numbers": ({"mask": ONES}, r"mask must be a redblue.Mask or a boolean array, got one of float32"),
    "mask shape": ({"mask": ONES[:, :3] > 0}, r"mask must broadcast to .* got shape \(2, 3, 5, 7\)"),
    "Mask that does not fit": ({"mask": Mask.documents([9])}, r"9"),
    "Mask of too many heads": ({"mask": Mask.per_head([Mask.full()] * 3)}, r"must broadcast to \(..., heads\)"),
    "scale": ({"scale": float("nan")}, r"scale must be finite, got nan"),
    "is_causal": ({"is_causal": 1}, r"is_causal must be True or False, got 1"),
    "lengths": (
        {"query_seq_lengths": np.ones(3, np.int32)},
        r"query_seq_lengths must be .* of shape \(2,\), got int32",
    ),
    "length type": ({"key_value_seq_lengths": np.ones(2, np.float32)}, r"key_value_seq_lengths must be .* got float32"),
    "window": ({"local_window_size": (1, 2, 3)}, r"local_window_size must be a whole number or \(left, right\)"),
    "window of text": ({"local_window_size": ("1", 2)}, r"local_window_size must be a whole number .*, got '1'"),
    "empty window": ({"local_window_size": (-1, 0)}, r"local_window_size=\(-1, 0\) leaves no key to any query: .* -1"),
    "one negative size": ({"local_window_size": -1}, r"local_window_size=-1 leaves no key to any query"),
    "empty causal window": (
        {"local_window_size": (-1, 2), "is_causal": True},
        r"local_window_size=\(-1, 2\) with is_causal leaves no key to any query",
    ),
    "implementation": ({"implementation": "cudnn"}, r"implementation must be None or \"redblue\", got 'cudnn'"),
    "two sums": ({"return_lse": True, "return_residual": True}, r"give only one of them"),
    "softcap": ({"softcap": 0.0}, r"softcap must be above 0"),
    "sinks": ({"sinks": np.ones(3, np.float32)}, r"sinks must have shape \(4,\), one per head of q, got \(3,\)"),
    "alibi": ({"alibi": np.ones(3, np.float32)}, r"alibi must broadcast to \(..., heads\) = \(2, 4\)"),
    "dropout": ({"dropout": 1.0, "seed": 0}, r"dropout must be at least 0 and below 1, got 1.0"),
    "no seed": ({"dropout": 0.5}, r"dropout needs a seed: give a key of jax.random, or a whole number"),
    "seed": ({"dropout": 0.5, "seed": 0.5}, "seed must be a whole number, got 0.5: give a whole number or a key"),
    "seed without dropout": ({"seed": "text"}, "seed must be a whole number, got 'text': give a whole number or a key"),
    "seeds": ({"dropout": 0.5, "seed": jnp.arange(3)}, r"seed must be .* got int32 of shape \(3,\)"),
    "schedule": ({"schedule": "fast"}, r"schedule must be one of auto, flash"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_named(name):
    changed, message = BAD[name]
    with pytest.raises(RedblueError, match=message):
        dot_product_attention(**({"query": Q, "key": K, "value": V} | changed))


def test_an_unknown_keyword_is_a_type_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'precision'"):
        dot_product_attention(Q, K, V, precision="highest")  # pyright: ignore[reportCallIssue]


def test_numbers_must_be_known_when_the_function_is_compiled():
    with pytest.raises(RedblueError, match=r"softcap must be a number that is known .*: mark it as a static argument"):
        jax.jit(lambda softcap: dot_product_attention(Q, K, V, softcap=softcap))(2.0)


@pytest.mark.parametrize("scale", [jnp.ones(1), jnp.ones((2, 1)), jnp.array(True), jnp.array(1j)], ids=str)
def test_a_traced_scale_must_be_a_number(scale):
    with pytest.raises(RedblueError, match="scale must be a number, got an array of shape"):
        jax.jit(lambda scale: dot_product_attention(Q, K, V, scale=scale))(scale)


def test_what_is_wrong_in_a_call_reaches_the_user(monkeypatch):
    from redblue.jax import kernels

    def broken(*arguments):
        raise RedblueError("this mask is gone")

    monkeypatch.setattr(kernels, "_forward", broken)
    with pytest.raises(Exception, match="redblue: this mask is gone"):
        jax.block_until_ready(jax.jit(dot_product_attention)(Q, K, V))


def test_a_jax_that_takes_no_kernels_is_refused_by_name(monkeypatch):
    from redblue.jax.differentiable import register

    def refused(*arguments, **options):
        raise RuntimeError("of another version")

    monkeypatch.setattr(jax.ffi, "register_ffi_target", refused)
    with pytest.raises(RedblueError, match=r"jaxlib does not accept redblue's kernels, .*: of another version"):
        register.__wrapped__()
    monkeypatch.setattr(jax, "local_devices", refused)
    with pytest.raises(RedblueError, match="computes on CPUs: add cpu to JAX_PLATFORMS"):
        register.__wrapped__()
