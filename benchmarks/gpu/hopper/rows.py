"""The variants of the Hopper forward kernel to check and to time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

LENGTH, HEADS = 8192, 32
MASKS: dict[str, tuple[int | None, int | None]] = {
    "full": (None, None),
    "causal": (None, 1),
    "window": (-700, 301),
    "late": (100, 400),
}


def timed_rows() -> Iterator[dict[str, Any]]:
    """The variants to time, the most important first."""
    three = {"consumers": 3, "ping_pong": False}
    two = {"consumers": 2, "ping_pong": True}
    in_turn = {"persistent": True}
    variants: dict[tuple[int, str], list[dict[str, Any]]] = {
        (128, "full"): [{}, {"ordered": False}, {"ping_pong": False}, {"persistent": False}, {"section": HEADS}],
        (128, "causal"): [{}, {"ordered": False}, in_turn, in_turn | {"section": HEADS}, {"section": HEADS}],
        (64, "full"): [{}, {"ordered": False}, two, two | {"ordered": False}, {"stages": 2}],
        (64, "causal"): [{}, {"ordered": False}, three, in_turn, in_turn | {"section": HEADS}],
        (256, "full"): [{}, {"ordered": False}, {"ping_pong": False}, {"persistent": False}, {"section": 1}],
        (256, "causal"): [{}, {"ordered": False}, in_turn, {"ping_pong": False}, {"section": HEADS}],
    }
    for i in range(max(map(len, variants.values()))):
        for d, mask in variants:
            for variant in variants[d, mask][i : i + 1]:
                yield {"what": "time", "d": d, "mask": mask, "settings": variant, "base": i == 0}


def checked_rows() -> Iterator[dict[str, Any]]:
    """Small calls of odd sizes: every width, mask, type, shape of heads, and strides."""
    sizes = [(333, 517), (517, 333), (1, 300), (200, 64)]
    for d in (128, 64, 256):
        for mask in ("full", "causal", "window"):
            yield {"what": "check", "d": d, "mask": mask, "n": sizes[0]}
    for d, dtype in ((128, "float16"), (64, "float16"), (256, "float16")):
        yield {"what": "check", "d": d, "mask": "causal", "n": sizes[0], "dtype": dtype}
    for n in sizes[1:]:
        for mask in MASKS:
            yield {"what": "check", "d": 128, "mask": mask, "n": n}
    yield {"what": "check", "d": 128, "mask": "late", "n": sizes[1]}
    yield {"what": "check", "d": 128, "mask": "causal", "n": sizes[0], "heads": (6, 2)}
    yield {"what": "check", "d": 128, "mask": "window", "n": sizes[0], "heads": (8, 2), "settings": {"pack": 4}}
    yield {"what": "check", "d": 64, "mask": "causal", "n": sizes[0], "settings": {"consumers": 3}}
    yield {"what": "check", "d": 64, "mask": "window", "n": sizes[1], "settings": {"consumers": 3}}
    yield {"what": "check", "d": 96, "d_v": 64, "mask": "causal", "n": sizes[0]}
    yield {"what": "check", "d": 192, "d_v": 128, "mask": "causal", "n": sizes[0]}
    yield {"what": "check", "d": 72, "mask": "full", "n": sizes[0]}
    yield {"what": "check", "d": 128, "mask": "causal", "n": sizes[0], "rows_outside": True}
    yield {"what": "check", "d": 128, "mask": "causal", "n": sizes[0], "nan": True}
    yield {"what": "check", "d": 128, "mask": "full", "n": sizes[0], "settings": {"persistent": False}}
    for d in (64, 128, 256):  # more tiles than a wave of blocks, so that each block processes several
        yield {"what": "check", "d": d, "mask": "causal", "n": (2100, 2100), "heads": (24, 8), "batch": 2}
        yield {"what": "check", "d": d, "mask": "window", "n": (2100, 2100), "heads": (24, 8), "batch": 2}


def rows() -> list[dict[str, Any]]:
    checks, times = list(checked_rows()), list(timed_rows())
    return checks[:3] + times[:2] + checks[3:12] + times[2:12] + times[12:30] + checks[12:] + times[30:]


def name(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)
