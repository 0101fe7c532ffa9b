"""A transformer in plain PyTorch, of the shape of GPT-2 or BERT. The caller passes the attention in every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

# Takes q, k and v, each (batch, heads, n, d); returns (batch, heads, n, d).
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Shape(NamedTuple):
    """The shape of a model. n: number of positions, 0 for a model without positions. outputs: outputs of each token."""

    layers: int
    d_model: int
    heads: int
    symbols: int
    n: int
    outputs: int


class Layer(nn.Module):
    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.mlp = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model))

    def forward(self, x: torch.Tensor, attend: Attend) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1)
        )
        x = x + self.out(attend(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.between(x))


class Transformer(nn.Module):
    """Embeddings, layers with normalisation first, and one linear output for each token."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.symbols = nn.Embedding(shape.symbols, shape.d_model)
        self.positions = nn.Embedding(shape.n, shape.d_model) if shape.n else None
        self.layers = nn.ModuleList(Layer(shape.d_model, shape.heads) for _ in range(shape.layers))
        self.after, self.head = nn.LayerNorm(shape.d_model), nn.Linear(shape.d_model, shape.outputs, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # Layers that add to the residual stream, as in GPT-2
                deep = name.endswith(("out.weight", "mlp.2.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * shape.layers) ** 0.5 if deep else 0.02)

    def forward(self, symbols: torch.Tensor, attend: Attend, positions: Any = None) -> torch.Tensor:
        """Return the outputs (batch, n, outputs).

        symbols: (batch, n), or (batch, n, m) for tokens of m symbols, whose embeddings are averaged. positions: the
        tokens' positions, (n,) or (batch, n); 0 to n - 1 if left out.
        """
        x = self.symbols(symbols)
        x = x.mean(2) if symbols.dim() == 3 else x
        if self.positions is not None:
            x = x + self.positions(torch.arange(symbols.shape[1]) if positions is None else positions)
        for layer in self.layers:
            x = layer(x, attend)
        return self.head(self.after(x))


def made(shape: Shape, seed: int = 0) -> Transformer:
    """A model whose weights depend on the shape and the seed alone."""
    torch.manual_seed(seed)
    return Transformer(shape)
