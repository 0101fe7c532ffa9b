"""Rows of sweeps against direct counts, in one process and in many."""

import itertools
from collections import Counter

import joblib
import pytest
from joblib._parallel_backends import ThreadingBackend

import redblue as rb
from redblue import problem
from redblue.base import parallel
from redblue.base.errors import RedblueError
from redblue.studies import sweep
from redblue.studies.sweep import points
from support.sweeps import SMALL, counting


def tried(make, *arguments, **options):
    try:
        return make(*arguments, **options)
    except RedblueError as error:
        return error


@pytest.mark.thorough
def test_rows_are_those_of_count_and_lower_bound():
    """Every schedule at every point, in the order of the product, with every direction and grouped heads."""
    axes = {"n": 24, "d": [8, 24], "words": [60, 600], "mask": "full,window:9,2", "heads": 4, "kv_heads": [2, 4]}
    rows = iter(sweep.run(axes | {"direction": problem.DIRECTIONS, "dtype": "float32"}, jobs=1))
    statuses = Counter()
    masks = {"full": rb.Mask.full(), "window:9,2": rb.Mask.sliding_window(9, 2)}
    for direction, kv, (label, mask), d, words in itertools.product(
        problem.DIRECTIONS, [2, 4], masks.items(), [8, 24], [60, 600]
    ):
        point = {"n_q": 24, "n_k": 24, "d": d, "heads": 4, "kv_heads": kv, "dtype": "float32", "direction": direction}
        outcome = tried(rb.Problem, **point, mask=mask)
        if isinstance(outcome, RedblueError):
            row = next(rows)
            assert (row["status"], row["reason"]) == ("invalid", str(outcome))
            assert point.items() <= row.items()
            statuses["invalid"] += 1
            continue
        counts = {name: tried(rb.count, name, outcome, words=words) for name in rb.list_schedules()}
        bounds = {p_given: rb.lower_bounds(outcome, words, p_given=p_given) for p_given in (False, True)}
        expected = [(name, counted) for name, counted in counts.items() if not isinstance(counted, rb.NotCovered)]
        for name, counted in expected:
            row = next(rows)
            p_given = rb.schedules.get(name).takes_p(outcome.direction)
            bound = next((candidate for candidate in bounds[p_given] if candidate.proved), None)
            assert list(row) == list(sweep.COLUMNS)
            assert point.items() <= row.items()
            assert (row["mask"], row["capacity_words"], row["batch"], row["d_v"]) == (label, words, 1, d)
            assert (row["bound_words"], row["bound"]) == (bound and bound.words, bound and bound.name)
            statuses[row["status"]] += 1
            if isinstance(counted, RedblueError):
                assert (row["schedule"], row["reason"], row["words"]) == (name, str(counted), None)
                continue
            figures = {
                name: getattr(counted, name) for name in ("schedule", "words", "reads", "writes", "peak", "flops")
            }
            assert figures.items() <= row.items()
            assert row["tiles"] == ",".join(f"{edge}={length}" for edge, length in counted.tiles.items())
            assert row["words_per_pair"] == pytest.approx(counted.words / (4 * mask.nnz(24, 24)))
            assert row["gap"] == (counted.words / bound.words if bound and bound.words else None)
            assert (row["bytes"], row["seconds"], row["memory"]) == (4 * counted.words, None, None)
    assert next(rows, None) is None
    assert statuses["fits"] > 100
    assert statuses["too few words"] > 5
    assert statuses["invalid"] > 5


