"""Threads that wait instead of the main thread, so that Ctrl-C or a stalled store can end a wait.

PyTorch's own waits cannot be interrupted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any


class Background:
    """One daemon thread that runs functions, one after another. It starts with the first function."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Any] | None = None

    def start(self, function: Callable[[], Any]) -> Future[Any]:
        """Run a function in the thread; return a future of its result or error."""
        if self._tasks is None:
            self._tasks = SimpleQueue()
            threading.Thread(target=_run_all, args=(self._tasks,), name="redblue", daemon=True).start()
        future: Future[Any] = Future()
        self._tasks.put((function, future))
        return future

    def abandon(self) -> None:
        """Abandon the thread, whose function may never return; the next function gets a new thread."""
        if self._tasks is not None:
            self._tasks.put(None)
        self._tasks = None

    __del__ = abandon


def _run_all(tasks: SimpleQueue[Any]) -> None:
    while (task := tasks.get()) is not None:
        function, future = task
        try:
            result = function()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        del task, function, future  # they hold tensors
