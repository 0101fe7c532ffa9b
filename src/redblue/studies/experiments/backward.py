"""The backward pass over M: dQ, dK and dV in one pass, in two kernels, or with P and dS written to memory."""

from __future__ import annotations

from redblue.studies.experiments import metered
from redblue.studies.experiments.experiment import Experiment, Point
from redblue.studies.experiments.metered import Change
from redblue.studies.experiments.over import METHOD, Over

# hybrid and flash move equally many words where 14 x^2 = 5 x^2 + 5, at M = 1.8 d^2 (docs/lab/theory.md).
# spilled_ds is the best between them, but has no kernel.
CHANGES = (Change("d²/4", 0.25, "small_cache", "hybrid"), Change("1.8 d²", 1.8, "hybrid", "flash"))
BACKWARD = Over(
    direction="backward",
    changes=CHANGES,
    sizes={64: 256, 128: 256},
    capacities={
        64: (4096, 8192, 16384),
        128: (8192, 16384, 32768),
    },
)
QUICK = Over("backward", CHANGES, {32: 64}, {32: (4096,)})


def points(quick: bool) -> list[Point]:
    return (QUICK if quick else BACKWARD).points()


EXPERIMENT = Experiment(
    name="backward",
    title="The crossing, backward",
    question="Which backward pass is best at each cache size: one kernel for all gradients (`flash_onepass`), two "
    "kernels (`flash`), or kernels that write P and dS to memory (`hybrid`, `small_cache`)?",
    points=points,
    measure=metered.measure,
    figure=BACKWARD.figure,
    tables=BACKWARD.tables,
    findings=BACKWARD.findings,
    method=METHOD,
    missing=metered.missing,
    tools=metered.tools,
)
