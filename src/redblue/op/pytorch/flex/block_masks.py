"""Convert BlockMasks to masks of redblue: once each, until the BlockMask or the values that mask_mod reads change."""

from __future__ import annotations

import functools
import inspect
import threading
import types
import weakref
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.masks import Mask
from redblue.masks.block_mask import ATTRIBUTES, read

_lock = threading.Lock()
_converted: weakref.WeakKeyDictionary[Any, Converted] = weakref.WeakKeyDictionary()
NO_SIZES = 1 << 30  # PyTorch's block edge for a BlockMask that fits any numbers of queries and keys


class Converted:
    """The mask of a BlockMask on n_q queries and n_k keys. state: the BlockMask's state at its conversion."""

    def __init__(self, block_mask: Any, sizes: tuple[int, int], state: list[Any]) -> None:
        self.sizes = sizes
        self.state = state
        mask = Mask(read(block_mask, sizes))
        self.mask = None if mask.is_full else mask

    @functools.cached_property
    def lies_below(self) -> bool:
        """Whether no query attends a key after its own, if the last query's own key is the last key."""
        if self.mask is None:
            return False
        return not (self.mask & ~Mask.causal("bottom-right")).nnz(*self.sizes)


def converted(block_mask: Any, n_q: int, n_k: int, device: torch.device) -> Converted:
    """The mask of a BlockMask. Raises RedblueError for another object, and for a BlockMask of other sizes."""
    missing = [name for name in ATTRIBUTES if not hasattr(block_mask, name)]
    if missing:
        raise RedblueError(
            f"block_mask must be a torch.nn.attention.flex_attention.BlockMask, got {type(block_mask).__name__}: "
            "use create_block_mask"
        )
    if block_mask.kv_num_blocks.device != device:
        raise RedblueError(
            f"block_mask must be on the device of query ({device}), got {block_mask.kv_num_blocks.device}"
        )
    lengths = tuple(map(int, block_mask.seq_lengths))
    if tuple(block_mask.BLOCK_SIZE) != (NO_SIZES, NO_SIZES) and lengths != (n_q, n_k):
        raise RedblueError(
            f"block_mask is for {lengths[0]} queries and {lengths[1]} keys, but there are {n_q} and {n_k}: create a "
            "new one"
        )
    state = [*_state(block_mask), n_q, n_k]
    with _lock:
        known = _converted.get(block_mask)
    if known is not None and _is_same(known.state, state):
        return known
    new = Converted(block_mask, (n_q, n_k), state)
    with _lock:
        _converted[block_mask] = new
    return new


def _state(block_mask: Any) -> list[Any]:
    """Everything that decides which pairs attend: tensors with their versions, functions and the values they read."""
    parts = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "BLOCK_SIZE", "mask_mod")
    names = {"__call__", "forward", "__wrapped__"}  # methods that a call of an object runs
    while True:
        known, visited = len(names), dict[int, Any]()
        state = [leaf for part in parts for leaf in _leaves(getattr(block_mask, part), names, visited)]
        if len(names) == known:  # else a function visited late reads further attributes of objects visited earlier
            return state


def _leaves(x: Any, names: set[str], visited: dict[int, Any]) -> Iterator[Any]:
    """Yield the tensors in a value, each followed by its version or content, and all other values that cannot change.

    names: the attributes that functions read, a set that this function extends; other attributes are ignored.
    visited: the visited values, by their ids.
    """
    if isinstance(x, (int, float, str, bytes, type(None), range, np.generic)):
        yield x
        return
    if id(x) in visited:
        return
    visited[id(x)] = x
    if isinstance(x, Tensor):
        yield x
        yield _content_of(x) if x.is_inference() else x._version
    elif isinstance(x, np.ndarray):
        yield from (x.shape, str(x.dtype), x.tobytes())
    else:
        # Hold neither the value nor its class: either could hold the BlockMask, which would then never be freed
        yield x.__code__ if inspect.isfunction(x) else _Same(x) if _is_opaque(x) else weakref.ref(type(x))
        for part in _parts(x, names):
            yield from _leaves(part, names, visited)


