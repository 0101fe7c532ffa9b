"""One process of a process group as a machine: it carries out its own part of a network schedule."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from redblue.distributed.failures import Failures
from redblue.machine.network import Message, Name, Network, Shape, row_index

Work = Any  # a Work object of torch.distributed


class Process(Network):
    """This process, rank `rank` of the group.

    operations: as for NumericNetwork, on tensors (..., rows, columns). empty(name, rows): a tensor to receive into.
    Messages are sent and received while the process computes; reading a block waits for its arrival.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        operations: Mapping[str, Callable[..., Mapping[Any, Tensor]]],
        empty: Callable[[Any, int], Tensor],
        failures: Failures,
    ) -> None:
        super().__init__(dist.get_world_size(group))
        self.group, self.rank = group, dist.get_rank(group)
        self.operations, self.empty, self.failures = operations, empty, failures
        self.shapes: dict[Name, Shape] = {}
        self.tensors: dict[Name, Tensor] = {}
        self.arriving: dict[Name, tuple[Work, int]] = {}
        # The messages of the last two exchanges that sent any. Their tensors must live until they are sent.
        self.leaving: deque[list[tuple[Work, int, Tensor]]] = deque()
        self.tags: Counter[tuple[int, int]] = Counter()  # messages between two ranks so far

    @property
    def here(self) -> Iterable[int]:
        return (self.rank,)

    def involves(self, source: int, target: int) -> bool:
        return self.rank in (source, target)

    def put(self, name: Name, shape: Shape, tensor: Tensor) -> None:
        """Put a tensor into this process as an input."""
        self.shapes[name], self.tensors[name] = shape, tensor

    def exchange(self, messages: Sequence[Message]) -> None:
        """Start to send and receive messages.

        At most two exchanges are under way, because sent tensors take memory. No process waits forever for an older
        exchange: all processes start the exchanges in the same order, so the process that has started the fewest
        exchanges waits only for messages whose other ends are started.
        """
        if len(self.leaving) > 1:
            self._wait_until_sent(self.leaving.popleft())
        sends, receives, operations = [], [], []
        for source, target, name, rows in messages:
            if not len(rows) or not self.involves(source, target):
                continue
            tag = self.tags[source, target]
            self.tags[source, target] += 1
            if source == self.rank:
                tensor = self.read(name)[..., row_index(self.shapes[name], rows), :].contiguous()
                sends.append((target, tensor))
                operations.append(dist.P2POp(dist.isend, tensor, self._global(target), self.group, tag))
            else:
                tensor = self.empty(name, len(rows))
                width = tensor.numel() // len(rows)
                receives.append((source, name, Shape(rows, width), tensor))
                operations.append(dist.P2POp(dist.irecv, tensor, self._global(source), self.group, tag))
        if not operations:
            return
        with self.failures.named(*(target for target, _ in sends), *(source for source, *_ in receives)):
            works = iter(self._started(operations))
        leaving = []
        for operation in operations:
            work = next(works)
            if operation.op is dist.isend:
                target, tensor = sends.pop(0)
                leaving.append((work, target, tensor))
            else:
                source, name, shape, tensor = receives.pop(0)
                self.put(name, shape, tensor)
                self.arriving[name] = work, source
        if leaving:
            self.leaving.append(leaving)

    def _started(self, operations: list[dist.P2POp]) -> list[Work]:
        works = dist.batch_isend_irecv(operations)
        # Some backends return one work for the whole batch
        return works if len(works) == len(operations) else works * len(operations)

    def _global(self, rank: int) -> int:
        return dist.get_global_rank(self.group, rank)

    def read(self, name: Name) -> Tensor:
        """A block; waits until it has arrived."""
        if name in self.arriving:
            work, source = self.arriving.pop(name)
            self.failures.wait(work, source, self.tensors[name].device)
        return self.tensors[name]

    def apply(
        self, process: int, operation: str, reads: Sequence[Name], writes: Mapping[Any, Shape], /, **details: Any
    ) -> None:
        if process != self.rank:
            return
        tensors = {name: self.read(name) for name in reads}
        shapes = {name: self.shapes[name] for name in reads}
        results = self.operations[operation](shapes, tensors, writes, **details)
        for name, shape in writes.items():
            self.put(name, shape, results[name])

    def drop(self, process: int, names: Iterable[Name]) -> None:
        if process != self.rank:
            return
        for name in names:
            if name in self.arriving:  # not read, but it must arrive before its memory is freed
                self.read(name)
            self.shapes.pop(name, None)
            self.tensors.pop(name, None)

    def finish(self) -> None:
        """Wait until all messages of this process have been sent."""
        while self.leaving:
            self._wait_until_sent(self.leaving.popleft())

    def _wait_until_sent(self, messages: Sequence[tuple[Work, int, Tensor]]) -> None:
        for work, target, tensor in messages:
            self.failures.wait(work, target, tensor.device)
