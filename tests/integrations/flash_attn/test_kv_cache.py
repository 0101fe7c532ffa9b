"""Attention with a cache, against float64: appended and rotated keys, pages, left padding, windows."""

import pytest

torch = pytest.importorskip("torch")

from redblue import RedblueError
from redblue.integrations.flash_attn import flash_attn_with_kvcache
from support.flash_reference import check_close, reference

BATCH, CAPACITY, HEADS, KV_HEADS, D = 3, 40, 4, 2, 16
FILLED = torch.tensor([0, 21, 33], dtype=torch.int32)


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def caches(rows=BATCH):
    return [normal(rows, CAPACITY, KV_HEADS, D, seed=seed) for seed in (1, 2)]


def new(n, seed=3):
    return [normal(BATCH, n, KV_HEADS, D, seed=seed + i) for i in range(2)]


def turned(x, cos, sin, positions, interleaved):
    """Rotate the first features of x (batch, n, heads, d) as complex numbers."""
    pairs = cos.shape[1]
    angle = torch.complex(cos.double(), sin.double())[positions][:, :, None]
    part = x[..., : 2 * pairs].double()
    part = part.unflatten(-1, (pairs, 2)) if interleaved else part.unflatten(-1, (2, pairs)).transpose(-1, -2)
    part = torch.view_as_real(torch.view_as_complex(part.contiguous()) * angle)
    part = (part if interleaved else part.transpose(-1, -2)).flatten(-2)
    return torch.cat([part.to(x.dtype), x[..., 2 * pairs :]], -1)


def expected_outputs(q, k_cache, v_cache, ends, **options):
    return reference(q, k_cache, v_cache, key_lengths=ends, **options)


def appended(cache, x, filled, rows=None):
    """Return a copy of the cache with x written after the filled positions."""
    cache = cache.clone()
    for b in range(len(x)):
        row = b if rows is None else int(rows[b])
        cache[row, int(filled[b]) : int(filled[b]) + x.shape[1]] = x[b]
    return cache


MASKS = {"plain": {}, "causal": {"causal": True}, "window": {"window_size": (9, 2)}}


@pytest.mark.parametrize("options", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("n_q", [1, 3])
@pytest.mark.parametrize(("interleaved", "rotary_dim"), [(None, 0), (True, D), (True, 8), (False, D), (False, 8)])
def test_new_keys_are_rotated_and_appended_in_place(options, n_q, interleaved, rotary_dim):
    q, (k_cache, v_cache), (k, v) = normal(BATCH, n_q, HEADS, D), caches(), new(n_q)
    rotary, turned_q, turned_k = {}, q, k
    if interleaved is not None:
        angles = normal(CAPACITY, rotary_dim // 2, seed=9)
        rotary = {"rotary_cos": angles.cos(), "rotary_sin": angles.sin(), "rotary_interleaved": interleaved}
        steps = FILLED[:, None] + torch.arange(n_q)
        at_q = steps if options else FILLED[:, None].expand(-1, n_q)
        turned_q, turned_k = (
            turned(x, angles.cos(), angles.sin(), positions, interleaved) for x, positions in ((q, at_q), (k, steps))
        )
    keys, values = appended(k_cache, turned_k, FILLED), appended(v_cache, v, FILLED)
    out, lse = flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, cache_seqlens=FILLED, **rotary, **options, return_softmax_lse=True
    )
    expected, expected_lse = expected_outputs(turned_q, keys, values, FILLED + n_q, **options)
    check_close(k_cache, keys, torch.float32)
    assert torch.equal(v_cache, values)
    check_close(out, expected, torch.float32)
    check_close(lse, expected_lse, torch.float32)


@pytest.mark.parametrize("lengths", [FILLED, 21, torch.tensor(21), None])
@pytest.mark.parametrize("slopes", [None, (HEADS,), (BATCH, HEADS)])
def test_lengths_and_options(lengths, slopes):
    options = {"causal": True, "softcap": 4.0, "softmax_scale": 0.4}
    if slopes is not None:
        options["alibi_slopes"] = torch.linspace(0.1, 0.7, torch.Size(slopes).numel()).reshape(slopes)
    q, (k_cache, v_cache) = normal(BATCH, 2, HEADS, D), caches()
    out = flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths, **options, num_splits=3)
    ends = torch.full((BATCH,), CAPACITY if lengths is None else 21) if lengths is not FILLED else FILLED
    check_close(out, expected_outputs(q, k_cache, v_cache, ends, **options)[0], torch.float32)


