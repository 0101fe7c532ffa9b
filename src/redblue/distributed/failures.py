"""Failures of other processes: errors that name the rank that died or stalled.

A process that waits for another one in vain cannot know whether that one failed, or itself waits in vain. So each
process that gives up writes down the rank that it waited for, where all can read it, and follows what others wrote down
to a rank that wrote nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import distributed_c10d

from redblue.base.errors import RedblueError

GRACE_SECONDS = 2.0  # how long a process waits for another one's note: both give up at about the same time


class ProcessFailed(RuntimeError):
    """Another process died, or did not answer within the group's timeout. rank: its rank in the group."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


class Failures:
    """Notes about failed waits of one call. call: the number of the call in this group, the same in all processes."""

    def __init__(self, group: dist.ProcessGroup, call: int) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        name = getattr(group, "group_name", "")
        self.prefix = f"redblue/{name}/{call}"

    @contextmanager
    def named(self, *ranks: int) -> Iterator[None]:
        """Turn an error of a wait for these ranks into ProcessFailed, which names the rank that failed."""
        try:
            yield
        except RedblueError:
            raise
        except RuntimeError as error:
            suspect = self._culprit(next((rank for rank in ranks if rank != self.rank), self.rank))
            raise ProcessFailed(
                suspect,
                f"rank {suspect} died, or did not answer within the group's timeout (rank {self.rank} waited for ranks "
                f"{sorted(set(ranks))}): start the processes again, or give init_process_group a longer timeout. "
                f"{error}",
            ) from error

    def _culprit(self, suspect: int) -> int:
        """Follow the notes from the rank that this process waited for to a rank that wrote none."""
        try:
            store = distributed_c10d._get_default_store()
            store.set(f"{self.prefix}/{self.rank}", str(suspect))
            seen = {self.rank}
            while suspect not in seen:
                seen.add(suspect)
                note = self._note(store, suspect)
                if note is None:
                    return suspect
                suspect = note
        except Exception:  # the store lives in a process that failed
            return suspect
        return suspect

    def _note(self, store: distributed_c10d.Store, rank: int) -> int | None:
        key, end = f"{self.prefix}/{rank}", time.monotonic() + GRACE_SECONDS
        while time.monotonic() < end:
            if store.check([key]):
                store.set_timeout(timedelta(seconds=GRACE_SECONDS))
                return int(store.get(key))
            time.sleep(0.02)
        return None
