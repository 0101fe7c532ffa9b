"""The crossing: three forward schedules measured over M, and the capacities at which the best one changes."""

from __future__ import annotations

from redblue.studies.experiments import metered
from redblue.studies.experiments.experiment import Experiment, Point
from redblue.studies.experiments.metered import Change
from redblue.studies.experiments.over import METHOD, Over

CHANGES = (Change("d²/4", 0.25, "small_cache", "hybrid"), Change("d²", 1.0, "hybrid", "flash"))
FORWARD = Over(
    direction="forward",
    changes=CHANGES,
    sizes={32: 512, 64: 512, 128: 512, 256: 256, 512: 256},
    capacities={
        32: (1024, 2048, 4096, 8192),
        64: (2048, 4096, 8192, 16384),
        128: (4096, 8192, 16384, 32768),
        256: (16384, 32768, 65536),
        512: (16384, 65536),
    },
)
QUICK = Over("forward", CHANGES, {32: 64}, {32: (2048,)})


def points(quick: bool) -> list[Point]:
    return (QUICK if quick else FORWARD).points()


EXPERIMENT = Experiment(
    name="crossing",
    title="The crossing: three schedules over the cache's size",
    question="At which cache sizes does the best schedule change, and do measurements agree with the counts?",
    points=points,
    measure=metered.measure,
    figure=FORWARD.figure,
    tables=FORWARD.tables,
    findings=FORWARD.findings,
    method=METHOD,
    missing=metered.missing,
    tools=metered.tools,
)
