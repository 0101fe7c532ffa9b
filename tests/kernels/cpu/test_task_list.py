"""The core's own list of tasks: each pair once, the order that the kernels need, tiles for any number of cores."""

import numpy as np
import pytest

import redblue as rb
from redblue.kernels.cpu.task_list import list_tasks
from redblue.problem import Problem
from redblue.schedules import NotCovered

MASKS = [rb.Mask.full(), rb.Mask.causal(), rb.Mask.sliding_window(100, 0), rb.Mask.causal(align="bottom-right")]


def problem(direction, mask=MASKS[0], **sizes):
    shape = {"n_q": 700, "n_k": 900, "d": 32, "heads": 4, "kv_heads": 2, "batch": 3} | sizes
    return Problem(**shape, dtype="float32", mask=mask, direction=direction)


@pytest.mark.parametrize("threads", [1, 4, 100])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_every_row_and_key_is_in_one_task(direction, mask, threads):
    p = problem(direction, mask)
    tasks = list_tasks(p, threads, cores=threads)
    length = p.n_q * p.group if direction == "forward" else p.n_k
    covered = np.zeros((p.streams, tasks.tile.pieces, length), int)
    for stream, start, count, piece in zip(*tasks[:4], strict=True):
        covered[stream, piece, start : start + count] += 1
    assert (covered == 1).all()


def test_the_longest_tasks_come_first():
    tasks = list_tasks(problem("forward", rb.Mask.causal(), n_q=2048, n_k=2048), 2)
    ends = tasks.start + tasks.size  # the work of causal rows grows with their end
    assert (np.diff(ends // tasks.tile.rows) <= 0).all()


def test_backward_starts_as_many_streams_as_threads():
    tasks = list_tasks(problem("backward"), 4)
    assert tasks.stream[:8].tolist() == [0, 1, 2, 3] * 2
    assert tasks.stream[-2:].tolist() == [4, 5]


def test_more_cores_get_more_tasks():
    counts = [len(list_tasks(problem("forward", n_q=4096), 2, cores=cores).stream) for cores in (1, 16, 64)]
    assert counts == sorted(counts)
    assert counts[-1] >= 4 * 64
    few = list_tasks(problem("forward", n_q=1, n_k=100_000, batch=1), 2, cores=16)
    assert few.tile.pieces > 1
    assert len(few.stream) == few.tile.pieces * few.stream.max() + few.tile.pieces


def test_tasks_that_are_not_listed():
    with pytest.raises(NotCovered, match="bands"):
        list_tasks(problem("forward", rb.Mask.documents([300, 400], [400, 500])), 2)
    with pytest.raises(NotCovered, match="not gradient_x"):
        list_tasks(problem("gradient_x", kv_heads=4), 2)
