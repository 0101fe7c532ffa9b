"""redblue.jax.dot_product_attention means the same as jax.nn.dot_product_attention: signature, outputs, gradients."""

import inspect
from functools import partial
from itertools import product

import numpy as np
import pytest

pytest.importorskip("jax.numpy")

import jax
import jax.numpy as jnp

from redblue.jax import dot_product_attention
from support.jax_calls import arrays
from support.jax_options import OPTIONS

THEIRS = [
    "none",
    "scale",
    "causal",
    "window",
    "window before the query",
    "window behind the query",
    "causal window before the query",
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


SIZES = {"default": {}, "3 heads": {"heads": 3, "kv_heads": 3}, "d 33": {"kv_heads": 1, "d": 33}}
# The bias has four heads
EVERYWHERE = [pair for pair in product(THEIRS, SIZES) if "bias" not in OPTIONS[pair[0]][0] or pair[1] != "3 heads"]


@pytest.mark.thorough
@pytest.mark.nightly
@pytest.mark.parametrize(("name", "sizes"), EVERYWHERE)
def test_it_means_what_jax_means_everywhere(name, sizes):
    sizes = SIZES[sizes]
    compare_with_jax(OPTIONS[name][0], **{"d_v": sizes.get("d", 8), **sizes})


def test_the_signature_holds_that_of_jax():
    theirs = inspect.signature(jax.nn.dot_product_attention).parameters
    ours = inspect.signature(dot_product_attention).parameters
    positional = [p for p in theirs.values() if p.kind is not p.KEYWORD_ONLY]
    assert list(ours)[: len(positional)] == [p.name for p in positional]
    assert [(p.kind, p.default) for p in theirs.values()] == [(ours[n].kind, ours[n].default) for n in theirs]


@pytest.mark.thorough
def test_the_residual_is_that_of_jax():
    q, k, v, _ = arrays(dtype="bfloat16")
    ours = dot_product_attention(q, k, v, return_residual=True)[1]
    theirs = jax.jit(partial(jax.nn.dot_product_attention, return_residual=True))(q, k, v)[1]
    assert ours.dtype == theirs.dtype == jnp.bfloat16
    assert np.allclose(ours.astype(np.float32), theirs.astype(np.float32), atol=2.0**-6)
    gradient = jax.grad(lambda q: dot_product_attention(q, k, v, return_residual=True)[1].sum())(jnp.asarray(q))
    assert not gradient.any()
