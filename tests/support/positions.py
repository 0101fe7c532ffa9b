"""Blocks of a whole problem of attention, cut at positions, and their float64 reference."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import redblue as rb
from redblue.lab import reference
from support.attention import kept

LEAD, HEADS, KV_HEADS, N_Q, N_K = (2,), 4, 2, 29, 41
SHARE, SEED = 0.3, 7
D, D_V = 6, 5
SLOPES = np.array([[0.5, 0.25, 0.1, 0.7], [0.3, 0.6, 0.05, 0.2]])


def _zigzag(n: int) -> np.ndarray:
    """The second and the next to last of six parts."""
    parts = np.array_split(np.arange(n), 6)
    return np.concatenate([parts[1], parts[4]])


def _random(n: int) -> np.ndarray:
    return np.flatnonzero(np.random.default_rng(n).random(n) < 0.5)


PLACEMENTS = {
    "whole": np.arange,
    "contiguous": lambda n: np.arange(n // 3, 2 * n // 3),
    "strided": lambda n: np.arange(1, n, 3),
    "zigzag": _zigzag,
    "random": _random,
    "any order": lambda n: np.random.default_rng(n).permutation(n)[: n // 2],
}
KEY_HEADS = {"all heads": slice(None), "second key head": slice(1, 2)}


class Block(NamedTuple):
    """One block: its rows, its keys and its key heads, and the arguments of a call that computes it."""

    queries: np.ndarray
    keys: np.ndarray
    heads: slice
    arrays: list[np.ndarray]  # q, k, v, dout, of the block
    options: dict[str, Any]  # alibi, dropout, seed and positions, of the block

    @property
    def pattern(self) -> np.ndarray:
        """Which probabilities the dropout of the whole problem keeps."""
        return kept((*LEAD, HEADS, N_Q, N_K), SHARE, SEED)[:, self.heads][:, :, self.queries[:, None], self.keys]

    @property
    def distances(self) -> np.ndarray:
        """The alibi distances in the whole problem."""
        return np.abs(np.arange(N_Q)[:, None] + N_K - N_Q - np.arange(N_K))[self.queries[:, None], self.keys]

    def expected(self, attends: np.ndarray | None = None, **more: Any) -> dict[str, np.ndarray]:
        """Results and gradients in float64.

        The dropout pattern of the whole problem comes from a call without positions.
        """
        *inputs, dout = self.arrays
        arguments = {
            "alibi": self.options["alibi"],
            "positions": (self.queries + N_K - N_Q, self.keys),
            "dropout": self.pattern / (1 - SHARE),
            "attends": attends,
            **more,
        }
        result = reference.forward(*inputs, **arguments)._asdict()
        return result | reference.backward(*inputs, dout, **arguments)._asdict()


def block(queries: str, keys: str, heads: str = "all heads", dtype: Any = np.float64) -> Block:
    """The block with these rows and keys, of random numbers."""
    rows, columns, kv_heads = PLACEMENTS[queries](N_Q), PLACEMENTS[keys](N_K), KEY_HEADS[heads]
    first, stop, _ = kv_heads.indices(KV_HEADS)
    group = HEADS // KV_HEADS
    own = slice(first * group, stop * group)
    rng = np.random.default_rng(1)
    arrays = [
        rng.standard_normal((*LEAD, n_heads, n, width)).astype(dtype)
        for n_heads, n, width in (
            ((stop - first) * group, len(rows), D),
            (stop - first, len(columns), D),
            (stop - first, len(columns), D_V),
            ((stop - first) * group, len(rows), D_V),
        )
    ]
    positions = rb.Positions(rows, columns, N_Q, N_K, first_head=own.start, heads=HEADS)
    options = {"alibi": SLOPES[:, own], "dropout": SHARE, "seed": SEED, "positions": positions}
    return Block(rows, columns, own, arrays, options)
