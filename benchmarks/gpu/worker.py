"""A worker process that uses the GPU, so that its parent survives crashes and hangs.

An illegal access makes every later call of its process fail, and a hang never ends. Calls therefore run in a separate
process, which is replaced after such a failure. A failure costs one result.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.common.failures import Red
from benchmarks.common.kept import is_final
from redblue.base.errors import RedblueError

START_SECONDS = 90  # a new process imports PyTorch and Triton
MAX_CHARACTERS = 300  # characters of the reason of a failure


class Failed(RedblueError):
    """A call failed; the worker lives. passing: another run may succeed. wrong: redblue's result is wrong."""

    def __init__(self, reason: str, passing: bool = False, wrong: bool = False) -> None:
        super().__init__(reason)
        self.passing, self.wrong = passing, wrong


class Lost(Failed):
    """The worker crashed, hung, or lost the device. All of its state is lost."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, passing=True)


class Late(Lost):
    """No answer came within the time limit."""


class Here:
    """Makes the calls in this process: for dry runs."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.made = make()

    def ask(self, method: str, *arguments: Any, seconds: float) -> Any:
        status, outcome = _outcome(self.made, method, arguments)
        if status == "failed":
            raise Failed(*outcome)
        return outcome

    def end(self) -> None:
        pass


class Worker:
    """Makes the calls in another process, which starts with the first call and after each loss.

    make: returns the object whose methods are called there. It must be a module-level function, which can be pickled.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.process: Any = None
        self.pipe: Any = None

    def ask(self, method: str, *arguments: Any, seconds: float) -> Any:
        """The result of the method. Raises Failed, Lost, or Late if no answer comes within the time limit."""
        if self.process is None:
            self._start(min(START_SECONDS, seconds))
        try:
            self.pipe.send((method, arguments))
            status, outcome = self._answer(seconds)
        except (EOFError, OSError) as error:
            raise Lost(f"the process ended with status {self.end()}") from error
        if status in ("lost", "late"):
            self.end()
            raise (Late if status == "late" else Lost)(outcome)
        if status == "failed":
            raise Failed(*outcome)
        return outcome

    def end(self) -> int | None:
        """End the process, even if it hangs. Returns its exit status, which is negative after a signal."""
        process, self.process = self.process, None
        if process is None:
            return None
        self.pipe.close()
        process.join(1)  # a crashed process keeps its own status
        process.kill()
        process.join(10)
        return process.exitcode

    def _start(self, seconds: float) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, self.make), daemon=True)
        self.process.start()
        theirs.close()
        try:
            status, outcome = self._answer(seconds)
        except EOFError as error:
            raise Lost(f"the process ended before its first call, with status {self.end()}") from error
        if status == "late":
            self.end()
            raise Late(f"the start of the process {outcome}")

    def _answer(self, seconds: float) -> tuple[str, Any]:
        if not self.pipe.poll(max(0.0, seconds)):
            return "late", f"took longer than {seconds:.0f} s"
        return self.pipe.recv()


def serve(pipe: Connection, make: Callable[[], Any]) -> None:
    """Answer calls until the pipe closes or the device is lost. Runs in the worker process."""
    ignore_interrupts()
    made = make()
    pipe.send(("ready", None))
    with contextlib.suppress(EOFError):
        while True:
            method, arguments = pipe.recv()
            answer = _outcome(made, method, arguments)
            gone = _device_gone() if answer[0] == "failed" else ""
            pipe.send(("lost", f"{answer[1][0]} ({gone})") if gone else answer)
            if gone:
                os._exit(1)  # a normal exit would call the device again


def ignore_interrupts() -> None:
    """Ignore Ctrl-C; the parent process handles it and ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _outcome(made: Any, method: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            return "done", getattr(made, method)(*arguments)
        except Exception as failure:  # no failure of a contender may end the run
            wrong = isinstance(failure, Red)
            return "failed", (reason_of(failure, caught), not wrong and not is_final(failure), wrong)


def _device_gone() -> str:
    """The reason why the device no longer accepts calls of this process; "" if it does, or if there is no device."""
    import torch  # pyright: ignore[reportMissingImports]

    try:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except RuntimeError as error:
        return " ".join(str(error).split("\n")[0].split())
    return ""


def reason_of(failure: BaseException, caught: list[warnings.WarningMessage]) -> str:
    """The reason of a failure, including the warnings in which PyTorch explains it."""
    reasons = [
        str(warning.message).split(" (Triggered")[0] for warning in caught if issubclass(warning.category, UserWarning)
    ]
    text = "; ".join([f"{type(failure).__name__}: {failure}", *dict.fromkeys(reasons)])
    return " ".join(text.split())[:MAX_CHARACTERS]
