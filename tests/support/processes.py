"""Processes of torch.distributed over gloo that live as long as a test session and run functions of test modules."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any


def serve(rank: int, size: int, folder: str, timeout_seconds: float) -> None:
    """The life of one process: run what comes, until None comes."""
    import torch
    import torch.distributed as dist

    connection = Client(str(Path(folder) / f"rank-{rank}"))
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
        listeners = [Listener(str(Path(self.folder.name) / f"rank-{rank}")) for rank in range(size)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "support.processes", *map(str, (rank, size, self.folder.name, timeout_seconds))],
                env=environment,
            )
            for rank in range(size)
        ]
        self.connections = [listener.accept() for listener in listeners]
        for listener in listeners:
            listener.close()

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
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for connection in self.connections:
            connection.close()
        self.folder.cleanup()


def _outcome(connection: Any, wait_seconds: float) -> Any:
    try:
        return connection.recv() if connection.poll(wait_seconds) else (False, ("Hung", "", ""))
    except EOFError:
        return None


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4]))
