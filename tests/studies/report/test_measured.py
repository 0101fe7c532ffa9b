"""Measurements of the report on this machine: results are checked, and words equal the schedules' counts."""

import io
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import redblue as rb
from redblue.base.errors import RedblueError
from redblue.catalogue.memories import Level, Memory
from redblue.catalogue.models import Layers, Model
from redblue.cli.main import app
from redblue.kernels.cpu import call as cpu
from redblue.problem import Problem
from redblue.studies.report import calls, collect, measured, render, summary
from redblue.studies.report.calls import Call, rounded, widened
from support.examples import thorough

HERE = Memory(
    "this-machine",
    "A machine",
    "cpu",
    (Level("L1", 2**15, bandwidth_bytes_per_second=1e11), Level("DRAM", None)),
    peak_flops_per_second={"float32": 1e11},
)
MASKS = [
    rb.Mask.full(),
    rb.Mask.causal(),
    rb.Mask.causal(align="bottom-right"),
    rb.Mask.sliding_window(9, 3),
]
DTYPES = ["float64", "float32", "bfloat16", "float16"]


@pytest.fixture(autouse=True)
def short_turns(monkeypatch):
    """Time a single call per turn."""
    monkeypatch.setattr(calls, "ROUND_SECONDS", 0.0)


@pytest.fixture
def torch():
    """PyTorch on one thread: on busy cores, several threads would wait for each other."""
    module = pytest.importorskip("torch")
    threads = module.get_num_threads()
    module.set_num_threads(1)
    yield module
    module.set_num_threads(threads)


@pytest.fixture
def without_pytorch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it fails


def model(*problems, name="toy"):
    return Model(name, name, tuple(Layers(f"layer {i}", 1, p) for i, p in enumerate(problems)), "made up", ())


def shown(report):
    text = io.StringIO()
    Console(file=text, width=80).print(summary(report))
    return " ".join(text.getvalue().split())


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("mask", MASKS, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("without_pytorch")
def test_a_run_is_right_in_the_words_of_its_schedule(direction, mask, dtype):
    problem = Problem(150, 131, 24, 40, heads=6, kv_heads=2, dtype=dtype, mask=mask, direction=direction)
    run = measured.measured("toy", problem, HERE).run
    assert run.failure == ""
    assert run.seconds > 0
    assert (run.problem.heads, run.problem.kv_heads, run.problem.n_q, run.problem.mask) == (3, 1, 150, mask)
    counted = rb.count(run.schedule, run.problem, tiles=run.tiles)
    assert (run.reads, run.writes) == (counted.reads, counted.writes)
    assert run.words == run.counted_words
    assert rb.lower_bound(run.problem, run.capacity_words).words == run.bound_words <= run.words
    assert run.plan_seconds == rb.plan(run.problem, HERE).seconds
    rate = HERE.peak_flops_per_second.get(run.computed_in)
    assert run.peak_share == (rate and measured.flops(run.problem) / run.seconds / rate)


def test_floating_point_operations_are_those_of_the_schedules():
    for direction, name in measured.SCHEDULES.items():
        problem = Problem(64, 96, 16, 24, heads=4, kv_heads=2, direction=direction)
        assert measured.flops(problem) == rb.count(name, problem, tiles={"rows": 8, "cols": 8}).flops


@pytest.mark.usefixtures("without_pytorch")
def test_few_rows_cut_the_keys_into_pieces():
    run = measured.measured("decode", Problem(1, 2048, 8, heads=4, kv_heads=1, dtype="float32"), HERE).run
    assert run.failure == ""
    assert run.pieces > 1
    assert run.words > run.counted_words >= run.bound_words


def test_n_is_cut_until_a_run_is_short():
    problem = Problem(4096, 2048, 64, heads=8, kv_heads=4, batch=2, mask=rb.Mask.sliding_window(512, 0))
    whole = measured.smaller(problem, 1e15)
    assert (whole.n_q, whole.n_k, whole.heads, whole.batch, whole.mask) == (4096, 2048, 2, 1, problem.mask)
    assert measured.cut_text(problem, whole) == "one key/value head"
    rate = measured.flops(whole) / 2.5 / (measured.RUN_SECONDS * measured.PEAK_SHARE)
    cut = measured.smaller(problem, rate)
    assert (cut.n_q, cut.n_k) == (2048, 1024)
    assert cut.mask == rb.Mask.sliding_window(256, 0)
    assert (
        measured.cut_text(problem, cut) == "one key/value head, n_q, n_k cut to 2,048, 1,024, its window scaled with it"
    )
    assert measured.smaller(problem, 1e-3).n_q == 1
    square = Problem(1024, 1024, 64)
    assert measured.cut_text(square, square) == "whole"
    assert measured.cut_text(square, measured.one_head(square, 512, 512)) == "n cut to 512"


def test_huge_arrays_are_cut_however_fast_the_machine():
    cut = measured.smaller(Problem(1, 2**26, 512, dtype="float16"), 1e30)
    assert (cut.n_k + cut.n_q) * (cut.d + cut.d_v) <= measured.MAX_ELEMENTS


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (Problem(64, 64, 8, direction="gradient_x"), "no kernel computes gradient_x"),
        (Problem(64, 64, 8, dtype="float8"), "got float8"),
        (Problem(64, 64, 5000), "got 5000"),
    ],
    ids=["gradient_x", "float8", "large d"],
)
def test_problems_without_a_kernel_say_why(problem, why):
    result = measured.measured("toy", problem, HERE)
    assert result.run is None
    assert why in result.why
    assert not result.failed


