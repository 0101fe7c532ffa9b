"""Maximum flows (and so minimum cuts), computed by SciPy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from redblue.base.errors import RedblueError

MAX_CAPACITY = 2**31 - 1  # SciPy counts in 32 bits


class Network(NamedTuple):
    """A flow network: edges (tails, heads, capacities) between nodes 0 to size - 1; flow runs from source to sink."""

    tails: np.ndarray
    heads: np.ndarray
    capacities: np.ndarray
    source: int
    sink: int
    size: int


def max_flow(network: Network) -> int:
    """Return the value of a maximum flow. Raises RedblueError for capacities of 2^31 or more."""
    from scipy.sparse import csr_matrix  # here, so that `import redblue` stays light
    from scipy.sparse.csgraph import maximum_flow

    if network.capacities.max(initial=0) > MAX_CAPACITY:
        raise RedblueError(f"a flow network's capacities must be at most {MAX_CAPACITY:,}")
    shape, capacities = (network.size, network.size), network.capacities.astype(np.int32)
    graph = csr_matrix((capacities, (network.tails, network.heads)), shape, dtype=np.int32)
    return int(maximum_flow(graph, network.source, network.sink).flow_value)
