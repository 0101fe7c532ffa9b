"""The results of the GPU benchmark, in a JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from rich.console import Console

from benchmarks.common.kept import changed, days, fingerprint, now, repeat_notice
from benchmarks.common.machine import versions
from benchmarks.gpu.calls import FFPA, FFPA_UNTUNED, OURS, Call
from benchmarks.gpu.timing import medians
from redblue.base.files import replace_whole

FFPA_PACKAGE, OF_FFPA = "ffpa-attn", (FFPA, FFPA_UNTUNED)  # its package and its contenders
PACKAGES = ("redblue", FFPA_PACKAGE)  # in addition to those of the fingerprint


@dataclass
class Point:
    """The times of one contender for one call, in seconds, or the reason why there are none (`refused`).

    errors: the larger error against float64 of the first and the last head, of each result. passing: the failure is
    temporary; another run may succeed. wrong: the result was not close enough to float64, so it was not timed.
    """

    call: Call
    contender: str
    seconds: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    refused: str = ""
    passing: bool = False
    wrong: bool = False
    date: str = field(default_factory=now)


@dataclass
class Kept:
    """The content of the JSON file. peaks: TFLOP/s of matrix products by type. copy: bytes per second of a copy."""

    about: dict[str, Any]
    peaks: dict[str, float] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    copy: float = 0.0

    def add(self, point: Point) -> None:
        """Add a point, or replace an earlier point of the same call and contender."""
        same = [x for x in self.points if (x.call, x.contender) == (point.call, point.contender)]
        self.points = [x for x in self.points if x not in same] + [point]

    @property
    def days(self) -> str:
        return days(point.date for point in self.points)

    def times(self) -> dict[Call, dict[str, float]]:
        seconds: dict[Call, dict[str, list[float]]] = {}
        for point in self.points:
            if point.seconds:
                seconds.setdefault(point.call, {})[point.contender] = point.seconds
        return {call: medians(by_name) for call, by_name in seconds.items()}

    def write(self, path: Path) -> None:
        facts = {"about": self.about, "peaks": self.peaks, "copy": self.copy}
        points = [asdict(x) | {"seconds": [_rounded(t) for t in x.seconds]} for x in self.points]
        text = json.dumps(facts | {"points": points})
        replace_whole(path, lambda draft: draft.write_text(text.replace('{"call"', '\n{"call"') + "\n"))

    @classmethod
    def read(cls, path: Path) -> Kept:
        kept = json.loads(path.read_text(encoding="utf-8"))
        points = [Point(**point | {"call": Call(**point["call"])}) for point in kept["points"]]
        return cls(kept["about"], kept["peaks"], points, kept.get("copy", 0.0))


def _rounded(seconds: float) -> float:
    """The time with six significant digits: more say nothing, and doubled the size of the file."""
    return float(f"{seconds:.6g}")


def about(dry: bool) -> dict[str, Any]:
    """The device and the versions. Kept results are only reused if all of these facts are equal."""
    facts: dict[str, Any] = {
        **fingerprint("none: dry" if dry else torch.cuda.get_device_name()),
        "versions": versions(PACKAGES),
        "dry": dry,
    }
    if not dry:
        card = torch.cuda.get_device_properties(0)
        facts |= {
            "multiprocessors": card.multi_processor_count,
            "shared_bytes": getattr(card, "shared_memory_per_block_optin", None),
            "l2_bytes": card.L2_cache_size,
            "memory_bytes": card.total_memory,
            "cuda": torch.version.cuda or torch.version.hip,
            "cudnn": torch.backends.cudnn.version(),
        }
    return facts


def resumed(paths: Iterable[Path], facts: dict[str, Any], console: Console) -> Kept:
    """The results that are still valid in the first readable file.

    With equal facts, all are valid. If only redblue's kernels or the versions of PACKAGES differ, the results of the
    peers whose own package is unchanged are valid. Otherwise none.
    """
    for path in paths:
        try:
            kept = Kept.read(path)
        except (OSError, ValueError, TypeError, KeyError):
            continue
        other = changed(kept.about, facts)
        if not other:
            valid = kept
        elif {*other} <= {"kernels", "versions"}:
            packages = changed(kept.about.get("versions", {}), facts.get("versions", {}))
            invalid = {*OURS, *(OF_FFPA if FFPA_PACKAGE in packages else ())}
            peers = [point for point in kept.points if point.contender not in invalid]
            valid = Kept(facts, kept.peaks, peers, kept.copy)
        else:
            valid = Kept(facts)
        if len(valid.points) < len(kept.points):
            console.print(repeat_notice(len(kept.points) - len(valid.points), "points", other), highlight=False)
        return valid
    return Kept(facts)
