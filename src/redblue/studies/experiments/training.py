"""Training with three attentions: the loss, the time and the memory; in five parts, each measurement on its own."""

from __future__ import annotations

import datetime
import importlib.util
from importlib import import_module
from importlib.metadata import version
from types import ModuleType

from redblue.base.errors import RedblueError
from redblue.studies.experiments.experiment import Experiment, Point, Row
from redblue.studies.experiments.training_figure import figure
from redblue.studies.experiments.training_tables import findings, tables
from redblue.studies.training.process import measure_alone

# The parts, the module that measures each, and its function that lists the points.
PARTS = {
    "curves": ("curves", "points"),
    "steps": ("steps", "points"),
    "memory": ("steps", "memory_points"),
    "bert": ("bert", "points"),
    "tasks": ("tasks", "points"),
    "sparse": ("sparse", "points"),
    "context": ("context", "points"),
    "graph": ("graph", "points"),
}


def _module(part: str) -> ModuleType:
    return import_module(f"redblue.studies.training.parts.{PARTS[part][0]}")


def points(quick: bool) -> list[Point]:
    return [
        {"part": part, "quick": quick} | point
        for part, (_, listing) in PARTS.items()
        for point in getattr(_module(part), listing)(quick)
    ]


def measure(point: Point, folder: str) -> list[Row]:
    """Measure one point in a process of its own. folder: for checkpoints."""
    rows = measure_alone(_module(point["part"]).__name__, point, folder)
    return [row | {"date": datetime.date.today().isoformat()} for row in rows]


def missing() -> str:
    if importlib.util.find_spec("torch") is None:
        return "it needs PyTorch: pip install 'redblue[torch]'"
    from redblue.studies.training import corpora

    try:
        corpora.first_installed()
    except RedblueError as error:
        return str(error)
    return ""


def tools() -> dict[str, str]:
    return {"torch": version("torch")}


EXPERIMENT = Experiment(
    name="training",
    title="Training",
    question="How much less time and memory does training take with redblue, and is the loss curve the same?",
    points=points,
    measure=measure,
    figure=figure,
    tables=tables,
    findings=findings,
    method="",
    missing=missing,
    tools=tools,
    parts=tuple(PARTS),
    checkpointed=True,
)
