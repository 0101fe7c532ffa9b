"""The report: its page, its summary, its checks."""

import io
import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
import vl_convert
from rich.console import Console

import redblue as rb
from redblue import schedules
from redblue.base import style
from redblue.base.errors import RedblueError
from redblue.base.text import amount, byte_amount, ratio
from redblue.catalogue.memories import Level, Memory
from redblue.catalogue.models import Layers, Model
from redblue.lab.text import STANDARD_REMARK
from redblue.studies import experiments
from redblue.studies.report import collect, render, summary, words_figure, write
from redblue.studies.report.checks import run, small
from redblue.studies.report.curves import BEST, GIVEN, curve
from redblue.studies.report.terminal import verdict
from support.examples import thorough

TINY = Memory("tiny", "Tiny board", "cpu", (Level("L1", 2048), Level("L2", 2**20), Level("DRAM", None)))
EVIL = "<script>alert(1)</script>"


def model(name="toy", direction="forward", **sizes):
    problem = rb.Problem(48, 48, 8, heads=4, kv_heads=2, mask=rb.Mask.causal(), direction=direction, **sizes)
    return Model(name, name.title(), (Layers("attention", 3, problem),), "made up", ("a note of the model",))


@pytest.fixture(scope="module")
def report():
    return collect([model(), rb.model("sd-vae", n=256)], [TINY, rb.memory("t4")])


@pytest.fixture(scope="module")
def page(report):
    return render(report)


@pytest.fixture
def rendered(page, monkeypatch):
    """Spares `write` the seconds that `render` takes for the report."""
    monkeypatch.setattr("redblue.studies.report.page.render", lambda report: page)


