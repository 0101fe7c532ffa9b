"""If arguments are wrong or differ between processes, every process raises an error that names the fault."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from support import distributed_faults as faults
from support.processes import Processes

WRONG = {
    "rank 1 has other lengths": "make the parts with redblue.distributed.shard",
    "rank 1 has another dtype": "dtype must be the same on all ranks, but rank 0 has",
    "rank 1 has another d": "d must be the same on all ranks, but rank 0 has",
    "rank 1 has another batch": "batch must be the same on all ranks, but rank 0 has",
    "rank 1 has other heads": "heads must be the same on all ranks, but rank 0 has",
    "rank 1 has another mask": "mask must be the same on all ranks, but rank 0 has",
    "rank 1 has another schedule": "schedule must be the same on all ranks, but rank 0 has",
    "rank 1 has another placement": "placement must be the same on all ranks, but rank 0 has",
    "rank 1 has another scale": "scale must be the same on all ranks, but rank 0 has",
    "rank 1 has no tensor": "q must be a PyTorch tensor, got",
    "rank 1 has an unknown option": "nonsense",
    "the mask does not fit": "documents",
    "the heads cannot be divided": "heads",
}


@pytest.fixture(scope="module")
def three():
    processes = Processes(3)
    yield processes
    processes.close()


@pytest.mark.parametrize("wrong", WRONG)
def test_every_rank_refuses(three, wrong):
    messages = three.run(faults.refusal, wrong)
    assert all(message is not None and WRONG[wrong] in message for message in messages), messages


@pytest.mark.parametrize("n", [0, 1, 2])
def test_fewer_tokens_than_processes(three, n):
    three.run(faults.few_tokens, n)


def test_empty_batch(three):
    three.run(faults.empty_batch)


@pytest.mark.thorough
def test_one_process():
    processes = Processes(1)
    try:
        processes.run(faults.few_tokens, 5)
        processes.run(faults.few_tokens, 0)
    finally:
        processes.close()
