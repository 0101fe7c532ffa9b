"""The part `graph`: memory and time of a graph transformer on Debian's packages, and of a row of short documents."""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from redblue.base.cpus import usable_cpus
from redblue.masks import Mask
from redblue.studies.training import attentions, checkpoints, packages, texts
from redblue.studies.training.corpora import any_corpus
from redblue.studies.training.loop import Training
from redblue.studies.training.model import Attend, Shape, made
from redblue.studies.training.names import GATHERED, REDBLUE, SDPA

MODEL = {"layers": 2, "d_model": 128, "heads": 4}
RATE = 3e-3
MIN_LENGTH, MAX_LENGTH = 128, 2048  # lengths of the documents
TRAINED_SHARE = 0.8


def points(quick: bool) -> list[dict[str, Any]]:
    sizes = ((4096, 8),) if quick else ((8192, 60), (32_768, 60))
    n = 8192 if quick else 32_768
    graphs = [
        MODEL | {"kind": "graph", "n": size, "steps": steps, "contender": name}
        for size, steps in sizes
        for name in (SDPA, GATHERED, REDBLUE)
        if size <= 8192 or name != SDPA
    ]
    return graphs + [MODEL | {"kind": "documents", "n": n, "steps": 2, "contender": name} for name in (SDPA, REDBLUE)]


def run(point: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Train; return one row with the time, and for the graph the accuracy on packages that were not trained on."""
    torch.set_num_threads(usable_cpus())
    return [graph_row(point, folder) if point["kind"] == "graph" else documents_row(point)]


def graph_row(point: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Learn the sections of Debian's packages from their names and from their neighbours."""
    graph = packages.graph(packages.listed(), point["n"])
    trained = torch.from_numpy(np.random.default_rng(5).random(graph.nodes) < TRAINED_SHARE)
    sections, names = torch.from_numpy(graph.sections), torch.from_numpy(graph.names)[None]
    model = made(Shape(point["layers"], point["d_model"], point["heads"], 256, 0, int(sections.max()) + 1))
    attend = along(point["contender"], graph)

    def loss(step: int) -> torch.Tensor:
        return functional.cross_entropy(model(names, attend)[0, trained], sections[trained])

    path = checkpoints.path_for(folder, point, packages.digest(graph))
    done = Training(model, loss, point["steps"], RATE, path).finish()
    with torch.no_grad():
        answers = model(names, attend)[0].argmax(-1)
    tested = sections[~trained]
    return point | {
        "n": graph.nodes,
        "edges": len(graph.indices),
        "seconds": statistics.median(done.seconds[1:]),
        "last_loss": done.losses[-1],
        "accuracy": float((answers[~trained] == tested).float().mean()),
        "baseline": float(torch.bincount(tested).max() / len(tested)),
    }


def along(contender: str, graph: packages.Graph) -> Attend:
    """Attention along a graph's edges."""
    rows = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    if contender == GATHERED:
        return partial(attentions.gathered, rows=torch.from_numpy(rows), cols=torch.from_numpy(graph.indices))
    if contender == REDBLUE:
        return attentions.masked(REDBLUE, Mask.from_csr(graph.indptr, graph.indices, graph.nodes), None)
    allowed = torch.zeros(graph.nodes, graph.nodes, dtype=torch.bool)
    allowed[rows, graph.indices] = True
    return attentions.masked(SDPA, None, allowed)


def documents_row(point: dict[str, Any]) -> dict[str, Any]:
    """Time steps of a language model on one row of many documents, none of which attends another."""
    text, n = texts.as_array(any_corpus().bytes_of(held_out=False)), point["n"]
    drawn = np.random.default_rng(6).integers(MIN_LENGTH, MAX_LENGTH + 1, size=n // MIN_LENGTH).cumsum()
    lengths = np.diff([0, *drawn[drawn < n], n])
    document = torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths))
    positions = torch.from_numpy(np.concatenate([np.arange(length) for length in lengths]))
    allowed = (document[:, None] == document).tril_() if point["contender"] == SDPA else None
    attend = attentions.masked(point["contender"], Mask.documents(lengths, within=Mask.causal()), allowed)
    model = made(Shape(point["layers"], point["d_model"], point["heads"], texts.BYTES, n, texts.BYTES))
    symbols = texts.windows(text, 1, n, (6, 0))

    def loss(step: int) -> torch.Tensor:
        logits = model(symbols[:, :-1], attend, positions)
        return functional.cross_entropy(logits.flatten(0, 1), symbols[:, 1:].flatten())

    done = Training(model, loss, point["steps"], 1e-4, None).finish()
    return point | {"documents": len(lengths), "seconds": min(done.seconds), "last_loss": done.losses[-1]}
