"""The part `context`: perplexity over wall time for several context lengths, all with redblue."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from redblue.base.cpus import usable_cpus
from redblue.studies.training import checkpoints, texts
from redblue.studies.training.attentions import causal
from redblue.studies.training.corpora import any_corpus
from redblue.studies.training.names import REDBLUE
from redblue.studies.training.parts import curves

MODEL = {"layers": 2, "d_model": 256, "heads": 4, "tokens": 4096}
SIZES = (512, 2048, 4096)
TESTED_BYTES = 16_384  # bytes of the held-out text that are tested; a multiple of every context
ENDLESS = 10**6  # steps; the time budget ends the run earlier


def points(quick: bool) -> list[dict[str, Any]]:
    sizes = {"budget_seconds": 10, "tests": 3} if quick else {"budget_seconds": 600, "tests": 12}
    return [MODEL | sizes | {"n": n} for n in SIZES]


def run(point: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Train for the budget of seconds; return one row with the perplexity on held-out text over time."""
    corpus = any_corpus()
    torch.set_num_threads(usable_cpus())
    train, test = (texts.as_array(corpus.bytes_of(held_out)) for held_out in (False, True))
    settings = point | {"batch": point["tokens"] // point["n"], "dtype": "float32", "contender": REDBLUE}
    path = checkpoints.path_for(folder, point, corpus.digest)
    training = curves.training_of(settings | {"steps": ENDLESS}, train, path)
    every = point["budget_seconds"] / point["tests"]
    while len(training.notes) < point["tests"]:
        training.step()
        spent = sum(training.seconds)
        if spent >= every * (len(training.notes) + 1):
            training.notes.append([spent, len(training.losses), perplexity(training.model, test, point["n"])])
    training.save()
    return [point | {"text": f"{corpus.name} {corpus.digest}", "tests_made": training.notes}]


def perplexity(model: torch.nn.Module, text: Any, n: int) -> float:
    """exp of the mean loss for each byte of TESTED_BYTES bytes, in windows of n."""
    attend, losses = causal(REDBLUE, n), []
    with torch.no_grad():
        for start in range(0, TESTED_BYTES, n):
            symbols = torch.from_numpy(text[start : start + n + 1].astype("int64"))[None]
            logits = model(symbols[:, :-1], attend)
            losses.append(functional.cross_entropy(logits.flatten(0, 1), symbols[:, 1:].flatten()).item())
    return math.exp(sum(losses) / len(losses))
