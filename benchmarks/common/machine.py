"""Facts about the machine and the run, which the JSON files of results begin with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any

from benchmarks.common.kept import now
from benchmarks.common.timing import THREADS
from redblue.catalogue.detect import detect_cpu
from redblue.kernels.cpu.call import isa


def facts_of_run(**more: Any) -> dict[str, Any]:
    """The date, the processor, the instruction set, the number of threads, and more facts."""
    return {"date": now(), "cpu": detect_cpu().model, "isa": isa().name, "threads": THREADS, **more}


def versions(packages: Iterable[str]) -> dict[str, str]:
    """The installed version of each package, or "not installed"."""
    installed = {each.metadata["Name"].lower(): each.version for each in metadata.distributions()}
    return {name: installed.get(name, "not installed") for name in packages}


def described(facts: Mapping[str, Any]) -> str:
    """The machine, the threads and the day of a run on a CPU, as a title."""
    return f"{facts['cpu']}, {facts['isa']}, {facts['threads']} threads, {facts['date'][:10]}"
