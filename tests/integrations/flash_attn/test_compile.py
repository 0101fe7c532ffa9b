"""FlashAttention's functions under torch.compile(fullgraph=True), against eager calls."""

import pytest

torch = pytest.importorskip("torch")

from redblue import RedblueError
from redblue.integrations.flash_attn import (
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)
from support.examples import thorough

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script"),  # a warning of PyTorch, when it loads its compiler
]
starts_op = torch.ops.redblue.flash_attn_starts.default
cache_op = torch.ops.redblue.flash_attn_with_kvcache.default


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# Packed sequences ----------------------------------------------------------------------------------------------------

STARTS = [([0, 5, 5, 12], [0, 6, 7, 13]), ([0, 1, 4, 17], [0, 3, 9, 19]), ([0, 0, 15, 22], [0, 8, 18, 27])]
OPTIONS = {
    "causal": {"causal": True, "softcap": 3.0, "softmax_scale": 0.4},
    "window and sinks": {"window_size": (3, 1), "s_aux": normal(4)},
    "slopes": {"alibi_slopes": normal(12).abs().reshape(3, 4).clone()},
}


def layer(options):
    def call(q, k, v, *sequences):
        out, lse, s_dmask = flash_attn_varlen_func(q * 2, k, v, *sequences, **options, return_attn_probs=True)
        return out + 1, lse, s_dmask

    return call


def sequences(starts, key_starts):
    """The arguments of packed sequences. q has two rows after the last sequence, and k has one."""
    tensors = normal(starts[-1] + 2, 4, 8), normal(key_starts[-1] + 1, 2, 8, seed=1), normal(key_starts[-1] + 1, 2, 8)
    starts, key_starts = (torch.tensor(x, dtype=torch.int32) for x in (starts, key_starts))
    longest = int(starts.diff().max()), int(key_starts.diff().max())
    return *(x.requires_grad_() for x in tensors), starts, key_starts, *longest


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("causal", "aot_eager"),
        *(thorough(name, "aot_eager") for name in OPTIONS if name != "causal"),
        thorough("window and sinks", "inductor"),
        thorough("slopes", "inductor"),
    ],
)
def test_packed_sequences(name, backend):
    call = layer(OPTIONS[name])
    compiled = torch.compile(call, fullgraph=True, backend=backend)
    for starts in STARTS:
        arguments = sequences(*starts)
        runs = compiled(*arguments), call(*arguments)
        for x, y in zip(*runs, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-6)
        gradients = [torch.autograd.grad(out.sin().sum(), arguments[:3]) for out, *_ in runs]
        for x, y in zip(*gradients, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-6)


@pytest.mark.thorough
def test_packed_tensors_with_dropout():
    def call(qkv, starts):
        kv = flash_attn_varlen_kvpacked_func(qkv[:, 0], qkv[:, 1:], starts, starts, 21, 21, causal=True)
        return kv + flash_attn_varlen_qkvpacked_func(qkv, starts, 21, causal=True)

    def dropped(qkv, starts):
        return flash_attn_varlen_qkvpacked_func(qkv, starts, 21, 0.4)

    qkv, starts = normal(30, 3, 4, 8).requires_grad_(), torch.tensor([0, 9, 9, 30], dtype=torch.int32)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    runs = compiled(qkv, starts), call(qkv, starts)
    assert torch.equal(*runs)
    torch.testing.assert_close(*(torch.autograd.grad(out.sin().sum(), qkv)[0] for out in runs))
    compiled, outs = torch.compile(dropped, fullgraph=True, backend="aot_eager"), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(compiled(qkv, starts))
    assert torch.equal(*outs[:2])
    assert not torch.equal(*outs[1:])


@pytest.mark.thorough
def test_wrong_sequences_are_named_when_a_graph_runs():
    compiled = torch.compile(layer({}), fullgraph=True, dynamic=True, backend="aot_eager")
    q, k, v, starts, key_starts, *longest = sequences(*STARTS[0])
    compiled(q, k, v, starts, key_starts, *longest)
    for wrong, message in (
        ((starts + 1, key_starts, *longest), r"cu_seqlens_q\[0\] must be 0, got 1"),
        ((starts * 2, key_starts, *longest), "q must have the rows of its sequences, 24, got 14"),
        ((starts, key_starts[:-1], *longest), "cu_seqlens_k must describe the 3 sequences of q, got 2"),
        ((starts, key_starts, 6, longest[1]), "max_seqlen_q must be at least the longest sequence, 7, got 6"),
    ):
        with pytest.raises(RedblueError, match=message):
            compiled(q, k, v, *wrong)


