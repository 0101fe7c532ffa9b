"""The data of the report: plans, curves and checks for every shape of every model on every machine."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from redblue.base.errors import RedblueError
from redblue.base.parallel import run_all
from redblue.base.style import REGIMES
from redblue.base.version import __version__
from redblue.catalogue.clusters import Cluster
from redblue.catalogue.memories import Memory
from redblue.catalogue.models import Layers, Model
from redblue.lab.planner import plan
from redblue.lab.plans import LevelPlan, Plan, describe
from redblue.problem import Problem
from redblue.schedules import SCHEDULES, is_users
from redblue.studies.experiments.result import Result
from redblue.studies.report import checks
from redblue.studies.report.checks import Check
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
        """The model's name, and the shape's name if the model has several shapes."""
        return self.model.name if len(self.model) == 1 else f"{self.model.name}, {self.layers.name}"

    @property
    def cells(self) -> Iterator[tuple[Plan, LevelPlan]]:
        """Every boundary of every machine."""
        return ((plan, level) for plan in self.plans for level in plan.levels)


@dataclass(frozen=True)
class Report:
    """Everything that the page and the terminal show.

    command: the command that repeats the report. date: local, ISO 8601. measured: each shape on this machine, in the
    order of `shapes`; empty if nothing was measured. results: results of experiments.
    """

    models: tuple[Model, ...]
    memories: tuple[Memory | Cluster, ...]
    shapes: tuple[Shape, ...]
    checks: tuple[Check, ...]
    command: str
    date: str
    version: str
    measured: tuple[Measured, ...] = ()
    results: tuple[Result, ...] = ()

    @property
    def cells(self) -> Iterator[tuple[Shape, Plan, LevelPlan]]:
        """Every boundary of every machine, for every shape."""
        return ((shape, plan, level) for shape in self.shapes for plan, level in shape.cells)

    @property
    def curves(self) -> tuple[Curve, ...]:
        """The distinct curves, in the order of the shapes."""
        return tuple(dict.fromkeys(shape.curve for shape in self.shapes))

    def capacities(self, memory: int, level: int) -> list[int]:
        """M in words at one boundary (both arguments are indices); one value for each word size among the shapes."""
        return sorted({shape.plans[memory].levels[level].capacity_words for shape in self.shapes})

    @property
    def regimes(self) -> dict[str, int]:
        """The number of (shape, boundary) pairs at which each regime holds."""
        regimes = [level.regime for _, _, level in self.cells]
        return {regime: regimes.count(regime) for regime in REGIMES}

    @property
    def widest(self) -> tuple[Shape, Plan, LevelPlan]:
        """The boundary at which a plan is farthest from its lower bound."""
        return max(self.cells, key=lambda cell: cell[2].gap or 0)

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if not check.passed)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data. Shapes refer to curves by index, because several shapes may share a curve."""
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
            "measured": [measurement.to_dict() for measurement in self.measured],
            "results": [
                {
                    "experiment": result.experiment,
                    "command": result.command,
                    "made": result.provenance,
                    "findings": result.findings,
                }
                for result in self.results
            ],
        }


def collect(
    models: Sequence[Model],
    memories: Sequence[Memory | Cluster],
    progress: Callable[[int, int, str], object] | None = None,
    command: str | None = None,
    measure: bool = False,
    results: Sequence[Result] = (),
) -> Report:
    """Make the report: plan every shape of `models` on `memories` and their devices, compute its curve, run the checks.

    progress(done, total, label): called before each step, with the label of this step. command: the command line of the
    report; None: make one from the models and memories. measure: also run each shape's kernel on this machine, if this
    machine is among the memories. results: results of experiments to show. Raises RedblueError if there is no
    model or no memory.
    """
    if not models or not memories:
        lacking = "memory (`redblue memories` lists them)" if models else "model (`redblue models` lists them)"
        raise RedblueError(f"a report needs at least one {lacking}, got none")
    report_progress = progress or (lambda done, total, label: None)
    machines: list[Memory | Cluster] = []
    for machine in (machine for memory in memories for machine in (memory, *_devices(memory))):
        machines += [machine] if machine not in machines else []
    model_layers = [(model, layers) for model in models for layers in model]
    this_machine = this_machine_among(machines) if measure else None
    total = len(model_layers) * (2 if this_machine else 1) + 2
    run = partial(run_all, jobs=1 if any(map(is_users, SCHEDULES)) else None)  # workers lack the schedules of a user
    report_progress(0, total, "computing the curves")
    keys = list(dict.fromkeys(curve_key(layers.problem) for _, layers in model_layers))
    of_key = dict(zip(keys, run([partial(curve, key, list(map(_machine_of, machines))) for key in keys]), strict=True))
    all_plans = run(
        [partial(_plans, layers.problem, machines) for _, layers in model_layers],
        progress=lambda done, _: report_progress(1 + done, total, "planning"),
    )
    shapes = [
        Shape(model, layers, plans, of_key[curve_key(layers.problem)])
        for (model, layers), plans in zip(model_layers, all_plans, strict=True)
    ]
    report_progress(len(model_layers) + 1, total, "running the chosen schedules on numbers")
    cases = checks.chosen((shape.label, plan) for shape in shapes for plan in shape.plans)
    verdicts = run([partial(checks.run, *case) for case in cases])
    runs: dict[Problem, Run] = {}
    measurements: list[Measured] = []
    if this_machine is not None:
        for done, shape in enumerate(shapes, len(model_layers) + 2):
            report_progress(done, total, f"measuring {shape.label} on this machine")
            measurements.append(measured(shape.label, shape.problem, this_machine, runs))
    report_progress(total, total, "done")
    return Report(
        tuple(models),
        tuple(machines),
        tuple(shapes),
        tuple(verdicts),
        command or _command(models, memories, measure),
        datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="minutes"),
        __version__,
        tuple(measurements),
        tuple(results),
    )


def _plans(problem: Problem, machines: Sequence[Memory | Cluster]) -> tuple[Plan, ...]:
    return tuple(plan(problem, machine) for machine in machines)


def _devices(machine: Memory | Cluster) -> tuple[Memory, ...]:
    return machine.devices if isinstance(machine, Memory) else ()


def _machine_of(machine: Memory | Cluster) -> Memory:
    """The machine itself, or one machine of the cluster."""
    return machine if isinstance(machine, Memory) else machine.memory


def _command(models: Sequence[Model], memories: Sequence[Memory | Cluster], measure: bool) -> str:
    """A command line that makes the same report."""
    options = [word for memory in memories for word in ("--memory", memory.name)]
    options += ["--no-measure"] if this_machine_among(memories) and not measure else []
    return shlex.join(["redblue", "report", *(model.name for model in models), *options])
