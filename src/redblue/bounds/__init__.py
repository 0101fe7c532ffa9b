"""Lower bounds on the words that attention must move: `lower_bound`, `lower_bounds`. Proofs: docs/lab/theory.md."""

from redblue.bounds.rows import BOUNDS, Bound, lower_bound, lower_bounds

__all__ = ["BOUNDS", "Bound", "lower_bound", "lower_bounds"]
