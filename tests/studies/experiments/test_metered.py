"""Experiments under valgrind: capacities at which the best schedule changes; measured words exceed the bounds."""

import shutil

import pytest

from redblue.base.errors import RedblueError
from redblue.catalogue.memories import USABLE_SHARE
from redblue.kernels.table import tiled_kernels
from redblue.studies import experiments
from redblue.studies.experiments import backward, crossing, metered, nesting
from redblue.studies.experiments.metered import COUNTED, MEASURED, dividing, of
from support.examples import nightly, thorough

needs_valgrind = pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is not installed")


def counted_rows(over, d):
    return [
        row for point in over.points() if point["kind"] == COUNTED and point["d"] == d for row in metered.measure(point)
    ]


def test_counted_curves_cross_near_a_quarter_of_d_squared_and_at_d_squared():
    rows = counted_rows(crossing.FORWARD, 64)
    small, large = (dividing(rows, COUNTED, 64, *pair) for pair in (("small_cache", "hybrid"), ("hybrid", "flash")))
    assert 0.25 <= small / 64**2 <= 0.5
    assert 0.8 <= large / 64**2 <= 1.2
    for row in of(rows, COUNTED):
        assert row["counted_words"] >= row["bound_words"]


def test_counted_curves_cross_backward():
    rows = counted_rows(backward.BACKWARD, 64)
    large = dividing(rows, COUNTED, 64, "hybrid", "flash")
    assert 0.9 <= large / 64**2 <= 3.6  # within a factor of 2 of 1.8 d^2


def test_a_dividing_point_is_where_two_curves_meet():
    def row(schedule, capacity, words):
        return {"kind": COUNTED, "d": 8, "M": capacity, "schedule": schedule, "counted_words": words}

    lines = [(1, 90, 100), (4, 70, 80), (16, 60, 45), (64, 50, 20)]
    rows = [
        row(name, words_of_cache, each[i])
        for words_of_cache, *each in lines
        for i, name in enumerate(("small_cache", "flash"))
    ]
    assert 4 < dividing(rows, COUNTED, 8, "small_cache", "flash") < 16
    assert dividing(rows, COUNTED, 8, "flash", "small_cache") is None
    assert dividing(rows[:4], COUNTED, 8, "small_cache", "flash") is None
    equal = [
        row(name, words_of_cache, words)
        for words_of_cache, words in ((1, 5), (4, 5))
        for name in ("small_cache", "flash")
    ]
    assert dividing(equal, COUNTED, 8, "small_cache", "flash") is None


@needs_valgrind
@pytest.mark.parametrize("name", [thorough("backward"), nightly("crossing")])
def test_measured_words_are_above_the_bound_and_near_the_count(name, tmp_path):
    rows = experiments.run(name, out=tmp_path, quick=True).rows
    measured_rows = of(rows, MEASURED)
    assert {row["schedule"] for row in measured_rows} == set(tiled_kernels("cpu", rows[0]["direction"]))
    for row in measured_rows:
        assert row["measured_words"] >= row["bound_words"]
        assert (
            0.9 <= row["measured_words"] / row["counted_words"] <= 3
        )  # packing dominates the words of such short arrays
    assert (tmp_path / f"{name}.svg").exists()


@pytest.mark.thorough
@needs_valgrind
def test_two_boundaries_of_one_run(tmp_path):
    rows = experiments.run("nesting", out=tmp_path, quick=True).rows
    for (_, level), row in nesting.best(rows).items():
        assert row["M"] == nesting.capacity_words(level)
    for row in nesting.measured_rows(rows):
        assert row["measured_words"] > 0.5 * row["bound_words"]
        assert row["counted_words"] is None or row["planned_for"] == row["boundary"]
    both = {
        (row["schedule"], row["planned_for"], row["boundary"]): row["measured_words"]
        for row in nesting.measured_rows(rows)
    }
    for schedule in nesting.SCHEDULES:
        assert both[schedule, "L1", "L2"] < both[schedule, "L1", "L1"]  # L2 holds more than L1


def test_without_valgrind_it_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RedblueError, match=r"the experiment crossing cannot run here: .*valgrind.*install it"):
        experiments.run("crossing", out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_tiles_are_planned_for_the_usable_share(monkeypatch):
    requests = []

    def measured(problem, **options):
        requests.append((options["words"], options["plan_words"], options["ways"]))
        raise RedblueError("enough")

    monkeypatch.setattr(metered, "measured", measured)
    for point in crossing.points(True):
        if point["kind"] == MEASURED:
            with pytest.raises(RedblueError, match="enough"):
                metered.measure(point)
    for words, plan_words, ways in requests:
        assert plan_words == (words if ways is None else int(USABLE_SHARE * words))