class Seen(HTMLParser):
    """Collect the tags of a page, and its text outside scripts and styles."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self._inside = [], "", ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        self.text += "" if self._inside in ("script", "style") else f"{data} "


def test_a_report_plans_every_shape_on_every_machine(report):
    assert [shape.label for shape in report.shapes] == ["toy", "sd-vae"]
    for shape in report.shapes:
        assert [plan.memory for plan in shape.plans] == ["tiny", "t4"]
        assert list(shape.plans) == [rb.plan(shape.problem, memory) for memory in report.memories]
    assert sum(report.regimes.values()) == len(list(report.cells)) == 8
    assert report.widest[2].gap == max(level.gap for _, _, level in report.cells)


def test_equal_streams_share_a_curve():
    alike = [model("a"), model("b", dtype="bfloat16"), model("c", batch=2), model("d", dtype="float32")]
    shapes = collect(alike, [TINY]).shapes
    assert shapes[0].curve is shapes[1].curve is shapes[2].curve
    assert shapes[3].curve.marks != shapes[0].curve.marks  # half as many words, twice as large


def test_a_machine_brings_its_devices_and_comes_once():
    host = replace(TINY, name="host", devices=(rb.memory("t4"),))
    report = collect([model()], [host, rb.memory("t4"), host])
    assert [memory.name for memory in report.memories] == ["host", "t4"]


def test_curves_hold_counts_and_bounds():
    problem = rb.Problem(128, 128, 16, heads=2, kv_heads=1, mask=rb.Mask.causal())
    stream = problem.one_stream()
    drawn = curve(problem, [TINY], points=12)
    assert {16 * 16 // 4, 16 * 16, 1024, 2**19} <= set(drawn.capacities)
    assert drawn.pairs == stream.mask.nnz(stream.n_q, stream.n_k)
    lines = {series.name: series.words_per_pair for series in drawn.series}
    for i, words in enumerate(drawn.capacities):
        bound = rb.lower_bound(stream, words).words / drawn.pairs
        assert lines[BEST][i] == bound
        for name in schedules.covering(stream):
            drawn_at = lines[name][i]
            if drawn_at is None:
                with pytest.raises(rb.TooFewWords):
                    rb.count(name, stream, words=words)
            else:
                assert bound <= drawn_at == rb.count(name, stream, words=words).words / drawn.pairs
    assert [name for name, _, _ in drawn.regimes] == ["large-cache", "between", "small-cache"]


@pytest.mark.parametrize(("direction", "has_given"), [("forward", False), ("backward", True)])
def test_every_schedule_lies_above_the_bound_that_holds_for_it(direction, has_given):
    drawn = curve(rb.Problem(300, 300, 512, direction=direction), [TINY], points=10)
    lines = {series.name: series.words_per_pair for series in drawn.series}
    assert (GIVEN in lines) == has_given
    below = 0  # values of standard below the bound that does not hold for it
    for series in drawn.series:
        if series.kind != "schedule":
            continue
        reads_p = schedules.get(series.name).takes_p(direction)
        for i, words in enumerate(series.words_per_pair):
            assert words is None or words >= lines[GIVEN if reads_p else BEST][i]
            below += words is not None and words < lines[BEST][i]
    assert (below > 0) == has_given
    spec = words_figure(drawn, width=800).to_dict()
    (area,) = [layer for layer in spec["layer"] if layer["mark"]["type"] == "area"]
    assert {row["name"] for row in area["data"]["values"]} == {GIVEN if has_given else BEST}


@pytest.mark.thorough
def test_the_page_says_which_bound_holds_for_standard(page):
    backward = " ".join(Seen(render(collect([model(direction="backward")], [TINY]))).text.split())
    assert f"Backward, {STANDARD_REMARK}. For that schedule only the line “{GIVEN}” is a bound" in backward
    assert STANDARD_REMARK not in Seen(page).text


def test_plain_data_survives_json(report):
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert data["shapes"][0]["plans"][0]["levels"][0]["words"] == report.shapes[0].plans[0].levels[0].words
    assert len(data["curves"]) == len(report.curves) == 2
    assert [shape["curve"] for shape in data["shapes"]] == [0, 1]
    assert all(check["passed"] for check in data["checks"])
    assert data["command"] == "redblue report toy sd-vae --memory tiny --memory t4"


def test_progress_counts_up_to_its_total():
    steps = []
    collect([model()], [TINY], progress=lambda done, total, label: steps.append((done, total, label)))
    done, totals, labels = zip(*steps, strict=True)
    assert list(done) == sorted(done)
    assert (done[0], done[-1], set(totals)) == (0, 3, {3})
    assert list(dict.fromkeys(labels)) == [
        "computing the curves",
        "planning",
        "running the chosen schedules on numbers",
        "done",
    ]


@pytest.mark.parametrize(("models", "memories", "lacking"), [([], [TINY], "model"), ([model()], [], "memory")])
def test_nothing_to_report_is_refused(models, memories, lacking):
    with pytest.raises(RedblueError, match=f"at least one {lacking}"):
        collect(models, memories)


def test_the_page_shows_the_numbers_of_the_plans(report, page):
    text = " ".join(Seen(page).text.split())
    for shape, _, level in report.cells:
        assert shape.model.title in text
        assert f"{level.capacity_words:,}" in text
        assert f"gap {ratio(level.gap)}" in text
        assert (
            f"{amount(level.words)} {byte_amount(level.bytes)} {amount(level.bound.words)} {level.bound.name}" in text
        )
        assert f"{level.words:,} words" in page  # on hover
    for check in report.checks:
        assert f"{check.expected_words:,} {check.counted_words:,} {check.counted_peak:,}" in text
    assert "a note of the model" in text
    assert report.command in text


def test_the_page_asks_the_network_for_nothing(page):
    tags = Seen(page).tags
    loading = [(tag, attrs) for tag, attrs in tags if {"src", "href", "srcset", "data"} & set(attrs) or tag == "link"]
    assert not loading
    assert not re.search(r"url\(|@import", page.partition('id="charts"')[0])
    policy = next(attrs["content"] for tag, attrs in tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_the_figures_of_the_page_are_whole(report, page):
    charts = json.loads(page.partition('id="charts">')[2].partition("</script>")[0])
    assert len(charts["figures"]) == len(report.curves)
    assert set(charts["themes"]) == {"light", "dark"}


def test_names_are_escaped():
    memory = replace(
        TINY, name=EVIL, title=EVIL, levels=(Level(EVIL, 2048, sources={"capacity": EVIL}), *TINY.levels[1:])
    )
    shown = replace(model(EVIL), title=EVIL, source=f"/home/{EVIL}/config.json", notes=(EVIL,))
    page = render(collect([shown], [memory]))
    assert EVIL in Seen(page).text
    assert EVIL not in page
    assert [attrs for tag, attrs in Seen(page).tags if tag == "script"][1:] == [{"type": "module"}] * 2


def test_a_boundary_where_nothing_fits_names_the_words_needed():
    report = collect([model()], [replace(TINY, levels=(Level("registers", 8), *TINY.levels))])
    why = report.shapes[0].plans[0].levels[0].why
    assert "at least" in why
    text = Seen(render(report)).text
    assert why in text
    assert "none fits" in text


@pytest.mark.parametrize("direction", ["forward", thorough("backward")])
def test_a_figure_draws_on_its_own(direction):
    drawn = curve(model(direction=direction).layers[0].problem, [TINY], points=12)
    spec = words_figure(drawn, width=800).to_dict() | {"config": style.config("light")}
    svg = vl_convert.vegalite_to_svg(spec)
    for text in ("flash", "small_cache", "best proved bound", "large cache", "tiny", "L1"):
        assert f">{text}" in svg


def test_colours_are_apart_from_their_ground():
    """Text and lines have the contrast that WCAG requires: 4.5 for text, 3 for graphics."""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for scheme in style.COLOURS.values():
        ground = luminance(scheme["paper"])
        for name, colour in scheme.items():
            dark, light = sorted((luminance(colour), ground))
            least = {"paper": 1, "grid": 1, "ink": 4.5, "muted": 4.5}.get(name, 3)
            assert (light + 0.05) / (dark + 0.05) >= least, name


def test_a_page_is_written_whole(report, page, rendered, tmp_path):
    target = tmp_path / "report.html"
    target.write_text("old")
    assert write(report, target, force=True) == write(report, target) == target  # the second replaces a report
    assert target.read_text("utf-8") == page
    assert os.listdir(tmp_path) == ["report.html"]


def test_a_failed_write_leaves_the_old_file(report, rendered, tmp_path, monkeypatch):
    target = tmp_path / "report.html"
    target.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(RedblueError, match=r"report\.html: No space left on device"):
        write(report, target, force=True)
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.html"]


def test_unwritable_paths_are_refused(report, rendered, tmp_path):
    with pytest.raises(RedblueError, match="it is a folder"):
        write(report, tmp_path)
    with pytest.raises(RedblueError, match="there is no folder"):
        write(report, tmp_path / "none" / "report.html")
    write(report, "/dev/null")
    assert not os.listdir(tmp_path)


def test_a_write_protected_file_is_refused(report, tmp_path):
    target = tmp_path / "report.html"
    target.write_text("old")
    target.chmod(0o444)
    if os.access(target, os.W_OK):
        pytest.skip("this user may write everywhere: not tested here")
    with pytest.raises(RedblueError, match="you may not write this file"):
        write(report, target, force=True)
    assert target.read_text() == "old"


def test_every_chosen_schedule_is_checked(report):
    chosen = {(level.schedule, small(shape.problem)) for shape, _, level in report.cells}
    assert {(check.schedule, check.problem) for check in report.checks} == chosen
    assert not report.failed


def test_a_small_problem_keeps_its_kind():
    problem = rb.Problem(
        4096, 8192, 512, 256, heads=32, kv_heads=4, mask=rb.Mask.sliding_window(2048, 0), direction="backward"
    )
    tiny = small(problem)
    assert (tiny.d, tiny.d_v, tiny.direction) == (20, 10, "backward")
    assert 1 < tiny.group < problem.group
    assert tiny.mask == rb.Mask.sliding_window(round(2048 / 8192 * tiny.n_k), 0)


def wrong(monkeypatch, change):
    """Replace flash's forward program by change(program)."""
    flash = schedules.get("flash")
    broken = replace(
        flash, passes={"forward": replace(flash.passes["forward"], run=change(flash.passes["forward"].run))}
    )
    monkeypatch.setitem(schedules.SCHEDULES, "flash", broken)
    return run("flash", rb.Problem(12, 12, 4), 200, "a test")


