"""Lower bounds on the words that attention must move: `lower_bound`, `lower_bounds`; over a network: `network_bound`.

Proofs: docs/lab/theory.md and docs/lab/network.md.
"""

from redblue.bounds.network import NetworkBound, network_bound, network_bounds
from redblue.bounds.rows import BOUNDS, Bound, lower_bound, lower_bounds

__all__ = ["BOUNDS", "Bound", "NetworkBound", "lower_bound", "lower_bounds", "network_bound", "network_bounds"]
