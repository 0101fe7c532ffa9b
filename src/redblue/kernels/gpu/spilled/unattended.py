"""Keys that no query attends, taken away from kernels that spill: what such a key holds must not matter, be it NaN.

These kernels multiply all keys of a slice by P or dS, which is 0 where a key is not attended, and 0 times NaN is NaN.
A cache of keys that is not yet full is like that. Left alone are keys that some queries attend, as on the CPU, and
those before the first query's window, of which a tile may be read: to cut them off would move dropout's places.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.launch import Task
from redblue.kernels.gpu.planning.device import copied, in_use
from redblue.masks import Mask
from redblue.masks.lowered import lowered

KEPT, PANEL = 128, 64  # masks; rows that are lowered together, as for lists of long tiles


def seen(task: Task) -> Task:
    """The same work without keys that no query attends: cut off behind the last query's band, 0 where lists have holes.

    Gradients of what is cut off are written: 0.
    """
    sizes = task.sizes
    if task.mask is None:
        stop = sizes.n_k if task.end is None else max(0, min(sizes.n_k, sizes.n_q - 1 + task.end))
        return task if stop == sizes.n_k else _cut(task, stop)
    found = attended(task.mask, sizes.n_q, sizes.n_k, sizes.group, task.q.device)
    if found is None:
        return task
    in_use((found,))
    unseen = ~(found[0] if task.planes is None else found[task.planes.long()])[..., None]
    return replace(task, k=task.k.masked_fill(unseen, 0.0), v=task.v.masked_fill(unseen, 0.0))


def _cut(task: Task, stop: int) -> Task:
    kept = {name: getattr(task, name) for name in ("k", "v", "dk", "dv")}
    for name in ("dk", "dv"):
        if kept[name] is not None:
            kept[name][:, :, stop:].zero_()
    changes = {name: None if x is None else x[:, :, :stop] for name, x in kept.items()}
    bias = None if task.bias is None else task.bias[..., :stop]
    return replace(task, sizes=task.sizes._replace(n_k=stop), bias=bias, **changes)


@lru_cache(maxsize=KEPT)
def attended(mask: Mask, n_q: int, n_k: int, group: int, device: torch.device) -> Tensor | None:
    """(planes, n_k): which keys some query attends; None: all of them on every plane."""
    found = lowered(mask, n_q, n_k, group, PANEL)  # every key of its runs is attended
    planes, panels = 1 + int(found.planes.max(initial=0)), max(1, ceil_div(n_q * group, PANEL))
    plane = np.repeat(np.arange(len(found.starts) - 1) // panels, np.diff(found.starts))
    borders = np.zeros((planes, n_k + 1), np.int64)
    np.add.at(borders, (plane, found.runs[:, 0]), 1)
    np.add.at(borders, (plane, found.runs[:, 1]), -1)
    some = np.cumsum(borders, axis=1)[:, :n_k] > 0
    return None if some.all() else copied(some, device)
