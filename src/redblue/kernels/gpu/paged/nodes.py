"""Nodes of a call on paged caches: runs of keys that several queries attend together, so that they are read once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from redblue.compiled import _core


class Nodes(NamedTuple):
    """Node i holds keys first[i] .. stop[i] - 1 of sequence[i], which members starts[i] .. starts[i + 1] - 1 attend.

    queries: the packed row of q of each member. All are int64. The nodes of a query are in the order of their keys.
    """

    sequence: np.ndarray
    first: np.ndarray
    stop: np.ndarray
    starts: np.ndarray
    queries: np.ndarray


def nodes_of(shared: Sequence[_core.Node], starts: np.ndarray) -> Nodes:
    """Convert the core's nodes (_core.shared_nodes) to arrays.

    starts: the packed queries of sequence b are starts[b] .. starts[b + 1] - 1.
    """
    sequences = [node.members for node in shared]
    queries = [np.concatenate([np.arange(starts[b], starts[b + 1]) for b in members]) for members in sequences]
    return Nodes(
        sequence=np.array([members[0] for members in sequences], np.int64),
        first=np.array([node.first for node in shared], np.int64),
        stop=np.array([node.stop for node in shared], np.int64),
        starts=np.append(0, np.cumsum([len(x) for x in queries])),
        queries=np.concatenate(queries),
    )
