"""Count exactly the words that Triton kernels load and store, under Triton's interpreter (TRITON_INTERPRET=1).

    with counting() as tally:
        kernel[grid](q, k, ...)
    tally.tensors["q"].reads

This works for any kernel. Each unmasked lane of a load or store is one word; masked lanes are not counted. A word
belongs to the kernel's argument whose tensor contains its address ("q"; "q.pointer" for a field of a tuple), so data
and index lists are counted separately. Block pointers and tensor descriptors count the lanes inside their shape. An
atomic operation reads and writes each of its lanes. A GPU may move more than these words (whole sectors), or fewer
(hits in its caches).
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

ELSEWHERE = "elsewhere"  # the name for addresses in no argument, such as pointers made from integers


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
    """The counts: launches by the kernel's name, and traffic by the names of kernel and argument."""

    launches: Counter[str] = field(default_factory=Counter)
    kernels: dict[str, dict[str, Traffic]] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, Traffic]:
        """Traffic by the argument's name, over all kernels. An argument that was not accessed is missing."""
        total: dict[str, Traffic] = {}
        for arguments in self.kernels.values():
            for name, traffic in arguments.items():
                total[name] = total.get(name, Traffic()) + traffic
        return total

    def total(self, without: Collection[str] = ()) -> Traffic:
        """Traffic over all arguments except those in `without`, such as a mask's index lists."""
        return sum((traffic for name, traffic in self.tensors.items() if name not in without), Traffic())


@contextmanager
def counting() -> Iterator[Tally]:
    """A context that counts the loads and stores of every interpreted kernel. Contexts may nest.

    Raises RedblueError unless Triton interprets kernels; Triton decides this when a kernel is defined.
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
    """Wrap a method: after each call, `hook` is called with the result and the arguments by name."""
    signature = inspect.signature(original)

    @wraps(original)  # keeps the signature, which an outer hook needs
    def method(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        hook(result, signature.bind(*args, **kwargs).arguments)
        return result

    return method


@dataclass
class _Hooks:
    """The hooks of one `counting` context. arguments, traffic: the arguments and traffic of the running kernel."""

    tally: Tally
    arguments: list[_Argument] = field(default_factory=list)
    traffic: dict[str, Traffic] = field(default_factory=dict)

    def launch(self, result: Any, call: Any) -> None:
        """Record the arguments of a launch. result: the arguments that the interpreter passes on, on the host."""
        executor = call["self"]
        args, kwargs = result
        named = inspect.getcallargs(executor.fn, *args, **kwargs)
        self.arguments = [part for name, value in named.items() for part in _arguments(name, value)]
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
        """Add the unmasked lanes of one access to the traffic."""
        live = pointers.data[np.broadcast_to(mask, pointers.data.shape).astype(bool)]
        size = max(8, pointers.get_element_ty().primitive_bitwidth) // 8
        for name, lanes in self._owners(live):
            traffic = self.traffic.setdefault(name, Traffic())
            traffic.reads += reads * lanes
            traffic.writes += writes * lanes
            traffic.bytes_read += reads * lanes * size
            traffic.bytes_written += writes * lanes * size

    def _owners(self, addresses: np.ndarray) -> Iterator[tuple[str, int]]:
        """Yield (argument's name, number of the addresses that lie in it)."""
        for argument in self.arguments:
            if not len(addresses):
                return
            inside = argument.contains(addresses)
            if inside.any():
                yield argument.name, int(inside.sum())
                addresses = addresses[~inside]
        if len(addresses):
            yield ELSEWHERE, len(addresses)


@dataclass(frozen=True)
class _Argument:
    """The addresses of the elements of an argument. Strides are respected, so that views of one array are distinct."""

    name: str
    first: int
    word_bytes: int
    axes: tuple[tuple[int, int], ...]  # (stride, length), longest stride first

    def contains(self, addresses: np.ndarray) -> np.ndarray:
        """Boolean, for each address: whether an element of the argument lies there."""
        stop = self.first + self.word_bytes * (1 + sum(stride * (length - 1) for stride, length in self.axes))
        inside = (addresses >= self.first) & (addresses < stop)
        if inside.any():
            offset = np.where(inside, addresses - np.uint64(self.first), 0).astype(np.int64) // self.word_bytes
            for stride, length in self.axes:
                offset -= np.minimum(offset // stride, length - 1) * stride
            inside &= offset == 0
        return inside


def _arguments(name: str, value: Any) -> Iterator[_Argument]:
    """Yield the tensors of an argument, which may be a tuple or a tensor descriptor, under their names."""
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", range(len(value)))
        for key, part in zip(fields, value, strict=True):
            yield from _arguments(f"{name}.{key}", part)
        return
    value = getattr(value, "base", None) if hasattr(value, "block_shape") else value  # the tensor of a descriptor
    if hasattr(value, "data_ptr") and value.numel():
        axes = (axis for axis in zip(value.stride(), value.shape, strict=True) if axis[0] and axis[1] > 1)
        yield _Argument(name, value.data_ptr(), value.element_size(), tuple(sorted(axes, reverse=True)))
