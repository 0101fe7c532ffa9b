"""A tiny language model with random weights, for serve.py. Its tokens are bytes, and the caller computes attention."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Attend = Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


class Model:
    """A decoder with random weights, grouped heads and rotary positions. The token `end` marks the end of a text."""

    end = 0

    def __init__(self, seed: int = 0, layers: int = 2, width: int = 64, heads: int = 4, kv_heads: int = 2) -> None:
        self.heads, self.kv_heads, self.d = heads, kv_heads, width // heads
        normal = np.random.default_rng(seed).standard_normal

        def matrix(rows: int, columns: int) -> np.ndarray:
            return (normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)

        self.embedding = normal((256, width)).astype(np.float32)
        shapes = {"qkv": (width, width + 2 * kv_heads * self.d), "out": (width, width)}
        shapes |= {"up": (width, 2 * width), "down": (2 * width, width)}
        self.layers = [{name: matrix(*shape) for name, shape in shapes.items()} for _ in range(layers)]
        for weights in self.layers:
            weights["qkv"] *= 3  # attention then selects few tokens, so that the texts depend on the prompts
        self.logits = matrix(width, 256)

    def forward(self, tokens: np.ndarray, positions: np.ndarray, attend: Attend) -> np.ndarray:
        """Return the last hidden states (n, width). attend(layer, q, k, v) takes and returns arrays (n, heads, d)."""
        x = self.embedding[tokens]
        for number, weights in enumerate(self.layers):
            qkv = (normalised(x) @ weights["qkv"]).reshape(len(x), -1, self.d)
            q, k, v = np.split(qkv, [self.heads, self.heads + self.kv_heads], axis=1)
            attended = attend(number, rotated(q, positions), rotated(k, positions), v)
            x = x + attended.reshape(len(x), -1) @ weights["out"]
            x = x + np.maximum(normalised(x) @ weights["up"], 0) @ weights["down"]
        return normalised(x)


def normalised(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def rotated(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Rotate the pairs of entries of each head by angles that grow with the position."""
    half = x.shape[-1] // 2
    angles = positions[:, None, None] * 100.0 ** -(np.arange(half) / half)
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)
