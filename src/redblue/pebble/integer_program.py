"""Integer programs, built block by block and row by row, and solved by HiGHS."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Program:
    """A linear program over variables of 0 or 1; `least_cost` lets them lie between.

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

    def _constraints(self) -> Any:
        """The constraint matrix as a scipy.sparse.csr_matrix."""
        from scipy.sparse import csr_matrix  # here, so that `import redblue` stays light

        return csr_matrix((self.factors, (self.rows, self.columns)), (len(self.limits), self.size))

    def least_cost(self) -> float:
        """Return a lower bound on the cost: the optimum of the program without integrality, by its dual solution.

        The bound holds for every dual solution, so HiGHS' absolute tolerances cannot lift it above the optimum. 0 if
        HiGHS finds no solution.
        """
        from scipy.optimize import linprog

        cost = np.concatenate(self.cost)
        scale = float(cost.max(initial=0))
        if not scale:
            return 0.0
        cost, limits = cost / scale, np.array(self.limits)
        rows = self._constraints()
        result = linprog(cost, rows, limits, bounds=(0, 1), method="highs")
        if result.x is None:
            return 0.0
        prices = np.minimum(result.ineqlin.marginals, 0)
        return max(0.0, scale * float(limits @ prices + np.minimum(cost - rows.T @ prices, 0).sum()))

    def solve(self, **options: float | None) -> Any:
        """Minimize the cost with variables of 0 or 1, and return the result of scipy.optimize.milp.

        options: options of milp; None leaves an option out.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp

        return milp(
            np.concatenate(self.cost),
            integrality=np.ones(self.size),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(self._constraints(), -np.inf, self.limits),  # pyright: ignore[reportArgumentType]
            options={name: value for name, value in options.items() if value is not None},
        )
