"""The contenders of the GPU benchmark. Each is called as its users call it.

`contender` builds a function without arguments for one call and its inputs. The function returns [out], or the
gradients [dq, dk, dv] of a graph that its first call records. A contender raises an exception for a call that it does
not support.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor  # pyright: ignore[reportMissingImports]

import redblue as rb
from benchmarks.common.failures import Refused
from benchmarks.common.gate import unfused
from benchmarks.gpu.calls import BLOCK, CUDNN, EFFICIENT, FLASH, FLEX, MATH, OURS, PLANNED, UNFUSED, Call, layout

Run = Callable[[], "list[Tensor]"]
BACKENDS = {FLASH: "FLASH_ATTENTION", CUDNN: "CUDNN_ATTENTION", EFFICIENT: "EFFICIENT_ATTENTION", MATH: "MATH"}
TUNE = "REDBLUE_TUNE"  # redblue.kernels.gpu.planning.tune's variable
FFPA_WIDTHS = range(257, 1025)  # head dimensions of its own kernels; it passes others to SDPA


def contender(name: str, call: Call, inputs: list[Tensor]) -> Run:
    """A function that runs the call.

    Raises the contender's exceptions, or Refused if it would call another contender.
    """
    forward = _forward(name, call)
    q, k, v, dout = inputs
    if call.direction == "forward":
        return _set(name, lambda: [forward(q, k, v)])
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    graph: list[Tensor] = []

    def backward() -> list[Tensor]:
        graph[:] = graph or [forward(*leaves)]
        return list(torch.autograd.grad(graph, leaves, dout, retain_graph=True))

    return _set(name, backward)


def _set(name: str, run: Run) -> Run:
    """The run; for redblue, with tuning turned on or off."""
    if name not in OURS:
        return run

    def ours() -> list[Tensor]:
        os.environ[TUNE] = "0" if name == PLANNED else "1"
        return run()

    return ours


def _forward(name: str, call: Call) -> Callable[..., Tensor]:
    if name in OURS:
        return _paged(call) if call.page else _ours(call)
    if call.page:
        raise Refused("no caches in pages")
    if name == FLEX:
        return _flex(call)
    if call.density < 1:
        raise Refused("no block-sparse masks")
    if name in BACKENDS:
        return _backend(BACKENDS[name], call)
    if name == UNFUSED:
        return lambda q, k, v: unfused(q, k, v, call.causal)
    return _ffpa(call)


def _ours(call: Call) -> Callable[..., Tensor]:
    mask = call.mask
    if torch.cuda.is_available():
        return lambda q, k, v: rb.attention(q, k, v, mask=mask)
    attention = importlib.import_module("redblue.op.pytorch.interpreted").attention  # a dry run
    return lambda q, k, v: attention(q, k, v, mask=mask, schedule="flash")


def _paged(call: Call) -> Callable[..., Tensor]:
    """Attention on keys and values in pages of random order. The first call builds the pages."""
    per_sequence = -(-call.n // call.page)
    table = torch.randperm(call.batch * per_sequence, generator=torch.Generator().manual_seed(0)).view(
        call.batch, per_sequence
    )
    lengths = torch.full((call.batch,), call.n)
    caches: list[Tensor] = []

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not caches:
            caches.extend(_in_pages(x, table, call.page) for x in (k, v))
        with _interpreted():
            return rb.attention_paged(q.transpose(1, 2), caches[0], caches[1], table, lengths).transpose(1, 2)

    return forward


def _interpreted() -> AbstractContextManager[None]:
    if torch.cuda.is_available():
        return nullcontext()
    return importlib.import_module("redblue.op.pytorch.interpreted").interpreted()


def _in_pages(x: Tensor, table: Tensor, page: int) -> Tensor:
    """Keys or values (B, H_kv, n, d) as a cache of pages (pages, page, H_kv, d)."""
    b, heads, n, d = x.shape
    cache = x.new_zeros(table.numel(), page, heads, d)
    padded = torch.nn.functional.pad(x, (0, 0, 0, -n % page)).transpose(1, 2)
    cache[table.flatten().to(x.device)] = padded.reshape(b * table.shape[1], page, heads, d)
    return cache


def _backend(name: str, call: Call) -> Callable[..., Tensor]:
    from torch.nn.attention import SDPBackend, sdpa_kernel  # pyright: ignore[reportMissingImports]

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(getattr(SDPBackend, name)):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=call.causal, enable_gqa=call.kv_heads < call.heads
            )

    return forward


def _flex(call: Call) -> Callable[..., Tensor]:
    flex = importlib.import_module("torch.nn.attention.flex_attention")
    config: Any = importlib.import_module("torch._functorch.config")
    config.donated_buffer = False  # because the backward pass runs more than once
    torch._dynamo.reset()  # without a reset, PyTorch stops compiling after a few sizes
    compiled = torch.compile(flex.flex_attention, dynamic=False)
    mask = None
    if call.density < 1:
        kept = torch.from_numpy(layout(call.n, call.density)).cuda()
        mask = flex.create_block_mask(
            lambda b, h, i, j: kept[i // BLOCK, j // BLOCK], None, None, call.n, call.n, device="cuda", BLOCK_SIZE=BLOCK
        )
    elif call.causal:
        mask = flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, call.n, call.n, device="cuda")
    grouped = call.kv_heads < call.heads
    return lambda q, k, v: compiled(q, k, v, block_mask=mask, enable_gqa=grouped)


def _ffpa(call: Call) -> Callable[..., Tensor]:
    """FFPA's Triton kernels, tuned as its authors tune them for Hopper."""
    try:
        module = importlib.import_module("ffpa_attn")
    except ImportError as error:
        raise Refused(f"not installed ({error})") from error
    if call.values != call.d or call.d not in FFPA_WIDTHS:
        raise Refused(f"takes d = d_v of {FFPA_WIDTHS[0]} to {FFPA_WIDTHS[-1]} only")
    tuned = {"autotune": True, "autotune_mode": "max", "enable_tma": True}
    backends = {
        "forward_backend": module.TritonBackend(forward=True, **tuned),
        "backward_backend": module.TritonBackend(backward=True, **tuned),
    }
    return lambda q, k, v: module.ffpa_attn_func(q, k, v, is_causal=call.causal, **backends)
