"""`redblue sparse`: counts, tables, pictures and refused arguments."""

from functools import partial

import numpy as np
import pytest
import scipy.io
import scipy.sparse

import redblue as rb
from redblue.bounds.family import family
from redblue.lab.text import STANDARD_REMARK
from redblue.studies.sparse import study
from redblue.studies.sparse.picture import FAMILY, GIVEN, PROVED, figure
from support import command_line
from support.spaces import plane

SMALL = ("window:6,5", "--n", "48", "--d", "4", "--words", "60,200")
run, run_json = (partial(function, "sparse") for function in (command_line.run, command_line.run_json))


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_schedule_and_format_equals_count(direction):
    data = run_json(*SMALL, "--direction", direction)
    problem = rb.Problem(48, 48, 4, mask=rb.Mask.sliding_window(6, 5), direction=direction)
    assert [point["words"] for point in data["points"]] == [60, 200]
    compared = set()
    for point in data["points"]:
        bounds = {each.name: each.words for each in rb.lower_bounds(problem, point["words"])}
        assert point["bound"]["words"] == rb.lower_bound(problem, point["words"]).words
        assert point["one_mask_bound_words"] == bounds["one mask"]
        assert point["family_form_words"] == bounds["sparse"]
        for row in point["counts"]:
            closed = rb.count(row["schedule"], problem, words=point["words"], index=row["index"])
            assert row["words"] <= closed.words
            assert row["peak"] <= point["words"]
            if row["index"] == "rule":
                assert row["words"] == closed.words
            compared.add((row["schedule"], row["index"]))
            assert row["words"] >= point["bound"]["words"]
    assert {"rule", "bits", "csr", "coo", "tiles"} == {name for _, name in compared} == set(data["index_words"])
    assert "blocks" in data["left_out"]
    terms = family(problem)
    assert data["family"] == {
        "z_input": terms.z_input,
        "z_qk": terms.z_qk,
        "dividing_words": round(terms.dividing_words),
    }
    assert all(each["why"] for point in data["points"] for each in point["missing"])


def test_backward_standard_is_compared_with_the_bound_for_a_given_p(tmp_path):
    arguments = ("full", "--n", "300", "--d", "512", "--d-v", "64", "--words", "64", "--direction", "backward")
    problem = rb.Problem(300, 300, 512, 64, direction="backward")
    (point,) = run_json(*arguments)["points"]
    words = {row["schedule"]: row["words"] for row in point["counts"]}
    given = rb.lower_bound(problem, 64, p_given=True)
    assert point["bound_if_p_given"] == {"name": given.name, "words": given.words}
    assert given.words <= words["standard"] < point["bound"]["words"] <= words["small_cache"]
    text = " ".join(run(*arguments, "--picture", str(tmp_path / "p.svg")).output.split())
    assert "proved, P given: " in text
    assert f"Backward, {STANDARD_REMARK}. For that schedule only the bound for a given P holds." in text
    drawn = (tmp_path / "p.svg").read_text()
    assert STANDARD_REMARK in drawn
    assert GIVEN in drawn
    comparison = study.compare(problem, [64])
    assert comparison.points[0].best.schedule == "small_cache"  # standard moves fewer words, but it needs P
    only = study.compare(problem, [64], names=["standard"])
    assert only.points[0].best.schedule == "standard"
    assert only.points[0].bound_given.words == given.words

    forward = study.compare(rb.Problem(300, 300, 512, 64), [64])
    assert forward.points[0].bound_given is None
    assert not forward.reads_p
    assert not study.compare(problem, [64], names=["small_cache"]).reads_p


def test_count_takes_an_index():
    arguments = ("count", "flash", "--n", "48", "--d", "4", "--words", "200", "--mask", "window:6,5", "--index", "csr")
    printed = command_line.run_json(*arguments)
    mask = rb.Mask.sliding_window(6, 5)
    assert (
        printed["index_words"]
        == rb.count("flash", rb.Problem(48, 48, 4, mask=mask), words=200, index="csr").index_words
    )
    assert command_line.run_json(*arguments, "--run")["reads"] == printed["reads"]
    assert "of the reads" in command_line.run(*arguments).output


def test_the_index_of_both_sides_is_needed_backward():
    forward, backward = (run_json(*SMALL, "--direction", d)["index_words"] for d in ("forward", "backward"))
    assert backward["csr"] == 2 * forward["csr"] == 2 * (49 + rb.Mask.sliding_window(6, 5).nnz(48, 48))


