"""Paged attention in PyTorch: copy keys and values out of their pages, then attend. Imports only PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
import torch.nn.functional as F  # noqa: N812  # pyright: ignore[reportMissingImports]

from benchmarks.common.timing import fastest
from benchmarks.cpu.paged.calls import Call, Inputs, attended, sequence

MAX_BYTES = 1 << 30  # of keys and values that a peer copies for a call
Run = Callable[[], torch.Tensor]
Sdpa = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Any], torch.Tensor]  # (q, k, v, mask or None)


def pytorch_sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


def products(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
    """Two products and a softmax, as in SDPA for keys and values of different widths, but without its copies."""
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    return (scores if mask is None else scores + mask).softmax(-1) @ v


def gathered(call: Call, x: Inputs, sdpa: Sdpa = pytorch_sdpa) -> Run:
    """The fastest way to copy and attend; all results are (B, n_q, H, d_v).

    Sequences of equal lengths are copied and attended together, others one by one. SDPA gets query heads that share
    keys as heads, or as more queries of one head.
    """
    copied = 2 * sum(call.lengths) * call.heads * call.d * call.torch_dtype.itemsize
    unfolded = call.group == 1 or copied <= MAX_BYTES  # SDPA copies shared keys and values for each query head
    ways = [partial(_run, call, x, sdpa, folded) for folded in ((False, True) if unfolded else (True,))]
    if call.d_v and sdpa is pytorch_sdpa:
        ways.append(partial(_run, call, x, products, True))
    return fastest([way() for way in ways], tries=1)  # pyright: ignore[reportReturnType]


def _run(call: Call, x: Inputs, sdpa: Sdpa, folded: bool) -> Run:
    masks = {n: _mask(call, n, folded) for n in set(call.lengths)}

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, n: int) -> torch.Tensor:
        """q (b, n_q, H, d); k and v (b, n, H_kv, width)."""
        b = len(q)
        q = _fold(call, q) if folded else q.transpose(1, 2)
        out = sdpa(q, k.transpose(1, 2), v.transpose(1, 2), masks[n])
        return out.reshape(b, call.heads, call.n_q, call.width_v).transpose(1, 2)

    if call.even and not call.lengths[0] % call.page:
        n = call.lengths[0]
        pages = x.table.flatten().long()

        def together() -> torch.Tensor:
            k = x.k.index_select(0, pages).view(call.batch, n, call.kv_heads, call.d)
            v = k[..., : call.d_v] if call.d_v else x.v.index_select(0, pages).view(k.shape)
            return attend(x.q, k, v, n)

        return together

    def one_by_one() -> torch.Tensor:
        outs = []
        for b, n in enumerate(call.lengths):
            k = sequence(x.k, x, b)
            v = k[..., : call.d_v] if call.d_v else sequence(x.v, x, b)
            outs.append(attend(x.q[b : b + 1], k[None], v[None], n))
        return torch.cat(outs)

    return one_by_one


def _fold(call: Call, q: torch.Tensor) -> torch.Tensor:
    """(b, n_q, H, d) as (b, H_kv, group n_q, d)."""
    apart = q.view(len(q), call.n_q, call.kv_heads, call.group, call.d)
    return apart.permute(0, 2, 3, 1, 4).reshape(len(q), call.kv_heads, call.group * call.n_q, call.d)


def _mask(call: Call, n: int, folded: bool) -> torch.Tensor | None:
    """A mask of four dimensions: 0 for attended pairs, -inf for others. None if queries attend all keys."""
    if call.n_q == 1:
        return None
    mask = torch.zeros(call.n_q, n, dtype=call.torch_dtype).masked_fill_(~attended(call, n), float("-inf"))
    return (mask.repeat(call.group, 1) if folded else mask)[None, None]
