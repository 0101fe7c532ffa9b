"""Names of masks: PyTorch's ops cannot take Python objects, so masks are passed by name.

A call holds its mask from forward to backward. A compiled graph holds only the mask's name. A name stays valid as long
as someone holds the mask or an equal mask; masks of compiled graphs are held until KEPT other masks have been compiled.
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
_masks: dict[str, weakref.WeakValueDictionary[int, Mask]] = {}  # by name: all masks that got that name, by their id
_compiled: OrderedDict[str, Mask] = OrderedDict()


def name_of(mask: Mask) -> str:
    """The mask's name. Equal masks have the same name."""
    with _lock:
        name = _names.get(mask)
        if name is None:
            for unused in [name for name, masks in _masks.items() if not masks]:
                del _masks[unused]
            name = _names[mask] = f"mask{next(_number)}"
        _masks.setdefault(name, weakref.WeakValueDictionary())[id(mask)] = mask
        return name


def mask_named(name: str) -> Mask | None:
    """The mask of this name, None for "". Raises RedblueError if nobody holds it any more."""
    if not name:
        return None
    mask = next(iter(_masks.get(name, {}).values()), None)
    if mask is None:
        raise RedblueError(f"the mask of this call, {name}, is gone: keep a reference to a mask that a graph uses")
    return mask


def _traced_name_of(mask: Mask) -> str:
    """The name of a mask in a function that is being compiled; the mask is kept for the compiled graph."""
    if not hasattr(mask, "rule"):  # an unfinished mask, which the tracer made
        raise RedblueError("a mask other than a window must be made outside of what torch.compile compiles")
    name = name_of(mask)
    with _lock:
        _compiled[name] = mask
        _compiled.move_to_end(name)
        if len(_compiled) > KEPT:
            _compiled.popitem(last=False)
    return name


# Called while torch.compile traces, not by the compiled graph. torch.compiler.assume_constant_result does the same, but
# imports torch._dynamo, which would delay every user's first call by nearly a second.
traced_name_of: Any = _traced_name_of
traced_name_of._dynamo_marked_constant = True
