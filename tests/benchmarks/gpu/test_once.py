"""Every kernel once, under the sanitizer."""

import json
import sys
import time

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from benchmarks.gpu import once
from benchmarks.gpu.worker import Failed, Late, Lost
from redblue.kernels.gpu.launch import Run
from redblue.kernels.gpu.planning import by_gluon, by_tma, hopper, one_pass
from redblue.kernels.gpu.planning.card import Card
from redblue.kernels.sizes import Sizes
from support.examples import thorough


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("first_only", [True, thorough(False)])
def test_every_kernel_is_among_the_cases_that_run_once(first_only):
    """The kernels for both widths of flash, for spilling, pages and options; the first cases launch each of them."""

    launched, launch = set(), Run.__call__
    first = {once.smaller(case) for case in once.first_cases()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "__call__", lambda run: (launched.add(run.kernel.__name__), launch(run))[0])
        cases = once.Cases("cpu")
        every = [once.smaller(case) for case in once.cases() if case.d == 64]
        for number, case in enumerate(every):
            errors = cases.make(case)
            assert max(errors.values()) > 0
            if number == len(first) - 2:  # all first cases of d 64
                assert {*every[: number + 1]} < first
                assert launched >= {
                    *("flash_forward", "flash_dq", "flash_dkv", "bias_gradient", "paged_forward", "paged_merge"),
                    *("spill", "spilled_output", "spill_p", "spill_ds", "row_gradient", "key_gradient"),
                }
                if first_only:
                    return
    assert number >= len(first)


def test_the_gluon_kernel_runs_once_under_windows_and_with_unattended_nan(monkeypatch):
    monkeypatch.setattr(hopper, "available", lambda: True)
    windows = [case for case in once.cases() if {"window", "late window"} & {*case.options}]
    assert [case.d for case in windows if "nan" in case.options] == [64]
    for case in windows:
        sizes = Sizes((2,), case.kv_heads, case.heads // case.kv_heads, case.n_q, case.n_k, case.d, case.d)
        assert by_gluon.choices("forward", sizes, case.dtype, Card(), "band")
        mask = once.options_of(case, "cpu")["mask"].to_dense(case.n_q, case.n_k)
        assert not mask.any(0).all()
        assert mask.any(1).all()
    assert {case.d for case in windows} == {64, 128}


def test_the_first_cases_launch_the_kernels_for_hopper_gpus(monkeypatch):
    monkeypatch.setattr(hopper, "available", lambda: True)
    narrow, wide = (
        (Sizes((2,), case.kv_heads, case.heads // case.kv_heads, case.n_q, case.n_k, case.d, case.d), case.dtype)
        for case in list(once.first_cases())[:2]
    )
    assert by_gluon.choices("forward", *narrow, Card(), "band")
    assert one_pass.choices("backward", *narrow, Card(), "band")
    assert by_tma.choices("forward", *wide, Card())
    assert by_tma.choices("backward", *wide, Card())
    assert list(once.cases())[: len([*once.first_cases()])] == [*once.first_cases()]


class Answers:
    """A worker whose calls answer, or fail, in order."""

    def __init__(self, *answers):
        self.answers, self.ended = list(answers), False

    def ask(self, method, *arguments, seconds):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self):
        self.ended = True


def test_a_call_that_the_end_cuts_off_is_listed_as_not_run(tmp_path, capsys):
    todo, right = list(once.cases())[:3], {"out": 1e-3}
    for seconds, last, ran, wrong in (
        (10, Late("took longer than 10 s"), 1, False),
        (3600, Late("took longer than 20 s"), 3, True),  # a hang
        (10, Lost("the process ended with status -11"), 3, True),
        (10, Failed("out 2.0e-01", wrong=True), 3, True),
        (0, right, 0, False),
    ):
        kept = once.Outcomes(tmp_path / "once.json", once.Console(width=1000))
        worker = Answers(right, last, right)
        once.plain(todo, worker, time.monotonic() + seconds, kept)
        assert len(kept.all) == ran
        assert worker.ended
        assert once.summarized(todo, kept) == wrong
        said = capsys.readouterr().out
        assert f"{ran} of 3 calls, 0 watched" in said
        assert all(("not run" in said and case.title in said.split("not run")[1]) == (ran < 3) for case in todo[ran:])


def test_a_wrong_head_and_a_wrong_gradient_are_found():
    exact = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    for place in ((0, 0), (-1, -1)):
        wrong = exact.clone()
        wrong[place][0, 0] += 1
        assert once.worst_error("out", wrong, exact) > 0.1
    assert once.worst_error("dbias", exact[0, 0], exact[0, 0]) == 0


def test_faults_that_the_sanitizer_prints_belong_to_their_case(monkeypatch, tmp_path):
    """A script imitates the sanitizer's output, with a fault in the second case and a crash in the third."""
    todo = list(once.cases())[:4]
    script = tmp_path / "watched.py"
    script.write_text(
        "import os\n"
        'done = \'DONE {"errors": {"out": 0.001}, "failure": ""}\'\n'
        "print('========= COMPUTE-SANITIZER')\n"
        "for i in range(4):\n"
        "    print('CASE', i, flush=True)\n"
        "    if i == 1: print('========= Invalid __global__ read of size 2 bytes')\n"
        "    if i == 2: print('dying', flush=True); os._exit(1)\n"
        "    print(done, flush=True)\n"
    )
    kept = once.Outcomes(tmp_path / "once.json", once.Console(quiet=True))
    began = once._followed([sys.executable, str(script)], todo, time.monotonic() + 60, kept)
    assert began == 3
    assert [(x.case, x.right) for x in kept.all] == [(todo[0], True), (todo[1], False), (todo[2], False)]
    assert kept.all[1].faults == ["Invalid __global__ read of size 2 bytes"]
    assert kept.all[2].failure == "the process ended: dying"
    silent = ["sh", "-c", "echo CASE 3; exec sleep 60"]
    assert once._followed(silent, todo, time.monotonic() + 1, kept) == 1
    assert len(kept.all) == 3  # an unfinished case is not wrong
    monkeypatch.setattr(once, "SILENT_SECONDS", 0.5)
    assert once._followed(silent, todo, time.monotonic() + 60, kept) == 1
    assert kept.all[-1].failure == "silent for 0.5 s"
    assert len(json.loads((tmp_path / "once.json").read_text())) == 4
