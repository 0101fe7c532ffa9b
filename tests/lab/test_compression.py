"""The compression protocol: from W words, and not from fewer, Bob decodes the results of the phase."""

import numpy as np
import pytest

from redblue import schedules
from redblue.base.errors import RedblueError
from redblue.bounds import lower_bounds
from redblue.bounds.closed import determined
from redblue.lab.compression import Compression
from redblue.machine import Field, NotLoaded
from redblue.masks import Mask
from redblue.problem import Problem
from redblue.schedules import strassen

CASES = [
    *((name, Problem(20, 17, 4, 6), 70) for name in ("flash", "hybrid", "small_cache", "standard", "flash_cluster")),
    ("flash", Problem(17, 20, 5, mask=Mask.causal()), 64),
    *((name, Problem(16, 13, 4, direction="backward"), 90) for name in ("flash", "hybrid", "small_cache", "standard")),
    *(
        (name, Problem(12, 13, 4, direction="gradient_x"), 170 if name == "gradient_x_once" else 110)
        for name in schedules.list_schedules("gradient_x")
    ),
]


def protocol(name, problem, words, **options):
    algorithm = schedules.get(name)
    return Compression(algorithm, problem, algorithm.tiles(problem, words), words, **options)


def check(run: Compression, seed=7, phases=6):
    """Encode and decode some phases, spread evenly, and check every statement of the proof on all phases."""
    arrays = run.draw(seed)
    truth = run.products(arrays).reshape(-1)
    d = run.problem.d_v if run.problem.direction == "backward" else run.problem.d
    limit = determined(run.words + run.loads, d)
    assert run.phases[0].begin == 0
    assert all(a.end == b.begin for a, b in zip(run.phases, run.phases[1:], strict=False))
    pairs = {int(pair) for phase in run.phases for pair in phase.pairs}
    attends = run.problem.mask.to_dense(run.problem.n_q, run.problem.n_k)
    assert pairs >= set(np.flatnonzero(attends.reshape(-1)).tolist())  # at some time in the cache
    assert all(len(phase.pairs) <= limit for phase in run.phases)
    for phase in run.phases[:: max(1, len(run.phases) // phases)]:
        message = run.encode(arrays, phase)
        assert len(message) <= run.words + run.loads
        assert (run.decode(message, phase) == truth[phase.pairs]).all()
        assert run.determined(phase) <= len(message)
    return arrays, truth


@pytest.mark.parametrize("case", range(len(CASES)))
def test_bob_decodes_every_product_of_a_phase(case):
    run = protocol(*CASES[case])
    check(run)
    loads = run.phases[-1].end
    (bound,) = (x for x in lower_bounds(run.problem, run.words) if x.name == "any arithmetic")
    assert bound.words <= loads  # the bound counts loads


@pytest.mark.parametrize(("levels", "prime"), [(0, 37), (1, 2**31 - 1), (2, 37)])
def test_bob_decodes_the_phases_of_a_fast_multiplication(levels, prime):
    problem = Problem(16, 24, 8, 4)
    run = Compression(strassen.schedule, problem, strassen.Tiles(4, 4, 8, levels), 40, prime=prime)
    check(run, phases=4)


def test_a_broken_message_fails():
    """A message fails if any word on which a score depends is changed, or if words are missing."""
    run = protocol("small_cache", Problem(16, 16, 6), 60)
    arrays = run.draw(3)
    truth = run.products(arrays).reshape(-1)
    phase = next(candidate for candidate in run.phases[1:] if len(candidate.pairs) > 8)
    message = run.encode(arrays, phase)
    matters = []
    for place in range(len(message)):
        broken = message.copy()
        broken[place] = (broken[place] + 1) % run.prime
        matters.append((run.decode(broken, phase) != truth[phase.pairs]).any())
    assert sum(matters) >= run.determined(phase)
    for wrong in (message[:-1], np.append(message, 0), message[:0]):
        with pytest.raises(RedblueError, match=f"the message of the phase has {len(message)} words"):
            run.decode(wrong, phase)
    other = run.encode(run.draw(4), phase)
    assert (run.decode(other, phase) != truth[phase.pairs]).any()


def test_the_message_holds_what_the_cache_held():
    """A phase within one row block of flash starts with the block's queries, output and statistics in the cache."""
    problem, words = Problem(8, 40, 4), 60
    run = protocol("flash", problem, words, loads=50)
    assert [phase.end - phase.begin for phase in run.phases[:-1]] == [words + 50, *[50] * (len(run.phases) - 2)]
    arrays = run.draw(1)
    message = run.encode(arrays, run.phases[1])
    rows = run.tiles.rows
    assert (message[: rows * 4] == arrays["q"][:rows].reshape(-1)).all()


def test_bob_needs_no_input():
    """Bob's answer depends only on the message: Bob runs on zeros and never reads the arrays."""
    run = protocol("flash", Problem(12, 12, 4), 60)
    arrays = run.draw(5)
    phase = run.phases[1]
    message = run.encode(arrays, phase)
    truth = run.products(arrays).reshape(-1)[phase.pairs]
    for array in arrays.values():
        array[:] = 0
    assert (run.decode(message, phase) == truth).all()


def test_bad_arguments():
    with pytest.raises(RedblueError, match="for 20 rows or keys, prime must be more than 21, got 19"):
        protocol("flash", Problem(20, 17, 4), 70, prime=19)
    with pytest.raises(RedblueError, match="loads must be"):
        protocol("flash", Problem(20, 17, 4), 70, loads=0)
    with pytest.raises(RedblueError, match="words must be"):
        Compression(schedules.get("flash"), Problem(4, 4, 4), None, 0)


def test_slow_memory_of_the_field_machine_keeps_the_rules():
    m = Field(prime=7)
    x = m.input("x", (2, 2), np.arange(4).reshape(2, 2))
    with pytest.raises(NotLoaded):
        x[range(1)].sum(axis=0)
    assert m.load(x.part(range(1, 2), range(2))[range(1)]).read().tolist() == [[2, 3]]
