"""redblue.jax.dot_product_attention under JAX's transformations, and on other layouts and devices."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

pytest.importorskip("jax.numpy")

import jax
import jax.numpy as jnp

from redblue import Mask, RedblueError
from redblue.jax import dot_product_attention
from support.jax_calls import arrays

B, T, S, N = 2, 5, 7, 4
RNG = np.random.default_rng(3)


def normal(*shape):
    return jnp.asarray(RNG.standard_normal(shape), jnp.float32)


Q, K, V, DOUT = (jnp.asarray(x) for x in arrays())


def value_and_gradients(attend):
    """A function that returns the output and the gradients of all floating-point arguments."""

    def run(*arguments):
        floating = [i for i, x in enumerate(arguments) if jnp.issubdtype(x.dtype, jnp.floating)]

        def loss(*arguments):
            out = attend(*arguments)
            return (out * out).sum(), out

        (_, out), gradients = jax.value_and_grad(loss, floating, has_aux=True)(*arguments)
        return out, gradients

    return run


def named(*names, **options):
    """dot_product_attention with query, key, value and the named options as positional arguments."""

    def attend(q, k, v, *others):
        return dot_product_attention(q, k, v, **dict(zip(names, others, strict=True)), **options)

    return attend


# vmap ----------------------------------------------------------------------------------------------------------------

M = 3  # entries
MAPPED = {
    "query": (named(), (0, None, None), [normal(M, B, T, N, 8), K, V]),
    "key and value": (named(is_causal=True), (None, 1, -1), [Q, normal(B, M, S, 2, 8), normal(B, S, 2, 8, M)]),
    "bias": (named("bias"), (None, None, None, 0), [Q, K, V, normal(M, 1, N, T, S)]),
    "all but bias": (
        named("bias"),
        (0, 0, 0, None),
        [normal(M, B, T, N, 8), normal(M, B, S, 2, 8), normal(M, B, S, 2, 8), normal(N, T, 1)],
    ),
    "sinks": (named("sinks", softcap=2.0), (0, None, None, 0), [normal(M, B, T, N, 8), K, V, normal(M, N)]),
    "sinks for all": (named("sinks"), (0, None, None, None), [normal(M, B, T, N, 8), K, V, normal(N)]),
    "lengths": (
        named("key_value_seq_lengths"),
        (None, None, None, 0),
        [Q, K, V, jnp.asarray(RNG.integers(1, S, (M, B)), jnp.int32)],
    ),
    "lengths, graph": (
        named("query_seq_lengths", mask=Mask.from_dense(RNG.random((T, S)) < 0.6)),
        (0, None, None, 0),
        [normal(M, B, T, N, 8), K, V, jnp.asarray(RNG.integers(0, T, (M, B)), jnp.int32)],
    ),
    "seed": (named("seed", dropout=0.5), (None, None, None, 0), [Q, K, V, jnp.arange(M)]),
    "seed for all": (named("seed", dropout=0.5), (0, None, None, None), [normal(M, B, T, N, 8), K, V, jnp.uint32(1)]),
}


FAST = "key and value", "bias", "sinks", "lengths", "seed for all"


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FAST else pytest.mark.thorough) for n in MAPPED])
def test_vmap_gives_what_a_loop_gives(name):
    attend, in_axes, arguments = MAPPED[name]
    run = value_and_gradients(attend)
    got = jax.jit(jax.vmap(run, in_axes))(*arguments)
    jitted = jax.jit(run)
    for i in range(M):
        entry = (x if axis is None else jnp.take(x, i, axis) for x, axis in zip(arguments, in_axes, strict=True))
        expected = jitted(*entry)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            assert np.allclose(a[i], b, atol=2e-6)


@pytest.mark.thorough
def test_the_gradient_of_vmap_adds_up_over_shared_arguments():
    queries = normal(M, B, T, N, 8)
    bias = normal(1, N, T, S)
    mapped = jax.vmap(named("bias"), (0, None, None, None))

    def loop(q, k, v, bias):
        return jnp.stack([dot_product_attention(x, k, v, bias) for x in q])

    got, expected = (jax.jit(value_and_gradients(f))(queries, K, V, bias) for f in (mapped, loop))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert np.allclose(a, b, atol=2e-5)


def test_vmap_over_nothing():
    assert jax.vmap(lambda sinks: dot_product_attention(Q, K, V, sinks=sinks))(jnp.ones((0, N))).shape == (
        0,
        B,
        T,
        N,
        8,
    )


@pytest.mark.thorough
def test_nested_vmap():
    q, k, bias = normal(2, 3, B, T, N, 8), normal(3, B, S, 2, 8), normal(2, 1, N, T, S)
    inner = jax.vmap(named("bias"), (0, 0, None, None))
    got = jax.jit(jax.vmap(inner, (0, None, None, 0)))(q, k, V, bias)
    jitted = jax.jit(named("bias"))
    for i in range(2):
        for j in range(3):
            assert np.allclose(got[i, j], jitted(q[i, j], k[j], V, bias[i]), atol=1e-6)


# A traced scale ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.4, -1.3, 0.0])
def test_a_traced_scale_has_the_values_and_the_gradients_of_jax(scale):
    same_heads = [Q, *(jnp.repeat(x, 2, axis=2) for x in (K, V))]

    def run(attend):
        return value_and_gradients(lambda q, k, v, scale: attend(q, k, v, scale=scale, is_causal=True))

    ours, theirs = (
        jax.jit(run(attend))(*same_heads, jnp.float32(scale))
        for attend in (dot_product_attention, jax.nn.dot_product_attention)
    )
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert np.allclose(a, b, atol=1e-5, rtol=1e-5)
    assert abs(ours[1][3]) > 0.01


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_default_scale_may_be_traced_without_loss(dtype):
    q, k, v = (x.astype(dtype) for x in (Q, K, V))
    got = jax.jit(lambda scale: dot_product_attention(q, k, v, scale=scale))(8**-0.5)
    assert np.array_equal(got, dot_product_attention(q, k, v))


def test_a_scale_for_each_entry_of_vmap():
    scales = jnp.array([0.3, 1.0, 2.0])
    got = jax.jit(jax.vmap(lambda scale: dot_product_attention(Q, K, V, scale=scale)))(scales)
    for scale, out in zip(scales, got, strict=True):
        assert np.allclose(out, dot_product_attention(Q, K, V, scale=float(scale)), atol=5e-6)
    whole = jax.jit(lambda scale: dot_product_attention(Q, K, V, scale=scale))(2)
    assert np.allclose(whole, got[2], atol=5e-6)


# Other transformations -----------------------------------------------------------------------------------------------


def test_scan_and_checkpoint():
    layers = normal(2, N * 8, N * 8) * 0.2

    def layer(x, weights):
        heads = (x @ weights).reshape(B, T, N, 8)
        return x + dot_product_attention(heads, heads, heads, is_causal=True).reshape(x.shape), None

    def scanned(x, layers):
        return jax.lax.scan(jax.checkpoint(layer), x, layers)[0]

    def unrolled(x, layers):
        return layer(layer(x, layers[0])[0], layers[1])[0]

    x = normal(B, T, N * 8)
    got, expected = (jax.jit(value_and_gradients(f))(x, layers) for f in (scanned, unrolled))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert np.allclose(a, b, atol=5e-6)


def test_an_output_that_is_not_used_costs_no_gradient():
    def loss(q, out_used, lse_used):
        out, lse = dot_product_attention(q, K, V, return_lse=True)
        return (out.sum() if out_used else 0.0) + (jnp.sin(lse).sum() if lse_used else 0.0)

    gradient = jax.jit(jax.grad(loss), static_argnums=(1, 2))
    both = gradient(Q, True, True)
    assert np.allclose(both, gradient(Q, True, False) + gradient(Q, False, True), atol=1e-6)


def test_donated_arguments():
    q = jnp.array(Q)
    expected = dot_product_attention(Q, K, V)
    assert np.array_equal(jax.jit(dot_product_attention, donate_argnums=0)(q, K, V), expected)


@pytest.mark.thorough
def test_layouts_that_are_not_row_major():
    expected = dot_product_attention(Q, K, V)
    transposed = jnp.array(Q.transpose(3, 1, 2, 0))  # XLA may fold the transposition into the layout
    got = jax.jit(lambda x: dot_product_attention(x.transpose(3, 1, 2, 0), K, V))(transposed)
    assert np.array_equal(got, expected)


def test_second_derivatives_and_forward_mode_are_refused():
    def loss(q):
        return dot_product_attention(q, K, V).sum()

    with pytest.raises(RedblueError, match="second derivatives are not supported"):
        jax.grad(lambda q: (jax.grad(loss)(q) ** 2).sum())(Q)
    with pytest.raises(TypeError, match=r"forward-mode.*custom_vjp"):
        jax.jvp(loss, (Q,), (Q,))


def test_alibi_has_no_gradient():
    slopes = jnp.ones(N)
    with pytest.raises(RedblueError, match=r"alibi has no gradient: use jax\.lax\.stop_gradient"):
        jax.grad(lambda slopes: dot_product_attention(Q, K, V, alibi=slopes).sum())(slopes)
    jax.grad(lambda q: dot_product_attention(q, K, V, alibi=slopes).sum())(Q)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_other_devices_are_refused_by_name(platform):
    function = jax.jit(dot_product_attention).trace(Q, K, V)
    with pytest.raises(RedblueError, match=f"computes on CPUs, and this function is compiled for {platform}"):
        function.lower(lowering_platforms=(platform,))


# Processes and threads -----------------------------------------------------------------------------------------------


def test_calls_from_several_threads():
    attend = jax.jit(jax.grad(lambda q: dot_product_attention(q, K, V, is_causal=True).sum()))
    expected, wrong = attend(Q), []

    def work():
        wrong.extend(1 for _ in range(20) if not np.array_equal(attend(Q), expected))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


TWO_DEVICES = "--xla_force_host_platform_device_count=2"


def run_python(code, **environment):
    variables = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)} | environment
    result = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_jax_is_imported_by_a_call_and_the_error_without_it_names_the_extra():
    code = """
