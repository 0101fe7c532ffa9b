"""The GPU benchmark's contenders, each called as its users would.

A contender is made for one call and its inputs, and gives a function of no arguments that returns [out], or the
gradients [dq, dk, dv] of a graph that was recorded before. What it refuses it says by raising an exception.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor  # pyright: ignore[reportMissingImports]

import redblue as rb
from benchmarks.gpu.calls import BLOCK, CUDNN, EFFICIENT, FLASH, FLEX, MATH, OURS, PLANNED, UNFUSED, Call, layout
from redblue.base.errors import RedblueError

Run = Callable[[], "list[Tensor]"]
BACKENDS = {FLASH: "FLASH_ATTENTION", CUDNN: "CUDNN_ATTENTION", EFFICIENT: "EFFICIENT_ATTENTION", MATH: "MATH"}
TUNE = "REDBLUE_TUNE"  # redblue.kernels.gpu.planning.tune's variable
FFPA_WIDTHS = range(257, 1025)  # others it hands to SDPA


class Refused(RedblueError):
    """The contender cannot do this, or not as itself."""


def contender(name: str, call: Call, inputs: list[Tensor]) -> Run:
    """Raises whatever the contender raises, Refused where it would let another one do it."""
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
    """As it is, or, of ours, with tuning turned on or off."""
    if name not in OURS:
        return run

    def ours() -> list[Tensor]:
        os.environ[TUNE] = "0" if name == PLANNED else "1"
        return run()

    return ours


def _forward(name: str, call: Call) -> Callable[..., Tensor]:
    if name in OURS:
        mask = call.mask
        if torch.cuda.is_available():
            return lambda q, k, v: rb.attention(q, k, v, mask=mask)
        interpreted = importlib.import_module("redblue.op.pytorch.interpreted")  # the script is tried, no more
        attention = interpreted.attention
        return lambda q, k, v: attention(q, k, v, mask=mask, schedule="flash")
    if name == FLEX:
        return _flex(call)
    if call.density < 1:
        raise Refused("no block-sparse masks")
    if name in BACKENDS:
        return _backend(BACKENDS[name], call.causal)
    if name == UNFUSED:
        return lambda q, k, v: unfused(q, k, v, call.causal)
    return _ffpa(call)


def _backend(name: str, causal: bool) -> Callable[..., Tensor]:
    from torch.nn.attention import SDPBackend, sdpa_kernel  # pyright: ignore[reportMissingImports]

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(getattr(SDPBackend, name)):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return forward


def unfused(q: Tensor, k: Tensor, v: Tensor, causal: bool, attends: Tensor | None = None) -> Tensor:
    """The textbook's expression, each product and the softmax by themselves, in the type of q."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        attends = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if attends is not None:
        scores = scores.masked_fill(~attends, float("-inf"))
    return scores.softmax(-1) @ v


def _flex(call: Call) -> Callable[..., Tensor]:
    flex = importlib.import_module("torch.nn.attention.flex_attention")
    config: Any = importlib.import_module("torch._functorch.config")
    config.donated_buffer = False  # its backward pass runs more than once here
    torch._dynamo.reset()  # after a few sizes, it would compile no more
    compiled = torch.compile(flex.flex_attention, dynamic=False)
    mask = None
    if call.density < 1:
        kept = torch.from_numpy(layout(call.n, call.density)).cuda()
        mask = flex.create_block_mask(
            lambda b, h, i, j: kept[i // BLOCK, j // BLOCK], None, None, call.n, call.n, device="cuda", BLOCK_SIZE=BLOCK
        )
    elif call.causal:
        mask = flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, call.n, call.n, device="cuda")
    return lambda q, k, v: compiled(q, k, v, block_mask=mask)


def _ffpa(call: Call) -> Callable[..., Tensor]:
    try:
        module = importlib.import_module("ffpa_attn")
    except ImportError as error:
        raise Refused(f"not installed ({error})") from error
    if call.values != call.d or call.d not in FFPA_WIDTHS:
        raise Refused(f"takes d = d_v of {FFPA_WIDTHS[0]} to {FFPA_WIDTHS[-1]} itself")
    return lambda q, k, v: module.ffpa_attn_func(q, k, v, is_causal=call.causal)
