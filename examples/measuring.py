"""Helpers of the examples: check options, measure time and memory, compare results, report a missing package."""

from __future__ import annotations

import argparse
import gc
import importlib
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Measured(NamedTuple):
    """The result of a call, its time, and the growth of the process's memory (None if it cannot be read)."""

    result: Any
    seconds: float
    megabytes: float | None


def need(package: str, install: str) -> Any:
    """Import a package. If it is missing, end the program with a line that says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise SystemExit(f"this example needs {package}: pip install '{install}'") from None


def at_least(least: int, multiple: int = 1) -> Callable[[str], int]:
    """Return a type for argparse: whole numbers of at least `least` that are multiples of `multiple`."""

    def number(text: str) -> int:
        value = int(text) if re.fullmatch(r"[+-]?\d+", text) else least - 1
        if value < least or value % multiple:
            kind = "a whole number" if multiple == 1 else f"a multiple of {multiple}"
            raise argparse.ArgumentTypeError(f"must be {kind} of at least {least}, got {text!r}")
        return value

    return number


def measure(work: Callable[[], Any]) -> Measured:
    """Call `work` once, and measure its time and how much the peak of the process's memory exceeds the start."""
    gc.collect()
    before = _start_of_peak()
    start = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - start
    peak = _megabytes("VmHWM") if before is not None else None
    return Measured(result, seconds, None if peak is None or before is None else max(0.0, peak - before))


def _start_of_peak() -> float | None:
    """Reset the peak of the process's memory (Linux only). Return the current memory, None if this is not possible."""
    try:
        CLEAR.write_text("5")
    except OSError:
        return None
    return _megabytes("VmRSS")


def _megabytes(field: str) -> float | None:
    match = re.search(rf"{field}:\s+(\d+) kB", STATUS.read_text()) if STATUS.exists() else None
    return int(match[1]) / 1024 if match else None


def show(name: str, measured: Measured) -> None:
    """Print the time and the memory of a measured call."""
    memory = "" if measured.megabytes is None else f", memory grew by {measured.megabytes:.0f} MB"
    print(f"{name:10} {measured.seconds:8.2f} s{memory}")


def check_close(label: str, ours: Any, theirs: Any, tolerance: float) -> None:
    """Print the largest difference of two tensors, relative to the largest entry of `theirs`.

    End the program if this number exceeds the tolerance.
    """
    scale = max(float(theirs.abs().max()), 1e-30)
    difference = float((ours - theirs).abs().max()) / scale
    print(f"{label}: largest relative difference {difference:.1e}")
    if not difference <= tolerance:
        raise SystemExit(f"{label} differ by more than {tolerance}")
