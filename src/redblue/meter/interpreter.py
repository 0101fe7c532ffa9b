"""Words that Triton kernels load and store, counted exactly under Triton's interpreter (TRITON_INTERPRET=1).

    with counting() as tally:
        kernel[grid](q, k, ...)
    tally.tensors["q"].reads

Any kernel will do. One lane of a load or store that its mask leaves on is one word; lanes that it leaves off are none.
A word belongs to the kernel's argument in whose tensor its address lies ("q"; "q.at" for a field of a tuple), so what
is data and what is an index list can be told apart. Block pointers and tensor descriptors count the lanes inside their
shape; an atomic operation reads and writes each of its lanes. What a GPU moves may be more (whole sectors) or less
(what its caches still hold).
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, field
from functools import wraps
from typing import Any
from unittest.mock import patch

import numpy as np

from redblue.base.errors import RedblueError

ELSEWHERE = "elsewhere"  # the name of addresses that lie in no argument: of pointers made from integers


@dataclass
class Traffic:
    """Words (array elements) and bytes that were loaded and stored."""

    reads: int = 0
    writes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    @property
    def words(self) -> int:
        return self.reads + self.writes

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass
class Tally:
    """What was counted: launches of each kernel, and traffic by kernel and argument, both by name."""

    launches: Counter[str] = field(default_factory=Counter)
    kernels: dict[str, dict[str, Traffic]] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, Traffic]:
        """By the argument's name alone, over all kernels; a name that was not touched has none."""
        found: dict[str, Traffic] = {}
        for arguments in self.kernels.values():
            for name, traffic in arguments.items():
                found[name] = found.get(name, Traffic()) + traffic
        return found

    def total(self, without: Collection[str] = ()) -> Traffic:
        """Over all arguments but those named, such as a mask's index lists."""
        return sum((traffic for name, traffic in self.tensors.items() if name not in without), Traffic())


@contextmanager
def counting() -> Iterator[Tally]:
    """Count what every interpreted kernel loads and stores inside the block; blocks may nest.

    Raises RedblueError unless Triton interprets, which it decides where a kernel is defined.
    """
    try:
        from triton import knobs
        from triton.runtime.interpreter import GridExecutor, InterpreterBuilder
    except ImportError as error:
        raise RedblueError("counting a kernel's words needs Triton: pip install triton") from error
    if not knobs.runtime.interpret:
        raise RedblueError(
            "Triton compiles kernels in this process, so their words cannot be counted: set TRITON_INTERPRET=1 "
            "before the modules that define them are imported"
        )
    hooks = _Hooks(Tally())
    with ExitStack() as stack:
        for owner, name, hook in (
            (GridExecutor, "_init_args_hst", hooks.launch),
            (InterpreterBuilder, "create_masked_load", hooks.load),
            (InterpreterBuilder, "create_masked_store", hooks.store),
            (InterpreterBuilder, "create_atomic_rmw", hooks.update),
            (InterpreterBuilder, "create_atomic_cas", hooks.exchange),
        ):
            stack.enter_context(patch.object(owner, name, _hooked(getattr(owner, name), hook)))
        yield hooks.tally


def _hooked(original: Any, hook: Any) -> Any:
    """The method, which then tells `hook` its result and its arguments by name."""
    signature = inspect.signature(original)

    @wraps(original)  # with its signature: a hook around this one needs the names too
    def method(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        hook(result, signature.bind(*args, **kwargs).arguments)
        return result

    return method


@dataclass
class _Hooks:
    tally: Tally
    held: list[_Held] = field(default_factory=list)  # of the kernel that runs
    traffic: dict[str, Traffic] = field(default_factory=dict)

    def launch(self, result: Any, call: Any) -> None:
        """What the interpreter passes on: the arguments, copied to the host where they were not there."""
        executor = call["self"]
        args, kwargs = result
        named = inspect.getcallargs(executor.fn, *args, **kwargs)
        self.held = [held for name, value in named.items() for held in _held(name, value)]
        kernel = executor.fn.__name__
        self.tally.launches[kernel] += 1
        self.traffic = self.tally.kernels.setdefault(kernel, {})

    def load(self, result: Any, call: Any) -> None:
        self._count(call["ptrs"], call["mask"].data, reads=1)

    def store(self, result: Any, call: Any) -> None:
        self._count(call["ptrs"], call["mask"].data, writes=1)

    def update(self, result: Any, call: Any) -> None:
        self._count(call["ptr"], call["mask"].data, reads=1, writes=1)

    def exchange(self, result: Any, call: Any) -> None:
        self._count(call["ptr"], True, reads=1, writes=1)

    def _count(self, pointers: Any, mask: Any, reads: int = 0, writes: int = 0) -> None:
        live = pointers.data[np.broadcast_to(mask, pointers.data.shape).astype(bool)]
        size = max(8, pointers.get_element_ty().primitive_bitwidth) // 8
        for name, lanes in self._owners(live):
            found = self.traffic.setdefault(name, Traffic())
            found.reads += reads * lanes
            found.writes += writes * lanes
            found.bytes_read += reads * lanes * size
            found.bytes_written += writes * lanes * size

    def _owners(self, addresses: np.ndarray) -> Iterator[tuple[str, int]]:
        for held in self.held:
            if not len(addresses):
                return
            inside = held.holds(addresses)
            if inside.any():
                yield held.name, int(inside.sum())
                addresses = addresses[~inside]
        if len(addresses):
            yield ELSEWHERE, len(addresses)


@dataclass(frozen=True)
class _Held:
    """The addresses of an argument: those of its elements, so that views of one array can be told apart."""

    name: str
    first: int
    word: int  # bytes
    axes: tuple[tuple[int, int], ...]  # (stride, length), longest stride first

    def holds(self, addresses: np.ndarray) -> np.ndarray:
        stop = self.first + self.word * (1 + sum(stride * (length - 1) for stride, length in self.axes))
        inside = (addresses >= self.first) & (addresses < stop)
        if inside.any():
            offset = np.where(inside, addresses - np.uint64(self.first), 0).astype(np.int64) // self.word
            for stride, length in self.axes:
                offset -= np.minimum(offset // stride, length - 1) * stride
            inside &= offset == 0
        return inside


def _held(name: str, value: Any) -> Iterator[_Held]:
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", range(len(value)))
        for key, part in zip(fields, value, strict=True):
            yield from _held(f"{name}.{key}", part)
        return
    value = getattr(value, "base", None) if hasattr(value, "block_shape") else value  # a tensor descriptor's
    if hasattr(value, "data_ptr") and value.numel():
        axes = (axis for axis in zip(value.stride(), value.shape, strict=True) if axis[0] and axis[1] > 1)
        yield _Held(name, value.data_ptr(), value.element_size(), tuple(sorted(axes, reverse=True)))
