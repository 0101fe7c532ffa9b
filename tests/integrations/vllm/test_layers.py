"""redblue's layers compared with vLLM's kernel for CPUs on the same batches."""

from __future__ import annotations

import inspect
import types
import warnings

import pytest

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's warnings
    pytest.importorskip("vllm")
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backend import AttentionType, CommonAttentionMetadata
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    from redblue.integrations.vllm.backend import RedblueBackend
    from redblue.integrations.vllm.metadata import RedblueMetadataBuilder

from redblue import RedblueError

# New tokens and cached tokens of each request: decoding, prefill, a chunk, a request of one token.
BATCH = ([1, 5, 33, 1, 1], [40, 0, 70, 128, 0])
BLOCK = 32
TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}


def layer(heads, heads_k, d, **options):
    return RedblueBackend.get_impl_cls()(heads, d, d**-0.5, heads_k, **options)


def batch_of(new, cached, causal=True, padding=0):
    """vLLM's metadata of a batch whose requests own shuffled blocks. Entries beyond a request's blocks are wrong."""
    lengths = torch.tensor([a + b for a, b in zip(new, cached, strict=True)], dtype=torch.int32)
    starts = torch.tensor([0, *new]).cumsum(0).int()
    needed = -(-lengths // BLOCK)
    blocks = torch.randperm(int(needed.sum())).int()
    table = torch.full((len(new), int(needed.max())), 10**6, dtype=torch.int32)
    for row, own in zip(table, blocks.split(needed.tolist()), strict=True):
        row[: len(own)] = own
    slots = [
        int(table[b, j // BLOCK]) * BLOCK + j % BLOCK
        for b in range(len(new))
        for j in range(cached[b], cached[b] + new[b])
    ]
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=lengths,
        num_reqs=len(new),
        num_actual_tokens=sum(new),
        max_query_len=max(new),
        max_seq_len=int(lengths.max()),
        block_table_tensor=table,
        slot_mapping=torch.tensor([*slots, *[-1] * padding]),
        causal=causal,
    )


def built(batch):
    config = types.SimpleNamespace(kv_transfer_config=None)
    return RedblueMetadataBuilder(None, [], config, torch.device("cpu")).build(0, batch)


def by_vllm(query, key, value, cache, batch, options):
    """The output of vLLM's kernel, which also writes the new keys and values into its cache."""
    heads, d = query.shape[1:]
    isa = _get_attn_isa(query.dtype, BLOCK, d)
    k, v = cache.view(len(cache), cache.shape[1], 2 * BLOCK, d).chunk(2, dim=2)
    ops.cpu_attn_reshape_and_cache(key, value, k, v, batch.slot_mapping, isa)
    window = options.get("sliding_window") or -1
    plan = ops.cpu_attn_get_scheduler_metadata(
        batch.num_reqs,
        heads,
        cache.shape[1],
        d,
        batch.seq_lens,
        query.dtype,
        batch.query_start_loc,
        batch.causal,
        window,
        isa,
        True,
    )
    out = torch.empty_like(query)
    slopes, sinks = options.get("alibi_slopes"), options.get("sinks")
    ops.cpu_attention_with_kv_cache(
        query,
        k,
        v,
        out,
        batch.query_start_loc,
        batch.seq_lens,
        d**-0.5,
        batch.causal,
        None if slopes is None else torch.tensor(slopes),
        window,
        batch.block_table_tensor,
        options.get("logits_soft_cap") or 0.0,
        plan,
        sinks,
    )
    return out


def check_against_vllm(dtype, heads, heads_k, d, causal=True, **options):
    """Fill both caches with the cached tokens, then compare the batch's outputs."""
    torch.manual_seed(3)
    new, cached = BATCH
    whole = batch_of([a + b for a, b in zip(new, cached, strict=True)], [0] * len(new), causal)
    batch = batch_of(new, cached, causal)
    batch.block_table_tensor = whole.block_table_tensor
    ends = whole.query_start_loc[1:].tolist()
    newest = torch.cat([torch.arange(end - n, end) for n, end in zip(new, ends, strict=True)])
    batch.slot_mapping = whole.slot_mapping[newest]
    blocks = int(whole.slot_mapping.max()) // BLOCK + 1
    key, value = torch.randn(2, ends[-1], heads_k, d, dtype=dtype).unbind()
    query = torch.randn(len(newest), heads, d, dtype=dtype)
    theirs = torch.full((blocks, heads_k, BLOCK, 2 * d), 0.0, dtype=dtype)
    ours = torch.full_like(theirs, float("nan"))
    by_vllm(torch.randn(ends[-1], heads, d, dtype=dtype), key, value, theirs, whole, {})
    expected = by_vllm(query, key[newest], value[newest], theirs, batch, options)
    mine = layer(heads, heads_k, d, **options)
    old = torch.ones(ends[-1], dtype=torch.bool)
    old[newest] = False
    for part in (old, newest):
        mine.do_kv_cache_update(None, key[part], value[part], ours, whole.slot_mapping[part])
    out = torch.full((len(query) + 2, heads, d), 7.0, dtype=dtype)  # vLLM may pad a batch
    mine.forward(None, query, key[newest], value[newest], ours, built(batch), out)
    assert (out[len(query) :] == 7).all()
    limit = TOLERANCE[str(dtype).removeprefix("torch.")]
    torch.testing.assert_close(out[: len(query)], expected, atol=limit, rtol=limit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "heads_k", "d"), [(4, 4, 64), (8, 2, 32), (8, 1, 128), (4, 2, 80)])
def test_a_batch(dtype, heads, heads_k, d):
    check_against_vllm(dtype, heads, heads_k, d)


@pytest.mark.parametrize(
    "options",
    [
        {"sliding_window": 1},
        {"sliding_window": 17},
        {"sliding_window": 1000},
        {"logits_soft_cap": 5.0},
        {"logits_soft_cap": 0.0},
        {"alibi_slopes": [0.5, 0.25, 0.125, 0.0625]},
        {"sinks": torch.tensor([0.3, -1.0, 4.0, 0.0])},
        {"sliding_window": 9, "logits_soft_cap": 3.0, "sinks": torch.tensor([0.3, -1.0, 4.0, 0.0])},
        {"causal": False},
        {"causal": False, "sliding_window": 9},
    ],
    ids=str,
)
def test_options(options):
    check_against_vllm(torch.float32, 4, 2, 64, **options)


def test_other_widths_and_blocks():
    """Head sizes, block sizes and widths of values that vLLM's kernel does not support."""
    torch.manual_seed(0)
    heads, d, d_v, block, n = 3, 5, 7, 3, 8
    key, value = torch.randn(n, 1, d), torch.randn(n, 1, d_v)
    query = torch.randn(2, heads, d)  # the two newest tokens
    mine, cache = layer(heads, 1, d), torch.full((4, 1, block, d + d_v), float("nan"))
    table = torch.tensor([[3, 0, 2]], dtype=torch.int32)
    slots = table[0, torch.arange(n) // block] * block + torch.arange(n) % block
    mine.do_kv_cache_update(None, key, value, cache, slots)
    batch = built(batch_of([2], [n - 2]))
    batch.block_table = table
    out = mine.forward(None, query, None, None, cache, batch, torch.empty(2, heads, d_v))
    attends = torch.arange(n) <= torch.arange(n - 2, n)[:, None]
    scores = torch.einsum("ihd,jd->hij", query.double(), key[:, 0].double()) * d**-0.5
    weights = scores.masked_fill(~attends, -torch.inf).softmax(-1)
    torch.testing.assert_close(out.double(), torch.einsum("hij,jd->ihd", weights, value[:, 0].double()))


@pytest.mark.parametrize("window", [None, 1, 6])
def test_encoder_only_models_have_no_cache(window):
    """Compared with the same packed tokens as requests on an empty cache, with a two-sided mask."""
    lengths, heads, d = [1, 9, 33], 4, 64
    query, key, value = torch.randn(3, sum(lengths), heads, d).unbind()
    batch = batch_of(lengths, [0] * 3, causal=False)
    cache = torch.zeros(4, heads, BLOCK, 2 * d)
    expected = by_vllm(query, key, value, cache, batch, {"sliding_window": window})
    mine = layer(heads, heads, d, attn_type=AttentionType.ENCODER_ONLY, sliding_window=window)
    none = torch.empty(0)
    mine.do_kv_cache_update(None, key, value, none, batch.slot_mapping)
    out = mine.forward(None, query, key, value, none, built(batch), torch.empty_like(query))
    torch.testing.assert_close(out, expected, atol=2e-5, rtol=2e-5)


def test_an_empty_batch_and_a_rehearsal():
    mine, out = layer(4, 2, 16), torch.full((3, 4, 16), float("nan"))
    assert (mine.forward(None, out, None, None, torch.empty(0), None, out) == 0).all()
    empty = built(batch_of([1], [3]))
    empty.query_start_loc, empty.seq_lens, empty.block_table = (
        torch.tensor([0]),
        empty.seq_lens[:0],
        empty.block_table[:0],
    )
    before = out.fill_(5).clone()
    assert torch.equal(mine.forward(None, out, None, None, torch.zeros(1, 2, BLOCK, 32), empty, out), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"attn_type": AttentionType.ENCODER_DECODER},
            "attn_type must be decoder or encoder_only, got encoder_decoder",
        ),
        ({"attn_type": AttentionType.ENCODER}, "attn_type must be decoder or encoder_only, got encoder:"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype must be one of auto, float16, bfloat16, got fp8"),
        ({"sinks": torch.zeros(3)}, "sinks must have one entry for each of 4 heads"),
        ({"alibi_slopes": [1.0] * 4, "attn_type": AttentionType.ENCODER_ONLY}, "alibi_slopes need causal attention"),
        ({"use_alibi_sqrt": True, "chunk_lookback": 3}, "has no option use_alibi_sqrt, chunk_lookback"),
    ],
)
def test_what_a_layer_refuses(options, message):
    with pytest.raises(RedblueError, match=message) as error:
        layer(4, 2, 64, **options)
    assert "REDBLUE_VLLM" in str(error.value) or "sinks" in options


