"""What the report says, as plain data: plans, curves and checks of every shape of every model on every machine."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from redblue.base.errors import RedblueError
from redblue.base.style import REGIMES
from redblue.catalogue.memories import Memory
from redblue.catalogue.models import Layers, Model
from redblue.lab.planner import plan
from redblue.lab.plans import LevelPlan, Plan, describe
from redblue.problem import Problem
from redblue.studies.experiments.result import Result
from redblue.studies.report.checks import Check, checks
from redblue.studies.report.curves import Curve, curve, curve_key
from redblue.studies.report.measured import Measured, Run, measured, this_machine_among


@dataclass(frozen=True)
class Shape:
    """One attention shape of a model, with its plan on each machine of the report and the curve of its stream."""

    model: Model
    layers: Layers
    plans: tuple[Plan, ...]
    curve: Curve

    @property
    def problem(self) -> Problem:
        return self.layers.problem

    @property
    def label(self) -> str:
        """The model's name, and the shape's where the model has more than one."""
        return self.model.name if len(self.model) == 1 else f"{self.model.name}, {self.layers.name}"

    @property
    def cells(self) -> Iterator[tuple[Plan, LevelPlan]]:
        """Every boundary of every machine."""
        return ((plan, level) for plan in self.plans for level in plan.levels)


@dataclass(frozen=True)
class Report:
    """Everything that the page and the terminal show.

    date: local, ISO 8601. command: what makes it again. measured: each shape on this machine, in their order; none
    where nothing was measured. results: of experiments, each with the machine and the date that made it.
    """

    models: tuple[Model, ...]
    memories: tuple[Memory, ...]
    shapes: tuple[Shape, ...]
    checks: tuple[Check, ...]
    command: str
    date: str
    version: str
    measured: tuple[Measured, ...] = ()
    results: tuple[Result, ...] = ()

    @property
    def cells(self) -> Iterator[tuple[Shape, Plan, LevelPlan]]:
        return ((shape, plan, level) for shape in self.shapes for plan, level in shape.cells)

    @property
    def curves(self) -> tuple[Curve, ...]:
        """The distinct ones, in the order of the shapes."""
        return tuple(dict.fromkeys(shape.curve for shape in self.shapes))

    def capacities(self, memory: int, level: int) -> list[int]:
        """M at a boundary, by their places: one for each word size among the shapes."""
        return sorted({shape.plans[memory].levels[level].capacity_words for shape in self.shapes})

    @property
    def regimes(self) -> dict[str, int]:
        """At how many (shape, boundary) pairs each regime holds."""
        found = [level.regime for _, _, level in self.cells]
        return {regime: found.count(regime) for regime in REGIMES}

    @property
    def widest(self) -> tuple[Shape, Plan, LevelPlan]:
        """Where the plan is farthest from its lower bound."""
        return max(self.cells, key=lambda cell: cell[2].gap or 0)

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if not check.passed)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that json can write; a curve that shapes share stands once, under its number."""
        curves = self.curves
        return {
            "command": self.command,
            "date": self.date,
            "version": self.version,
            "memories": [{"name": memory.name, "title": memory.title} for memory in self.memories],
            "shapes": [
                {
                    "model": shape.model.name,
                    "title": shape.model.title,
                    "source": shape.model.source,
                    "shape": shape.layers.name,
                    "layers": shape.layers.layers,
                    "notes": [note for note in (shape.layers.note, *shape.model.notes) if note],
                    "plans": [plan.to_dict() for plan in shape.plans],
                    "curve": curves.index(shape.curve),
                }
                for shape in self.shapes
            ],
            "curves": [asdict(curve) | {"stream": describe(curve.stream)} for curve in curves],
            "checks": [
                asdict(check) | {"problem": describe(check.problem), "passed": check.passed} for check in self.checks
            ],
            "measured": [each.to_dict() for each in self.measured],
            "results": [
                {"experiment": each.experiment, "command": each.command, "made": each.made, "findings": each.findings}
                for each in self.results
            ],
        }


def collect(
    models: Sequence[Model],
    memories: Sequence[Memory],
    progress: Callable[[int, int, str], object] | None = None,
    command: str | None = None,
    measure: bool = False,
    results: Sequence[Result] = (),
) -> Report:
    """Plan every shape of `models` on `memories` and on the devices these hold, draw its curve, and run the checks.

    progress: called with the steps done, all steps, and what the next one is. command: the command line that asked;
    by default one with the same models and memories by name. measure: also run each shape's kernel on this machine, if
    it is among the memories. results: of experiments, to be shown too. Raises RedblueError if there is no model or no
    memory.
    """
    if not models or not memories:
        lacking = "memory (`redblue memories` lists them)" if models else "model (`redblue models` lists them)"
        raise RedblueError(f"a report needs at least one {lacking}, got none")
    say = progress or (lambda done, total, what: None)
    machines: list[Memory] = []
    for machine in (machine for memory in memories for machine in (memory, *memory.devices)):
        machines += [machine] if machine not in machines else []
    wanted = [(model, layers) for model in models for layers in model]
    here = this_machine_among(machines) if measure else None
    total = len(wanted) * (2 if here else 1) + 1
    curves: dict[Problem, Curve] = {}
    shapes = []
    for done, (model, layers) in enumerate(wanted):
        say(done, total, f"{model.name}, {layers.name}")
        key = curve_key(layers.problem)
        if key not in curves:
            curves[key] = curve(key, machines)
        shapes.append(Shape(model, layers, tuple(plan(layers.problem, machine) for machine in machines), curves[key]))
    say(len(wanted), total, "running the chosen schedules on numbers")
    verdicts = tuple(checks((shape.label, plan) for shape in shapes for plan in shape.plans))
    runs: dict[Problem, Run] = {}
    found: list[Measured] = []
    if here is not None:
        for done, shape in enumerate(shapes, len(wanted) + 1):
            say(done, total, f"measuring {shape.label} on this machine")
            found.append(measured(shape.label, shape.problem, here, runs))
    say(total, total, "done")
    return Report(
        tuple(models),
        tuple(machines),
        tuple(shapes),
        verdicts,
        command or _command(models, memories, measure),
        datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="minutes"),
        version("redblue"),
        tuple(found),
        tuple(results),
    )


def _command(models: Sequence[Model], memories: Sequence[Memory], measure: bool) -> str:
    options = [word for memory in memories for word in ("--memory", memory.name)]
    options += ["--no-measure"] if this_machine_among(memories) and not measure else []
    return shlex.join(["redblue", "report", *(model.name for model in models), *options])
