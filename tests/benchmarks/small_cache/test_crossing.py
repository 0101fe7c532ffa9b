"""Schedules with less and less shared memory: words, results of earlier runs, the figure, crossings."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from rich.console import Console

from benchmarks.small_cache import crossing as small_cache
from benchmarks.small_cache import device as small_cache_device
from support.benchmark_scripts import run


@pytest.mark.thorough
def test_small_caches_are_counted_without_a_gpu(tmp_path):
    path = tmp_path / "small_cache.json"
    said = run("small_cache.crossing", "--dry", "--json", path)
    assert "fewer words" in said
    assert "fewer seconds" not in said

    facts, rows = small_cache.read(path)
    assert not any(row.seconds for row in rows)
    assert all(row.bound_words <= row.words <= (row.tensor_core_words or row.words) for row in rows)
    assert path.with_suffix(".svg").read_text().startswith("<svg")
    rows[0].launch = "one"
    small_cache.write(path, facts, rows)
    measured = path.read_text()
    with pytest.raises(SystemExit, match="give another --json"):
        run("small_cache.crossing", "--dry", "--json", path)
    assert path.read_text() == measured


def test_small_caches_of_other_kernels_are_measured_anew(tmp_path, capsys):
    console, path = Console(width=200), tmp_path / "small_cache.json"
    facts = small_cache.about() | {"device": "a card", "torch": "2", "triton": "3", "kernels": "abc"}
    timed = small_cache.Row("forward", 64, 24, "flash", launch="one", seconds=1.0, date="2000-01-02")
    passing = small_cache.Row("forward", 64, 24, "hybrid", why="OutOfMemoryError: CUDA out of memory")
    small_cache.write(path, facts, [timed, passing])
    again = small_cache_device._kept(path, facts | {"date": "2000-03-04"}, console)
    assert again == {small_cache_device._place(timed): timed}
    assert capsys.readouterr().out == ""
    for name in ("device", "torch", "triton", "kernels"):
        assert small_cache_device._kept(path, facts | {name: "other"}, console) == {}
        assert capsys.readouterr().out == f"measured again: 1 launches, because {name} changed\n"
    small_cache.show(facts, [timed, passing], console)
    assert "a card, 2000-01-02" in capsys.readouterr().out


@pytest.mark.thorough
def test_the_figure_has_times_bytes_and_crossings(tmp_path):
    facts, rows = small_cache.read(small_cache.KEPT)
    assert {crossing["what"] for crossing in small_cache.crossings(rows)} == {"words"}
    for row in rows:
        row.seconds = row.tensor_core_words and row.tensor_core_words / 1e12
        row.l1_l2_bytes = row.l2_dram_bytes = row.tensor_core_words and 2.0 * row.tensor_core_words
        row.l2_dram_bound_bytes = float(row.bound_words)
    assert {crossing["what"] for crossing in small_cache.crossings(rows)} == {"words", "seconds"}
    small_cache.draw(tmp_path / "all.svg", facts, rows)
    drawn = (tmp_path / "all.svg").read_text() + (tmp_path / "all_measured.svg").read_text()
    for title in ("words, counted", "time", "bytes, shared memory and L1 to L2", "bytes, L2 to memory"):
        assert f"forward: {title}" in drawn
        assert f"backward: {title}" in drawn


def test_a_crossing_lies_where_the_ratio_is_one():
    def row(d, schedule, words):
        return small_cache.Row("forward", d, 64, schedule, words=words)

    rows = [row(64, "flash", 1), row(64, "hybrid", 2), row(128, "flash", 3), row(128, "hybrid", 2)]
    assert small_cache.crossing(rows, "flash", "hybrid", "words") == pytest.approx(96**2 / 32768)
    assert small_cache.crossing(rows[:2], "flash", "hybrid", "words") is None
