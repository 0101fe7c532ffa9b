"""`redblue.distributed.attention` in several processes equals one process's attention."""

from __future__ import annotations

import pytest

from support import distributed_calls as calls
from support.processes import Processes


@pytest.fixture(scope="module", params=[2, 4])
def processes(request):
    running = Processes(request.param)
    yield running
    running.close()


@pytest.mark.parametrize("mask", calls.MASKS)
@pytest.mark.parametrize("schedule", ["ring", "all_gather", "head_parallel", "ring_heads", "mesh", "auto"])
def test_equals_one_process(processes, schedule, mask):
    for placement in ("contiguous", "zigzag", "striped"):
        processes.run(calls.compare, schedule, placement, mask, calls.HEADS)
