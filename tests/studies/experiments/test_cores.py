"""The experiment on many cores: its blocks equal the kernel's, its quick run, and the facts on its page."""

import numpy as np
import pytest

import redblue as rb
from redblue.kernels.cpu.task_list import list_tasks
from redblue.problem import Problem
from redblue.studies import experiments
from redblue.studies.experiments import cores


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("mask", [rb.Mask.full(), rb.Mask.causal(), rb.Mask.sliding_window(50, 3)], ids=repr)
def test_blocks_are_whole_panels_with_the_keys_that_they_attend(mask, direction):
    problem = Problem(300, 333, 16, heads=4, kv_heads=2, dtype="float32", mask=mask, direction=direction)
    tasks = list_tasks(problem, 8, cores=8)
    blocks = [block for task in cores.blocks(problem, tasks) for block in task]
    work = sum(block.work + block.update * (block.updated >= 0) for block in blocks)
    rows = np.repeat(mask.to_dense(300, 333), problem.group, 0)  # stacked
    panels = [rows[start : start + tasks.lanes].any(0).sum() for start in range(0, len(rows), tasks.lanes)]
    assert work == pytest.approx(problem.streams * tasks.lanes * sum(panels))


def test_no_task_waits_for_ever():
    """The order of the core's list satisfies the order of the updates, with any number of threads."""
    for mask in (rb.Mask.full(), rb.Mask.causal(), rb.Mask.sliding_window(50, 3), rb.Mask.causal(align="bottom-right")):
        for threads in (1, 3, 40):
            problem = Problem(700, 900, 16, heads=3, dtype="float32", mask=mask, direction="backward")
            row = cores.simulated(problem, threads, threads)
            assert 0 < row["used"] <= 1
            assert row["used"] + row["waited"] <= 1 + 1e-9
            if threads == 1:
                assert row["used"] == pytest.approx(1)


def test_quick_run(tmp_path):
    result = experiments.run("cores", out=tmp_path, quick=True, jobs=1)
    assert {row["cores"] for row in result.rows} == {1, 2, 4, 8}
    assert {row["kind"] for row in result.rows} == {cores.SIMULATED}
    assert len(cores.findings(result.rows)) == 2
    assert (tmp_path / "cores.svg").exists()


def test_one_call_is_timed_with_one_thread_and_with_two():
    point = {"case": "BERT, b 8, n 128", "direction": "forward", "kind": cores.MEASURED, "cores": 2}
    (row,) = cores.measure(point)
    assert row["expected"] == pytest.approx(2)
    assert row["speed_up"] > 0
