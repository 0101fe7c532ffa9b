"""Processes of torch.distributed over gloo that run functions of test modules.

One server per test session imports all needed modules and forks the processes.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from multiprocessing.connection import Client, Listener, wait
from pathlib import Path
from typing import Any


def serve(rank: int, size: int, folder: str, store: str, timeout_seconds: float) -> None:
    """The main loop of a process: run functions until None arrives. store: a file's path, or a TCP port of rank 0."""
    import torch
    import torch.distributed as dist

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
    connection = Client(str(Path(folder) / f"rank-{rank}"))
    connection.send(os.getpid())
    torch.set_num_threads(1)
    if store.isdigit():
        meeting: Any = dist.TCPStore("127.0.0.1", int(store), size, rank == 0)  # pyright: ignore
    else:
        meeting = dist.FileStore(store, size)  # pyright: ignore
    timeout = timedelta(seconds=timeout_seconds)
    dist.init_process_group("gloo", store=meeting, rank=rank, world_size=size, timeout=timeout)
    while (task := connection.recv()) is not None:
        function, arguments = pickle.loads(task)
        try:
            result = True, function(*arguments)
        except (Exception, KeyboardInterrupt) as error:
            result = False, (type(error).__name__, str(error), traceback.format_exc())
        connection.send(result)
    dist.destroy_process_group()


def fork_all() -> None:
    """The main loop of the server: fork one process per input line, which holds the arguments of `serve`."""
    from support import distributed_calls  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that no child becomes a zombie
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            serve(*json.loads(line))
            return


@lru_cache(1)
def _server() -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "support.processes"]
    server = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, text=True, bufsize=1)
    atexit.register(server.communicate)
    return server


class Processes:
    """`size` processes. A failure in one of them is returned by `outcomes`, and raised by `run`.

    store: "file", or "tcp" for a store in the process of rank 0.
    """

    def __init__(self, size: int, timeout_seconds: float = 60.0, store: str = "file") -> None:
        self.size = size
        self.folder = tempfile.TemporaryDirectory()
        meeting = str(Path(self.folder.name) / "store") if store == "file" else str(_free_port())
        listeners = [Listener(str(Path(self.folder.name) / f"rank-{rank}")) for rank in range(size)]
        requests = _server().stdin
        assert requests is not None
        for rank in range(size):
            print(json.dumps([rank, size, self.folder.name, meeting, timeout_seconds]), file=requests)
        self.connections = [listener.accept() for listener in listeners]
        self.pids = [connection.recv() for connection in self.connections]
        for listener in listeners:
            listener.close()

    def start(self, function: Any, *arguments: Any) -> None:
        """Let all processes run function(*arguments)."""
        task = pickle.dumps((function, arguments))
        for connection in self.connections:
            with suppress(OSError):  # its process died
                connection.send(task)

    def finish(self, wait_seconds: float = 120.0, connections: Sequence[Any] | None = None) -> list[Any]:
        """(whether it succeeded, the result or (error type, message, traceback)) of each process; None: it died.

        connections: of the processes to wait for; None: all.
        """
        running = list(self.connections if connections is None else connections)
        results: dict[Any, Any] = dict.fromkeys(running, (False, ("Hung", "", "")))
        end = time.monotonic() + wait_seconds
        while running and (ready := wait(running, end - time.monotonic())):
            for connection in ready:
                running.remove(connection)
                try:
                    results[connection] = connection.recv()  # pyright: ignore
                except (EOFError, OSError):
                    results[connection] = None
        return list(results.values())

    def outcomes(self, function: Any, *arguments: Any, wait_seconds: float = 120.0) -> list[Any]:
        """Run function(*arguments), and return the result of `finish`."""
        self.start(function, *arguments)
        return self.finish(wait_seconds)

    def run(self, function: Any, *arguments: Any) -> list[Any]:
        """The results of function(*arguments) in all processes, by rank."""
        outcomes = self.outcomes(function, *arguments)
        for rank, outcome in enumerate(outcomes):
            if outcome is None or not outcome[0]:
                raise AssertionError(f"rank {rank}: {outcome and outcome[1][2]}")
        return [result for _, result in outcomes]

    def living(self) -> list[int]:
        """The processes that exist, zombies included."""
        return [pid for pid in self.pids if Path(f"/proc/{pid}").exists()]

    def close(self) -> None:
        """End all processes, also stopped ones. Raises AssertionError if some do not end."""
        for connection in self.connections:
            with suppress(OSError):  # its process died
                connection.send(None)
        self._signal(signal.SIGCONT)
        if self._stay(10):
            self._signal(signal.SIGKILL)
            assert not self._stay(10), f"processes {self.living()} do not end"
        for connection in self.connections:
            connection.close()
        self.folder.cleanup()

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.living():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _stay(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while self.living() and time.monotonic() < end:
            time.sleep(0.02)
        return bool(self.living())


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


if __name__ == "__main__":
    fork_all()
