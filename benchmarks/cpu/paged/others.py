"""The peers that need their own PyTorch, for calls on paged caches. Their processes import this module, not redblue."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch  # pyright: ignore[reportMissingImports]

from benchmarks.common.failures import Refused
from benchmarks.common.other_process import VLLM, ZENTORCH
from benchmarks.cpu.paged.calls import Call, Inputs, inputs, sequence
from benchmarks.cpu.paged.gathered import Run, gathered

BLOCK = 32  # keys of vLLM's pages; its CPU backend requires a multiple of 32


def zentorch(call: Call, x: Inputs) -> Run:
    """Gather, then zentorch's SDPA; zentorch has no paged attention."""
    importlib.import_module("zentorch")
    if call.d_v:
        raise Refused("its SDPA wants keys and values of one width")

    def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
        return torch.ops.zentorch.zentorch_sdpa(q, k, v, 0.0, False, attn_mask=mask)[0]

    return gathered(call, x, sdpa)


def vllm(call: Call, x: Inputs) -> Run:
    """The op of vLLM's CPU_ATTN, or of its CPU_MLA."""
    if call.tree:
        raise Refused("its op has no tree masks")
    if call.d_v:
        return _vllm_mla(call, x)
    caches = [(sequence(x.k, x, b), sequence(x.v, x, b)) for b in range(call.batch)]
    order = torch.randperm(sum(-(-n // BLOCK) for n in call.lengths))
    return vllm_attention(x.q, caches, order, causal=True)


def vllm_attention(
    q: torch.Tensor, caches: Sequence[tuple[torch.Tensor, torch.Tensor]], order: torch.Tensor, causal: bool
) -> Run:
    """The op of vLLM's CPU_ATTN, on pages of its own layout.

    q: (B, n_q, H, d). caches: keys and values of each sequence, (n_k, H_kv, d). order: of the pages. causal: the
    queries are the newest rows, and each attends the keys up to its own. vLLM fills its pages when the keys are made,
    and makes its schedule once for all layers, so neither is timed.
    """
    ops = importlib.import_module("vllm._custom_ops")
    backend = importlib.import_module("vllm.v1.attention.backends.cpu_attn")
    batch, n_q, heads, d = q.shape
    kv_heads = caches[0][0].shape[1]
    isa = backend._get_attn_isa(q.dtype, BLOCK, d)
    lengths = torch.tensor([len(k) for k, _ in caches], dtype=torch.int32)
    needed = [-(-n // BLOCK) for n in lengths.tolist()]
    table = torch.zeros(batch, max(needed), dtype=torch.int32)
    for row, own in zip(table, order.int().split(needed), strict=True):
        row[: len(own)] = own
    pages = torch.zeros(len(order), kv_heads, 2 * BLOCK, d, dtype=q.dtype)
    k_pages, v_pages = pages.chunk(2, dim=2)
    for row, (k, v) in zip(table, caches, strict=True):
        positions = torch.arange(len(k))
        slots = row[positions // BLOCK].long() * BLOCK + positions % BLOCK
        ops.cpu_attn_reshape_and_cache(k, v, k_pages, v_pages, slots, isa)
    starts = torch.arange(batch + 1, dtype=torch.int32) * n_q
    schedule = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=batch,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=d,
        seq_lens=lengths,
        dtype=q.dtype,
        query_start_loc=starts,
        causal=causal,
        sliding_window_size=-1,
        isa=isa,
        enable_kv_split=True,
    )
    queries = q.flatten(0, 1).contiguous()
    out = torch.empty_like(queries)

    def run() -> torch.Tensor:
        ops.cpu_attention_with_kv_cache(
            query=queries,
            key_cache=k_pages,
            value_cache=v_pages,
            output=out,
            query_start_loc=starts,
            seq_lens=lengths,
            scale=d**-0.5,
            causal=causal,
            alibi_slopes=None,
            sliding_window=-1,
            block_table=table,
            softcap=0.0,
            scheduler_metadata=schedule,
            s_aux=None,
        )
        return out.view(batch, n_q, heads, d)

    return run


def _vllm_mla(call: Call, x: Inputs) -> Run:
    """The op of vLLM's CPU_MLA, for one query, on pages of 16."""
    if call.n_q > 1 or call.page != 16:
        raise Refused("its MLA op takes one query and pages of 16")
    ops = importlib.import_module("vllm._custom_ops")
    cache = x.k[:, :, 0].contiguous()
    q = x.q[:, 0].contiguous()
    out = q.new_empty(call.batch, call.heads, call.width_v)

    def run() -> torch.Tensor:
        ops.mla_decode_kvcache_cpu(out, q, cache, call.d**-0.5, x.table, x.lengths)
        return out[:, None]

    return run


MAKERS: dict[str, Callable[[Call, Inputs], Run]] = {VLLM: vllm, ZENTORCH: zentorch}


def make(peer: str, call: dict[str, Any]) -> Run:
    """A run of the call, for benchmarks/common/child.py."""
    made = Call.from_json(call)
    return MAKERS[peer](made, inputs(made))
