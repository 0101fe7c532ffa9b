"""Processes of torch.distributed over gloo that live as long as a test session and run functions of test modules."""

from __future__ import annotations

import multiprocessing
import pickle
import socket
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from time import monotonic
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")  # which imports once what all processes need
CONTEXT.set_forkserver_preload(["support.distributed_calls"])


def serve(rank: int, size: int, store: str, connection: Any, timeout_seconds: float) -> None:
    """The life of one process: run what comes, until None comes. store: a file's path, or a TCP port of rank 0."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if store.isdigit():
        meeting: Any = dist.TCPStore("127.0.0.1", int(store), size, rank == 0)
    else:
        meeting = dist.FileStore(store, size)
    dist.init_process_group(
        "gloo", store=meeting, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_seconds)
    )
    while (task := connection.recv()) is not None:
        function, arguments = pickle.loads(task)
        try:
            result = True, function(*arguments)
        except (Exception, KeyboardInterrupt) as error:
            result = False, (type(error).__name__, str(error), traceback.format_exc())
        connection.send(result)
    dist.destroy_process_group()


class Processes:
    """`size` processes. A failure in one of them is returned by `outcomes`, and raised by `run`.

    store: "file", or "tcp" for a store in the process of rank 0.
    """

    def __init__(self, size: int, timeout_seconds: float = 60.0, store: str = "file") -> None:
        self.size = size
        self.folder = tempfile.TemporaryDirectory()
        meeting = str(Path(self.folder.name) / "store") if store == "file" else str(_free_port())
        pipes = [CONTEXT.Pipe() for _ in range(size)]
        self.connections = [ours for ours, _ in pipes]
        self.processes = [
            CONTEXT.Process(target=serve, args=(rank, size, meeting, theirs, timeout_seconds), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self.processes:
            process.start()
        for _, theirs in pipes:
            theirs.close()  # so that the end of a process is seen

    def start(self, function: Any, *arguments: Any) -> None:
        """Let all processes run function(*arguments)."""
        task = pickle.dumps((function, arguments))
        for connection in self.connections:
            with suppress(OSError):  # its process died
                connection.send(task)

    def finish(self, wait_seconds: float = 120.0, connections: Sequence[Any] | None = None) -> list[Any]:
        """(whether it succeeded, the result or (error type, message, traceback)) of each process; None: it died.

        connections: of the processes that are waited for; None: of all.
        """
        running = list(self.connections if connections is None else connections)
        results: dict[Any, Any] = dict.fromkeys(running, (False, ("Hung", "", "")))
        end = monotonic() + wait_seconds
        while running and (ready := wait(running, end - monotonic())):
            for connection in ready:
                running.remove(connection)
                try:
                    results[connection] = connection.recv()  # pyright: ignore
                except (EOFError, OSError):
                    results[connection] = None
        return list(results.values())

    def outcomes(self, function: Any, *arguments: Any, wait_seconds: float = 120.0) -> list[Any]:
        """What `finish` returns for function(*arguments)."""
        self.start(function, *arguments)
        return self.finish(wait_seconds)

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
                process.join()
            process.close()
        for connection in self.connections:
            connection.close()
        self.folder.cleanup()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]
