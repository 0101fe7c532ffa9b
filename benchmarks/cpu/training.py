"""Time a whole training step of a small GPT with the attention of redblue or of PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

import redblue as rb
from benchmarks.common.failures import Red
from benchmarks.common.gate import MAX_OURS, REDBLUE, relative_errors, within
from benchmarks.cpu.peers import PYTORCH
from redblue.studies.training.model import Layer, Shape, Transformer, made

LAYERS, HEADS, D, N, BATCH, VOCABULARY = 6, 6, 64, 512, 4, 256  # one symbol per byte
ATTENTION = {REDBLUE: rb.scaled_dot_product_attention, PYTORCH: functional.scaled_dot_product_attention}
SHAPE = Shape(LAYERS, HEADS * D, HEADS, VOCABULARY, N, VOCABULARY)  # GPT-2's architecture, 10.9 million parameters


def text() -> torch.Tensor:
    return torch.randint(VOCABULARY, (BATCH, N + 1), generator=torch.Generator().manual_seed(1))


def loss_of(gpt: Transformer, attention: Callable[..., Any], symbols: torch.Tensor, autocast: bool) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext():
        logits = gpt(symbols[:, :-1], partial(attention, is_causal=True))
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return functional.cross_entropy(logits.flatten(0, 1), symbols[:, 1:].flatten())


def trainer(attention: Callable[..., Any], autocast: bool) -> Callable[[], object]:
    """A function that makes one training step: forward, backward, AdamW."""
    gpt, symbols = made(SHAPE), text()
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(gpt, attention, symbols, autocast).backward()
        optimizer.step()

    return step


def _results(gpt: Transformer, attention: Callable[..., Any], autocast: bool) -> list[torch.Tensor]:
    """The loss, and the gradients of the embedding, of the first layer's projections and of the output head."""
    loss = loss_of(gpt, attention, text(), autocast)
    first = gpt.layers[0]
    assert isinstance(first, Layer)
    parameters = [gpt.symbols.weight, first.qkv.weight, gpt.head.weight]
    return [loss.detach(), *torch.autograd.grad(loss, parameters)]


def check(autocast: bool) -> dict[str, list[float]]:
    """Errors against the model in float64. Raises Red if redblue's errors exceed twice PyTorch's."""
    exact = _results(made(SHAPE).double(), ATTENTION[PYTORCH], False)
    errors = {
        name: relative_errors(_results(made(SHAPE), attention, autocast), exact)
        for name, attention in ATTENTION.items()
    }
    allowed = [max(error, 1e-6) for error in errors[PYTORCH]]  # the loss may be accurate by chance
    if not within(errors[REDBLUE], allowed, MAX_OURS):
        raise Red(f"training step: errors {errors[REDBLUE]}, with PyTorch's attention {errors[PYTORCH]}")
    return errors
