"""Run a function in several processes of one computer that form a torch.distributed group over gloo."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from benchmarks.network.links import enter


def run(function: Callable[..., Any], size: int, *arguments: Any, namespaces: list[str] | None = None) -> list[Any]:
    """The results of function(*arguments) in `size` processes of one thread each, by rank.

    namespaces: the network namespace of each process; None: the caller's namespace.
    """
    names = namespaces or [None] * size
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(size, multiprocessing.get_context("spawn")) as pool,
    ):
        store = f"{folder}/store"
        calls = [pool.submit(_in_group, rank, size, store, names[rank], function, arguments) for rank in range(size)]
        return [call.result() for call in calls]


def _in_group(
    rank: int, size: int, store: str, name: str | None, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    import torch  # pyright: ignore[reportMissingImports]
    import torch.distributed as dist  # pyright: ignore[reportMissingImports]
    from torch._C._distributed_c10d import FileStore  # pyright: ignore[reportMissingImports]

    if name:
        enter(name)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=FileStore(store, size), rank=rank, world_size=size)
    try:
        return function(*arguments)
    finally:
        dist.destroy_process_group()
