"""Processes of torch.distributed over gloo that live as long as a test session and run functions of test modules."""

from __future__ import annotations

import multiprocessing
import pickle
import tempfile
import traceback
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any


def serve(rank: int, size: int, folder: str, connection: Any, timeout_seconds: float) -> None:
    """The life of one process: run what comes, until None comes."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_seconds))
    while (task := connection.recv()) is not None:
        function, arguments = pickle.loads(task)
        try:
            result = True, function(*arguments)
        except Exception as error:
            result = False, (type(error).__name__, str(error), traceback.format_exc())
        connection.send(result)
    dist.destroy_process_group()


class Processes:
    """`size` processes. A failure in one of them is returned by `outcomes`, and raised by `run`."""

    def __init__(self, size: int, timeout_seconds: float = 60.0) -> None:
        self.size = size
        self.folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(size)]
        self.connections = [ours for ours, _ in pipes]
        self.processes = [
            context.Process(target=serve, args=(rank, size, self.folder.name, theirs, timeout_seconds), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self.processes:
            process.start()

    def outcomes(self, function: Any, *arguments: Any, wait_seconds: float = 120.0) -> list[Any]:
        """(whether it succeeded, the result or (error type, message, traceback)) of each process; None: it died."""
        task = pickle.dumps((function, arguments))
        for connection in self.connections:
            connection.send(task)
        return [_outcome(connection, wait_seconds) for connection in self.connections]

    def run(self, function: Any, *arguments: Any) -> list[Any]:
        """The results of function(*arguments) in all processes, by rank."""
        outcomes = self.outcomes(function, *arguments)
        for rank, outcome in enumerate(outcomes):
            if outcome is None or not outcome[0]:
                raise AssertionError(f"rank {rank}: {outcome and outcome[1][2]}")
        return [result for _, result in outcomes]

    def close(self) -> None:
        for connection in self.connections:
            with suppress(OSError):  # its process died
                connection.send(None)
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
        self.folder.cleanup()


def _outcome(connection: Any, wait_seconds: float) -> Any:
    try:
        return connection.recv() if connection.poll(wait_seconds) else (False, ("Hung", "", ""))
    except EOFError:
        return None
