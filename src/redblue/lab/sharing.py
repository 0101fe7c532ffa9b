"""A model of threads that share the tasks of one call: the time that each thread works and waits for other threads.

The threads take tasks in the order of a list, like the threads of the compiled core. A task computes blocks. A block
may update an array that other tasks update, too. The updates of an array have a fixed order, so that sums do not depend
on the threads; a task waits until the update before its own is made. Time is in any unit, for instance the time of one
pair of a query and a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np


class Block(NamedTuple):
    """A block of a task: `work` units of time, a wait for its turn to update array `updated`, then `update` units."""

    work: float
    updated: int = -1  # -1: it updates no shared array
    earlier_updates: int = 0  # number of earlier updates of that array
    update: float = 0.0


class Shared(NamedTuple):
    """A call distributed to threads.

    seconds: the time until the last thread ends, in the unit of the blocks. working, waiting (threads,): the time that
    each thread computes, and that it waits for updates of other threads. In the rest of the time it has no task left.
    thread (tasks,): the thread that took each task.
    """

    seconds: float
    working: np.ndarray
    waiting: np.ndarray
    thread: np.ndarray

    @property
    def used(self) -> float:
        """The share of all threads' time in which they compute."""
        return float(self.working.sum()) / (self.seconds * len(self.working)) if self.seconds else 1.0

    @property
    def waited(self) -> float:
        """The share of all threads' time in which they wait for updates."""
        return float(self.waiting.sum()) / (self.seconds * len(self.working)) if self.seconds else 0.0


def share_out(tasks: Sequence[Sequence[Block]], threads: int) -> Shared:
    """Simulate `threads` threads that take these tasks in order.

    Raises ValueError if a task waits for an update that only a later task of the list makes: this could deadlock.
    """
    return _Simulation(tasks, threads).run()


class _Simulation:
    def __init__(self, tasks: Sequence[Sequence[Block]], threads: int):
        self.tasks, self.next = tasks, 0
        self.working, self.waiting = np.zeros(threads), np.zeros(threads)
        self.thread = np.full(len(tasks), -1)
        self.task = [-1] * threads  # the current task of each thread
        self.block = [0] * threads
        self.done: dict[int, tuple[int, float]] = {}  # updates of each array so far, and the end of the last
        self.waits: dict[tuple[int, int], tuple[int, float]] = {}  # by array and update: who waits, since when
        self.events: list[tuple[float, int, bool]] = [(0.0, thread, False) for thread in range(threads)]

    def run(self) -> Shared:
        end = 0.0
        while self.events:
            now, thread, at_update = heappop(self.events)
            if at_update:
                self._update(now, thread)
            elif self._take(thread):
                self._compute(now, thread)
            else:
                end = max(end, now)
        if self.waits:
            raise ValueError(f"updates {sorted(self.waits)} wait for ever: no earlier task makes the preceding updates")
        return Shared(end, self.working, self.waiting, self.thread)

    def _take(self, thread: int) -> bool:
        """Move a thread to its next block, perhaps of the next task. Returns whether there is one."""
        while self.task[thread] < 0 or self.block[thread] == len(self.tasks[self.task[thread]]):
            if self.next == len(self.tasks):
                return False
            self.task[thread], self.block[thread] = self.next, 0
            self.thread[self.next] = thread
            self.next += 1
        return True

    def _compute(self, now: float, thread: int) -> None:
        block = self.tasks[self.task[thread]][self.block[thread]]
        self.working[thread] += block.work
        if block.updated < 0:
            self.block[thread] += 1
        heappush(self.events, (now + block.work, thread, block.updated >= 0))

    def _update(self, now: float, thread: int) -> None:
        block = self.tasks[self.task[thread]][self.block[thread]]
        made, free = self.done.get(block.updated, (0, 0.0))
        if made != block.earlier_updates:
            self.waits[block.updated, block.earlier_updates] = thread, now
            return
        start = max(now, free)
        self.waiting[thread] += start - now
        end = start + block.update
        self.working[thread] += block.update
        self.block[thread] += 1
        heappush(self.events, (end, thread, False))
        self.done[block.updated] = block.earlier_updates + 1, end
        waiter = self.waits.pop((block.updated, block.earlier_updates + 1), None)
        if waiter:
            other, since = waiter
            self.waiting[other] += end - since
            heappush(self.events, (end, other, True))
