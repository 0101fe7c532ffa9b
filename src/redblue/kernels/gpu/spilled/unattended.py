"""Hide keys that no query attends from the kernels that spill, so that NaN in them cannot leak.

These kernels multiply all keys of a slice by P or dS. Both are 0 where a key is not attended, but 0 times NaN is NaN,
and a cache of keys that is not full yet may hold NaN. Attended keys are not changed, as on the CPU.
Keys before the first query's window are not cut off, because dropout counts keys from the first.
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

KEPT = 128  # masks whose attended keys are cached
PANEL = 64  # rows that are lowered together, as for lists of tiles of at least 64 rows


def without_unattended_keys(task: Task) -> Task:
    """The task without keys that no query attends. They are cut off after a band, and set to 0 elsewhere, in copies.

    Writes 0 into the gradients of keys that are cut off.
    """
    sizes = task.sizes
    if task.mask is None:
        stop = sizes.n_k if task.end is None else max(0, min(sizes.n_k, sizes.n_q - 1 + task.end))
        task = task if stop == sizes.n_k else _cut(task, stop)
        if task.first is None or task.first <= 0:
            return task
        return _cleared(task, torch.arange(stop, device=task.k.device) < task.first)
    attended = attended_keys(task.mask, sizes.n_q, sizes.n_k, sizes.group, task.q.device)
    if attended is None:
        return task
    in_use((attended,))
    return _cleared(task, ~(attended[0] if task.planes is None else attended[task.planes.long()]))


def _cleared(task: Task, unattended: Tensor) -> Task:
    """The task with copies of k and v that are 0 at the unattended keys, (n_k,) or (batch, key heads, n_k)."""
    unattended = unattended[..., None]
    return replace(task, k=task.k.masked_fill(unattended, 0.0), v=task.v.masked_fill(unattended, 0.0))


def _cut(task: Task, stop: int) -> Task:
    """The task without keys from `stop` on."""
    arrays = {name: getattr(task, name) for name in ("k", "v", "dk", "dv")}
    for name in ("dk", "dv"):
        if arrays[name] is not None:
            arrays[name][:, :, stop:].zero_()
    changes = {name: None if x is None else x[:, :, :stop] for name, x in arrays.items()}
    pairs = {name: x[..., :stop] for name, rules, x in task.record.present_arrays() if rules.pairs}
    cut = task.cut_keys + task.sizes.n_k - stop
    return replace(
        task, sizes=task.sizes._replace(n_k=stop), cut_keys=cut, record=task.record._replace(**pairs), **changes
    )


@lru_cache(maxsize=KEPT)
def attended_keys(mask: Mask, n_q: int, n_k: int, group: int, device: torch.device) -> Tensor | None:
    """Whether some query attends a key, (planes, n_k); None: all keys on all planes are attended."""
    low = lowered(mask, n_q, n_k, group, PANEL)  # every key of its runs is attended
    planes, panels = 1 + int(low.planes.max(initial=0)), max(1, ceil_div(n_q * group, PANEL))
    plane = np.repeat(np.arange(len(low.starts) - 1) // panels, np.diff(low.starts))
    borders = np.zeros((planes, n_k + 1), np.int64)
    np.add.at(borders, (plane, low.runs[:, 0]), 1)
    np.add.at(borders, (plane, low.runs[:, 1]), -1)
    attended = np.cumsum(borders, axis=1)[:, :n_k] > 0
    return None if attended.all() else copied(attended, device)
