"""Peers in separate processes, each with its own Python, timed in alternation with the contenders of this process."""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Any

import torch  # pyright: ignore[reportMissingImports]

from benchmarks.common.places import ROOT
from benchmarks.common.timing import THREADS
from benchmarks.cpu.paged.calls import Call

VLLM, ZENTORCH = "vLLM", "zentorch"
PYTHONS = {VLLM: ROOT / ".venv-vllm/bin/python", ZENTORCH: ROOT / ".venv-zentorch/bin/python"}
LONGEST_SECONDS = 240  # for an answer


class PeerFailed(Exception):
    """The process of a peer ended, or did not answer."""

    def __init__(self, peer: str, why: str) -> None:
        super().__init__(why)
        self.peer = peer


class Other:
    """A peer in a separate process, which starts with the first request and again after a failure."""

    def __init__(self, peer: str, python: Path) -> None:
        self.peer, self.python = peer, python
        self.process: subprocess.Popen[bytes] | None = None
        self.errors: IO[bytes] | None = None  # the standard error of the process
        self.versions: dict[str, str] = {}

    def load(self, call: Call) -> torch.Tensor | str:
        """Prepare the call for timing. Returns its result, or the reason why the peer does not run it."""
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/out.pt"
            try:
                answer = self._ask({"do": "load", "call": call.to_json(), "out": path})
            except PeerFailed as failure:
                return str(failure)
            return answer["refused"] if "refused" in answer else torch.load(path)

    def rate(self, work: float, seconds: float) -> float:
        """Raises PeerFailed if the process ends."""
        return self._ask({"do": "time", "work": work, "seconds": seconds})["rate"]

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
        process = self.process or self._started()
        try:
            _opened(process.stdin).write(json.dumps(question).encode() + b"\n")
        except BrokenPipeError:
            raise self._ended() from None
        return self._answer()

    def _started(self) -> subprocess.Popen[bytes]:
        """Start a process whose libraries use THREADS threads. Its first line of output names the versions."""
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.process = subprocess.Popen(
            [str(self.python), "-m", "benchmarks.cpu.paged.child", self.peer],
            cwd=ROOT,
            env=environment | {"OMP_NUM_THREADS": str(THREADS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            bufsize=0,  # so that `select` sees every unread line
        )
        self.versions = self._answer()
        return self.process

    def _answer(self) -> dict[str, Any]:
        assert self.process is not None
        pipe = _opened(self.process.stdout)
        ready, _, _ = select.select([pipe], [], [], LONGEST_SECONDS)
        if not ready:
            self.close()
            raise PeerFailed(self.peer, f"no answer within {LONGEST_SECONDS} s")
        line = pipe.readline()
        if not line:
            raise self._ended()
        return json.loads(line)

    def _ended(self) -> PeerFailed:
        """The failure of a process that ended, with the last line of its standard error."""
        errors = _opened(self.errors)
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines()
        self.close()
        return PeerFailed(self.peer, f"its process ended: {said[-1] if said else 'it said nothing'}")


def _opened(file: IO[bytes] | None) -> IO[bytes]:
    assert file is not None
    return file
