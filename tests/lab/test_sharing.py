"""The model of threads that share tasks, compared with results by hand and with bounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue.lab.sharing import Block, share_out
from support.examples import examples


def works(*sizes):
    return [[Block(size)] for size in sizes]


def test_threads_take_tasks_in_order():
    shared = share_out(works(3, 1, 1, 1, 2), 2)
    assert shared.thread.tolist() == [0, 1, 1, 1, 0]
    assert shared.seconds == 5
    assert shared.working.tolist() == [5, 3]
    assert shared.used == 0.8
    assert shared.waited == 0


@pytest.mark.parametrize("threads", [1, 3])
def test_no_task(threads):
    shared = share_out([], threads)
    assert (shared.seconds, shared.used, shared.waited) == (0, 1, 0)


def test_an_update_waits_for_its_turn():
    # The second task reaches its update at 1 and waits until the first one's ends, at 4 + 2.
    tasks = [[Block(4, 7, 0, 2)], [Block(1, 7, 1, 3), Block(1)]]
    shared = share_out(tasks, 2)
    assert shared.waiting.tolist() == [0, 5]
    assert shared.seconds == 10
    assert share_out(tasks, 1).waiting.tolist() == [0]
    assert share_out(tasks, 1).seconds == 11


def test_an_update_that_comes_when_the_last_one_has_begun():
    tasks = [[Block(1, 0, 0, 4)], [Block(2, 0, 1, 1)]]
    shared = share_out(tasks, 2)
    assert shared.waiting.tolist() == [0, 3]
    assert shared.seconds == 6


def test_an_update_that_nobody_makes_first():
    with pytest.raises(ValueError, match="wait for ever"):
        share_out([[Block(1, 0, 1, 1)]], 2)


@st.composite
def task_lists(draw):
    """Tasks whose updates are ordered as the list."""
    updates = [0] * 3
    tasks = []
    for _ in range(draw(st.integers(0, 9))):
        blocks = []
        for updated in draw(st.lists(st.integers(-1, 2), max_size=4, unique=True)):
            work, update = draw(st.integers(0, 5)), draw(st.integers(0, 3))
            earlier = 0
            if updated >= 0:
                earlier = updates[updated]
                updates[updated] += 1
            blocks.append(Block(work, updated, earlier, update))
        tasks.append(blocks)
    return tasks


@examples(100)
@given(task_lists(), st.integers(1, 5))
def test_time_is_neither_lost_nor_won(tasks, threads):
    shared = share_out(tasks, threads)
    work = sum(block.work + block.update * (block.updated >= 0) for task in tasks for block in task)
    assert shared.working.sum() == work
    assert work / threads <= shared.seconds <= work  # some thread always computes
    assert (shared.working + shared.waiting <= shared.seconds).all()
    assert (shared.thread >= 0).all()
    assert share_out(tasks, 1).seconds == work
    np.testing.assert_array_equal(shared.thread[:1], [0] * len(tasks[:1]))
