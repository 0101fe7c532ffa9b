"""The process that runs rows, and its answers."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from typing import Any

from benchmarks.gpu.hopper.measures import run


def work() -> None:
    """Run rows from standard input, one per line, and print one line per result."""
    import torch

    torch.zeros(1, device="cuda")
    print(json.dumps({"device": torch.cuda.get_device_name()}), flush=True)
    for line in sys.stdin:
        try:
            answer = run(json.loads(line))
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}"[:1500]}
            if "CUDA error" in str(error) or "illegal" in str(error):
                print(json.dumps(answer), flush=True)
                os._exit(1)
        print(json.dumps(answer), flush=True)


class Worker:
    """A process that runs rows; answers time out."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.hopper", "--work"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )  # fmt: skip
        self.lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.dead = False

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith("{"):
                self.lines.put(line)
        self.lines.put(None)

    def answer(self, seconds: float) -> dict[str, Any]:
        try:
            line = self.lines.get(timeout=max(0.1, seconds))
        except queue.Empty:
            self.stop()
            return {"failed": f"no answer within {seconds:.0f} s"}
        if line is None:
            self.stop()
            return {"failed": f"the process ended with {self.process.wait()}"}
        return json.loads(line)

    def ask(self, row: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps(row) + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # the process has ended; `answer` reports it
        return self.answer(seconds)

    def stop(self) -> None:
        self.dead = True
        self.process.kill()
