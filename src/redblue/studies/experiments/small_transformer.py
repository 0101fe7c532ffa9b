"""A small causal transformer on bytes of Python source, for queries, keys and values that training has shaped."""

from __future__ import annotations

import argparse
import inspect
from typing import Any

import numpy as np

WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 128, 2, 2, 256, 8


def heads(steps: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Train for `steps` steps, and return Q, K and V, (CONTEXT, WIDTH / HEADS), of every head on text not trained on.

    The text is the source of `argparse` in Python's library; its last tenth is kept for the result.
    """
    import torch

    torch.manual_seed(seed)
    text = torch.frombuffer(bytearray(inspect.getsource(argparse).encode()), dtype=torch.uint8).long()
    kept = len(text) // 10
    model = _model(torch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        starts = torch.randint(len(text) - kept - CONTEXT - 1, (BATCH,))
        batch = torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()])
        loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        model(text[-kept : -kept + CONTEXT][None])
    layers = [[part[0].double().numpy() for part in block.qkv] for block in model.blocks]
    return [(q[head], k[head], v[head]) for q, k, v in layers for head in range(HEADS)]


def _model(torch: Any) -> Any:
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.into, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

        def forward(self, x: Any) -> Any:
            parts = self.into(self.before(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
            self.qkv = tuple(part.transpose(1, 2) for part in parts.unbind(-3))
            attended = nn.functional.scaled_dot_product_attention(*self.qkv, is_causal=True)
            x = x + self.out(attended.transpose(1, 2).flatten(-2))
            return x + self.mlp(self.between(x))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256))

        def forward(self, tokens: Any) -> Any:
            x = self.bytes(tokens) + self.places.weight
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    return Model()