import sys
sys.modules["jax"] = None
from redblue.jax import dot_product_attention
try:
    dot_product_attention(1, 2, 3)
except ValueError as error:
    print(error)
"""
    assert run_python(code) == "redblue.jax needs JAX: pip install 'redblue[jax]'\n"


@pytest.mark.thorough
@pytest.mark.parametrize("kept", ["", "y = "])
def test_a_process_may_end_while_calls_are_running(kept):
    code = f"""
import jax, jax.numpy as jnp
from redblue.jax import dot_product_attention as attend

many = jax.pmap(lambda x: attend(attend(attend(x, x, x), x, x), x, x))  # runs in threads of its own
{kept}many(jnp.ones((2, 2, 1024, 8, 64)))
print("ends", flush=True)
"""
    assert run_python(code, XLA_FLAGS=TWO_DEVICES) == "ends\n"


SEVERAL_DEVICES = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from redblue.jax import dot_product_attention

rng = np.random.default_rng(0)
q, k, v = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((4, 5, 4, 8), (4, 7, 2, 8), (4, 7, 2, 8)))
bias = jnp.asarray(rng.standard_normal((1, 4, 5, 7)), jnp.float32)

def gradients(attend):
    return jax.jit(jax.grad(lambda *a: (attend(*a) ** 2).sum(), (0, 1, 2, 3)))

def same(a, b):
    return all(np.allclose(x, y, atol=1e-5) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))

if hasattr(jax, "shard_map"):
    checks = {"check_vma": True}, {"check_vma": False}
    shard_map = jax.shard_map
else:  # JAX 0.5 cannot check foreign functions
    from jax.experimental.shard_map import shard_map
    checks = ({"check_rep": False},)

expected = gradients(dot_product_attention)(q, k, v, bias)
mesh = Mesh(np.array(jax.devices()), ("x",))
for array, bias_spec in ((P("x"), P()), (P(None, None, "x"), P(None, "x"))):  # the batch, the heads
    for check in checks:
        specs = {"in_specs": (array, array, array, bias_spec), "out_specs": array}
        attend = shard_map(dot_product_attention, mesh=mesh, **check, **specs)
        assert same(gradients(attend)(q, k, v, bias), expected), (array, check)
sharded = [jax.device_put(x, NamedSharding(mesh, P("x"))) for x in (q, k, v)]
assert same(gradients(dot_product_attention)(*sharded, bias), expected)
halves = [x.reshape(2, 2, *x.shape[1:]) for x in (q, k, v)]
out = jax.pmap(dot_product_attention, in_axes=(0, 0, 0, None))(*halves, bias)
assert same(out.reshape(q.shape), dot_product_attention(q, k, v, bias))
print(len(jax.devices()))
"""


@pytest.mark.thorough
def test_several_devices():
    assert run_python(SEVERAL_DEVICES, XLA_FLAGS=TWO_DEVICES) == "2\n"
