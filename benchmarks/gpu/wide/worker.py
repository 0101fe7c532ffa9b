"""The process that measures jobs."""

from __future__ import annotations

import multiprocessing
import traceback
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmarks.gpu.wide.jobs import Job
from benchmarks.gpu.wide.measures import measured


def work(jobs: Connection) -> None:
    """Answer jobs with rows until the pipe closes."""
    while True:
        try:
            job = jobs.recv()
        except EOFError:
            return
        try:
            row = measured(job)
        except Exception as error:  # of any kind: it becomes this job's row
            row = {"error": f"{type(error).__name__}: {error}"[:600], "at": traceback.format_exc()[-400:]}
        torch.cuda.empty_cache()
        jobs.send(row)


class Worker:
    """A process that measures. It is replaced if a job hangs, crashes or breaks the device's context."""

    def __init__(self) -> None:
        self.process: Any = None
        self.pipe: Any = None

    def __call__(self, job: Job, seconds: float) -> dict[str, Any]:
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.pipe, other = context.Pipe()
            self.process = context.Process(target=work, args=(other,), daemon=True)
            self.process.start()
            other.close()
            seconds += 15  # PyTorch's start
        try:
            self.pipe.send(job)
            if self.pipe.poll(seconds):
                row = self.pipe.recv()
                if "CUDA" in row.get("error", "") or "Triton Error" in row.get("error", ""):
                    self.stop()
                return row
            row = {"error": f"no answer in {seconds:.0f} s"}
        except (EOFError, OSError) as error:
            row = {"error": f"the process died: {error!r}"}
        self.stop()
        return row

    def stop(self) -> None:
        if self.process:
            self.process.kill()
            self.process.join()
        self.process = None
