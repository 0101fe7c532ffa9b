"""The regime between the papers' two: queries stay while scores are computed, outputs stay while they are summed.

Forward (1 + d / sqrt(M))^2 n^2 words at leading order: n^2 d^2 / M for the scores, n^2 to write P, 2 n^2 d / sqrt(M)
for P V. Best for d^2 / 4 <= M <= d^2. Backward with Q, then dO, staying: 2 n^2 d^2 / M + 6 n^2 d / sqrt(M) + 3 n^2.
Derived in this project (docs/theory.md); neither paper has it.
"""

from redblue.schedules.schedule import Schedule
from redblue.schedules.spilled import passes

schedule = Schedule(
    "hybrid",
    "Hybrid: query-stationary scores, P spilled, output-stationary outputs",
    "derived for redblue: docs/theory.md, 'Three regimes'",
    passes(stays=True),
    spills=True,
)
