"""The benchmarks of kernels for Hopper GPUs and of wide heads: variants are checked, then the correct ones are timed.

Stand-ins replace the device and the kernels that only such a GPU runs; the kernels for wide heads are interpreted.
"""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton.experimental.gluon")

from benchmarks.common.failures import Red
from benchmarks.gpu import hopper_backward
from benchmarks.gpu.gate import band_mask, launched
from benchmarks.gpu.hopper import calls, measures, rows
from benchmarks.gpu.wide import checks, jobs
from benchmarks.gpu.wide import measures as wide
from redblue.kernels.gpu.hopper import forward
from redblue.kernels.gpu.planning.by_tma import Choice, Tile
from support.examples import thorough


@pytest.fixture
def hopper(clock, monkeypatch):
    """Return a function that runs a row with a stand-in for the forward kernel, whose results have this error."""

    def tensors(row, device):
        return [torch.randn(x.shape).to(x.dtype) for x in calls.tensors(row, "cpu")]

    def run(row, error=0.0):
        def prepare(q, k, v, out, lse, scale, first, end, settings):
            assert scale == q.shape[3] ** -0.5

            def launch():
                clock.log.append("launch")
                mask = band_mask(q.shape[2], k.shape[2], first, end, "cpu")
                exact = launched(q, k, v, None, mask, torch.float64)
                out.copy_(exact["out"] * (1 + error))
                lse.copy_(exact["lse"])

            return launch

        monkeypatch.setattr(forward, "prepare", prepare)
        return measures.run(row)

    clock.tick = 1e-3
    monkeypatch.setattr(measures, "tensors", tensors)
    monkeypatch.setattr(calls, "LENGTH", 64)
    monkeypatch.setattr(calls, "HEADS", 3)
    return run


def small_rows():
    return [row for row in rows.checked_rows() if max(row["n"]) < 600 and row["d"] <= 128]


@pytest.mark.parametrize("row", [*small_rows()[:2], *map(thorough, small_rows()[-5:])], ids=str)
def test_forward_variants_are_checked(hopper, row):
    result = hopper(row)
    assert result["right"]
    assert {*result["errors"]} == {"out", "largest of out", "lse"}
    assert not hopper(row, 0.05)["right"]


def test_forward_variants_are_timed_in_rounds_of_three_calls(hopper, clock):
    row = next(rows.timed_rows())
    result = hopper(row)
    assert result["right"]
    assert {*result["ms"]} >= {"redblue"}
    assert "cudnn" in result["failed"]
    assert result["ms"]["redblue"] == pytest.approx(1 / measures.CALLS, abs=1e-3)
    assert clock.log.count("launch") == 3 + measures.ROUNDS * (1 + measures.CALLS)
    assert clock.log.count("wait") == 2 + measures.ROUNDS * len(result["ms"])
    assert "tflops" not in hopper(row, 0.05)


@pytest.fixture
def backward(clock, monkeypatch):
    """Return a variant of the backward kernel whose results have the error of its attribute `error`."""

    def runs(task):
        names = "prepare", "fused", "finish"

        def run(name):
            clock.log.append(name)
            mask = band_mask(task.sizes.n_q, task.sizes.n_k, task.first, task.end, "cpu")
            exact = launched(task.q, task.k, task.v, task.dout, mask, torch.float64)
            for x, result in ((task.dq, "dq"), (task.dk, "dk"), (task.dv, "dv")):
                x.copy_(exact[result] * (1 + variant.error))

        return [lambda name=name: run(name) for name in names]

    def exact_forward(q, k, v, causal):
        results = launched(q, k, v, None, band_mask(64, 64, None, 1 if causal else None, "cpu"), torch.float64)
        return results["out"].to(q.dtype), results["lse"].float()

    clock.tick = 1e-3
    for name, value in {"DEVICE": "cpu", "N": 64, "HEADS": 3, "forward": exact_forward}.items():
        monkeypatch.setattr(hopper_backward, name, value)
    variant = SimpleNamespace(runs=runs, error=0.0)
    return variant


SMALL_CASES = [case if case.n_q <= 256 else thorough(case) for case in hopper_backward.CASES]


@pytest.mark.parametrize("case", SMALL_CASES, ids=str)
def test_backward_variants_are_checked(backward, case):
    verdict = hopper_backward.check_small(backward, 64, case)
    assert verdict["right"]
    assert {"dq", "largest of dk"} <= {*verdict["errors"]}
    backward.error = 0.05
    assert not hopper_backward.check_small(backward, 64, case)["right"]


@pytest.mark.parametrize("band", [hopper_backward.FULL, hopper_backward.CAUSAL], ids=["full", "causal"])
def test_correct_backward_variants_are_timed(backward, clock, band):
    row = hopper_backward.measure(backward, 64, band)
    assert row["right"]
    assert row["ms"]["ours"] == row["least_ms"]["ours"] == 1.0
    assert {*row["tflops"]} >= {"ours", "fused"}
    assert {"prepare", "finish"} & {*row["tflops"]} == set()
    assert clock.log.count("sleep") == hopper_backward.ROUNDS * len(row["ms"])
    backward.error = 0.05
    assert "ms" not in hopper_backward.measure(backward, 64, band)


P, SUM = Tile(32, 64, 32, 4, 2, 2, 1), Tile(32, 32, 32, 4, 2)
SMALL = Choice(P, P, SUM, SUM, streams=2, multiprocessors=3)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes masked lanes, too
@pytest.mark.usefixtures("bfloat16_to_nearest")
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_wide_heads_are_checked(direction):
    job = jobs.Job(direction, SMALL, d=64, causal=True, direction=direction)
    arrays, errors = checks.checked(job, 48, 2, "cpu")
    assert {*errors} >= {*checks.RESULTS[direction]}
    arrays["out"][0, -1, 0, 0] += 1
    with pytest.raises(Red, match="largest of out"):
        checks.errors(job, arrays)


def test_wide_heads_are_timed_without_a_pause(clock):
    assert wide.device_seconds(clock.call("a", 0.5)) == 0.5
    assert clock.log == ["a", *["event", "a", "event"] * wide.REPEATS, "wait"]
