"""Run a function in several processes of one computer, which are a group of torch.distributed over gloo."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def run(function: Callable[..., Any], size: int, *arguments: Any) -> list[Any]:
    """The results of function(*arguments) in `size` processes of one thread each, by rank."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(size, multiprocessing.get_context("spawn")) as pool,
    ):
        calls = [pool.submit(_in_group, rank, size, f"{folder}/store", function, arguments) for rank in range(size)]
        return [call.result() for call in calls]


def _in_group(rank: int, size: int, store: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    import torch  # pyright: ignore[reportMissingImports]
    import torch.distributed as dist  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)  # pyright: ignore
    try:
        return function(*arguments)
    finally:
        dist.destroy_process_group()