def test_each_boundary_of_a_memory_is_counted():
    machine = rb.memory("h100-sxm")
    rows = sweep.run(
        {"n": 512, "d": 64, "memory": machine.name, "schedule": "flash", "dtype": "float8,float32"}, jobs=1
    )
    bounded = [edge for edge in machine.boundaries if edge.capacity_bytes]
    assert [(row["dtype"], row["boundary"]) for row in rows] == [
        (dtype, edge.name) for dtype in ("float8", "float32") for edge in bounded
    ]
    for row, boundary in zip(rows, [*bounded, *bounded], strict=True):
        size = 1 if row["dtype"] == "float8" else 4
        problem = rb.Problem(512, 512, 64, dtype=row["dtype"])
        assert row["memory"] == "h100-sxm"
        assert row["capacity_words"] == boundary.capacity_bytes // size
        assert row["words"] == rb.count("flash", problem, words=boundary.capacity_bytes // size).words
        speed = boundary.bandwidth_bytes_per_second
        assert row["seconds"] == (row["words"] * size / speed if speed else None)
    assert any(row["seconds"] for row in rows)


def test_windows_batches_and_separate_lengths():
    rows = sweep.run(
        {
            "n": 96,
            "n_q": [1, 7],
            "d": 8,
            "d_v": [4, 16],
            "window": [0, 5],
            "batch": 3,
            "words": 500,
            "schedule": "flash",
        },
        jobs=1,
    )
    assert [(row["window"], row["mask"], row["d_v"], row["n_q"], row["n_k"]) for row in rows] == [
        (w, f"window:{w}", d_v, n_q, 96) for w in (0, 5) for d_v in (4, 16) for n_q in (1, 7)
    ]
    for row in rows:
        problem = rb.Problem(row["n_q"], 96, 8, row["d_v"], batch=3, mask=rb.Mask.sliding_window(row["window"]))
        assert row["words"] == rb.count("flash", problem, words=500).words


def test_words_and_memories_together_are_both_counted():
    mine = rb.memory("t4")
    rows = sweep.run({"n": 64, "d": 8, "words": 999, "memory": [mine], "mask": [rb.Mask.causal()]}, jobs=1)
    assert {(row["memory"], row["capacity_words"]) for row in rows} >= {(None, 999), ("t4", 65536 // 2)}
    assert {row["mask"] for row in rows} == {"Mask.causal()"}


def test_schedules_that_do_not_apply_have_rows_only_on_request():
    lacking = next(name for name in rb.list_schedules() if name not in rb.list_schedules("backward") or name == "flash")
    other = next(way for way in problem.DIRECTIONS if lacking not in rb.list_schedules(way))
    axes = {"n": 64, "d": 8, "words": 999, "direction": other}
    assert lacking not in {row["schedule"] for row in sweep.run(axes, jobs=1)}
    named = sweep.run(axes | {"schedule": lacking}, jobs=1)
    assert [(row["schedule"], row["status"], row["words"]) for row in named] == [(lacking, "not covered", None)]
    assert other in named[0]["reason"]


def test_an_invalid_point_is_a_row_with_its_reason():
    rows = sweep.run({"n": 64, "d": 8, "words": 999, "heads": [3, 4], "kv_heads": 2, "schedule": "flash"}, jobs=1)
    assert [(row["heads"], row["status"]) for row in rows] == [(3, "invalid"), (4, "fits")]
    assert rows[0]["reason"] == "heads (3) must be a multiple of kv_heads (2)"


def test_a_bug_is_not_taken_for_a_bad_point(monkeypatch):
    monkeypatch.setattr(points, "count", lambda *_, **__: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        sweep.run(SMALL, jobs=1)


@pytest.mark.parametrize("jobs", [2, None])
def test_results_do_not_depend_on_jobs(jobs, expected, monkeypatch):
    monkeypatch.setattr(parallel, "ALONE_SECONDS", 0.0)
    evaluated = counting(monkeypatch)  # in this process
    assert sweep.run(SMALL, jobs=jobs) == expected
    assert len(evaluated) == (1 if jobs is None else 0)


class Backend(ThreadingBackend):
    """A thread backend that counts the tasks submitted to it."""

    given = 0

    def submit(self, *arguments, **options):
        type(self).given += 1
        return super().submit(*arguments, **options)


class ListsOnly(Backend):
    """A backend like Ray's, which returns all results together."""

    supports_return_generator = False


@pytest.mark.parametrize("kind", [Backend, ListsOnly])
def test_the_active_backend_is_used(kind, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(kind, "given", 0)
    joblib.register_parallel_backend(kind.__name__, kind)
    with joblib.parallel_config(kind.__name__, n_jobs=2):
        assert sweep.run(SMALL, output=tmp_path / "r.jsonl") == expected
    assert kind.given > 1
    assert sweep.read(tmp_path / "r.jsonl") == expected


@pytest.mark.parametrize("jobs", [0, -1, True, 2.5])
def test_wrong_jobs_are_refused(jobs):
    with pytest.raises(RedblueError, match="jobs must be a whole number of at least 1"):
        sweep.run(SMALL, jobs=jobs)
