"""Pictures of sweeps."""

import os

import pytest

from redblue.base.errors import RedblueError
from redblue.studies import sweep
from redblue.studies.sweep.picture import BOUND, GIVEN
from support.examples import thorough


def values_of(chart):
    return chart.to_dict()["data"]["values"]


def test_a_picture_shows_every_word_count():
    axes = {"n": 64, "d": [8, 16], "words": "50:800:x2"}
    grid = sweep.make_sweep(axes)
    rows = sweep.run(grid, jobs=1)
    chart = sweep.figure(grid, rows)
    drawn = {(v["schedule"], v["facet"], v["x"]): v["y"] for v in values_of(chart) if "schedule" in v}
    fitting = [row for row in rows if row["words"] is not None]
    assert drawn == {
        (row["schedule"], f"d = {row['d']}", row["capacity_words"]): row["words_per_pair"] for row in fitting
    }
    bounds = {(v["facet"], v["x"]): v["y"] for v in values_of(chart) if "bound" in v}
    assert bounds == {
        (f"d = {row['d']}", row["capacity_words"]): pytest.approx(row["bound_words"] / 64**2) for row in fitting
    }
    spec = chart.to_dict()
    assert spec["columns"] == 2
    layers = spec["spec"]["layer"]
    assert {layer["encoding"]["x"]["scale"]["type"] for layer in layers} == {"log"}
    assert {layer["encoding"]["y"]["scale"]["type"] for layer in layers} == {"log"}


def test_bounds_at_one_number_are_strokes():
    """A line through one point would be invisible."""
    for capacities, strokes in (([2, 64], 1), ([64, 128], 0)):  # no schedule fits in 2 words
        grid = sweep.make_sweep({"n": 64, "d": 8, "words": capacities})
        layers = sweep.figure(grid, sweep.run(grid, jobs=1)).to_dict()["layer"]
        assert [layer["mark"].get("shape") for layer in layers].count("stroke") == strokes


def test_a_schedule_that_reads_p_has_a_bound_of_its_own():
    grid = sweep.make_sweep({"n": 300, "d": 512, "d_v": 64, "words": [64, 128], "direction": "forward,backward"})
    rows = sweep.run(grid, jobs=1)
    bounds = [v for v in values_of(sweep.figure(grid, rows, x="words")) if "bound" in v]
    for row in (row for row in rows if row["words"] is not None):
        name = GIVEN if (row["schedule"], row["direction"]) == ("standard", "backward") else BOUND
        place = (f"direction = {row['direction']}", row["capacity_words"])
        (bound,) = [v for v in bounds if (v["bound"], v["facet"], v["x"]) == (name, *place)]
        assert bound["y"] == pytest.approx(row["bound_words"] / 300**2)
        assert bound["y"] <= row["words_per_pair"]
        lowest = min(v["y"] for v in bounds if (v["facet"], v["x"]) == place)
        assert [v["y"] for v in bounds if (v["facet"], v["x"]) == place and v["shaded"]] == [lowest]
    assert {v["bound"] for v in bounds} == {BOUND, GIVEN}


def test_an_axis_of_steps_is_drawn_without_logarithms():
    grid = sweep.make_sweep({"n": 64, "d": "8:32:+8", "words": 999})
    layers = sweep.figure(grid, sweep.run(grid, jobs=1), y="gap").to_dict()["layer"]
    assert {layer["encoding"]["x"]["scale"]["type"] for layer in layers} == {"linear"}


@pytest.mark.parametrize("suffix", [".svg", thorough(".png"), thorough(".html")])
def test_pictures_are_written(suffix, tmp_path):
    grid = sweep.make_sweep({"n": "64:256:x2", "d": 8, "memory": "t4"})
    rows = sweep.run(grid, jobs=1)
    path = tmp_path / f"p{suffix}"
    sweep.draw(grid, rows, path)
    data = path.read_bytes()
    if suffix == ".png":
        assert data.startswith(b"\x89PNG")
        assert len(data) > 20_000
    else:
        text = data.decode()
        for label in ("flash", "small_cache", "L2/DRAM", "shared memory/L2", "words per attended pair"):
            assert label in text
        if suffix == ".svg":
            in_legend = len({row["schedule"] for row in rows})
            assert text.count("<path transform=") >= len(rows) + in_legend  # a point for each row
        else:
            assert "<script src" not in text  # nothing from the network
            assert len(text) > 500_000
    with pytest.raises(RedblueError, match="exists"):
        sweep.draw(grid, rows, path)
    assert path.read_bytes() == data
    sweep.draw(grid, rows, path, force=True, y="gap")
    assert path.read_bytes() != data


@pytest.mark.parametrize(
    ("axes", "options", "says"),
    [
        ({"n": 64, "d": 8, "words": 99}, {}, "needs an axis of several values"),
        ({"n": [64, 65], "d": [8, 9], "words": [99, 199]}, {}, "n, d, words have several values"),
        ({"n": [64, 65], "d": 8, "words": 99}, {"x": "d"}, "x must be an axis of several values, which are n; got 'd'"),
        ({"n": [64, 65], "d": 8, "words": 99}, {"y": "joules"}, "y must be one of words_per_pair, gap"),
        ({"n": [64, 65], "d": 8, "words": 99}, {"y": "seconds"}, "seconds without a memory"),
        ({"n": [64, 65], "d": 8, "words": 99, "memory": "t4"}, {}, "words or memories, not both"),
        ({"n": "64:96:+1", "d": "8:20:+1", "words": 99}, {}, "d has 13 values, a picture at most 12 facets"),
        ({"n": [64, 65], "d": 8, "words": 1}, {}, "nothing to draw"),
    ],
)
def test_pictures_that_cannot_be_drawn_are_refused(axes, options, says, tmp_path):
    grid = sweep.make_sweep(axes)
    with pytest.raises(RedblueError) as error:
        sweep.draw(grid, sweep.run(grid, jobs=1) if says == "nothing to draw" else [], tmp_path / "p.svg", **options)
    assert says in str(error.value)
    assert os.listdir(tmp_path) == []
