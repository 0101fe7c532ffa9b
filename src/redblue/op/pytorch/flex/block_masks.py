"""BlockMasks as masks of redblue. Each is converted once, as long as neither it nor what its mask_mod reads changes."""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.masks import Mask
from redblue.masks.block_mask import ATTRIBUTES, read

_lock = threading.Lock()
_converted: weakref.WeakKeyDictionary[Any, Converted] = weakref.WeakKeyDictionary()
NO_SIZES = 1 << 30  # the edges of a block that fits queries and keys of any number


class Converted:
    """The mask of a BlockMask on n_q queries and n_k keys. state: what the BlockMask held at the time."""

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
    """The mask of a BlockMask. Raises RedblueError if it is for other sizes or is none."""
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
    seen: set[int] = set()
    return [leaf for name in parts for leaf in _leaves(getattr(block_mask, name), frozenset(), seen)]


def _leaves(x: Any, names: frozenset[str], seen: set[int]) -> Iterator[Any]:
    """The tensors in a value, each before its version, and all other values that cannot change.

    names: the attributes that a function reads; other attributes of an object do not matter.
    """
    if isinstance(x, (int, float, str, bytes, type(None))):
        yield x
        return
    if id(x) in seen:
        return
    seen.add(id(x))
    if isinstance(x, Tensor):
        yield x
        yield None if x.is_inference() else x._version
        return
    yield id(x) if not inspect.isfunction(x) else x.__code__
    for part in _parts(x, names):
        yield from _leaves(part, names | _names_in(x), seen)


def _parts(x: Any, names: frozenset[str]) -> list[Any]:
    """The values in a container, function or object."""
    if isinstance(x, functools.partial):
        return [x.func, *x.args, *x.keywords.values()]
    if isinstance(x, dict):
        return [part for item in x.items() for part in item]
    if isinstance(x, (list, tuple, set, frozenset)):
        return [len(x), *x]
    if inspect.isfunction(x):
        read = [x.__globals__[name] for name in sorted(_names_in(x)) if name in x.__globals__]
        return [x.__defaults__, x.__kwdefaults__, *(_content(cell) for cell in x.__closure__ or ()), *read]
    if inspect.ismethod(x):
        names |= _names_in(x.__func__)
        return [x.__func__, *_attributes(x.__self__, names)]
    if inspect.ismodule(x) or inspect.isclass(x) or type(x).__name__ == "BlockMask":
        return []
    return _attributes(x, names | {"__call__"}) if hasattr(x, "__dict__") else []


def _attributes(x: Any, names: frozenset[str]) -> list[Any]:
    """The attributes of an object that its methods and other functions read by these names."""
    kind, known = type(x), frozenset[str]()
    while known != names:
        known = names
        for name in known:
            method = getattr(kind, name, None)
            names |= _names_in(method.fget if isinstance(method, property) else method)
    held = dict(vars(x))
    for part in ("_parameters", "_buffers", "_modules"):  # of a torch.nn.Module
        held |= held.get(part, {})
    return [held[name] for name in sorted(names) if name in held]


def _names_in(x: Any) -> frozenset[str]:
    """The names of globals and attributes in a function's code; none if it is no function."""
    names: set[str] = set()
    pending = [x.__code__] if inspect.isfunction(x) else []
    while pending:
        code = pending.pop()
        names.update(code.co_names)
        pending += [constant for constant in code.co_consts if inspect.iscode(constant)]
    return frozenset(names)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None


def _is_same(old: list[Any], new: list[Any]) -> bool:
    return len(old) == len(new) and all(
        x is y or (not isinstance(x, Tensor) and not isinstance(y, Tensor) and type(x) is type(y) and x == y)
        for x, y in zip(old, new, strict=True)
    )
