"""Failures of other processes: errors that name the rank that died or stalled.

If a wait takes long, the awaited process has either failed or is itself waiting for another one. So each process that
waits for long writes a note with the awaited rank to a shared store. It follows the notes of others to a rank without a
note: this rank failed. The process that hosts the store may fail, too. So notes are read only as long as the store
answers, and no process depends on an answer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed import distributed_c10d

from redblue.base.errors import RedblueError
from redblue.distributed.background import Background
from redblue.distributed.groups import waits_on_host

TICK_SECONDS = 0.5  # between readings of the notes, during a wait
GRACE_SECONDS = 1.0  # time limit for an answer of the store


class _Local(threading.local):
    """The thread that waits on behalf of a user's thread."""

    def __init__(self) -> None:
        self.waits = Background()


_local, _notes = _Local(), Background()


class ProcessFailed(RuntimeError):
    """Another process died, or did not answer within the group's timeout. rank: its rank in the group."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


class Failures:
    """Waits for messages of a group's processes."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.prefix = f"redblue/{getattr(group, 'group_name', '')}"
        self.group = group
        self.host = _rank_of_store(group)
        self.known: dict[int, int] = {}  # the rank that each rank waited for when this process last read the notes

    def wait(self, work: Any, rank: int, device: torch.device) -> None:
        """Wait for a message on a device from or to a rank. Raises ProcessFailed, which names the rank that failed."""
        with self.named(rank):
            if not waits_on_host(self.group, device):
                work.wait()
                return
            waiting = _local.waits.start(work.wait)
            try:
                self._watch(waiting, rank)
            finally:
                if not waiting.done():  # the wait was interrupted
                    _local.waits.abandon()

    def _watch(self, waiting: futures.Future[Any], rank: int) -> None:
        noted: futures.Future[Any] | None = None
        while not futures.wait([waiting], TICK_SECONDS).done:
            if noted is None or noted.done():
                noted = _notes.start(lambda: self._look(rank))
        waiting.result()
        if noted is not None:
            _notes.start(lambda: _store().delete_key(self._key(self.rank)))

    @contextmanager
    def named(self, *ranks: int) -> Iterator[None]:
        """Convert an error of a wait for these ranks to ProcessFailed, which names the rank that failed."""
        try:
            yield
        except RedblueError:
            raise
        except RuntimeError as error:
            rank = self._culprit(next((rank for rank in ranks if rank != self.rank), self.rank))
            raise ProcessFailed(
                rank,
                f"rank {rank} died, or did not answer within the group's timeout (rank {self.rank} waited for ranks "
                f"{sorted(set(ranks))}): start the processes again, or give init_process_group a longer timeout. "
                f"{error}",
            ) from error

    def _culprit(self, suspect: int) -> int:
        """The rank that failed: the notes are followed from the rank that this process waited for to their end."""
        answer = _answer(lambda: self._look(suspect, wait_seconds=GRACE_SECONDS / 2))
        if answer is None and suspect not in self.known and self.host is not None:
            return self.host  # the process that hosts the store does not answer
        if self.host == self.rank:
            time.sleep(2 * TICK_SECONDS)  # the store ends with this process, so the others must read its note first
        return self._end(suspect)

    def _look(self, suspect: int, wait_seconds: float = 0.0) -> bool:
        """Write the note of this process, and read the notes of the others."""
        store = _store()
        store.set(self._key(self.rank), str(suspect))
        end = time.monotonic() + wait_seconds
        known: dict[int, int] = {}
        rank = suspect
        while rank not in known and rank != self.rank:
            while not (noted := store.check([self._key(rank)])) and time.monotonic() < end:
                time.sleep(0.02)
            if not noted:
                break
            known[rank] = int(store.get(self._key(rank)))
            rank = known[rank]
        self.known = known
        return True

    def _end(self, suspect: int) -> int:
        """The rank at which the notes end; the suspect, which was late, if the notes lead back to this process."""
        rank, visited = suspect, {suspect}
        while rank in self.known:
            rank = self.known[rank]
            if rank == self.rank or rank in visited:
                return suspect
            visited.add(rank)
        return rank

    def _key(self, rank: int) -> str:
        return f"{self.prefix}/{rank}"


def _answer(ask: Callable[[], bool]) -> bool | None:
    """The answer of the store; None: it does not answer, because its host process failed."""
    try:
        return _notes.start(ask).result(2 * GRACE_SECONDS)
    except Exception:
        _notes.abandon()
        return None


def _store() -> distributed_c10d.Store:
    return distributed_c10d._get_default_store()


def _rank_of_store(group: dist.ProcessGroup) -> int | None:
    """The rank of the process that hosts the store; None if no rank does: the store is a file, or in torchrun."""
    store: Any = _store()
    while isinstance(store, distributed_c10d.PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore) or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None
    return dist.get_group_rank(group, 0) if 0 in dist.get_process_group_ranks(group) else None


def _after_fork() -> None:
    """Forget threads, which a child process does not have."""
    global _local, _notes
    _local, _notes = _Local(), Background()


os.register_at_fork(after_in_child=_after_fork)
