"""Time a whole training step of a small GPT with the attention of redblue or of PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

import redblue as rb
from benchmarks.common.gate import MAX_OURS, Red, relative_errors, within
from benchmarks.cpu.peers import PYTORCH, REDBLUE

LAYERS, HEADS, D, N, BATCH, VOCABULARY = 6, 6, 64, 512, 4, 256  # one symbol per byte
ATTENTION = {REDBLUE: rb.scaled_dot_product_attention, PYTORCH: functional.scaled_dot_product_attention}


class Block(nn.Module):
    def __init__(self, attention: Callable[..., Any]) -> None:
        super().__init__()
        width = HEADS * D
        self.attention = attention
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, D)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, dim=-1))
        attended = self.attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.between(x))


class Gpt(nn.Module):
    """GPT-2's architecture: 6 layers, 6 heads of 64, 512 bytes; 10.9 million parameters."""

    def __init__(self, attention: Callable[..., Any]) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(VOCABULARY, HEADS * D), nn.Embedding(N, HEADS * D)
        self.blocks = nn.Sequential(*(Block(attention) for _ in range(LAYERS)))
        self.after, self.head = nn.LayerNorm(HEADS * D), nn.Linear(HEADS * D, VOCABULARY, bias=False)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        x = self.symbols(symbols) + self.places(torch.arange(symbols.shape[1]))
        return self.head(self.after(self.blocks(x)))


def model(attention: Callable[..., Any]) -> Gpt:
    torch.manual_seed(0)
    return Gpt(attention)


def text() -> torch.Tensor:
    return torch.randint(VOCABULARY, (BATCH, N + 1), generator=torch.Generator().manual_seed(1))


def loss_of(gpt: Gpt, symbols: torch.Tensor, autocast: bool) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext():
        logits = gpt(symbols[:, :-1])
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return functional.cross_entropy(logits.flatten(0, 1), symbols[:, 1:].flatten())


def trainer(attention: Callable[..., Any], autocast: bool) -> Callable[[], object]:
    """A function that makes one training step: forward, backward, AdamW."""
    gpt, symbols = model(attention), text()
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(gpt, symbols, autocast).backward()
        optimizer.step()

    return step


def _results(gpt: Gpt, autocast: bool) -> list[torch.Tensor]:
    """The loss, and the gradients of the embedding, of the first layer's projections and of the output head."""
    loss = loss_of(gpt, text(), autocast)
    first = gpt.blocks[0]
    assert isinstance(first, Block)
    parameters = [gpt.symbols.weight, first.qkv.weight, gpt.head.weight]
    return [loss.detach(), *torch.autograd.grad(loss, parameters)]


def check(autocast: bool) -> dict[str, list[float]]:
    """Errors against the model in float64. Raises Red if those with redblue exceed twice those with PyTorch."""
    exact = _results(model(ATTENTION[PYTORCH]).double(), False)
    errors = {
        name: relative_errors(_results(model(attention), autocast), exact) for name, attention in ATTENTION.items()
    }
    allowed = [max(error, 1e-6) for error in errors[PYTORCH]]  # the loss may be accurate by chance
    if not within(errors[REDBLUE], allowed, MAX_OURS):
        raise Red(f"training step: errors {errors[REDBLUE]}, with PyTorch's attention {errors[PYTORCH]}")
    return errors
