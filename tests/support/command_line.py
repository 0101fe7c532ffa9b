"""Run redblue's command line inside the test process."""

import json
import sys

import pytest
from typer.testing import CliRunner

from redblue.cli.main import app, main


def run(*arguments):
    """The result of `redblue ARGUMENTS`: its output, exit code and exception."""
    return CliRunner().invoke(app, arguments)


def run_json(*arguments):
    """The value that `redblue ARGUMENTS --json` prints."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refusal(capsys, monkeypatch, *arguments):
    """The text on standard error of the entry point, which must exit with 2; without frames and line breaks."""
    monkeypatch.setattr(sys, "argv", ["redblue", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return " ".join(captured.err.replace("│", " ").split())
