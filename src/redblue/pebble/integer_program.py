"""Integer programs, built block by block and row by row, and solved by HiGHS."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Program:
    """A linear program over variables between 0 and 1, integral or not.

    blocks: numbers of the variables, an array by name. cost: of each block's variables, flat.
    rows, columns, factors: the constraint matrix in coordinates. limits: upper limit of each row. size: variables.
    """

    blocks: dict[str, np.ndarray] = field(default_factory=dict)
    cost: list[np.ndarray] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)
    size: int = 0

    def block(self, name: str, *shape: int, cost: Any = 0.0) -> np.ndarray:
        """Add variables, and return the array of their numbers. cost: one, or one per index of the first axis."""
        block = self.size + np.arange(int(np.prod(shape))).reshape(shape)
        self.size += block.size
        prices = np.asarray(cost, float).reshape(-1, *[1] * (len(shape) - 1))
        self.cost.append(np.broadcast_to(prices, shape).ravel())
        self.blocks[name] = block
        return block

    def at_most(self, limit: float, *terms: tuple[float, Any]) -> None:
        """Add a row: the sum of factor * (sum of variables) over the terms (factor, variables) is at most `limit`."""
        for factor, variables in terms:
            for variable in np.ravel(variables):
                self.rows.append(len(self.limits))
                self.columns.append(int(variable))
                self.factors.append(factor)
        self.limits.append(limit)

    def solve(self, whole: bool, **options: float | None) -> Any:
        """Minimize the cost, and return the result of scipy.optimize.milp.

        whole: whether variables are 0 or 1, not between. options: options of milp; None leaves an option out.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp  # here, so that `import redblue` stays light
        from scipy.sparse import csr_matrix

        rows = csr_matrix((self.factors, (self.rows, self.columns)), (len(self.limits), self.size))
        return milp(
            np.concatenate(self.cost),
            integrality=np.full(self.size, int(whole)),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(rows, -np.inf, self.limits),  # pyright: ignore[reportArgumentType]
            options={name: value for name, value in options.items() if value is not None},
        )
