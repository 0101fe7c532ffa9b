"""One process of `benchmarks.network.wire`: it runs each case, and rank 0 prints the results of all as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import torch  # pyright: ignore[reportMissingImports]
import torch.distributed as dist  # pyright: ignore[reportMissingImports]
from torch._C._distributed_c10d import FileStore  # pyright: ignore[reportMissingImports]

import redblue as rb
from benchmarks.common.timing import seconds_of
from benchmarks.network.links import INTERFACE
from redblue.distributed import operator
from redblue.distributed.failures import Failures
from redblue.distributed.groups import group_of
from redblue.distributed.operations import Operations
from redblue.distributed.process import Process
from redblue.kernels.options import Options
from redblue.machine.network import Message, Name, Shape
from redblue.problem import Problem
from redblue.schedules import network
from redblue.schedules.network.layout import Layout


class Alone(Process):
    """A process that computes the same blocks, with zeros instead of received data."""

    def exchange(self, messages: Sequence[Message]) -> None:
        for source, target, name, rows in messages:
            if len(rows) and target == self.rank and source != self.rank:
                tensor = self.empty(name, len(rows)).zero_()
                self.put(name, Shape(rows, tensor.numel() // len(rows)), tensor)


class Transferring(Process):
    """A process that sends and receives the same messages but computes nothing."""

    blocks: ClassVar[dict[Any, torch.Tensor]] = {}  # kept, because writing new memory takes long

    def apply(
        self, process: int, operation: str, reads: Sequence[Name], writes: Mapping[Any, Shape], /, **details: Any
    ) -> None:
        for name in reads if process == self.rank else ():
            self.read(name)
        for name, shape in writes.items() if process == self.rank else ():
            size = len(shape.rows), shape.width, name.array
            if size not in self.blocks:
                self.blocks[size] = self.empty(name, len(shape.rows)).zero_()
            self.put(name, shape, self.blocks[size])


KINDS = {"computing": Alone, "transfer": Transferring, "call": Process}


def layout_of(case: dict[str, Any], size: int) -> Layout:
    mask = rb.Mask.full() if case["mask"] == "full" else getattr(rb.Mask, case["mask"])(*case["mask_arguments"])
    sizes = {name: case[name] for name in ("d", "heads", "kv_heads", "dtype", "direction")}
    problem = Problem(n_q=case["n"], n_k=case["n"], mask=mask, **sizes)
    return operator.chosen((case["schedule"],), problem, size, case["placement"])


def inputs(layout: Layout, rank: int) -> dict[str, torch.Tensor]:
    """Random arrays of this process."""
    p, rows, generator = layout.problem, layout.queries.lengths[rank], torch.Generator().manual_seed(rank)
    heads = {"q": p.heads, "k": p.kv_heads, "v": p.kv_heads, "dout": p.heads}
    arrays = {
        name: torch.randn(1, h, rows, p.d, generator=generator).to(getattr(torch, p.dtype)) for name, h in heads.items()
    }
    sums = torch.zeros(1, p.heads, rows, 1)
    return arrays | {"lse": sums + 10.0, "delta": sums}


def seconds(layout: Layout, arrays: dict[str, torch.Tensor], kind: type[Process]) -> float:
    """The time from the moment when all processes have begun until the last one has its results."""
    dtype = arrays["q"].dtype
    operations = Operations(layout, Options(), dtype, torch.device("cpu"))
    group, operator.Process = group_of(None), kind
    dist.barrier()
    own = seconds_of(lambda: operator.run(layout, operations, group, Failures(group), arrays))
    longest = torch.tensor([own])
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return float(longest)


def wire_bytes() -> int:
    """Bytes that the interface has sent so far, with headers."""
    return int(Path(f"/sys/class/net/{INTERFACE}/statistics/tx_bytes").read_text())


def busy_seconds() -> float:
    """Seconds that all cores of the computer have worked so far, for all programs and for the kernel."""
    user, nice, system, _, _, interrupts, soft = map(int, Path("/proc/stat").read_text().split(maxsplit=8)[1:8])
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")


def measure(case: dict[str, Any], rounds: int) -> dict[str, Any]:
    """The bytes of all processes by rank, and the times of a case."""
    rank, size = dist.get_rank(), dist.get_world_size()
    layout = layout_of(case, size)
    arrays = inputs(layout, rank)
    seconds(layout, arrays, Process)  # opens connections and evaluates masks
    before = wire_bytes()
    seconds(layout, arrays, Process)
    time.sleep(0.05)  # until the last packets have left
    sent = wire_bytes() - before
    times, busy = {name: [] for name in KINDS}, dict.fromkeys(KINDS, 0.0)
    for _ in range(rounds):
        for name, kind in KINDS.items():
            begin = busy_seconds()
            times[name].append(seconds(layout, arrays, kind))
            busy[name] += (busy_seconds() - begin) / rounds
    wire: list[Any] = [None] * size
    dist.all_gather_object(wire, sent)
    counted = network.count(layout)
    return {
        **case,
        "grid": list(layout.grid),
        "words": counted.traffic.words,
        "most_bytes": int(max(counted.bytes_sent.max(), counted.bytes_received.max())),
        "bytes_counted": counted.bytes_sent.tolist(),
        "bytes_on_wire": wire,
        "seconds": times,
        "busy_core_seconds": busy,
    }


def main(rank: str, size: str, store: str, cases: str, rounds: str) -> None:
    torch.set_num_threads(1)
    meeting = FileStore(store, int(size))
    timeout = timedelta(seconds=300)
    dist.init_process_group("gloo", store=meeting, rank=int(rank), world_size=int(size), timeout=timeout)
    results = [measure(case, int(rounds)) for case in json.loads(cases)]
    if rank == "0":
        print(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
