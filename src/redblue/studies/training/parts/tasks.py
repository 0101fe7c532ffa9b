"""The part `tasks`: accuracy in the Long Range Arena, trained with redblue, compared with the most frequent answer."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from redblue.base.cpus import usable_cpus
from redblue.masks import Mask
from redblue.studies.training import attentions, checkpoints, listops, pathfinder, texts
from redblue.studies.training.corpora import KNOWN, Document, any_corpus
from redblue.studies.training.loop import Training
from redblue.studies.training.model import Shape, made
from redblue.studies.training.names import REDBLUE

SMALL = {"layers": 2, "d_model": 128, "heads": 2}
TRAIN, TEST = 3, 4  # seeds
TESTED = 256  # examples
RATE = 1e-3
# Gives a batch: symbols (size, n), 0 for padding, and answers (size,).
Draw = Callable[[tuple[int, ...], int], tuple[np.ndarray, np.ndarray]]


def points(quick: bool) -> list[dict[str, Any]]:
    if quick:
        sizes = (("listops", 64, 40), ("pathfinder", 16, 20), ("text", 256, 20))
    else:
        sizes = (("listops", 512, 2000), ("pathfinder", 32, 1500), ("text", 1024, 1000))
    return [SMALL | {"task": task, "size": size, "steps": steps, "batch": 16} for task, size, steps in sizes]


def run(point: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Train and test; return one row, or a row with the reason if the task needs a text that is not installed."""
    torch.set_num_threads(usable_cpus())
    if point["task"] == "text" and not any_corpus().has_classes:
        return [point | {"skipped": f"it needs classes of text: {KNOWN['brown'].remedy}"}]
    train, test, symbols, answers = drawn(point)
    n = point["size"] ** 2 if point["task"] == "pathfinder" else point["size"]
    digest = any_corpus().digest if point["task"] == "text" else ""
    model = made(Shape(point["layers"], point["d_model"], point["heads"], symbols, n, answers))

    def loss(step: int) -> torch.Tensor:
        inputs, wanted = train((TRAIN, step), point["batch"])
        return functional.cross_entropy(scores(model, inputs), torch.from_numpy(wanted))

    done = Training(model, loss, point["steps"], RATE, checkpoints.path_for(folder, point, digest)).finish()
    right, wanted = [], []
    with torch.no_grad():
        for part in range(TESTED // point["batch"]):
            inputs, batch_answers = test((TEST, part), point["batch"])
            right.append(scores(model, inputs).argmax(-1).numpy() == batch_answers)
            wanted.append(batch_answers)
    baseline = np.bincount(np.concatenate(wanted)).max() / TESTED
    facts = {"accuracy": float(np.mean(right)), "baseline": float(baseline), "tested": TESTED, "n": n}
    last = statistics.mean(done.losses[-20:])
    return [point | facts | {"last_loss": last, "seconds": statistics.median(done.seconds)}]


def scores(model: torch.nn.Module, inputs: np.ndarray) -> torch.Tensor:
    """The score of each answer (size, answers): the mean over all symbols except padding."""
    real = torch.from_numpy(inputs != 0)
    mask = None if bool(real.all()) else Mask.key_lengths(real.sum(1).numpy())
    outputs = model(torch.from_numpy(inputs), attentions.masked(REDBLUE, mask, None))
    return (outputs * real[..., None]).sum(1) / real.sum(1, keepdim=True)


def drawn(point: dict[str, Any]) -> tuple[Draw, Draw, int, int]:
    """The functions that draw a task's batches for training and testing, its number of symbols, and of answers."""
    size = point["size"]
    if point["task"] == "listops":

        def lists(seed: tuple[int, ...], count: int) -> tuple[np.ndarray, np.ndarray]:
            return listops.batch(seed, count, size)

        return lists, lists, len(listops.SYMBOLS), 10
    if point["task"] == "pathfinder":

        def images(seed: tuple[int, ...], count: int) -> tuple[np.ndarray, np.ndarray]:
            pixels, labels = pathfinder.batch(seed, count, size)
            return pixels + 1, labels  # 0 is padding, which does not occur in images

        return images, images, pathfinder.SYMBOLS + 1, 2
    parts = [any_corpus().part(held_out) for held_out in (False, True)]
    train, test = (of_classes(part, size) for part in parts)
    return train, test, texts.BYTES, 2


def of_classes(documents: list[Document], n: int) -> Draw:
    """Draw windows of n bytes of documents, both classes equally often."""
    by_class = [
        [texts.as_array(document.text) for document in documents if document.group == group] for group in (0, 1)
    ]

    def draw(seed: tuple[int, ...], count: int) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(seed)
        answers = random.integers(2, size=count)
        excerpts = []
        for answer in answers:
            text = by_class[answer][random.integers(len(by_class[answer]))]
            start = random.integers(len(text) - n)
            excerpts.append(text[start : start + n])
        return np.stack(excerpts).astype(np.int64), answers

    return draw