@pytest.mark.parametrize("options", MASKS.values(), ids=MASKS)
def test_rows_of_the_cache_and_left_padding(options):
    q, (k_cache, v_cache), (k, v) = normal(BATCH, 2, HEADS, D), caches(5), new(2)
    rows, first = torch.tensor([4, 0, 2]), torch.tensor([0, 5, 33])
    keys, values = appended(k_cache, k, FILLED, rows), appended(v_cache, v, FILLED, rows)
    out = flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, cache_seqlens=FILLED, cache_batch_idx=rows, cache_leftpad=first, **options
    )
    expected, _ = expected_outputs(q, keys[rows], values[rows], FILLED + 2, leftpad=first, **options)
    assert torch.equal(k_cache, keys)
    check_close(out, expected, torch.float32)


@pytest.mark.parametrize("options", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("leftpad", [None, torch.tensor([0, 5, 12])])
def test_pages(options, leftpad):
    page, (k_cache, v_cache), (k, v) = 8, caches(), new(3)
    q = normal(BATCH, 3, HEADS, D)
    table = torch.randperm(2 * BATCH * CAPACITY // page, generator=torch.Generator().manual_seed(0))
    table = table[: BATCH * CAPACITY // page].reshape(BATCH, -1).int()
    pools = []
    for cache in (k_cache, v_cache):
        pool = torch.full((2 * table.numel(), page, KV_HEADS, D), float("nan"))
        pool[table.long()] = cache.unflatten(1, (-1, page))
        pools.append(pool)
    arguments = {"cache_seqlens": FILLED, "block_table": table, "cache_leftpad": leftpad, **options}
    out, lse = flash_attn_with_kvcache(q, *pools, k, v, **arguments, return_softmax_lse=True)
    keys, values = appended(k_cache, k, FILLED), appended(v_cache, v, FILLED)
    assert torch.equal(pools[0][table.long()].flatten(1, 2), keys)
    expected, expected_lse = expected_outputs(q, keys, values, FILLED + 3, leftpad=leftpad, **options)
    check_close(out, expected, torch.float32)
    check_close(lse, expected_lse, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_number_types(dtype):
    q, k_cache, v_cache = (x.to(dtype) for x in (normal(BATCH, 1, HEADS, D), *caches()))
    out = flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=FILLED + 1)
    assert out.dtype == dtype
    check_close(out, expected_outputs(q, k_cache, v_cache, FILLED + 1)[0], dtype)


def test_generation_step_by_step_is_attention_on_all():
    q, k, v = (normal(2, 7, heads, D, seed=heads) for heads in (HEADS, KV_HEADS, KV_HEADS))
    expected, _ = reference(q, k, v, causal=True)
    k_cache, v_cache = torch.zeros(2, 9, KV_HEADS, D), torch.zeros(2, 9, KV_HEADS, D)
    for i in range(7):
        out = flash_attn_with_kvcache(
            *(q[:, i : i + 1], k_cache, v_cache, k[:, i : i + 1], v[:, i : i + 1]), cache_seqlens=i, causal=True
        )
        check_close(out[:, 0], expected[:, i], torch.float32)


def test_sinks_are_redblues():
    q, (k_cache, v_cache), sinks = normal(BATCH, 1, HEADS, D), caches(), torch.tensor([0.5, 2.0, -1.0, 0.0])
    out = flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=FILLED + 1, s_aux=sinks)
    plain, lse = expected_outputs(q, k_cache, v_cache, FILLED + 1)
    check_close(out, plain * (lse - sinks[:, None]).sigmoid().transpose(1, 2)[..., None], torch.float32)


def test_no_batch_entries():
    out = flash_attn_with_kvcache(torch.zeros(0, 2, HEADS, D), *(x[:0] for x in caches()), cache_seqlens=FILLED[:0])
    assert out.shape == (0, 2, HEADS, D)


def test_gradients_are_refused():
    q = normal(BATCH, 1, HEADS, D).requires_grad_()
    with pytest.raises(RedblueError, match="q requires a gradient, but a cache has no backward pass"):
        flash_attn_with_kvcache(q, *caches())
    with torch.no_grad():
        assert not flash_attn_with_kvcache(q, *caches()).requires_grad


K, V = new(2)
HALF = torch.ones(CAPACITY, D // 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": K}, "k and v must be given together, got one of them"),
        ({"k": K, "v": V}, "cache_seqlens must say where k and v are appended, got None"),
        (
            {"k": K, "v": V, "cache_seqlens": 39},
            "cache_seqlens must be 0 to 38, the capacity less 2 new positions, got",
        ),
        ({"cache_seqlens": 41}, "cache_seqlens must be 0 to 40, the capacity, got"),
        ({"cache_seqlens": FILLED[:2]}, "cache_seqlens must have one entry for each of 3 sequences, got 2"),
        ({"cache_seqlens": 1.5}, "cache_seqlens must be a whole number of at least 0, got 1.5"),
        (
            {"k": K[:, :, :1], "v": V, "cache_seqlens": 3},
            r"k must be \(3, 2, 2, 16\) of torch.float32 on cpu, got \(3, 2, 1",
        ),
        ({"k": K.half(), "v": V, "cache_seqlens": 3}, r"k must be .* of torch.float32 on cpu, got .* of torch.float16"),
        ({"v_cache": caches(2)[0]}, "v_cache must have the positions and heads of k_cache"),
        ({"k_cache": caches()[0].half()}, "k_cache must be torch.float32 on cpu like q, got torch.float16 on cpu"),
        ({"k_cache": caches()[0][..., :8]}, "k_cache must have the head dimension of q, 16, got 8"),
        ({"cache_batch_idx": torch.tensor([0, 1, 3])}, r"cache_batch_idx: rows must be 0 to 2, got \[0, 1, 3\]"),
        ({"cache_leftpad": torch.tensor([0, 1, 50])}, "cache_leftpad must be 0 to the filled positions"),
        ({"rotary_cos": HALF, "rotary_sin": HALF}, "rotary_cos and rotary_sin rotate new keys, too: give k and v"),
        ({"block_table": torch.zeros(3, 5).int(), "cache_batch_idx": torch.arange(3)}, "select rows of block_table"),
        ({"block_table": torch.zeros(3, 1)}, "block_table must be a dense tensor of whole numbers"),
        ({"block_table": torch.zeros(2, 1, dtype=torch.int32)}, r"block_table must be whole numbers \(3 sequences"),
        ({"num_splits": -1}, "num_splits must be a whole number of at least 0, got -1"),
        ({"return_softmax_lse": 1}, "return_softmax_lse must be True or False"),
        ({"softcap": -2.0}, "softcap must be above 0"),
        ({"k": K.to("meta"), "v": V.to("meta"), "cache_seqlens": 8}, "k must be .* on cpu, got .* on meta"),
    ],
)
def test_bad_input_is_named(change, message):
    k_cache, v_cache = caches()
    arguments = {"q": normal(BATCH, 2, HEADS, D), "k_cache": k_cache, "v_cache": v_cache} | change
    with pytest.raises(RedblueError, match=message):
        flash_attn_with_kvcache(**arguments)


@pytest.mark.parametrize(
    ("cos", "sin", "message"),
    [
        (HALF, None, "rotary_cos and rotary_sin must be given together"),
        (HALF[:9], HALF[:9], "rotary_cos must have a row for each of 10 positions, got 9"),
        (torch.ones(40, 9), torch.ones(40, 9), "rotary_cos must have at most d / 2 = 8 columns, got 9"),
        (HALF.int(), HALF.int(), "rotary_cos must be of a floating-point type, got torch.int32"),
        (HALF.clone().requires_grad_(), HALF, "rotary_cos requires a gradient, but a cache has no backward pass"),
        (HALF, HALF[:, :4], r"rotary_sin must be \(40, 8\) like rotary_cos, got \(40, 4\)"),
    ],
)
def test_bad_tables_of_angles_are_named(cos, sin, message):
    q, rotary = normal(BATCH, 2, HEADS, D), {"rotary_cos": cos, "rotary_sin": sin}
    with pytest.raises(RedblueError, match=message):
        flash_attn_with_kvcache(q, *caches(), K, V, cache_seqlens=8, causal=True, **rotary)
