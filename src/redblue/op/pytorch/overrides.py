"""Kernels of redblue in PyTorch's dispatcher: they are in force while at least one request exists."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from redblue.base.errors import RedblueError
from redblue.op.pytorch.usage import Usage


class Override:
    """A request for redblue's kernels, undone by `disable`. PyTorch's own behaviour returns when no request is left.

    used: the record of all threads' calls while the request was in force (see Usage).
    """

    def __init__(self, kernels: Kernels) -> None:
        self.used = Usage()
        self._kernels = kernels

    def disable(self) -> None:
        """Undo this request. Further calls do nothing."""
        self._kernels.release(self)


class Kernels:
    """Kernels for some of PyTorch's ops, which are registered while at least one request is in force.

    install: registers the kernels, and adds the undo function of each step to the given stack.
    """

    def __init__(self, install: Callable[[ExitStack], None]) -> None:
        self._install = install
        self._lock = threading.RLock()
        self._active: list[Override] = []
        self._undo = ExitStack()  # removes the kernels

    def request(self) -> Override:
        """Register the kernels, if no request has done so. Raises RedblueError if PyTorch is not installed."""
        override = Override(self)
        with self._lock:
            if not self._active:
                self._undo.push(self._installed())
            self._active.append(override)
        return override

    def release(self, override: Override) -> None:
        """Undo a request; without further requests, remove the kernels."""
        with self._lock:
            if override in self._active:
                self._active.remove(override)
                if not self._active:
                    self._undo.close()

    @contextmanager
    def requested(self) -> Iterator[Usage]:
        """A context in which a request is in force. Yields the record of its calls."""
        override = self.request()
        try:
            yield override.used
        finally:
            override.disable()

    def count(self, reason: str | None) -> None:
        """Add a call to the record of every active request. reason: why redblue did not compute the call, or None."""
        with self._lock:
            for override in self._active:
                override.used.add(reason)

    def _installed(self) -> ExitStack:
        """Install the kernels, and return the stack that removes them. If a step fails, earlier steps are undone."""
        try:
            import torch  # noqa: F401
        except ImportError as error:
            raise RedblueError("this needs PyTorch: pip install 'redblue[torch]'") from error

        with ExitStack() as undo:
            self._install(undo)
            return undo.pop_all()


def register(undo: ExitStack, functions: Mapping[str, Callable[..., Any]], keys: tuple[str, ...]) -> None:
    """Register functions as the kernels of aten's ops of these names, for these keys of PyTorch's dispatcher."""
    import torch

    undo.callback(_forget_dispatch, *functions)  # runs last
    ours = torch.library.Library("aten", "IMPL")
    undo.callback(ours._destroy)
    for name, function in functions.items():
        for key in keys:
            ours.impl(name, function, key)
    _forget_dispatch(*functions)


def _forget_dispatch(*names: str) -> None:
    """Clear the targets of calls that torch.compile's tracing has cached."""
    import torch

    for name in names:
        getattr(getattr(torch.ops.aten, name).default, "_dispatch_cache", {}).clear()
