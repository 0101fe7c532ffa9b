"""Lower bounds: their table, and the phase problem that the strongest of them comes from."""

from redblue.bounds.rows import BOUNDS, Bound, lower_bound, lower_bounds

__all__ = ["BOUNDS", "Bound", "lower_bound", "lower_bounds"]