def test_stored_masks_have_no_rule():
    layout = rb.Mask.blocks(np.eye(4, dtype=bool), 8)
    assert study.by_rule(rb.Mask.bigbird(8)) is False
    assert study.by_rule(rb.Mask.causal() & ~rb.Mask.prefix(3))
    assert not study.by_rule(rb.Mask.causal() & ~layout)
    assert study.usual(layout)[:2] == ["bits", "blocks"]
    assert "2:4" in study.usual(rb.Mask.n_of_m(2, 4))
    assert study.usual(rb.Mask.full()) == ["rule"]


def test_graphs_are_read(tmp_path):
    mask = plane(5)
    dense = mask.to_dense()
    matrix = scipy.sparse.coo_array(dense.astype(float))
    scipy.io.mmwrite(tmp_path / "g.mtx", matrix)
    scipy.sparse.save_npz(tmp_path / "g.npz", matrix.tocsc())
    for name in ("g.mtx", "g.npz"):
        assert np.array_equal(study.read_graph(str(tmp_path / name)).to_dense(), dense)
        data = run_json(str(tmp_path / name), "--d", "4", "--words", "100", "--index", "csr", "--schedule", "gather")
        problem = rb.Problem(25, 25, 4, mask=mask)
        assert data["points"][0]["counts"][0]["words"] == rb.count("gather", problem, words=100, index="csr").words


def test_the_table_says_what_is_proved():
    text = " ".join(run(*SMALL).output.split())
    assert "proved: " in text
    assert "family's form" in text
    assert "Z_input^2 / Z_QK" in text
    assert "Left out: format blocks" in text


def test_bounds_at_one_capacity_are_strokes():
    """A line through one point would be invisible."""
    problem = rb.Problem(48, 48, 4, mask=rb.Mask.sliding_window(6, 5))
    marks = [
        [layer["mark"] for layer in figure(study.compare(problem, capacities)).to_dict()["spec"]["layer"]]
        for capacities in ((60,), (60, 200))
    ]
    assert [[mark.get("shape") for mark in each].count("stroke") for each in marks] == [1, 0]


@pytest.mark.thorough
def test_the_picture_shows_every_count_and_both_bounds(tmp_path):
    problem = rb.Problem(48, 48, 4, mask=rb.Mask.sliding_window(6, 5), heads=2)
    comparison = study.compare(problem, (60, 200))
    drawn = figure(comparison).to_dict()["data"]["values"]
    lines = [row for row in drawn if "schedule" in row]
    assert len(lines) == sum(len(point.counts) for point in comparison.points)
    pairs = 2 * problem.mask.nnz(48, 48)
    assert {row["y"] for row in lines} == {
        row.words / pairs for point in comparison.points for row in point.counts.values()
    }
    assert {row["bound"] for row in drawn if "bound" in row} == {PROVED, FAMILY}
    for suffix in (".svg", ".png", ".html"):
        path = tmp_path / f"p{suffix}"
        assert run(*SMALL, "--picture", str(path)).exit_code == 0
        assert path.stat().st_size > 10_000
    assert "gather" in (tmp_path / "p.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("causal", "--words", "100"), "n_q and n_k"),
        ((*SMALL, "--direction", "gradient_x"), "direction must be forward or backward"),
        ((*SMALL, "--index", "crs"), "unknown format 'crs'; nearest: csr"),
        ((*SMALL, "--index", "blocks"), "made of blocks"),
        ((*SMALL, "--schedule", "flesh"), "unknown schedule 'flesh'; nearest: flash"),
        (("causal", "--n", "8", "--words", "1:0:x2"), "a range goes up"),
        (("missing.mtx",), "cannot read 'missing.mtx' as a sparse matrix"),
        (("causal", "--n", "8", "--d", "4", "--words", "2", "--picture", "p.svg"), "nothing to draw"),
        (("causal", "--n", "8", "--picture", "p.gif"), "p.gif"),
        (("full", "--n", "8", "--words", "99", "--index", "csr"), "has no index"),
    ],
)
def test_bad_input_is_refused(arguments, says, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert says in command_line.refusal(capsys, monkeypatch, "sparse", *arguments)
    assert not list(tmp_path.iterdir())


def test_a_graph_that_is_no_matrix_is_refused(capsys, monkeypatch, tmp_path):
    (tmp_path / "bad.mtx").write_text("nothing of the kind")
    assert "as a sparse matrix" in command_line.refusal(capsys, monkeypatch, "sparse", str(tmp_path / "bad.mtx"))


def test_help_has_an_example():
    assert "Example: redblue sparse" in " ".join(run("--help").output.split())
