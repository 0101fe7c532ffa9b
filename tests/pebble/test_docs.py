"""The guide's examples run as they are written, and print what it says."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from redblue.cli.main import app

GUIDE = (Path(__file__).parents[2] / "docs" / "lab" / "pebble.md").read_text(encoding="utf-8")
SCRIPTS = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)
COMMANDS = [
    line for block in re.findall(r"```console\n(.*?)```", GUIDE, flags=re.DOTALL) for line in block.splitlines()
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.thorough
def test_scripts(capsys):
    names = {}
    for script in SCRIPTS:
        exec(compile(script, "pebble.md", "exec"), names)
    printed = capsys.readouterr().out
    said = [
        line.split("  # ", 1)[1]
        for script in SCRIPTS
        for line in script.splitlines()
        if "print(" in line and "  # " in line
    ]
    exact = [text for text in said if re.match(r"\d|move", text)]
    assert len(exact) >= 4
    for text in exact:
        assert text.split(":")[0] in printed, text
    assert "<h1>Fourier transform" in Path("game.html").read_text()


def test_commands():
    assert len(COMMANDS) >= 6
    for command in COMMANDS:
        result = CliRunner().invoke(app, shlex.split(command.removeprefix("redblue ")))
        assert result.exit_code == 0, (command, result.output, result.exception)