def test_a_wrong_result_fails(monkeypatch):
    def change(program):
        def off(m, problem, t, q, k, v, out, lse):
            program(m, problem, t, q, k, v, out, lse)
            out.data[3] += 1e-6

        return off

    check = wrong(monkeypatch, change)
    assert not check.passed
    assert "relative error" in check.failure
    assert check.counted_words == check.expected_words


def test_a_wrong_count_fails(monkeypatch):
    def change(program):
        def wasteful(m, problem, t, q, k, v, out, lse):
            m.free(m.load(q[range(1)]))
            program(m, problem, t, q, k, v, out, lse)

        return wasteful

    check = wrong(monkeypatch, change)
    assert check.counted_words == check.expected_words + 4
    assert "the run moved" in check.failure


def test_a_broken_rule_fails_and_is_red_on_the_page_and_the_terminal(monkeypatch):
    def change(program):
        def lazy(m, problem, t, q, k, v, out, lse):
            m.free(m.load(q[range(1)]))

        return lazy

    check = wrong(monkeypatch, change)
    assert check.counted_words is None
    assert "never stored" in check.failure
    failing = collect([model()], [TINY])
    assert failing.failed
    page = Seen(render(failing))
    assert "checks FAILED" in page.text
    assert "never stored" in page.text
    assert {"class": "verdict fail"} in [attrs for _, attrs in page.tags]
    assert "never stored" in shown(failing)
    json.dumps(failing.to_dict(), allow_nan=False)


