"""The progress bar: what Ctrl-C says and returns."""

import sys

import pytest

from redblue.base.progress import INTERRUPTED, progress_bar


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
