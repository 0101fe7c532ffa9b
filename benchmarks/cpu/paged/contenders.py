"""The contenders of this process: redblue, transformers and PyTorch, and the two rooflines, reads and multiply-adds."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch  # pyright: ignore[reportMissingImports]

import redblue as rb
from benchmarks.common import roof
from benchmarks.common.failures import Refused
from benchmarks.common.timing import THREADS
from benchmarks.cpu.paged.calls import Call, Inputs, attended, newest
from benchmarks.cpu.paged.gathered import Run, gathered

CONTIGUOUS = "contiguous"  # rb.attention on contiguous keys and values
TRANSFORMERS, GATHERED = "transformers", "gather + SDPA"
READS, PRODUCTS = "measured reads", "measured multiply-adds"
MAX_BYTES, MAX_FLOPS = 2 << 30, 3e11  # of one call of transformers; larger calls are skipped
CAUSAL = rb.Mask.causal(align="bottom-right")


def redblue(call: Call, x: Inputs, prefix_pages: int | None = None) -> Run:
    options: dict[str, Any] = {"mask": newest(call)} if call.tree else {}
    return lambda: rb.attention_paged(x.q, x.k, x.v, x.table, x.lengths, prefix_pages=prefix_pages, **options)


def contiguous(call: Call, x: Inputs) -> Run:
    """rb.attention on the same keys and values, contiguous, (B, H_kv, n_k, width)."""
    n = call.lengths[0]
    if not call.even:
        raise Refused("lengths differ")
    mask = rb.Mask.from_dense(attended(call, n).numpy()) if call.tree else CAUSAL if call.n_q > 1 else None
    order = x.table.flatten().long()

    def gather(pages: torch.Tensor) -> torch.Tensor:
        rows = pages.index_select(0, order).reshape(call.batch, -1, call.kv_heads, pages.shape[3])[:, :n]
        return rows.transpose(1, 2).contiguous()

    k = gather(x.k)
    v = k[..., : call.d_v] if call.d_v else gather(x.v)
    q = x.q.transpose(1, 2).contiguous()
    return lambda: rb.attention(q, k, v, mask=mask).transpose(1, 2)


def transformers(call: Call, x: Inputs) -> Run:
    """The attention of a layer in generate_batch: all sequences in one row, whose keys and values are copied per call.

    The mask is additive and dense; transformers makes it once for all layers, so it is not timed.
    """
    try:
        from transformers.integrations.sdpa_attention import (  # pyright: ignore[reportMissingImports]
            sdpa_attention_forward,
        )
    except ImportError:
        raise Refused("not installed") from None
    rows, keys = call.batch * call.n_q, sum(call.lengths)
    copies = 2 * keys * call.heads * call.d * call.torch_dtype.itemsize
    flops = 4 * rows * keys * call.heads * call.d
    if copies > MAX_BYTES or flops > MAX_FLOPS:
        raise Refused(f"its one row takes {copies / 2**30:.1f} GiB and {flops / 1e12:.2f} TFLOP, too much to wait for")
    read = torch.cat([_slots(call, x, b) for b in range(call.batch)])
    mask = torch.full((1, 1, rows, keys), torch.finfo(call.torch_dtype).min, dtype=call.torch_dtype)
    first = 0
    for b, n in enumerate(call.lengths):
        block = mask[..., b * call.n_q : (b + 1) * call.n_q, first : first + n]
        block.masked_fill_(attended(call, n), 0)
        first += n
    k, v = (pages.flatten(0, 1) for pages in (x.k, x.v))
    q = x.q.flatten(0, 1).transpose(0, 1)[None]
    module: Any = SimpleNamespace(num_key_value_groups=call.group, is_causal=True)

    def run() -> torch.Tensor:
        own_k, own_v = (cache.index_select(0, read).transpose(0, 1)[None] for cache in (k, v))
        out, _ = sdpa_attention_forward(module, q, own_k, own_v, mask, scaling=call.d**-0.5, is_causal=False)
        return out.view(call.batch, call.n_q, call.heads, call.width_v)

    return run


def _slots(call: Call, x: Inputs, b: int) -> torch.Tensor:
    """The rows of the flattened cache that hold the keys of sequence b."""
    positions = torch.arange(call.lengths[b])
    return x.table[b, positions // call.page].long() * call.page + positions % call.page


MAKERS: dict[str, Callable[[Call, Inputs], Run]] = {
    TRANSFORMERS: transformers,
    GATHERED: gathered,
    CONTIGUOUS: contiguous,
}


def reads(call: Call, work: float, seconds: float, threads: int = THREADS) -> Callable[[], float]:
    """A function that measures the rate of a call that only reads its keys and values."""
    measured = roof.reads(call.bytes, seconds, threads)
    return lambda: measured() / call.bytes * work


def products(call: Call, work: float, seconds: float) -> Callable[[], float]:
    """A function that measures the rate of a call that only makes its multiply-adds."""
    measured = roof.multiply_adds(call.dtype, seconds)
    return lambda: measured() / call.flops * work
