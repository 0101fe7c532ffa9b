"""Replayed launches under Triton's interpreter, which returns no compiled kernels and takes no addresses."""

import copy
import ctypes
from collections.abc import Callable
from typing import Any

import torch

from redblue.kernels.gpu.launch import Run


def launched(run: Run) -> Any:
    """Run the kernel. Returns a stand-in for the compiled kernel, by which a replay runs it again. Replaces `Run()`."""
    if not all(run.grid):
        return None
    run.kernel[run.grid](*run.positional, **run.settings)
    return _Compiled(run)


class _Compiled:
    def __init__(self, run: Run) -> None:
        self.kernel, self.settings = run.kernel, run.settings
        self.makers = [_tensors_of(x) for x in run.positional]

    def launch_metadata(self) -> None:
        raise AssertionError

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any) -> None:
            made = [make(x) for make, x in zip(self.makers, arguments, strict=True)]
            self.kernel[grid](*made, **self.settings)

        return launch


def _tensors_of(x: Any) -> Callable[[Any], Any]:
    """A function from an argument with addresses to the argument with tensors. x: the argument of the first launch."""
    if isinstance(x, torch.Tensor):
        dtype, numbers = x.dtype, x.untyped_storage().nbytes() // x.itemsize - int(x.storage_offset())
        return lambda y: y if isinstance(y, torch.Tensor) else _tensor_at(y, dtype, numbers)
    if isinstance(x, tuple):
        kind: Any = type(x)
        makers = [_tensors_of(y) for y in x]

        def make(y: Any) -> Any:
            fields = [maker(z) for maker, z in zip(makers, y, strict=True)]
            return kind(*fields) if hasattr(kind, "_fields") else tuple(fields)

        return make
    if isinstance(getattr(x, "base", None), torch.Tensor):  # a TMA descriptor
        base, shape, strides = _tensors_of(x.base), x.base.shape, x.base.stride()

        def described(y: Any) -> Any:
            other = copy.copy(y)
            other.base = base(y.base.data_ptr()).as_strided(shape, strides)
            return other

        return described
    return lambda y: y


def _tensor_at(address: int, kind: torch.dtype, numbers: int) -> torch.Tensor:
    if not address or numbers <= 0:
        return torch.empty(0, dtype=kind)
    memory = (ctypes.c_byte * (numbers * kind.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=kind)
