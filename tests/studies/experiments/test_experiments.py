"""Experiments: the runner, its files, interrupted runs, and the findings of each quick run."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from redblue.base.charts import write
from redblue.base.errors import RedblueError
from redblue.base.journal import journal_path
from redblue.catalogue.memories import USABLE_SHARE
from redblue.cli.main import app
from redblue.lab.counts import count
from redblue.lab.recount import recount
from redblue.lab.sweep_family import TABLE
from redblue.schedules import TooFewWords
from redblue.schedules import network as schedules_of_networks
from redblue.studies import experiments
from redblue.studies.experiments import gaps, gpu, heads, network, real_caches, regimes, runner, search, sparse
from redblue.studies.experiments.figure_2022 import FLASH1, STANDARD, WITH_PASSES, totals
from support.sweeps import Stop, stop_after

RESULTS = Path(__file__).parents[3] / "docs" / "results"
KEPT = [result.experiment for result in experiments.read_all(RESULTS)]


@pytest.fixture
def measured(monkeypatch):
    """Record the points that this process measures from now on, in the returned list."""
    points, real = [], runner.measure

    def measure(name, point):
        points.append(point)
        return real(name, point)

    monkeypatch.setattr(runner, "measure", measure)
    return points


def test_a_run_writes_data_figures_and_page(tmp_path):
    result = experiments.run("figure-2022", out=tmp_path / "results", quick=True)
    folder = tmp_path / "results"
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".md", ".svg"]
    assert experiments.read(folder, "figure-2022") == result
    assert experiments.read_all(folder) == [result]
    page = (folder / "figure-2022.md").read_text(encoding="utf-8")
    assert "`redblue experiment figure-2022 --quick" in page
    assert result.date in page
    assert result.machine in page
    assert all(line in page for line in result.about.findings(result.rows))
    (folder / "figure-2022.svg").unlink()
    assert experiments.redraw("figure-2022", out=folder) == result
    assert (folder / "figure-2022.svg").read_text(encoding="utf-8").startswith("<svg")


def test_links_stay_links(tmp_path):
    folder, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    result = experiments.run("figure-2022", out=elsewhere, quick=True)
    for path in elsewhere.iterdir():
        path.rename(elsewhere / f"{path.stem}-kept{path.suffix}")
        (folder / path.name).symlink_to(elsewhere / f"{path.stem}-kept{path.suffix}")
    (elsewhere / "figure-2022-kept.md").write_text("old")
    assert experiments.run("figure-2022", out=folder, quick=True).rows == result.rows
    assert all(path.is_symlink() for path in folder.iterdir())
    assert "figure-2022" in (elsewhere / "figure-2022-kept.md").read_text(encoding="utf-8")


def test_a_stopped_experiment_goes_on(tmp_path, measured):
    with pytest.raises(Stop):
        experiments.run("regimes", out=tmp_path, quick=True, jobs=1, progress=stop_after(1))
    kept = journal_path(tmp_path / "regimes.json")
    assert [path.name for path in tmp_path.iterdir()] == [kept.name]
    result = experiments.run("regimes", out=tmp_path, quick=True, jobs=1)
    assert measured == regimes.points(True)  # each once
    assert not kept.exists()
    assert result.rows == [row for point in regimes.points(True) for row in regimes.measure(point)]


@pytest.mark.thorough
def test_points_of_another_run_are_not_continued(tmp_path, measured):
    with pytest.raises(Stop):
        experiments.run("regimes", out=tmp_path, quick=True, jobs=1, progress=stop_after(1))
    with pytest.raises(RedblueError, match=r"holds another experiment, which differs in points.*--restart"):
        experiments.run("regimes", out=tmp_path, jobs=1)
    assert len(measured) == 1
    experiments.run("regimes", out=tmp_path, quick=True, jobs=1, restart=True)
    assert measured == [regimes.points(True)[0], *regimes.points(True)]


@pytest.mark.parametrize("content", ["my notes", "[1]", '{"experiment": "crossing"}', '{"experiment": "sparse"}'])
def test_a_foreign_file_is_kept(content, tmp_path):
    (tmp_path / "sparse.json").write_text(content)
    for act in (experiments.run, experiments.redraw):
        with pytest.raises(RedblueError, match=r"cannot read .*sparse\.json|no result of the experiment sparse"):
            act("sparse", out=tmp_path)
    assert (tmp_path / "sparse.json").read_text() == content


def test_bad_calls_are_refused(tmp_path):
    with pytest.raises(RedblueError, match="unknown experiment 'spars'; nearest: sparse"):
        experiments.run("spars", out=tmp_path)
    with pytest.raises(RedblueError, match=r"there is no folder .*name another with --out"):
        experiments.run("sparse", out=tmp_path / "no" / "such")
    with pytest.raises(RedblueError, match="run `redblue experiment sparse` first"):
        experiments.redraw("sparse", out=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RedblueError, match=r"cannot write in .*file"):
        experiments.run("sparse", out=tmp_path / "file")
    with pytest.raises(RedblueError, match="jobs must be a whole number"):
        experiments.run("sparse", out=tmp_path, quick=True, jobs=0)


def test_a_wrong_call_makes_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "get", lambda name: replace(experiments.get(name), missing=str))
    with pytest.raises(RedblueError, match=r"there is no typo.sparse\.json: run"):
        experiments.redraw("sparse", out="typo")
    with pytest.raises(RedblueError, match="the experiment sparse has no parts: leave out --only x"):
        experiments.run("sparse", out="typo", only="x")
    with pytest.raises(RedblueError, match="unknown part 'x'"):
        experiments.run("training", out="typo", only="x")
    with pytest.raises(RedblueError, match="jobs must be 1"):
        experiments.run("training", out="typo", jobs=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    run = CliRunner().invoke
    listed = run(app, ["experiment", "--list"])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in experiments.NAMES)
    every = json.loads(run(app, ["experiment", "--list", "--json"]).output)
    assert [experiment["name"] for experiment in every] == list(experiments.NAMES)
    assert isinstance(run(app, ["experiment"]).exception, RedblueError)
    process = run(app, ["experiment", "figure-2022", "--out", str(tmp_path), "--json"])
    assert process.exit_code == 0
    assert json.loads(process.stdout) == experiments.read(tmp_path, "figure-2022").to_dict()


def test_an_interrupt_says_how_to_go_on(tmp_path, monkeypatch):
    def interrupted(name, point):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "measure", interrupted)
    stopped = CliRunner().invoke(app, ["experiment", "sparse", "--quick", "--jobs", "1", "--out", str(tmp_path)])
    assert stopped.exit_code == 130
    assert "stopped: 0 of 2 points are done, kept in" in stopped.output
    assert journal_path(tmp_path / "sparse.json").exists()


@pytest.mark.parametrize("name", KEPT)
def test_stored_results_match_this_code(name):
    """The results in docs/ have the points of the current experiment, and its page shows the findings.

    Some parts of an experiment may have only the points of --quick; its page says which parts.
    """
    result = experiments.read(RESULTS, name)
    page = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    assert all(line in page for line in result.about.findings(result.rows))
    if not result.about.parts:
        assert not result.quick
        assert result.command == f"redblue experiment {name}"
    parts_of_quick = {row["part"] for row in result.rows if result.about.parts and row["quick"]}
    for part in result.about.parts:
        assert (part in parts_of_quick) == (f"--full --only {part}`" in page)
    for quick in (False, True):
        for point in result.about.points(quick):
            if quick == (bool(result.about.parts) and point["part"] in parts_of_quick):
                matches = (all(row.get(key, value) == value for key, value in point.items()) for row in result.rows)
                assert any(matches), point


def test_the_bars_of_2022_equal_recount():
    total = totals(experiments.get("figure-2022").measure({}))
    counted = [recounted.counted for recounted in recount() if recounted.unit == "GB"]
    assert [total[bar] for bar in (STANDARD, STANDARD, WITH_PASSES, FLASH1)] == pytest.approx(counted)
    assert total["bound"] < min(total.values()) or total["bound"] == min(total.values())


def test_heads_at_once_pay_up_to_H_fold_where_caches_are_large_and_sqrt_H_fold_where_they_are_small():
    rows = [row for point in heads.points(True) for row in heads.measure(point)]
    large, small = heads.growth(rows, 64), heads.growth(rows, 1024)
    for at_once in (2, 4):
        assert 0.85 * at_once < large[at_once] <= at_once
        assert small[at_once] == pytest.approx(at_once**0.5, rel=0.05)
    assert all(row["words_per_head"] >= row["bound_words"] for row in rows)


def test_the_short_table_of_a_network_has_the_ratios_of_the_long_one():
    short, long = network.tables(experiments.read(RESULTS, "network").rows)[:2]
    ratios = {
        (problem, name.strip("`"), head): cell
        for problem, names, *cells in short.rows
        for name in names.split(", ")
        for head, cell in zip(short.columns[2:], cells, strict=True)
        if cell != "-"
    }
    place = long.columns.index("words / bound for balanced work")
    assert ratios == {(row[0], row[2].strip("`"), f"P = {row[1]}"): row[place] for row in long.rows}


def test_the_picture_of_a_network_shows_schedules_that_have_no_look(monkeypatch):
    rows = experiments.read(RESULTS, "network").rows
    for name in ("first", "second"):
        monkeypatch.setitem(schedules_of_networks.SCHEDULES, name, schedules_of_networks.get("ring"))
        rows += [row | {"schedule": name} for row in rows if row["schedule"] == "ring"]
    for panel in network.figure(rows).to_dict()["concat"]:
        line, mark = (layer["encoding"] for layer in panel["layer"])
        scales = [line["color"]["scale"], line["strokeDash"]["scale"], mark["shape"]["scale"]]
        for scale in scales:
            assert scale["domain"] == list(schedules_of_networks.SCHEDULES)
            assert len(scale["range"]) == len(scale["domain"])
        assert len(set(scales[0]["range"])) == len(scales[0]["domain"])


def test_each_boundary_has_a_regime_of_its_own():
    """On a T4, d* is 181 for shared memory and 1448 for L2."""
    rows = [row for point in regimes.points(True) for row in regimes.measure(point)]
    applies = {(row["boundary"], row["d"]): row["applies"] for row in rows}
    near = [applies["shared memory/L2", d] for d in regimes.HEAD_DIMENSIONS]
    assert near == ["large-cache"] * 3 + ["between"] * 2 + ["small-cache"] * 2
    assert applies["L2/DRAM", 512] == "large-cache"
    for row in rows:
        assert row["words"] >= row["bound_words"]
        assert (row["regime"] == "large-cache") == (row["M"] >= row["d"] ** 2)
    assert set(applies.values()) <= set(regimes.STATEMENTS) == set(regimes.SHADES) == set(regimes.SHORT)


def test_the_gpu_experiment_needs_one_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "detect_cuda", tuple)
    with pytest.raises(RedblueError, match="the experiment gpu cannot run here: it needs an NVIDIA GPU"):
        experiments.run("gpu", out=tmp_path)
    monkeypatch.setattr(gpu, "detect_cuda", lambda: ("a card",))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu.ncu, "PLACES", ())
    with pytest.raises(RedblueError, match=r"cannot run here: .*Nsight Compute"):
        experiments.run("gpu", out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_gpu_experiments_requests_and_figure(tmp_path, monkeypatch):
    """With a meter that returns twice the counted bytes, and too little shared memory for one schedule."""

    def measured(problem, using, plan_words, schedule, boundary):
        assert using == "ncu"
        if schedule == "hybrid":
            raise TooFewWords("it needs more")
        counted = count(schedule, problem, words=plan_words)
        size = problem.bytes_per_word * counted.words
        return SimpleNamespace(
            bytes_read=size, bytes_written=size, counted_words=counted.words, tiles=counted.tiles, kernel=schedule
        )

    monkeypatch.setattr(gpu, "measured", measured)
    rows = [row for point in gpu.points(True) for row in gpu.measure(point)]
    assert len(rows) == 6
    assert {row["schedule"] for row in gpu.measured_rows(rows)} == {"flash", "small_cache"}
    assert {row["bytes"] / row["counted_bytes"] for row in gpu.measured_rows(rows)} == {2}
    write(gpu.figure(rows).to_dict(), tmp_path / "gpu.svg", force=False)
    assert len(gpu.tables(rows)[0].rows) == 4
    assert len(gpu.findings(rows)) == 2


@pytest.mark.thorough
def test_no_mask_is_below_its_bound_and_an_index_costs_its_words():
    rows = [row for point in sparse.points(True) for row in sparse.measure(point)]
    assert {row["format"] for row in rows} == {"rule", "bits", "tiles", "csr", "coo"}
    for row in rows:
        assert row["words"] >= row["bound_words"]
        assert (row["index_words"] == 0) == (row["format"] == "rule")
    windows = {row["format"]: row["words"] for row in rows if row["pattern"] == "window"}
    assert min(windows, key=windows.__getitem__) == "rule"


def test_tiles_beyond_the_usable_share_cost_a_multiple():
    """LRU caches with enough ways move the counted words up to 75 % of the capacity, and far more beyond."""
    rows = [row for point in real_caches.points(True) for row in real_caches.measure(point)]
    price = {(row["ways"], row["share"]): row["moved_words"] / row["counted_words"] for row in rows}
    assert all(each >= 1 for each in price.values())
    for ways in (8, None):
        assert max(price[ways, share] for share in (0.25, 0.5, 0.75)) < 1.06
        assert price[ways, 1.0] > 1.4
    assert price[1, 0.75] > 2


def test_the_planner_assumes_a_nearly_optimal_share():
    """Over the cases of real hardware, the planned share costs on average at most 2 % more than the best share."""
    mean_regret = {
        share: geometric_mean(regrets)
        for share, regrets in real_caches.regrets(experiments.read(RESULTS, "real-caches").rows).items()
    }
    assert mean_regret[USABLE_SHARE] <= 1.02 * min(mean_regret.values())
    assert mean_regret[USABLE_SHARE] < mean_regret[1.0]


@pytest.mark.thorough
def test_gaps_are_of_plans_and_none_is_below_its_bound():
    """Rows are weighted by the number of plans that they represent: 12 for each direction of the quick run."""
    rows = [row for point in gaps.points(True) for row in gaps.measure(point)]
    for direction in gaps.HUES:
        own = gaps.fitting(rows, direction)
        assert sum(row["plans"] for row in own) == 12
        assert all(row["gap"] >= 1 and row["free_gap"] >= 1 for row in own)
        every = sorted(row["gap"] for row in own for _ in range(row["plans"]))
        assert gaps.quantile(own, 0.5) == every[5]
        assert gaps.quantile(own, 0.9) == every[10]
        assert gaps.quantile(own, 1) == every[-1]
    assert rows[0]["problem"] == "1,024 x 1,024, d 64, causal"


def test_the_search_finds_nothing_below_the_tables_and_no_optimum_below_its_bound(monkeypatch):
    rows = [row for point in search.points(True) for row in search.measure(point)]
    assert {row["direction"] for row in search.of_family(rows)} == {"forward", "backward", "gradient_x"}
    assert all(row["words"] == pytest.approx(row["table"], rel=1e-9) for row in search.of_family(rows))
    assert all(row["proved"] and row["words"] >= row["bound"] for row in search.games(rows))
    assert [row["words"] for row in search.games(rows)] == [16, 11, 10, 9, 8]
    assert search.findings(rows)[0].startswith("At 0 of ")
    monkeypatch.setitem(TABLE, "forward", {"flash": lambda x: 5 * x**2})  # the check detects a worse table
    worse = [row for point in search.points(True)[:1] for row in search.measure(point)]
    assert search.findings(worse + search.games(rows))[0].startswith("At 1 of 1 ")
