"""Integer programs, written down row by row and solved by HiGHS."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from redblue.base.errors import RedblueError


@dataclass
class Program:
    """Variables are blocks of an array, all between 0 and 1; rows say that sums of them are at most a number."""

    blocks: dict[str, np.ndarray] = field(default_factory=dict)
    cost: list[np.ndarray] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)
    size: int = 0

    def block(self, name: str, *shape: int, cost: Any = 0.0) -> np.ndarray:
        """New variables: the array of their numbers. cost: of each, or of each row."""
        block = self.size + np.arange(int(np.prod(shape))).reshape(shape)
        self.size += block.size
        prices = np.asarray(cost, float).reshape(-1, *[1] * (len(shape) - 1))
        self.cost.append(np.broadcast_to(prices, shape).ravel())
        self.blocks[name] = block
        return block

    def at_most(self, most: float, *terms: tuple[float, Any]) -> None:
        """Sum of factor * (variable, or sum of variables) <= most."""
        for factor, variables in terms:
            for variable in np.ravel(variables):
                self.rows.append(len(self.most))
                self.columns.append(int(variable))
                self.factors.append(factor)
        self.most.append(most)

    def solve(self, whole: bool, **limits: float | None) -> Any:
        """SciPy's result. whole: variables are 0 or 1. limits: options of scipy.optimize.milp, None to leave one out.

        Raises RedblueError without SciPy.
        """
        try:
            from scipy.optimize import Bounds, LinearConstraint, milp
            from scipy.sparse import csr_matrix
        except ImportError:
            raise RedblueError('an integer program needs SciPy: pip install "redblue[pebble]"') from None
        rows = csr_matrix((self.factors, (self.rows, self.columns)), (len(self.most), self.size))
        return milp(
            np.concatenate(self.cost),
            integrality=np.full(self.size, int(whole)),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(rows, -np.inf, self.most),  # pyright: ignore[reportArgumentType]
            options={name: limit for name, limit in limits.items() if limit is not None},
        )
