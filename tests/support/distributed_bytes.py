"""Counts the bytes that a process of a network schedule passes to torch.distributed, for tests."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist

import redblue as rb
from redblue.distributed import operator
from redblue.distributed.failures import Failures
from redblue.distributed.groups import group_of
from redblue.distributed.operations import Operations
from redblue.kernels.options import Options
from redblue.problem import Problem
from redblue.schedules import network

N, HEADS, D, D_V = 41, 24, 4, 3
MASKS = {
    "full": rb.Mask.full(),
    "causal": rb.Mask.causal(),
    "window": rb.Mask.sliding_window(5),
    "documents": rb.Mask.documents([5, 20, 16]),
}


@contextmanager
def counted():
    """Count the bytes and words that are passed to torch.distributed: {"isend" | "irecv": [bytes, words]}."""
    right, messages = dist.batch_isend_irecv, {"isend": [0, 0], "irecv": [0, 0]}

    def counting(operations):
        for operation in operations:
            count = messages[operation.op.__name__]
            count[0] += operation.tensor.numel() * operation.tensor.element_size()
            count[1] += operation.tensor.numel()
        return right(operations)

    dist.batch_isend_irecv = counting  # pyright: ignore
    try:
        yield messages
    finally:
        dist.batch_isend_irecv = right


def check(schedule, mask_name, kv_heads, placement):
    """On each grid of a schedule, in both passes, this process sends and receives the counted bytes."""
    size, rank = dist.get_world_size(), dist.get_rank()
    problem = Problem(
        n_q=N, n_k=N, d=D, d_v=D_V, heads=HEADS, kv_heads=kv_heads, dtype="bfloat16", mask=MASKS[mask_name]
    )
    layouts = network.layouts(schedule, problem, size, placement)
    for layout in layouts:
        rows = layout.queries.lengths[rank]
        shapes = {"q": (HEADS, D), "k": (kv_heads, D), "v": (kv_heads, D_V), "dout": (HEADS, D_V)}
        arrays = {name: torch.randn(1, heads, rows, d).bfloat16() for name, (heads, d) in shapes.items()}
        _, arrays["lse"] = _compare(layout, arrays, rank)
        arrays["delta"] = torch.zeros_like(arrays["lse"])
        _compare(operator.backward_of(layout), arrays, rank)
    return [layout.grid for layout in layouts]


def _compare(layout, arrays, rank):
    operations = Operations(layout, Options(), torch.bfloat16, torch.device("cpu"))
    group = group_of(None)
    with counted() as messages:
        results = operator.run(layout, operations, group, Failures(group), arrays)
    expected = network.count(layout)
    sent, received = expected.bytes_sent[rank], expected.bytes_received[rank]
    wanted = {"isend": [sent, expected.traffic.sent[rank]], "irecv": [received, expected.traffic.received[rank]]}
    assert {name: list(map(int, each)) for name, each in wanted.items()} == messages, (layout.grid, layout.problem)
    if layout.mask.is_full:
        form = network.traffic(layout)
        np.testing.assert_array_equal([form.sent[rank], form.received[rank]], [messages[x][1] for x in wanted])
    return results
