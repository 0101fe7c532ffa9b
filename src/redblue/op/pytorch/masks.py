"""Masks in PyTorch's ops, which take no objects: each goes by a name.

A call holds its mask from forward to backward. A compiled graph holds the name only: its mask is found as long as
somebody holds it, or an equal one that went by that name, or KEPT others have not been compiled since.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import OrderedDict
from typing import Any

from redblue.base.errors import RedblueError
from redblue.masks import Mask

KEPT = 64

_lock = threading.Lock()
_number = itertools.count(1)
_names: weakref.WeakKeyDictionary[Mask, str] = weakref.WeakKeyDictionary()
_masks: dict[str, weakref.WeakValueDictionary[int, Mask]] = {}  # all that went by a name, by their id
_compiled: OrderedDict[str, Mask] = OrderedDict()


def name_of(mask: Mask) -> str:
    """The same for equal masks."""
    with _lock:
        name = _names.get(mask)
        if name is None:
            for gone in [name for name, held in _masks.items() if not held]:
                del _masks[gone]
            name = _names[mask] = f"mask{next(_number)}"
        _masks.setdefault(name, weakref.WeakValueDictionary())[id(mask)] = mask
        return name


def mask_named(name: str) -> Mask | None:
    """The mask, None for "". Raises RedblueError for one that is gone."""
    if not name:
        return None
    found = next(iter(_masks.get(name, {}).values()), None)
    if found is None:
        raise RedblueError(f"the mask of this call, {name}, is gone: keep a reference to a mask that a graph uses")
    return found


def _traced_name_of(mask: Mask) -> str:
    if not hasattr(mask, "rule"):  # half a mask: the tracer made it
        raise RedblueError("a mask other than a window must be made outside of what torch.compile compiles")
    name = name_of(mask)
    with _lock:
        _compiled[name] = mask
        _compiled.move_to_end(name)
        if len(_compiled) > KEPT:
            _compiled.popitem(last=False)
    return name


# Asked while torch.compile traces, not by what it compiles. This is all that torch.compiler.assume_constant_result
# does, but that imports torch._dynamo: nearly a second before everybody's first call.
traced_name_of: Any = _traced_name_of
traced_name_of._dynamo_marked_constant = True
