"""The bytes that processes pass to torch.distributed equal the schedule's count."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from redblue.schedules.network import PLACEMENTS, SCHEDULES
from support import distributed_bytes as calls
from support.examples import nightly, thorough
from support.processes import Processes


@pytest.mark.parametrize("size", [2, thorough(3), thorough(4), nightly(8)])
def test_bytes_sent_are_those_counted(size):
    processes, placements = Processes(size), list(PLACEMENTS)
    try:
        for i, schedule in enumerate(SCHEDULES):
            for j, mask in enumerate(calls.MASKS):
                placement = placements[(i + j) % len(placements)]
                grids = processes.run(calls.check, schedule, mask, calls.HEADS, placement)
                assert all(len(each) == len(SCHEDULES[schedule].grids(size)) for each in grids)
            processes.run(calls.check, schedule, "causal", 1, "zigzag")
    finally:
        processes.close()
