"""Plans on clusters: the chosen layout compared with every layout, and the memory levels of the busiest process."""

import json

import numpy as np
import pytest

import redblue as rb
from redblue import Mask, Problem, RedblueError
from redblue.catalogue.clusters import cluster
from redblue.lab import network_planner
from redblue.lab.network_planner import Candidate, best_candidate, in_blocks, local_problem
from redblue.schedules import network

SLOW = "4x rtx-4090 over ethernet-1g"


def every_candidate(problem, machines, placements=("contiguous", "zigzag", "striped")):
    for placement in placements:
        for name in network.SCHEDULES:
            for c in network.layouts(name, problem, machines.processes, placement):
                yield Candidate(name, c, machines)


@pytest.mark.parametrize("mask", [Mask.full(), Mask.causal(), Mask.sliding_window(40, 0)], ids=repr)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_on_a_slow_link_no_layout_takes_less_time(mask, direction):
    problem, machines = Problem(512, 512, 32, heads=4, kv_heads=4, mask=mask, direction=direction), cluster(SLOW)
    chosen, seconds = best_candidate(problem, machines)
    times = [candidate.network_seconds for candidate in every_candidate(problem, machines)]
    assert chosen.network_seconds <= 1.0001 * min(times)
    assert set(seconds) == set(network.SCHEDULES)
    assert min(seconds.values()) == pytest.approx(chosen.network_seconds)


def test_the_pairs_of_all_processes_are_those_of_the_mask():
    machines = cluster(SLOW)
    for mask in (Mask.full(), Mask.causal(), Mask.documents([100, 28])):
        problem = Problem(128, 128, 8, heads=4, kv_heads=2, batch=3, mask=mask)
        for candidate in every_candidate(problem, machines):
            assert sum(candidate.pairs) == 3 * 4 * mask.nnz(128, 128), (candidate.schedule, candidate.layout.grid)


@pytest.mark.thorough
def test_where_arithmetic_takes_longer_the_balanced_placement_is_chosen():
    problem = Problem(4096, 4096, 64, mask=Mask.causal(), dtype="float32")
    plan = rb.plan(problem, "4x gtx-1060 over nvlink-4")
    assert plan.limit == "arithmetic"
    assert plan.network.share < 1.02


def test_one_head_on_many_processes_takes_a_mesh():
    plan = rb.plan(Problem(16_384, 16_384, 128), "16x h100-sxm over ethernet-10g").network
    assert plan.schedule == "mesh"
    assert plan.grid == {"head_parts": 1, "rows": 4, "cols": 4}
    assert 1 <= plan.gap < 1.02
    assert plan.seconds == pytest.approx(plan.bytes / 1.25e9 + 30e-6 * plan.messages)


def test_the_plan_prints_and_becomes_json():
    plan = rb.plan(Problem(4096, 4096, 64, heads=8, kv_heads=2), "8x h100-sxm over infiniband-ndr")
    text = str(plan)
    assert "8x h100-sxm over infiniband-ndr" in text
    assert "network" in text
    assert plan.network.schedule in text
    data = json.loads(json.dumps(plan.to_dict(), default=str))
    assert data["network"]["gap"] == plan.network.gap
    assert data["network"]["bound"]["words"] <= data["network"]["words"]
    assert plan.times["network"] == plan.network.seconds
    assert plan.levels[-1].boundary == "L2/DRAM"


def test_long_sequences_are_tried_at_a_smaller_size_and_counted_at_their_own(monkeypatch):
    machines = cluster(SLOW)
    problem = Problem(4096, 4096, 16, heads=2, mask=Mask.sliding_window(255, 0))
    whole, _ = best_candidate(problem, machines)
    monkeypatch.setattr(network_planner, "MAX_TRIED", 512)
    small = network_planner.smaller_problem(problem, 4)
    assert (small.n_q, small.n_k) == (512, 512)
    tried, _ = best_candidate(problem, machines)
    assert tried.layout.problem.n_q == 4096
    assert tried.bytes == whole.bytes


@pytest.mark.parametrize("placement", ["contiguous", "zigzag"])
@pytest.mark.parametrize("mask", [Mask.causal(), Mask.sliding_window(3, 2), Mask.full(), Mask.documents([20, 44])])
def test_the_local_problem_is_the_part_of_the_mask(mask, placement):
    problem = Problem(64, 64, 8, heads=4, kv_heads=2, mask=mask)
    dense = mask.to_dense(64, 64)
    for name in ("ring", "mesh", "head_parallel"):
        for c in network.layouts(name, problem, 4, placement):
            for process in range(4):
                row, col, _ = c.grid.place(process)
                queries = network_planner.tokens(c, row, keys=False)
                keys = network_planner.tokens(c, col, keys=True)
                part, local = dense[np.ix_(queries, keys)], local_problem(c, process)
                if not part.any():
                    assert local is None
                    continue
                assert np.array_equal(local.mask.to_dense(local.n_q, local.n_k), part[:, part.any(axis=0)])
                assert local.heads == 4 // c.grid.head_parts


@pytest.mark.parametrize("align", ["top-left", "bottom-right"])
def test_a_large_window_among_consecutive_tokens_stays_a_window(align):
    problem = Problem(2048, 2048, 8, mask=Mask.sliding_window(5, 0, align))
    (c,) = network.layouts("ring", problem, 4)
    local = local_problem(c, 1)  # its queries begin at 512, its keys at 507
    assert (local.n_q, local.n_k, local.mask) == (512, 517, Mask.sliding_window(0, 5))


def test_blocks_contain_all_pairs_and_little_more():
    mask = Mask.documents([700, 900, 400]) & Mask.causal()
    blocks = in_blocks(mask.rule, 2000, 2000)
    dense, coarse = mask.to_dense(2000, 2000), blocks.to_dense(2000, 2000)
    assert not (dense & ~coarse).any()
    assert coarse.sum() < 1.05 * dense.sum()


def test_problems_without_network_schedules_and_too_few_tokens_are_refused():
    with pytest.raises(RedblueError, match="n_q \\(4\\) and n_k \\(64\\) must be at least the 8 processes"):
        rb.plan(Problem(4, 64, 8), "8x t4 over pcie-4-x16")
    with pytest.raises(RedblueError, match="forward and backward, without pages"):
        rb.plan(Problem(64, 64, 8, direction="gradient_x"), "8x t4 over pcie-4-x16")
    paged = rb.PagedProblem(queries=[1], keys=[16], page=16, d=8)
    with pytest.raises(RedblueError, match="forward and backward, without pages"):
        rb.plan(paged, "8x t4 over pcie-4-x16")


def test_one_process_needs_no_network():
    plan = rb.plan(Problem(256, 256, 16, mask=Mask.causal()), "1x t4 over pcie-4-x16")
    alone = rb.plan(Problem(256, 256, 16, mask=Mask.causal()), "t4")
    assert (plan.network.words, plan.network.seconds, plan.network.gap) == (0, 0, None)
    assert [level.words for level in plan.levels] == [level.words for level in alone.levels]


def test_more_than_a_machine_holds_is_noted():
    plan = rb.plan(Problem(1 << 20, 1 << 20, 128, heads=64), "2x t4 over pcie-4-x16")
    assert "a process holds up to" in plan.note
