"""The progress bar: its lines, and the message and result after Ctrl-C."""

import sys
import threading

import pytest

from redblue.base import progress
from redblue.base.progress import INTERRUPTED, MAX_SECONDS, _steps, progress_bar, working


def interrupted(capsys, **options):
    """The lines on standard error of a block that Ctrl-C stops after 2 of 5 steps."""

    def work():
        with progress_bar("planning", **options) as move:
            move(2, 5, "a step [of] its own")
            raise KeyboardInterrupt

    with pytest.raises(SystemExit) as stopped:
        work()
    assert stopped.value.code == INTERRUPTED
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_ctrl_c_says_what_is_done(capsys):
    assert interrupted(capsys, unit="steps") == ["stopped: 2 of 5 steps are done, nothing is kept"]


def test_ctrl_c_says_how_to_go_on(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["redblue", "sweep", "--n", "1:100:x2", "--restart", "-o", "my rows.csv"])
    first, again = interrupted(capsys, kept="kept in [my] rows", resumable=True)
    assert first == "stopped: 2 of 5 points are done, kept in [my] rows"
    assert again == "to go on: redblue sweep --n 1:100:x2 -o 'my rows.csv'"


def test_ctrl_c_before_the_first_step(capsys):
    with pytest.raises(SystemExit), progress_bar("sweeping", total=7):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "stopped: 0 of 7 points are done, nothing is kept\n"


def test_other_errors_pass_through(capsys):
    with pytest.raises(ZeroDivisionError), progress_bar("sweeping") as move:
        move(1, 1 // 0)
    assert capsys.readouterr().err == ""


# Lines of progress if standard error is not a terminal


def printed_lines(capsys, monkeypatch, waits, text):
    """Return the printed lines and the seconds of each wait, for work that ends after a given number of waits."""
    seconds = []

    def over(pause):
        seconds.append(pause)
        return len(seconds) > waits

    monkeypatch.setattr(progress, "monotonic", lambda: float(sum(seconds)))
    progress._print_lines(text, over)
    return capsys.readouterr().err.splitlines(), seconds


def test_short_work_prints_no_line(capsys, monkeypatch):
    assert printed_lines(capsys, monkeypatch, 0, lambda: "planning") == ([], [5.0])


def test_lines_come_at_longer_and_longer_intervals(capsys, monkeypatch):
    lines, seconds = printed_lines(capsys, monkeypatch, 6, lambda: "planning: 1 of 3 steps; now [/b]\x1b")
    assert seconds == [5.0, 10.0, 20.0, 40.0, MAX_SECONDS, MAX_SECONDS, MAX_SECONDS]
    assert lines[0] == "planning: 1 of 3 steps; now [/b]\\x1b (5 s)"
    assert [line.rpartition("(")[2] for line in lines] == ["5 s)", "15 s)", "35 s)", "75 s)", "135 s)", "195 s)"]


@pytest.fixture
def status_text(monkeypatch):
    """A function that returns the line that would be printed now."""
    texts = []
    monkeypatch.setattr(progress, "_print_lines", lambda text, over: texts.append(text))

    def now():
        while not texts:  # until the thread runs
            pass
        return texts[-1]()

    return now


def test_a_line_says_how_far_the_work_is(status_text):
    with progress_bar("planning", unit="steps", total=7) as move:
        assert status_text() == "planning: 0 of 7 steps"
        move(1_000, 5_000)
        assert status_text() == "planning: 1,000 of 5,000 steps"
        move(2, 5, "gpt2")
        assert status_text() == "planning: 2 of 5 steps; now gpt2"


def test_work_without_steps(status_text):
    with working("searching") as say:
        assert status_text() == "searching"
        say("best 11")
        assert status_text() == "searching: best 11"


def test_lines_end_with_the_work(capsys):
    """The printing thread ends with the block, also after an error."""
    with pytest.raises(ZeroDivisionError), working("dividing"):
        raise ZeroDivisionError
    assert not [thread for thread in threading.enumerate() if thread.name == progress.THREAD]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ((0, 1, "points"), "0 of 1 point"),
        ((1, 1, "capacities"), "1 of 1 capacity"),
        ((0, 2, "points"), "0 of 2 points"),
    ],
)
def test_a_single_step_is_named_in_the_singular(step, says):
    assert _steps(*step) == says
