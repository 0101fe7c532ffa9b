"""The parts `steps` and `memory`: the time of a training step, in which attentions take turns, and its peak memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from redblue.base.cpus import usable_cpus
from redblue.studies.training import texts
from redblue.studies.training.corpora import any_corpus
from redblue.studies.training.flops import attention_share
from redblue.studies.training.memory import too_large
from redblue.studies.training.names import NONE, REDBLUE, SDPA, TRAINING_DTYPES, UNFUSED
from redblue.studies.training.parts import curves
from redblue.studies.training.race import race

GPT = {**curves.GPT, "layers": 1}
SIZES = ((512, 4, 5), (2048, 1, 5), (8192, 1, 2))  # n, batch, rounds


def points(quick: bool) -> list[dict[str, Any]]:
    sizes = ((512, 1, 3), (2048, 1, 2)) if quick else SIZES
    return [
        GPT | {"n": n, "batch": batch, "rounds": rounds, "dtype": dtype, "contenders": [SDPA, REDBLUE, NONE]}
        for n, batch, rounds in sizes
        for dtype in TRAINING_DTYPES
    ]


def memory_points(quick: bool) -> list[dict[str, Any]]:
    """The points of the memory measurement: each contender alone, with one round after an uncounted round."""
    sizes = (2048,) if quick else tuple(n for n, _, _ in SIZES)
    return [
        GPT | {"n": n, "batch": 1, "rounds": 1, "dtype": dtype, "contenders": [name]}
        for n in sizes
        for dtype in TRAINING_DTYPES
        for name in (SDPA, UNFUSED, REDBLUE)
    ]


def run(point: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Time training steps; return one row with the seconds of every round."""
    if point["contenders"] == [UNFUSED] and (reason := too_large(point)):
        return [point | {"skipped": reason}]
    torch.set_num_threads(usable_cpus())
    text = texts.as_array(any_corpus().bytes_of(held_out=False))
    endless = {"steps": 10**6}  # `race` decides how many of them run
    runs = {name: curves.training_of(point | endless | {"contender": name}, text, None) for name in point["contenders"]}
    seconds = race({name: training.step for name, training in runs.items()}, point["rounds"])
    pairs = point["batch"] * point["n"] * (point["n"] + 1) // 2
    share = attention_share(curves.shape_of(point), point["batch"] * point["n"], pairs)
    return [point | {"seconds": seconds, "flops_share": share}]
