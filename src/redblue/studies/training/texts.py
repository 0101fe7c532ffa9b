"""Batches of text: windows for language models, and documents with hidden bytes for masked language models."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from redblue.masks import Mask

BYTES = 256
HIDDEN, PADDING = BYTES, BYTES + 1  # symbols in addition to the bytes
HIDDEN_SHARE = 0.15


def as_array(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8)


def windows(text: np.ndarray, batch: int, n: int, seed: tuple[int, ...]) -> torch.Tensor:
    """Draw `batch` windows of n + 1 bytes: n inputs, and n targets one byte later."""
    starts = np.random.default_rng(seed).integers(len(text) - n, size=batch)
    return torch.from_numpy(np.stack([text[start : start + n + 1] for start in starts]).astype(np.int64))


class Batch(NamedTuple):
    """A batch of a masked language model.

    symbols, positions, is_hidden: (rows, n). targets: the hidden bytes, in order. mask, allowed: the attended pairs,
    for redblue and, as booleans, for PyTorch.
    """

    symbols: torch.Tensor
    positions: torch.Tensor
    is_hidden: torch.Tensor
    targets: torch.Tensor
    mask: Mask
    allowed: torch.Tensor


def masked_batch(text: np.ndarray, lengths: np.ndarray, packed: bool, seed: tuple[int, ...]) -> Batch:
    """Draw a document of each length and hide some of its bytes; then pad all to the longest, or pack them in one row.

    The same seed draws the same bytes, padded or packed.
    """
    random = np.random.default_rng(seed)
    starts = random.integers(len(text) - lengths.max(), size=len(lengths))
    drawn = np.concatenate([text[start : start + length] for start, length in zip(starts, lengths, strict=True)])
    hidden = random.random(len(drawn)) < HIDDEN_SHARE
    symbols = np.where(hidden, HIDDEN, drawn.astype(np.int64))
    positions = np.concatenate([np.arange(length) for length in lengths])
    targets = torch.from_numpy(drawn[hidden].astype(np.int64))
    if packed:
        document = torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths))
        symbols, positions, hidden = (torch.from_numpy(array)[None] for array in (symbols, positions, hidden))
        return Batch(symbols, positions, hidden, targets, Mask.documents(lengths), document[:, None] == document)
    real = np.arange(lengths.max()) < lengths[:, None]
    table = np.full(real.shape, PADDING)
    table[real] = symbols
    is_hidden = np.zeros(real.shape, bool)
    is_hidden[real] = hidden
    places = torch.arange(int(lengths.max())).expand(real.shape)
    allowed = torch.from_numpy(real)[:, None, None, :]
    table, is_hidden = torch.from_numpy(table), torch.from_numpy(is_hidden)
    return Batch(table, places, is_hidden, targets, Mask.key_lengths(lengths), allowed)