def _content_of(x: Tensor) -> Any:
    """The content of an inference tensor, which has no version; an object equal only to itself if it cannot be read."""
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return _UNREAD
    if x.layout != torch.strided or x.device.type not in ("cpu", "cuda"):
        return object()
    copy = torch.empty(x.shape, dtype=x.dtype).copy_(x)
    return copy.view(-1).view(torch.uint8).numpy().tobytes()


_UNREAD = object()  # content during the capture of a CUDA graph, which cannot read it; it counts as unchanged


class _Same:
    """An object compared by identity. It keeps the object alive, because its id could be reused otherwise."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.x is other.x

    __hash__ = None  # pyright: ignore[reportAssignmentType]


def _is_opaque(x: Any) -> bool:
    """Whether an object's contents are not visited: classes and modules of libraries, and objects in C."""
    if inspect.isclass(x) or inspect.ismodule(x):
        return _is_of_library(x)
    is_container = isinstance(x, (Mapping, Sequence, Set, functools.partial)) or inspect.ismethod(x)
    return not (is_container or hasattr(x, "__dict__") or any("__slots__" in vars(kind) for kind in type(x).__mro__))


def _is_of_library(x: Any) -> bool:
    """Whether a function, class or module belongs to PyTorch, NumPy or Python's core, which hold no settings."""
    name = x.__name__ if inspect.ismodule(x) else getattr(x, "__module__", None) or ""
    return name.partition(".")[0] in ("torch", "numpy", "builtins", "math", "operator", "functools")


def _parts(x: Any, names: set[str]) -> list[Any]:
    """The values in a container, function or object."""
    if type(x).__name__ == "BlockMask" or _is_opaque(x):
        return []
    if isinstance(x, functools.partial):
        return [x.func, *x.args, x.keywords]
    if isinstance(x, Mapping):
        return [part for item in x.items() for part in item]
    if isinstance(x, (Sequence, Set)):
        return [len(x), *x]
    if inspect.ismethod(x):
        return [x.__func__, x.__self__]
    if not inspect.isfunction(x):
        return _attributes(x, names)
    own = set[str]() if _is_of_library(x) else _names_in(x)
    names |= own
    read = [x.__globals__[name] for name in sorted(own) if name in x.__globals__]
    return [x.__defaults__, x.__kwdefaults__, *(_content(cell) for cell in x.__closure__ or ()), *read]


def _attributes(x: Any, names: set[str]) -> list[Any]:
    """The attributes of an object, class or module that functions read by these names, and the code of properties."""
    own: Mapping[str, Any] = getattr(x, "__dict__", {})
    holders = [
        own,
        *(own[part] for part in ("_parameters", "_buffers", "_modules") if part in own),
    ]  # dictionaries in which a Module keeps attributes
    if not inspect.ismodule(x):
        holders += [vars(kind) for kind in (x if inspect.isclass(x) else type(x)).__mro__ if not _is_of_library(kind)]
    held: dict[str, Any] = {}
    for holder in reversed(holders):
        held |= {name: holder[name] for name in names & holder.keys()}
    values = []
    for name in sorted(held):
        value = held[name]
        if isinstance(value, types.MemberDescriptorType):  # a slot, which may be empty
            value = getattr(x, name, None)
        elif isinstance(value, property):
            value = value.fget
        elif isinstance(value, functools.cached_property):
            value = value.func
        elif isinstance(value, (classmethod, staticmethod)):
            value = value.__func__
        values += [name, value]
    return values


def _names_in(x: Any) -> set[str]:
    """The names of globals and attributes in a function's code, and its texts, which may be names for getattr."""
    names: set[str] = set()
    pending = [x.__code__]
    while pending:
        code = pending.pop()
        names.update(code.co_names)
        names.update(text for text in code.co_consts if isinstance(text, str) and text.isidentifier())
        pending += [constant for constant in code.co_consts if inspect.iscode(constant)]
    return names


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None


def _is_same(old: list[Any], new: list[Any]) -> bool:
    return len(old) == len(new) and all(
        x is y
        or y is _UNREAD
        or (not isinstance(x, Tensor) and not isinstance(y, Tensor) and type(x) is type(y) and x == y)
        for x, y in zip(old, new, strict=True)
    )
