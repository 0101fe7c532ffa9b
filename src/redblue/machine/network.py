"""Machines of several processes: blocks of rows, which processes hold, send and compute with.

A program describes all processes: `exchange` sends blocks from process to process, `apply` computes blocks of one
process from others that it holds, `drop` forgets blocks. Subclasses decide what happens: `CountingNetwork` counts the
words that each process sends, receives and holds, `NumericNetwork` computes with arrays as well, and a real process
carries out its own part.

A block has a name, rows of some axis, and a number of words per row. Its rows are numbered, and a process may hold some
of them only. Reading rows that a process does not hold raises NotHeld.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from redblue.machine.errors import CapacityError, NotHeld, NotStored

Name = Hashable


class Message(NamedTuple):
    """Send these rows of a block from one process to another.

    name: the name of the block, the same in both processes. rows: ascending numbers.
    """

    source: int
    target: int
    name: Name
    rows: np.ndarray


class Shape(NamedTuple):
    """The rows of a block, ascending, and its words per row."""

    rows: np.ndarray
    width: int

    @property
    def words(self) -> int:
        return len(self.rows) * self.width


class Network(ABC):
    """`processes` processes, numbered from 0."""

    def __init__(self, processes: int) -> None:
        self.processes = processes

    @property
    def here(self) -> Iterable[int]:
        """The processes whose work this machine does; a program may skip the work of all other processes."""
        return range(self.processes)

    def involves(self, source: int, target: int) -> bool:
        """Whether this machine does the work of the source or the target; a program may skip all other messages."""
        return True

    @abstractmethod
    def exchange(self, messages: Sequence[Message]) -> None:
        """Send all messages together. Messages without rows are left out. The next call may read the rows received."""

    @abstractmethod
    def apply(
        self, process: int, operation: str, reads: Sequence[Name], writes: Mapping[Any, Shape], /, **details: Any
    ) -> None:
        """Compute blocks of a process from others that it holds. A new block replaces the block of the same name."""

    @abstractmethod
    def drop(self, process: int, names: Iterable[Name]) -> None:
        """Forget blocks of a process."""


class Traffic(NamedTuple):
    """Words that each process sent, received and held at most, and messages that it received: int64 (processes,)."""

    sent: np.ndarray
    received: np.ndarray
    messages: np.ndarray
    peak: np.ndarray

    @property
    def words(self) -> int:
        """Words over the network: each word that moves from one process to another counts once."""
        return int(self.received.sum())

    @property
    def most_words(self) -> int:
        """The most words that one process sends or receives, the larger of the two: links are full-duplex."""
        return int(max(self.sent.max(), self.received.max()))


class CountingNetwork(Network):
    """Counts words and messages.

    capacity: words that a process may hold; None: no limit. bytes_of(name): bytes per word of a block.
    """

    def __init__(
        self, processes: int, capacity: int | None = None, bytes_of: Callable[[Any], int] = lambda name: 1
    ) -> None:
        super().__init__(processes)
        self.capacity, self.bytes_of = capacity, bytes_of
        self.traffic = Traffic(*(np.zeros(processes, np.int64) for _ in Traffic._fields))
        self.bytes_sent, self.bytes_received = (np.zeros(processes, np.int64) for _ in range(2))
        self.blocks: list[dict[Name, Shape]] = [{} for _ in range(processes)]
        self.held = np.zeros(processes, np.int64)

    def hold(self, process: int, name: Name, shape: Shape) -> None:
        """Put a block into a process: an input, or the result of a message or a computation."""
        before = self.blocks[process].get(name)
        self.held[process] += shape.words - (before.words if before else 0)
        self.blocks[process][name] = shape
        self.traffic.peak[process] = max(self.traffic.peak[process], self.held[process])
        if self.capacity is not None and self.held[process] > self.capacity:
            raise CapacityError(
                f"process {process} would hold {self.held[process]:,} words with {name}, of at most {self.capacity:,}"
            )

    def shape(self, process: int, name: Name, rows: np.ndarray | None = None) -> Shape:
        """The block of a process. Raises NotHeld if the process does not hold it, or not all of `rows`."""
        block = self.blocks[process].get(name)
        if block is None:
            raise NotHeld(f"process {process} does not hold {name}")
        if rows is not None and rows is not block.rows and not np.isin(rows, block.rows, assume_unique=True).all():
            raise NotHeld(f"process {process} does not hold all {len(rows):,} rows of {name} that are read")
        return block

    def exchange(self, messages: Sequence[Message]) -> None:
        arriving = []
        for source, target, name, rows in messages:
            if not len(rows):
                continue
            shape = Shape(rows, self.shape(source, name, rows).width)
            size = shape.words * self.bytes_of(name)
            self.traffic.sent[source] += shape.words
            self.traffic.received[target] += shape.words
            self.traffic.messages[target] += 1
            self.bytes_sent[source] += size
            self.bytes_received[target] += size
            arriving.append((target, name, shape))
        for target, name, shape in arriving:
            self.hold(target, name, shape)

    def apply(
        self, process: int, operation: str, reads: Sequence[Name], writes: Mapping[Any, Shape], /, **details: Any
    ) -> None:
        for name in reads:
            self.shape(process, name)
        for name, shape in writes.items():
            self.hold(process, name, shape)

    def drop(self, process: int, names: Iterable[Name]) -> None:
        for name in names:
            shape = self.blocks[process].pop(name, None)
            if shape is not None:
                self.held[process] -= shape.words

    def check_outputs(self, outputs: Iterable[tuple[int, Name, int]]) -> None:
        """Raise NotStored unless, for each (process, name, rows), the process holds `rows` rows of the block `name`."""
        for process, name, rows in outputs:
            block = self.blocks[process].get(name)
            if block is None or len(block.rows) != rows:
                raise NotStored(f"process {process} must hold all {rows:,} rows of {name} at the end")


class NumericNetwork(CountingNetwork):
    """Counts, and computes with arrays (..., rows, columns).

    operations: by name, functions of (shapes read, arrays read, shapes to write, details) that return the arrays
    written, by name.
    """

    def __init__(self, processes: int, operations: Mapping[str, Callable[..., Mapping[Name, Any]]], **counting: Any):
        super().__init__(processes, **counting)
        self.operations = operations
        self.arrays: list[dict[Name, np.ndarray]] = [{} for _ in range(processes)]

    def put(self, process: int, name: Name, shape: Shape, array: np.ndarray) -> None:
        """Put an array into a process as an input."""
        self.hold(process, name, shape)
        self.arrays[process][name] = array

    def exchange(self, messages: Sequence[Message]) -> None:
        arriving = [
            (m.target, m.name, self.arrays[m.source][m.name][..., row_index(self.shape(m.source, m.name), m.rows), :])
            for m in messages
            if len(m.rows) and m.name in self.arrays[m.source]
        ]
        super().exchange(messages)
        for target, name, array in arriving:
            self.arrays[target][name] = array.copy()

    def apply(
        self, process: int, operation: str, reads: Sequence[Name], writes: Mapping[Any, Shape], /, **details: Any
    ) -> None:
        shapes = {name: self.shape(process, name) for name in reads}
        arrays = {name: self.arrays[process][name] for name in reads}
        super().apply(process, operation, reads, writes, **details)
        self.arrays[process].update(self.operations[operation](shapes, arrays, writes, **details))

    def drop(self, process: int, names: Iterable[Name]) -> None:
        names = list(names)
        super().drop(process, names)
        for name in names:
            self.arrays[process].pop(name, None)


def row_index(shape: Shape, rows: np.ndarray) -> Any:
    """The places of `rows` among the rows of a block: a slice where they are consecutive."""
    if rows is shape.rows or len(rows) == len(shape.rows):
        return slice(None)
    first = int(np.searchsorted(shape.rows, rows[0])) if len(rows) else 0
    last = int(np.searchsorted(shape.rows, rows[-1])) if len(rows) else -1
    if last - first + 1 == len(rows):
        return slice(first, last + 1)
    return np.searchsorted(shape.rows, rows)
