"""The experiments by name. Each is a module of this package that holds an EXPERIMENT."""

from __future__ import annotations

from importlib import import_module

from redblue.base.errors import UnknownName
from redblue.studies.experiments.experiment import Experiment

NAMES = (
    "crossing",
    "backward",
    "nesting",
    "regimes",
    "gaps",
    "search",
    "heads",
    "sparse",
    "real-caches",
    "figure-2022",
    "gpu",
    "network",
    "cores",
    "compression",
    "approximate",
    "training",
)


def get(name: str) -> Experiment:
    """Return the experiment of that name. Raises UnknownName, with the nearest names."""
    if name not in NAMES:
        raise UnknownName("experiment", name, NAMES, "redblue experiment --list says what each asks")
    return import_module(f"redblue.studies.experiments.{name.replace('-', '_')}").EXPERIMENT