def shown(report, width=80):
    text = io.StringIO()
    Console(file=text, width=width).print(summary(report))
    return text.getvalue()


def test_the_summary_names_every_shape_machine_and_verdict(report):
    text = shown(report)
    for shape, _, level in report.cells:
        assert shape.label in text
        assert level.schedule in text
        assert ratio(level.gap) in text
    for memory in report.memories:
        assert memory.title in text
    assert f"All {len(report.checks)} checks passed" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_every_schedule_has_a_look_of_its_own():
    for direction in ("forward", "backward", "gradient_x"):
        looks = [style.LOOKS[name] for name in rb.list_schedules(direction)]
        assert len({look.shape for look in looks}) == len({look.light for look in looks}) == len(looks)


@pytest.mark.thorough
def test_results_of_experiments_are_shown_with_what_made_them(page, tmp_path):
    result = experiments.run("figure-2022", out=tmp_path)
    report = collect([model()], [TINY], results=[result])
    shown = render(report)
    parsed = Seen(shown)
    assert {"class": "drawn", "data-result": "figure-2022"}.items() <= next(
        attributes for tag, attributes in parsed.tags if attributes.get("data-result")
    ).items()
    for text in (result.command, result.machine, result.date, result.findings[0]):
        assert text in parsed.text
    specs = json.loads(re.search(r'id="charts">(.*?)</script>', shown, flags=re.DOTALL)[1])["results"]
    assert list(specs) == ["figure-2022"]
    assert vl_convert.vegalite_to_svg(specs["figure-2022"] | {"config": style.config("dark")}).startswith("<svg")
    assert report.to_dict()["results"][0]["command"] == result.command
    assert 'data-result="' not in page


@pytest.mark.parametrize(("checks", "says"), [([1], "The only check passed:"), ([1, 2], "All 2 checks passed:")])
def test_a_single_check_is_not_called_all_1(checks, says):
    assert verdict(SimpleNamespace(checks=checks, failed=[])).startswith(says)  # type: ignore[arg-type]
