"""Copy the kernels' own arrays to a GPU, and keep them alive while a kernel may still read them."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from redblue.base.errors import RedblueError

_of_graphs: dict[int, Tensor] = {}  # by address: tensors that captured graphs read whenever they are replayed


def copied(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy the array to the device. Raises RedblueError while a CUDA graph is captured, since that forbids copies."""
    if capturing(device):
        raise RedblueError(
            "the first call with a mask copies its lists to the device, which a CUDA graph cannot capture: call once "
            "with this mask and these sizes before, as torch.cuda.graph's documentation says to warm up"
        )
    on_cpu = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return on_cpu.to(device)
    # Copy in another thread: while torch.compile warms up for a graph, this thread's allocations belong to the graph
    with ThreadPoolExecutor(1) as own_thread:
        return own_thread.submit(on_cpu.to, device).result()


def in_use(tensors: Iterable[Tensor | None]) -> None:
    """Keep the tensors alive until the current stream, or the graph that it captures, has read them."""
    for x in tensors:
        if x is None or not x.is_cuda:
            continue
        if capturing(x.device):
            _of_graphs[x.data_ptr()] = x
        else:
            x.record_stream(torch.cuda.current_stream(x.device))


def capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
