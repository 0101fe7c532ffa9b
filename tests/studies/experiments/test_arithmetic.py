"""The experiments on other arithmetic: compression of phases and fast multiplication, and approximate attention."""

import math

import numpy as np
import pytest

from redblue.base.charts import write
from redblue.base.errors import RedblueError
from redblue.bounds import lower_bound
from redblue.lab.counts import count
from redblue.problem import Problem
from redblue.schedules.taylor import rank
from redblue.studies import experiments
from redblue.studies.experiments import approximate, compression


@pytest.mark.thorough
def test_compression_decodes_all_phases_and_counts_below_the_standard_bound(tmp_path):
    result = experiments.run("compression", out=tmp_path, quick=True, jobs=1)
    runs, large = compression.split(result.rows)
    assert all(row["exact"] == row["decoded"] > 1 for row in runs)
    assert all(row["message_words"] == 2 * row["M"] for row in runs)
    assert all(row["most_products"] <= row["limit"] and row["determined_share"] <= 1 for row in runs)
    assert all(row["loads"] >= row["bound_loads"] for row in runs)
    near, far = large
    assert min(near["words"]) > near["standard_bound"] > near["any_bound"]
    assert far["small_cache"] > far["standard_bound"] > min(far["words"]) > far["any_bound"]
    assert far["standard_bound"] == lower_bound(Problem(far["n"], far["n"], far["d"]), far["M"]).words


@pytest.mark.thorough
def test_a_phase_that_decodes_wrongly_shows(monkeypatch):
    decode = compression.Compression.decode
    monkeypatch.setattr(compression.Compression, "decode", lambda *args: decode(*args) + 1)
    (row,) = compression.measure(compression.points(True)[0])
    assert row["exact"] < row["decoded"]


def test_approximate_needs_torch_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(approximate, "find_spec", lambda name: None)
    with pytest.raises(RedblueError, match=r"cannot run here: it trains a small transformer.*redblue\[torch\]"):
        experiments.run("approximate", out=tmp_path)


def test_the_error_is_that_of_the_output():
    s, v = np.array([[0.0, math.log(2)]]), np.array([[3.0], [0.0]])
    polynomial = 1 + math.log(2) + math.log(2) ** 2 / 2
    expected = abs(3 / (1 + polynomial) - 3 / (1 + 2)) / 3
    assert approximate.error(s, v, np.ones((1, 2), bool), 2) == pytest.approx(expected)
    assert approximate.error(s, v, np.array([[True, False]]), 2) == 0


@pytest.mark.parametrize(("words", "d", "degree"), [(4096, 8, 2), (32768, 64, 2), (256, 64, 4)])
def test_a_length_is_where_features_begin_to_move_fewer_words(words, d, degree):
    def moved(n):
        names = (f"taylor_{degree}", *approximate.EXACT)
        counts = [approximate._words(name, n, d, words) for name in names]
        return counts[0] < min(counts[1:])

    n = approximate.length(words, d, degree)
    assert n is not None
    assert moved(n)
    assert not moved(n * 98 // 100)
    assert moved(2 * n)
    assert count(f"taylor_{degree}", Problem(2 * n, 2 * n, d), words=words).words > 0


def test_no_length_where_nothing_fits():
    assert approximate.length(64, 128, 2) is None


@pytest.mark.thorough
def test_the_degree_needed_is_the_first_that_stays_within_the_tolerance(tmp_path):
    rows = approximate.measure({"scores": "Gaussian"}) + approximate.measure({"machine": "t4"})
    needed = approximate.needed(rows, 2**-8)["Gaussian"]
    assert needed is not None
    series = {row["degree"]: row["error"] for row in rows if "error" in row}
    assert series[needed["degree"]] <= 2**-8 < series[needed["degree"] - 2]
    assert needed["rank"] == rank(64, needed["degree"])
    assert approximate.needed(rows, 0.0)["Gaussian"] is None
    write(approximate.figure(rows).to_dict(), tmp_path / "approximate.svg", force=False)
    assert len(approximate.tables(rows)) == 2
    assert len(approximate.findings(rows)) == 3


@pytest.mark.thorough
def test_training_shapes_the_scores():
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    spread = [max((q @ k.T / 8).std() for q, k, _ in approximate.small_transformer.heads(steps)) for steps in (0, 60)]
    assert spread[1] > 1.3 * spread[0]
