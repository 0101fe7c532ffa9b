"""Masks in PyTorch's ops, which take no objects: each goes by a name.

A compiled graph holds the name. A mask is found by it as long as somebody holds the mask, or KEPT others have not been
named since.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import OrderedDict
from typing import Any

import torch

from redblue.errors import RedblueError
from redblue.masks import Mask

KEPT = 64

_lock = threading.Lock()
_number = itertools.count(1)
_names: weakref.WeakKeyDictionary[Mask, str] = weakref.WeakKeyDictionary()
_masks: weakref.WeakValueDictionary[str, Mask] = weakref.WeakValueDictionary()
_latest: OrderedDict[str, Mask] = OrderedDict()


def name_of(mask: Mask) -> str:
    """The same for equal masks."""
    with _lock:
        name = _names.get(mask)
        if name is None:
            name = _names[mask] = f"mask{next(_number)}"
            _masks[name] = mask
        _latest[name] = _masks[name]
        _latest.move_to_end(name)
        if len(_latest) > KEPT:
            _latest.popitem(last=False)
        return name


def mask_named(name: str) -> Mask | None:
    """The mask, None for "". Raises RedblueError for one that is gone."""
    if not name:
        return None
    found = _masks.get(name)
    if found is None:
        raise RedblueError(f"the mask of this call, {name}, is gone: keep a reference to a mask that a graph uses")
    return found


def _traced_name_of(mask: Mask) -> str:
    if not hasattr(mask, "rule"):  # half a mask: the tracer made it
        raise RedblueError("a mask other than a window must be made outside of what torch.compile compiles")
    return name_of(mask)


# Asked while torch.compile traces, not by what it compiles
traced_name_of: Any = torch.compiler.assume_constant_result(_traced_name_of)