def wrong_scale(sizes, dtype, *arrays, **options):
    return right["forward"](sizes, dtype, *arrays, **(options | {"scale": 1.1 * options["scale"]}))


def wrong_gradient(sizes, dtype, *arrays, **options):
    return right["backward"](sizes, dtype, *arrays, **(options | {"scale": 1.1 * options["scale"]}))


def unwritten(sizes, dtype, *arrays, **options):
    return right["forward"](sizes._replace(n_q=sizes.n_q - 9), dtype, *arrays, **options)


def one_word_more(sizes, dtype, *arrays, **options):
    reads, writes = right["forward"](sizes, dtype, *arrays, **options)
    return reads + 1, writes


right = {"forward": cpu.forward, "backward": cpu.backward}
WRONG = [
    ("forward", wrong_scale, "out"),
    ("backward", wrong_gradient, "dq"),
    ("forward", unwritten, "inf"),
    ("forward", one_word_more, "the kernel moved"),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("direction", "kernel", "says"), WRONG, ids=[kernel.__name__ for _, kernel, _ in WRONG])
def test_a_wrong_kernel_fails_and_has_no_time(monkeypatch, direction, kernel, says, dtype):
    problem = Problem(200, 96, 16, heads=2, kv_heads=1, dtype=dtype, mask=rb.Mask.causal(), direction=direction)
    monkeypatch.setattr(cpu, direction, kernel)
    result = measured.measured("toy", problem, HERE)
    assert result.failed
    assert says in result.run.failure
    assert result.run.seconds is result.run.peak_share is result.run.pytorch_seconds is None


@pytest.mark.parametrize("name", ["dk", "dv"])
def test_each_gradient_is_checked(name):
    call = Call(Problem(40, 40, 8, heads=2, kv_heads=1, dtype="float32", direction="backward"))
    call.run()
    assert call.wrong() == ""
    call.arrays[name][:, -1] *= 1.01
    assert name in call.wrong()


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("mask", MASKS, ids=repr)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.usefixtures("torch")
def test_pytorch_gets_the_same_problem(direction, mask, dtype):
    problem = Problem(64, 80, 16, heads=4, kv_heads=2, dtype=dtype, mask=mask, direction=direction)
    run = measured.measured("toy", problem, HERE).run
    assert run.pytorch_why == ""
    assert run.over_pytorch == run.pytorch_seconds / run.seconds


def test_pytorch_with_another_result_has_no_time(monkeypatch, torch):
    real = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda *x, **y: real(*x, **y) * 1.5)
    run = measured.measured("toy", Problem(64, 64, 16, dtype="float32"), HERE).run
    assert (run.failure, run.pytorch_seconds, run.pytorch_why) == ("", None, "another result")


