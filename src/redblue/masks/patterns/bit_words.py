"""64-bit words as sets of up to 64 rows: bit b stands for row b of a panel."""

from __future__ import annotations

import numpy as np

WORD_BITS = 64
_BELOW = np.array([(1 << bit) - 1 for bit in range(WORD_BITS + 1)], np.uint64)


def below(bit: np.ndarray) -> np.ndarray:
    """Return words in which the bits below `bit` are set: none for `bit` <= 0, all for `bit` >= 64."""
    return _BELOW[np.clip(bit, 0, WORD_BITS)]


def between(first: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """Return words in which the bits first .. stop - 1 are set; bits outside 0 .. 63 are left out."""
    return below(stop) & ~below(first)


def popcount(words: np.ndarray) -> np.ndarray:
    """Count the bits that are set in each word."""
    if hasattr(np, "bitwise_count"):  # NumPy 2
        return np.bitwise_count(words).astype(np.int64)
    return np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1).sum(axis=1, dtype=np.int64)
