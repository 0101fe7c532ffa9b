"""Masks of packed (concatenated) sequences, from their cumulative lengths."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.masks import Mask
from redblue.masks.rules.packed import Documents
from redblue.op.paged.call import CAUSAL


def packed(
    mask: Mask | None, causal: bool, starts: Tensor, key_starts: Tensor | None, query: Tensor, key: Tensor
) -> Mask:
    """The mask, within packed sequences.

    causal: whether each sequence is also causal; its last query has the position of its last key. starts, key_starts:
    the bounds of the sequences in queries and keys. Raises RedblueError unless they divide a single row of tokens.
    """
    bounds = starts.tolist()
    key_bounds = bounds if key_starts is None or key_starts is starts else key_starts.tolist()
    for name, ends, tokens in (("q", bounds, query), ("k", key_bounds, key)):
        if tokens.shape[0] != 1 or not ends or ends[0] != 0 or ends[-1] != tokens.shape[2]:
            raise RedblueError(
                f"cu_seq_lens_{name} must go from 0 to the {tokens.shape[2]} tokens of a batch of one, got "
                f"{ends[:1]} to {ends[-1:]} for a batch of {tokens.shape[0]}"
            )
    documents = _documents(tuple(bounds), tuple(key_bounds), causal)
    if mask is None or mask.is_full:
        return documents
    rule, own = mask.rule, documents.rule
    if (
        isinstance(rule, Documents)
        and isinstance(own, Documents)
        and (rule.lengths, rule.key_lengths) == (own.lengths, own.key_lengths)
    ):  # the mask function has recognised the same sequences
        return mask
    return mask & documents


@lru_cache(maxsize=64)
def _documents(bounds: tuple[int, ...], key_bounds: tuple[int, ...], causal: bool) -> Mask:
    lengths, key_lengths = ([b - a for a, b in pairwise(x)] for x in (bounds, key_bounds))
    return Mask.documents(lengths, key_lengths, within=CAUSAL if causal else None)
