"""`redblue.distributed.attention` in several processes equals one process's attention."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from support import distributed_calls as calls
from support.examples import thorough
from support.processes import Processes

SCHEDULES = ["ring", "all_gather", "head_parallel", "ring_heads", "mesh", "auto"]
OPTIONS = [("scale", "softcap", "sinks"), ("alibi",), ("dropout", "seed"), ("bias",)]


@pytest.fixture(scope="module")
def one():
    processes = Processes(1)
    yield processes
    processes.close()


@pytest.fixture(scope="module")
def two():
    processes = Processes(2)
    yield processes
    processes.close()


@pytest.fixture(scope="module")
def four():
    processes = Processes(4)
    yield processes
    processes.close()


@pytest.mark.parametrize("mask", calls.MASKS)
def test_equals_one_process(two, mask):
    for i, schedule in enumerate(SCHEDULES):
        kv_heads = [4, 2, 1][i % 3]
        placement = ["contiguous", "zigzag", "striped"][i % 3]
        two.run(calls.compare, "ring" if kv_heads == 1 and "heads" in schedule else schedule, placement, mask, kv_heads)


@pytest.mark.parametrize("names", OPTIONS, ids="+".join)
def test_options(two, names):
    for schedule, placement in (("ring", "zigzag"), ("head_parallel", "striped"), ("mesh", "contiguous")):
        if names != ("bias",) or schedule == "ring":
            two.run(calls.compare, schedule, placement, "causal", 2, names)
    if names == ("bias",):
        two.run(calls.compare, "auto", "contiguous", "window", 2, names)


@pytest.mark.parametrize("mask", ["random", "strided", "global"])
def test_bias_gradient_of_rows_that_are_not_consecutive(one, two, mask):
    for processes in (one, two):
        for schedule, placement in (("ring", "contiguous"), ("all_gather", "striped")):
            processes.run(calls.compare, schedule, placement, mask, 2, ("bias",))


def test_types(two):
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.bfloat16, 3e-2), (torch.float16, 4e-3)):
        for schedule in ("ring", "mesh", "head_parallel"):
            two.run(calls.compare, schedule, "zigzag", "causal", 2, (), dtype, tolerance)


@pytest.mark.thorough
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_four_processes(four, schedule):
    for mask in calls.MASKS:
        for placement in ("contiguous", "zigzag", "striped"):
            four.run(calls.compare, schedule, placement, mask, calls.HEADS)
    for kv_heads in (2, 1):
        four.run(calls.compare, schedule, "zigzag", "causal", kv_heads)


def test_other_lengths_of_keys(two):
    two.run(calls.cross_attention)


def test_whole_and_parts(two):
    two.run(calls.whole_and_parts)


def test_tensors_of_other_ranks(two):
    two.run(calls.other_ranks)


def test_dtensors(two):
    two.run(calls.dtensors)


def test_rank_0_draws_the_seed(two):
    two.run(calls.drawn_seed)


def test_repeated_calls_are_bitwise_equal(two):
    two.run(calls.repeated)


@pytest.mark.parametrize(
    "call", [calls.refusals, calls.unusual_arguments, calls.autocast, thorough(calls.second_derivatives)]
)
def test_arguments(two, call):
    two.run(call)