def test_wrong_shapes_are_refused_when_a_graph_is_made():
    q, k, v, starts, *others = sequences(*STARTS[0])
    for arguments, message in (
        ((q, k, v.detach()[:-1], starts, *others), "v must have the keys and heads of k"),
        ((q, k, v, starts[None], *others), "cu_seqlens_q must be a list of whole numbers"),
        ((q, k, v, starts, others[0], 2.5, 9), "max_seqlen_q must be a whole number"),
    ):
        with pytest.raises(Exception, match=message):
            torch.compile(layer({}), fullgraph=True, backend="aot_eager")(*arguments)


# Caches --------------------------------------------------------------------------------------------------------------

BATCH, CAPACITY, HEADS, KV_HEADS, D = 3, 40, 4, 2, 16
FILLED = torch.tensor([0, 21, 33], dtype=torch.int32)
TABLE = torch.arange(12, dtype=torch.int32).flip(0).reshape(3, 4).clone()
ANGLES = normal(CAPACITY, D // 2)
CACHE_OPTIONS = {
    "window": {"window_size": (5, 1), "softcap": 3.0, "s_aux": normal(HEADS), "cache_seqlens": FILLED},
    "rotated": {"rotary_cos": ANGLES.cos(), "rotary_sin": ANGLES.sin(), "causal": True, "cache_seqlens": FILLED},
    "pages": {"block_table": TABLE, "cache_seqlens": FILLED, "alibi_slopes": normal(BATCH, HEADS).abs()},
    "left padding": {"cache_leftpad": torch.tensor([0, 1, 5]), "cache_seqlens": FILLED},
    "rows": {"cache_batch_idx": torch.tensor([2, 0, 1]), "cache_seqlens": 5},
}


def step(options):
    def call(q, k_cache, v_cache, k, v):
        return flash_attn_with_kvcache(q * 2, k_cache, v_cache, k, v, **options, causal=True, return_softmax_lse=True)

    return call


def tensors(options):
    shape = (12, 10, KV_HEADS, D) if "block_table" in options else (BATCH, CAPACITY, KV_HEADS, D)
    caches = [normal(*shape, seed=seed) for seed in (1, 2)]
    return normal(BATCH, 2, HEADS, D), *caches, *(normal(BATCH, 2, KV_HEADS, D, seed=seed) for seed in (3, 4))


@pytest.mark.parametrize(
    ("name", "backend"), [*((name, "aot_eager") for name in CACHE_OPTIONS), thorough("rotated", "inductor")]
)
def test_caches_are_written_and_read_in_one_graph(name, backend):
    options = {name: x for name, x in CACHE_OPTIONS[name].items() if name != "causal"}
    call, arguments = step(options), tensors(options)
    compiled, runs = torch.compile(call, fullgraph=True, backend=backend), []
    for function in (compiled, call):
        q, k_cache, v_cache, k, v = (x.clone() for x in arguments)
        runs.append([*function(q, k_cache, v_cache, k, v), k_cache, v_cache])
    for x, y in zip(*runs, strict=True):
        assert torch.equal(x, y)
    assert not torch.equal(runs[0][2], arguments[1])


def test_a_cache_is_read_without_new_keys():
    def call(q, k_cache, v_cache, lengths):
        return flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths)

    q, k_cache, v_cache, *_ = tensors({})
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for lengths in (FILLED, FILLED + 1, 7, None):
        assert torch.equal(compiled(q, k_cache, v_cache, lengths), call(q, k_cache, v_cache, lengths))
    with pytest.raises(RedblueError, match=r"cache_seqlens must be 0 to 40, the capacity, got \[10, 31, 43\]"):
        compiled(q, k_cache, v_cache, FILLED + 10)


def test_a_cache_with_gradients_is_refused_when_a_graph_is_made():
    q, *others = tensors({})
    with pytest.raises(Exception, match="q requires a gradient, but a cache has no backward pass"):
        torch.compile(step({"cache_seqlens": 3}), fullgraph=True, backend="aot_eager")(q.requires_grad_(), *others)


def test_no_cuda_graph_contains_an_op_that_reads_lengths_on_the_host():
    assert all(torch.Tag.cudagraph_unsafe in op.tags for op in (starts_op, cache_op))


def test_opcheck():
    torch.library.opcheck(starts_op, (torch.tensor([0, 4, 9]), torch.tensor([0, 4, 9]), 9, 10, 5, 5))
    arguments = tensors({"block_table": TABLE})
    tail = (None, None, FILLED, None, None, None, TABLE, True, 3, 0, 0.2, None, None, None)
    torch.library.opcheck(cache_op, (*arguments, *tail))
