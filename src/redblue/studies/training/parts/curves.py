"""The part `curves`: language models with three attentions, which have the same loss curve; their time and memory."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from redblue.base.cpus import usable_cpus
from redblue.studies.training import attentions, checkpoints, texts
from redblue.studies.training.corpora import any_corpus
from redblue.studies.training.loop import Training, autocast
from redblue.studies.training.memory import too_large
from redblue.studies.training.model import Shape, made
from redblue.studies.training.names import REDBLUE, SDPA, TRAINING_DTYPES, UNFUSED

GPT = {"layers": 2, "d_model": 768, "heads": 12}
SIZES = ((512, 2, 300), (1024, 1, 300), (2048, 1, 200), (4096, 1, 60), (8192, 1, 20))  # n, batch, steps
ALL = 0  # this number of threads means one for each core
CONTENDERS = ((SDPA, ALL), (UNFUSED, ALL), (REDBLUE, ALL), (SDPA, 1))
RATE = 3e-4


def points(quick: bool) -> list[dict[str, Any]]:
    shape = {**GPT, "layers": 1} if quick else GPT
    sizes = ((512, 1, 20),) if quick else SIZES
    return [
        shape | {"n": n, "batch": batch, "steps": steps, "dtype": dtype, "contender": name, "threads": threads}
        for n, batch, steps in sizes
        for dtype in TRAINING_DTYPES
        for name, threads in CONTENDERS
    ]


def shape_of(point: dict[str, Any]) -> Shape:
    return Shape(point["layers"], point["d_model"], point["heads"], texts.BYTES, point["n"], texts.BYTES)


def run(point: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Train; return one row with the losses."""
    corpus = any_corpus()
    if point["contender"] == UNFUSED and (reason := too_large(point)):
        return [point | {"skipped": reason}]
    torch.set_num_threads(point["threads"] or usable_cpus())
    text, path = texts.as_array(corpus.bytes_of(held_out=False)), checkpoints.path_for(folder, point, corpus.digest)
    done = training_of(point, text, path).finish()
    facts = {"text": f"{corpus.name} {corpus.digest}", "weights": done.weights, "losses": rounded(done.losses)}
    return [point | facts | {"seconds": statistics.median(done.seconds[1:] or done.seconds)}]


def training_of(point: dict[str, Any], text: Any, path: Path | None) -> Training:
    """The run of a point. path: the path of its checkpoint; None for no checkpoint."""
    model = made(shape_of(point))
    attend = attentions.causal(point["contender"], point["n"])

    def loss(step: int) -> torch.Tensor:
        symbols = texts.windows(text, point["batch"], point["n"], (0, step))
        with autocast(point["dtype"]):
            logits = model(symbols[:, :-1], attend)
        return functional.cross_entropy(logits.float().flatten(0, 1), symbols[:, 1:].flatten())

    return Training(model, loss, point["steps"], RATE, path)


def rounded(values: list[float]) -> list[float]:
    """Round to seven digits, the precision of float32."""
    return [float(f"{value:.7g}") for value in values]
