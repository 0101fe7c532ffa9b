"""The part `bert`: a masked language model on documents of many lengths, padded to the longest or packed in one row."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from redblue.base.cpus import usable_cpus
from redblue.studies.training import attentions, checkpoints, texts
from redblue.studies.training.corpora import any_corpus
from redblue.studies.training.loop import Training, autocast
from redblue.studies.training.model import Shape, made
from redblue.studies.training.names import REDBLUE, SDPA, TRAINING_DTYPES
from redblue.studies.training.parts.curves import rounded

BERT = {"layers": 2, "d_model": 768, "heads": 12, "n": 512, "batch": 8, "shortest": 64}
WAYS = ((SDPA, "padded"), (REDBLUE, "padded"), (SDPA, "packed"), (REDBLUE, "packed"))
RATE = 3e-4


def points(quick: bool) -> list[dict[str, Any]]:
    sizes = {"layers": 1, "batch": 4, "steps": 5} if quick else {"steps": 100}
    return [
        BERT | sizes | {"dtype": dtype, "contender": name, "way": way}
        for dtype in TRAINING_DTYPES[: 1 if quick else 2]
        for name, way in WAYS
    ]


def run(point: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Train; return one row with the losses and the share of the padded batch that is text."""
    corpus = any_corpus()
    torch.set_num_threads(usable_cpus())
    text = texts.as_array(corpus.bytes_of(held_out=False))
    shape = Shape(point["layers"], point["d_model"], point["heads"], texts.PADDING + 1, point["n"], texts.BYTES)
    model = made(shape)

    def loss(step: int) -> torch.Tensor:
        batch = texts.masked_batch(text, lengths(point, step), point["way"] == "packed", (1, step))
        attend = attentions.masked(point["contender"], batch.mask, batch.allowed)
        with autocast(point["dtype"]):
            logits = model(batch.symbols, attend, batch.positions)
        return functional.cross_entropy(logits[batch.is_hidden].float(), batch.targets)

    done = Training(model, loss, point["steps"], RATE, checkpoints.path_for(folder, point, corpus.digest)).finish()
    drawn = [lengths(point, step) for step in range(point["steps"])]
    filled = sum(drawn_lengths.sum() for drawn_lengths in drawn) / sum(
        len(drawn_lengths) * drawn_lengths.max() for drawn_lengths in drawn
    )
    facts = {"text": f"{corpus.name} {corpus.digest}", "losses": rounded(done.losses), "filled": float(filled)}
    return [point | facts | {"seconds": statistics.median(done.seconds[1:] or done.seconds)}]


def lengths(point: dict[str, Any], step: int) -> np.ndarray:
    """Draw the lengths of a step's documents, uniformly between the shortest and n."""
    return np.random.default_rng((2, step)).integers(point["shortest"], point["n"] + 1, size=point["batch"])