@pytest.mark.usefixtures("without_pytorch")
def test_without_pytorch_the_kernel_is_still_timed():
    run = measured.measured("toy", Problem(64, 64, 16, dtype="bfloat16"), HERE).run
    assert run.seconds > 0
    assert (run.pytorch_seconds, run.pytorch_why) == (None, "not installed")


def test_bfloat16_rounds_to_nearest_even():
    numbers = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, np.nan], np.float32)
    expected = np.array([1, 1 + 2**-6, 1 + 2**-7, np.nan])  # the first two lie halfway between two bfloat16 numbers
    assert np.array_equal(widened(rounded(numbers, "bfloat16")), expected, equal_nan=True)


@pytest.fixture(scope="module")
def report():
    problem = Problem(96, 96, 16, heads=4, kv_heads=2, mask=rb.Mask.causal(), dtype="float32")
    refused = replace(problem, dtype="float8")
    return collect([model(problem, refused, replace(problem, batch=2))], [HERE], measure=True)


def test_a_report_measures_every_shape(report):
    assert [measurement.label for measurement in report.measured] == [shape.label for shape in report.shapes]
    first, refused, alike = report.measured
    assert alike.run is first.run  # the same head: run once
    assert refused.run is None
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))["measured"]
    assert data[0]["run"]["words"] == first.run.words
    assert data[1]["run"] is None
    assert "got float8" in data[1]["why"]
    page, text = render(report), shown(report)
    for expected in ("All 2 runs on this machine agree with float64", "got float8", "one key/value head"):
        assert expected in page
        assert expected in text
    assert f"{first.run.reads:,} read, {first.run.writes:,} written" in page
    assert "--no-measure" not in report.command


def test_a_failure_is_red_on_the_page_and_the_terminal(monkeypatch):
    monkeypatch.setattr(cpu, "forward", wrong_scale)
    failing = collect([model(Problem(64, 64, 16))], [HERE], measure=True)
    assert "1 of 1 runs on this machine FAILED" in shown(failing)
    assert "relative errors against float64" in shown(failing)
    page = render(failing)
    assert '<p class="verdict fail">1 of 1 runs' in page
    assert "FAILED: relative errors" in page
    json.dumps(failing.to_dict(), allow_nan=False)


def test_nothing_is_measured_unless_asked_and_here():
    steps, elsewhere = [], replace(HERE, name="elsewhere")
    problem = Problem(64, 64, 16)
    for machine, measure in ((HERE, False), (elsewhere, True)):
        report = collect([model(problem)], [machine], measure=measure)
        assert report.measured == ()
        assert report.command.endswith("--no-measure") == (machine is HERE)
    collect([model(problem)], [HERE], progress=lambda *step: steps.append(step), measure=True)
    assert steps[-2:] == [(3, 4, "measuring toy on this machine"), (4, 4, "done")]


def test_an_interrupt_stops_the_report(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(cpu, "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        collect([model(Problem(64, 64, 16))], [HERE], measure=True)


@pytest.mark.thorough
@pytest.mark.parametrize("options", [(), thorough(("--no-measure",))], ids=repr)
def test_the_command_measures_unless_told_not_to(monkeypatch, tmp_path, options):
    monkeypatch.setattr("redblue.catalogue.memories.this_machine", lambda *_: HERE)
    page = tmp_path / "page.html"
    process = CliRunner().invoke(
        app, ["report", "gpt2", "--n", "64", "-m", "this-machine", "-o", str(page), "--json", *options]
    )
    assert process.exit_code == 0, process.output
    assert len(json.loads(process.stdout)["measured"]) == (0 if options else 1)
    written = page.read_text("utf-8")
    assert "<html" in written
    assert ("Measured here" in written) == (not options)


@pytest.mark.parametrize(("options", "measures"), [((), True), (("--measure",), True), (("--no-measure",), False)])
def test_the_option_of_the_command_reaches_the_report(monkeypatch, tmp_path, options, measures):
    """Without the page, which takes seconds to draw."""
    asked = []

    def refuse(*_, measure, **__):
        asked.append(measure)
        raise RedblueError("enough")

    monkeypatch.setattr("redblue.studies.report.collect", refuse)
    process = CliRunner().invoke(app, ["report", "gpt2", "-m", "t4", "-o", str(tmp_path / "page.html"), *options])
    assert asked == [measures]
    assert str(process.exception) == "enough"
