"""Masks in compiled functions of JAX, which hold no Python objects: a text for a small mask, a name for a large one.

A text holds the whole mask (masks/serialised.py), so an exported function runs in any process. A name is the digest of
the text: it is the same in every process, so that JAX's cache of compiled functions works across processes. Exception:
a mask that is too large for any text gets a random name, which only its own process knows. The process keeps a mask
with a name until the process ends, as JAX keeps the constants of compiled functions.
"""

from __future__ import annotations

import hashlib
import threading
import uuid
import weakref
from functools import lru_cache

from redblue.base.errors import RedblueError
from redblue.masks import Mask
from redblue.masks.serialised import PREFIX, mask_of, text_of

MAX_TEXT = 1 << 16  # characters; each call of a compiled function holds its text twice, for both passes
READ = 64  # masks in the cache of read texts

_lock = threading.Lock()
_names: weakref.WeakKeyDictionary[Mask, str] = weakref.WeakKeyDictionary()
_masks: dict[str, Mask] = {}  # by name


def name_of(mask: Mask) -> str:
    """The text of a mask, or its name if the text is long."""
    with _lock:
        name = _names.get(mask)
    if name is not None:
        return name
    try:
        name = text_of(mask)
    except RedblueError:  # too large for a text: a random name, which only this process knows
        name = f"mask-{uuid.uuid4().hex}"
    if name.startswith(PREFIX) and len(name) > MAX_TEXT:
        name = f"mask-{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}"
    with _lock:
        name = _names.setdefault(mask, name)
        if not name.startswith(PREFIX):
            _masks.setdefault(name, mask)
    return name


def mask_named(name: str) -> Mask | None:
    """The mask of a text or name, None for "". Raises RedblueError for a name that this process does not know."""
    if not name:
        return None
    if name.startswith(PREFIX):
        return _read(name)
    mask = _masks.get(name)
    if mask is None:
        raise RedblueError(
            f"this process does not know the mask of this call ({name}), which is too large to be part of an exported "
            "function: trace the function in this process, or give a boolean array as mask"
        )
    return mask


_read = lru_cache(maxsize=READ)(mask_of)
