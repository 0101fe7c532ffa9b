"""Masks in calls of PyTorch's ops, which cannot take Python objects: names for this process, texts for graphs.

An eager call passes a name, which is drawn at random, so that no other process knows it. A name is valid as long as the
mask or an equal mask is alive; a call keeps its mask alive from forward to backward.

A graph that PyTorch captures (torch.compile, torch.export, jit.trace) may be saved and run elsewhere. So the
graph holds the mask's content as text (masks/serialised.py), which is read at the first call. If a mask is too large
for a text, export refuses it, and a compiled graph holds its name; the mask is then kept alive until KEPT other masks
have been captured.
"""

from __future__ import annotations

import threading
import uuid
import weakref
from collections import OrderedDict
from typing import Any

import torch

from redblue.base.errors import RedblueError
from redblue.masks import Mask
from redblue.masks.serialised import PREFIX, mask_of, text_of

KEPT = 64

_lock = threading.Lock()
_names: weakref.WeakKeyDictionary[Mask, str] = weakref.WeakKeyDictionary()
_masks: dict[str, weakref.WeakValueDictionary[int, Mask]] = {}  # by name: all masks with this name, by their id
_texts: weakref.WeakKeyDictionary[Mask, str] = weakref.WeakKeyDictionary()
_of_graphs: OrderedDict[str, Mask] = OrderedDict()  # by text or name


def name_of(mask: Mask) -> str:
    """The mask's name in this process. Equal masks have the same name."""
    with _lock:
        name = _names.get(mask)
        if name is None:
            for unused in [name for name, masks in _masks.items() if not masks]:
                del _masks[unused]
            name = _names[mask] = f"mask-{uuid.uuid4().hex}"
        _masks.setdefault(name, weakref.WeakValueDictionary())[id(mask)] = mask
        return name


def mask_named(name: str) -> Mask | None:
    """The mask of a name or text, None for "". Raises RedblueError for a damaged text, and if the mask is gone."""
    if not name:
        return None
    mask = next(iter(_masks.get(name, {}).values()), None)
    if mask is None:
        mask = _of_graphs.get(name)
    if mask is None and name.startswith(PREFIX):
        mask = mask_of(name)
        _keep(name, mask)
    if mask is None:
        raise RedblueError(
            f"the mask of this call, {name[:80]}, is gone: keep a reference to a mask that a graph uses; a graph of "
            "another process must be exported again"
        )
    return mask


def graph_name_of(mask: Mask) -> str:
    """The text of a mask for a graph that is being captured; its name if it is too large and the graph is not exported.

    Raises RedblueError if the mask is too large and the graph is exported.
    """
    with _lock:
        name = _texts.get(mask)
    if name is None:
        try:
            name = text_of(mask)
        except RedblueError:
            if torch.compiler.is_exporting() or torch._C._get_tracing_state() is not None:
                raise
            name = name_of(mask)
        else:
            with _lock:
                _texts[mask] = name
    _keep(name, mask)
    return name


def _keep(name: str, mask: Mask) -> None:
    with _lock:
        _of_graphs[name] = mask
        _of_graphs.move_to_end(name)
        if len(_of_graphs) > KEPT:
            _of_graphs.popitem(last=False)


def _traced_name_of(mask: Mask) -> str:
    """The name or text of a mask in a function that is being compiled."""
    if not hasattr(mask, "rule"):  # an unfinished mask, which the tracer made
        raise RedblueError("a mask other than a window must be made outside the compiled function")
    return graph_name_of(mask)


# Called while torch.compile traces, not by the compiled graph. torch.compiler.assume_constant_result does the same, but
# imports torch._dynamo, which would delay every user's first call by nearly a second.
traced_name_of: Any = _traced_name_of
traced_name_of._dynamo_marked_constant = True