def test_options_that_ask_for_nothing():
    assert layer(4, 2, 64, use_alibi_sqrt=False, chunk_lookback=None).alibi_slopes is None


def test_what_a_batch_refuses():
    batch = batch_of([1, 1], [3, 4])
    for name, value in (("mm_req_doc_ranges", {0: [(0, 2)]}), ("rswa_prefix_lens", torch.tensor([1, 1]))):
        with pytest.raises(RedblueError, match=f"{name} must be None"):
            built(batch.replace(**{name: value}))
    with pytest.raises(RedblueError, match="causal must be one flag"):
        built(batch.replace(causal=torch.tensor([True, False])))
    config = types.SimpleNamespace(kv_transfer_config=object())
    with pytest.raises(RedblueError, match="kv_transfer_config must be None"):
        RedblueMetadataBuilder(None, [], config, torch.device("cpu"))
    query = torch.zeros(2, 4, 64)
    call = (None, query, query, query, torch.zeros(2, 4, BLOCK, 128))
    with pytest.raises(RedblueError, match="alibi_slopes need causal"):
        layer(4, 4, 64, alibi_slopes=[1.0] * 4).forward(*call, built(batch.replace(causal=False)), query)
    with pytest.raises(RedblueError, match="output_scale and output_block_scale must be None"):
        layer(4, 4, 64).forward(*call, built(batch), query, torch.ones(1))


def test_signatures():
    """Parameters that vLLM passes to its own backend for CPUs, in its order."""
    from vllm.v1.attention.backends import cpu_attn

    theirs, ours = cpu_attn.CPUAttentionBackendImpl, RedblueBackend.get_impl_cls()
    for method in ("__init__", "forward", "do_kv_cache_update"):
        wanted = list(inspect.signature(getattr(theirs, method)).parameters)
        assert list(inspect.signature(getattr(ours, method)).parameters)[: len(wanted)] == wanted
    for method in ("__init__", "build"):
        wanted = inspect.signature(getattr(cpu_attn.CPUAttentionMetadataBuilder, method)).parameters
        assert list(inspect.signature(getattr(RedblueMetadataBuilder, method)).parameters) == list(wanted)
    own = {name for name in vars(cpu_attn.CPUAttentionBackend) if not name.startswith("_")}
    assert own - set(dir(RedblueBackend)) == set()
    assert RedblueBackend.supported_kv_cache_layouts() == cpu_attn.CPUAttentionBackend.supported_kv_cache_layouts()
    assert RedblueBackend.supports_head_size(7)
    assert RedblueBackend.supports_block_size(5)
