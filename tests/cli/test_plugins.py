"""`redblue --plugin FILE.py`: a user's schedules on the command line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import redblue as rb
from redblue.base.errors import RedblueError
from redblue.cli.main import app

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_schedule.py"
SIZES = ("--n-q", "512", "--n-k", "16", "--d", "64")


pytestmark = pytest.mark.usefixtures("own_schedules")


def run(*arguments):
    result = CliRunner().invoke(app, ["--plugin", str(EXAMPLE), *arguments])
    assert result.exit_code == 0, result.exception
    return result.stdout


@pytest.mark.thorough
def test_a_plugin_is_counted_planned_and_listed():
    counted = json.loads(run("count", "few_keys", *SIZES, "--words", "2000", "--json"))
    assert counted["words"] == rb.count("few_keys", rb.Problem(512, 16, 64), words=2000).words
    assert "few_keys" in run("count", *SIZES, "--words", "2000")
    plan = json.loads(run("plan", "--n-q", "4096", "--n-k", "77", "--d", "256", "--memory", "t4", "--json"))
    assert [level["own"] for level in plan[0]["levels"]] == [True, True]
    listed = {row["name"]: row for row in json.loads(run("schedules", "--json"))}
    assert listed["few_keys"]["own"]
    assert not listed["flash"]["own"]
    assert listed["few_keys"]["kernels"] == {"cpu": [], "gpu": []}
    assert "(your own)" in run("schedules", "few_keys")


def test_a_plugin_is_swept(tmp_path):
    picture = tmp_path / "own.svg"
    axes = ("--n", "64", "--d", "64", "--words", "700,1400,2800", "--jobs", "1")
    run("sweep", *axes, "--picture", str(picture))
    assert "few_keys" in picture.read_text()


@pytest.mark.thorough
def test_worker_processes_know_a_plugin(tmp_path, monkeypatch):
    monkeypatch.setattr("redblue.base.parallel.ALONE_SECONDS", 0)
    axes = ("--n", "64:512:x2", "--d", "64", "--words", "1400", "--schedule", "few_keys,flash")
    for jobs in ("1", "2"):
        run("sweep", *axes, "--jobs", jobs, "-o", str(tmp_path / f"{jobs}.csv"))
    assert (tmp_path / "2.csv").read_text() == (tmp_path / "1.csv").read_text()
    assert "few_keys" in (tmp_path / "2.csv").read_text()


def plugin(folder, text):
    path = folder / "own.py"
    path.write_text(text)
    return path


WRONG = {
    "nothing": ("x = 1\n", "registers no schedule: call redblue.register_schedule at its top level"),
    "a guard": ("if __name__ == '__main__':\n    raise SystemExit\n", "registers no schedule"),
    "an exception": ("x = 1\n1 / x - 1 / 0\n", "line 2: ZeroDivisionError"),
    "a syntax error": ("x = 1\nx ==\n", "line 2: SyntaxError: invalid syntax"),
    "an exit": ("raise SystemExit(3)\n", "line 1: SystemExit: 3"),
    "a missing package": ("import no_such_package\n", "ModuleNotFoundError"),
    "a wrong schedule": ("import redblue as rb\nrb.register_schedule(3)\n", "line 2: schedule must be a Schedule"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_plugin_is_refused_in_one_line(case, tmp_path):
    text, message = WRONG[case]
    result = CliRunner().invoke(app, ["--plugin", str(plugin(tmp_path, text)), "schedules"])
    assert isinstance(result.exception, RedblueError)
    assert message in str(result.exception)
    assert str(tmp_path / "own.py") in str(result.exception)


@pytest.mark.parametrize("name", ["nowhere.py", "."])
def test_what_is_no_python_file_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["--plugin", name, "schedules"])
    assert isinstance(result.exception, RedblueError)
    assert "--plugin takes a Python file that exists" in str(result.exception)


def test_a_plugin_may_import_modules_beside_it_and_use_dataclasses(tmp_path):
    (tmp_path / "beside.py").write_text("NAME = 'beside_it'\n")
    text = f"""
from __future__ import annotations
import dataclasses, runpy
from beside import NAME
import redblue as rb

@dataclasses.dataclass
class Settings:
    name: str = NAME

few_keys = runpy.run_path({str(EXAMPLE)!r})["few_keys"]
rb.register_schedule(dataclasses.replace(few_keys, name=Settings().name))
"""
    result = CliRunner().invoke(app, ["--plugin", str(plugin(tmp_path, text)), "schedules", "beside_it"])
    assert result.exit_code == 0, result.exception
