"""The small-cache algorithm: every product output-stationary, P written once. Best for M <= d^2 / 4.

Forward after Saha & Ye's Algorithm 1, made safe for any finite scores: 4 n^2 d / sqrt(M) + n^2 words at leading
order (Algorithm 1 as printed, with tiles of side sqrt(M/4), moves 8 n^2 d / sqrt(M) + n^2).
Backward after Algorithm 6 of arXiv 2410.09397, for dQ, dK and dV instead of the gradient with respect to X: a
reconstruction. Five products, P and dS written once: 10 n^2 d / sqrt(M) + 3 n^2 + (reading each per column block).
"""

from redblue.schedules.schedule import Schedule
from redblue.schedules.spilled import passes

schedule = Schedule(
    "small_cache",
    "Small-cache attention: output-stationary products, P spilled",
    "Saha & Ye, ICML 2024 (arXiv 2402.07443), Algorithm 1, with row maxima; backward reconstructed after "
    "Algorithm 6 of arXiv 2410.09397",
    passes(stays=False),
    spills=True,
)
