"""Nodes of a call on paged caches: runs of keys that several queries attend together, so that they are read once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Nodes(NamedTuple):
    """Node i holds keys first[i] .. stop[i] - 1 of sequence[i], which members starts[i] .. starts[i + 1] - 1 attend.

    queries: the packed row of q of each member. All are int64. The nodes of a query are in the order of their keys.
    """

    sequence: np.ndarray
    first: np.ndarray
    stop: np.ndarray
    starts: np.ndarray
    queries: np.ndarray


def nodes_of(shared: Sequence[tuple[int, int, Sequence[int]]], starts: np.ndarray) -> Nodes:
    """Convert the core's nodes (_core.shared_nodes: first key, stop key, sequences).

    starts: the packed queries of sequence b are starts[b] .. starts[b + 1] - 1.
    """
    first, stop, sequence = (np.array(x, np.int64) for x in zip(*((a, b, m[0]) for a, b, m in shared), strict=True))
    members = [np.arange(starts[b], starts[b + 1]) for _, _, sequences in shared for b in sequences]
    per_sequence = np.repeat(np.arange(len(shared)), [len(sequences) for _, _, sequences in shared])
    counts = np.bincount(per_sequence, [len(x) for x in members]).astype(np.int64)
    return Nodes(sequence, first, stop, np.append(0, np.cumsum(counts)), np.concatenate(members))
