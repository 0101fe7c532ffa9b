"""Masks of packed (concatenated) sequences, from their cumulative lengths."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.base.integers import int64_array
from redblue.masks import Mask
from redblue.masks.rules.packed import Documents
from redblue.op.packed import documents, lengths_of
from redblue.op.paged.call import CAUSAL


def packed(
    mask: Mask | None, causal: bool, starts: Tensor, key_starts: Tensor | None, query: Tensor, key: Tensor
) -> Mask:
    """The mask, within packed sequences.

    causal: whether each sequence is also causal; its last query has the position of its last key. starts, key_starts:
    the bounds of the sequences in queries and keys. Raises RedblueError unless they divide a single row of tokens.
    """
    bounds = int64_array("cu_seq_lens_q", starts.tolist())
    key_starts = starts if key_starts is None else key_starts
    key_bounds = bounds if key_starts is starts else int64_array("cu_seq_lens_k", key_starts.tolist())
    lengths, key_lengths = _lengths("cu_seq_lens_q", bounds, query), _lengths("cu_seq_lens_k", key_bounds, key)
    within_sequences = documents(lengths, key_lengths, CAUSAL if causal else None)
    if mask is None or mask.is_full:
        return within_sequences
    rule, own = mask.rule, within_sequences.rule
    if (
        isinstance(rule, Documents)
        and isinstance(own, Documents)
        and (rule.lengths, rule.key_lengths) == (own.lengths, own.key_lengths)
    ):  # the mask function has recognised the same sequences
        return mask
    return mask & within_sequences


def _lengths(name: str, bounds: np.ndarray, tokens: Tensor) -> np.ndarray:
    """The lengths of the sequences. Raises RedblueError unless the bounds divide a single row of tokens."""
    if tokens.shape[0] != 1 or not len(bounds) or bounds[0] or bounds[-1] != tokens.shape[2]:
        raise RedblueError(
            f"{name} must go from 0 to the {tokens.shape[2]} tokens of a batch of one, got {bounds[:1].tolist()} to "
            f"{bounds[-1:].tolist()} for a batch of {tokens.shape[0]}"
        )
    return lengths_of(name, bounds)
