"""The grid of models' shapes: its cells with contenders whose times are made up, and how a run is continued."""

import json
import sys

import pytest

torch = pytest.importorskip("torch")

from benchmarks.common.failures import PeerFailed, Red, Refused
from benchmarks.common.gate import REDBLUE
from benchmarks.common.results import Figure, Limit, Row, read
from benchmarks.common.timing import Spread
from benchmarks.cpu.calls import inputs, pytorch
from benchmarks.cpu.models import __main__ as main
from benchmarks.cpu.models import measure as cell
from benchmarks.cpu.models import page
from benchmarks.cpu.models.shapes import COLUMNS, SHAPES, called
from benchmarks.cpu.peers import JAX, ONNXRUNTIME, OPENVINO, PYTORCH

MAX_BYTES = 100_000  # of a file of data in the repository
SHAPE = "BERT, b 1, n 128"


def prepared(times, wrong=()):
    """A contender with correct results whose turns take these seconds, in both states. wrong: results to replace."""
    turns = iter(times)

    def timer():
        seconds = next(turns)
        if isinstance(seconds, Exception):
            raise seconds
        return seconds

    def prepare(call):
        results = pytorch(call, inputs(call))()
        return [torch.zeros_like(results[0]), *results[1:]] if wrong else results, timer

    return prepare


def refuses(call):
    raise Refused("not this one")


def fails(call):
    raise RuntimeError("head_dim=40\nand more")


def test_a_row_compares_with_the_best_peer_of_each_state():
    contenders = {
        REDBLUE: prepared([(1.0, 1.0)] * 3),
        PYTORCH: prepared([(2.0, 4.0)] * 3),
        ONNXRUNTIME: prepared([(3.0, 3.0)] * 3),
        OPENVINO: refuses,
        JAX: fails,
        "zentorch": prepared([], wrong=True),
    }
    row = cell.measure(SHAPE, "float32", "forward", 2, contenders)
    assert [(figure.what, figure.value.median) for figure in row.figures] == [
        ("after idle, over PyTorch", 2.0),
        ("loop, over ONNX Runtime", 3.0),
    ]
    assert row.rates["redblue, loop"] == [1.0]
    assert row.rates["ONNX Runtime, loop"] == [1 / 3]
    assert "OpenVINO" not in row.note
    assert row.note.startswith("JAX: RuntimeError: head_dim=40; zentorch: too far from float64")


def test_a_peer_far_behind_the_best_one_is_timed_only_once():
    contenders = {
        REDBLUE: prepared([(9.0, 9.0)] * 3),
        PYTORCH: prepared([(1.0, 1.0)] * 3),
        ONNXRUNTIME: prepared([(3.1, 3.1)]),
        OPENVINO: prepared([(9.0, 2.9)] * 3),
    }
    row = cell.measure(SHAPE, "float32", "training", 2, contenders)
    assert [figure.limit.must for figure in row.figures] == [2.0, 2.0]
    assert [figure.value.median for figure in row.figures] == [1 / 9, 1 / 9]


def test_a_peer_whose_process_ends_is_left_out():
    ended = PeerFailed("vLLM", "its process ended: Killed")
    contenders = {
        REDBLUE: prepared([(1.0, 1.0)] * 5),
        PYTORCH: prepared([(2.0, 2.0)] * 5),
        "vLLM": prepared([(1.5, 1.5), ended]),
    }
    row = cell.measure(SHAPE, "float32", "forward", 2, contenders)
    assert row.figures[0].what == "after idle, over PyTorch"
    assert row.note == "vLLM: its process ended: Killed"


def test_without_a_peer_a_row_has_no_figure():
    row = cell.measure(SHAPE, "float32", "forward", 1, {REDBLUE: prepared([(1.0, 1.0)] * 2), JAX: fails})
    assert not row.figures
    assert page.summary([row]).count("\n") == 1


def test_a_wrong_result_of_redblue_ends_the_run():
    with pytest.raises(Red, match="redblue, bf16 training, H 12, n 128"):
        cell.measure(SHAPE, "bfloat16", "training", 1, {REDBLUE: prepared([], wrong=True)})


def made_up(shape, dtype, direction, rounds, contenders):
    ratios = Spread(1.2345678, 1.1, 1.3)
    measure = f"{page.SHORT[dtype]} {direction}"
    figures = [Figure(f"{state}, over PyTorch 2.15", ratios, Limit(1.0)) for state in cell.STATES]
    rates = {f"{name}, {state}": [1234.5678] for name in (REDBLUE, "PyTorch 2.15") for state in cell.STATES}
    return Row(measure, shape, figures, rates, "calls/s")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """A function that runs the command without any peer, and returns the measured rows and the output."""
    measured = []
    monkeypatch.setattr(main, "measure", lambda *case: measured.append(case[:3]) or made_up(*case))
    monkeypatch.setattr(main, "started", lambda pythons, module: ([], dict.fromkeys(pythons, "there is no python")))
    monkeypatch.setattr(main, "multiply_adds", lambda dtype, seconds: lambda: 1e9)
    monkeypatch.setattr(main, "core", lambda: "core")

    def run(*options):
        measured.clear()
        monkeypatch.setattr(sys, "argv", ["models", "--json", str(tmp_path / "models.json"), *options])
        main.main()
        return list(measured), capsys.readouterr()

    return run


@pytest.mark.thorough
def test_a_grid_is_measured_in_several_runs(run, tmp_path, monkeypatch):
    path = tmp_path / "models.json"
    swin = [("Swin-T stage 1, 64 windows", *column) for column in COLUMNS]
    assert run("--seconds", "-1")[0] == []
    assert run("--only", "Swin")[0] == swin
    measured, printed = run("--only", "Swin")
    assert measured == []
    assert "6 of 240 rows" in printed.out
    assert run("--only", "Swin", "--again")[0] == swin
    assert len(run()[0]) == len(SHAPES) * len(COLUMNS) - len(swin)
    about, rows = read(path)
    assert about["complete"]
    assert [row.case for row in rows[:6]] == [swin[0][0]] * 6
    assert path.with_suffix(".svg").exists()
    assert path.stat().st_size < MAX_BYTES
    monkeypatch.setattr(main, "core", lambda: "another core")
    assert run("--only", "Swin")[0] == swin
    assert len(read(path)[1]) == 6


def test_the_versions_of_peers_are_kept_and_absent_ones_are_named(run, tmp_path):
    _, printed = run("--only", "Swin")
    about = json.loads((tmp_path / "models.json").read_text())
    assert about["versions"][PYTORCH] == torch.__version__
    assert about["versions"].keys() | about["absent"].keys() >= {*cell.PEERS, *cell.OTHERS}
    assert about["absent"]["vLLM"] == "there is no python"
    (line,) = printed.err.splitlines()
    assert "zentorch: there is no python; PyTorch 2.15: there is no python; vLLM: there is no python" in line


def test_what_is_not_in_the_grid_is_refused(run, capsys):
    with pytest.raises(SystemExit):
        run("--only", "nosuch")
    assert "no name contains 'nosuch'" in capsys.readouterr().err


def test_calls_of_the_grid():
    call = called("CLIP text, b 8", "bfloat16", "training")
    assert (call.heads, call.n_q, call.n_k, call.d, call.causal) == (64, 77, 77, 64, True)
    assert call.title == "bf16 training, H 64, n 77, d 64, causal"
    assert len(SHAPES) == 40
