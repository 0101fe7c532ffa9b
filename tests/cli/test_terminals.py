"""Commands at every width and in every encoding: no cell is lost, and no stream makes them fail."""

import functools
import io
import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from rich.cells import cell_len
from rich.console import Group
from typer.testing import CliRunner

import redblue as rb
from redblue.base import progress, terminal
from redblue.base.terminal import LONG_WORD, StackingTable
from redblue.cli import output
from redblue.cli.main import COMMANDS, app
from support.examples import thorough

WIDTHS = (20, 40, 60, 80, 120)
SIZES = ("--n", "256", "--d", "32")
TABLES = {  # arguments with which each command prints its tables
    "report": ("report", "gpt2", "-m", "t4", "--n", "64", "-o", "page.html"),
    "plan": ("plan", *SIZES, "-m", "h100-sxm"),
    "count": ("count", *SIZES, "--words", "2000", "--index", "csr", "--mask", "causal"),
    "bound": ("bound", *SIZES, "--words", "500"),
    "sweep": ("sweep", "--n", "64,256", "--d", "16", "--words", "900,2000", "--mask", "full,causal"),
    "experiment": ("experiment", "--list"),
    "mask": ("mask", "bigbird:16", "--n", "256"),
    "sparse": ("sparse", "bigbird:16", "--n", "64", "--d", "16", "--words", "900"),
    "info": ("info",),
    "measure": ("measure", "--n", "16", "--d", "8", "--words", "2000", "--with", "probe"),
    "recount": ("recount",),
    "memories": ("memories",),
    "models": ("models",),
    "schedules": ("schedules",),
    "pebble": ("pebble", "solve", "fft:4", "--red", "4"),
    "a paged count": (
        "count",
        "--batch",
        "4",
        "--n",
        "64",
        "--d",
        "8",
        "--page",
        "16",
        "--prefix",
        "32",
        "--words",
        "999",
    ),
    "a paged plan": ("plan", "--batch", "4", "--n", "64", "--d", "8", "--page", "16", "-m", "t4"),
    "a plan on a cluster": ("plan", "--n", "64", "--d", "8", "-m", "4x t4 over pcie-4-x16"),
    "one memory": ("memories", "h100-sxm"),
    "one model": ("models", "gemma-2-9b"),
    "pebble bounds": ("pebble", "bound", "fft:4", "--red", "3"),
}


SLOW = {"report", "experiment", "memories"}  # take seconds
NAMES = [thorough(name) if name in SLOW else name for name in TABLES]


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A function that returns the objects that a command prints, by its name in TABLES."""

    @functools.cache
    def result(name):
        printed = []

        class Recorder:
            def print(self, renderable):
                printed.append(renderable)

        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path_factory.mktemp("shown"))
            patch.setattr(output, "console", Recorder)
            assert CliRunner().invoke(app, TABLES[name]).exit_code == 0
        return printed[0]

    return result


def tables_in(renderable):
    """Every table in a printed object."""
    if isinstance(renderable, StackingTable):
        return [renderable]
    parts = renderable.renderables if isinstance(renderable, Group) else []
    if hasattr(renderable, "__rich__"):
        parts = [renderable.__rich__()]
    return [table for part in parts for table in tables_in(part)]


def rendered(renderable, width, encoding="utf-8"):
    """The text that is written to a stream of this encoding."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors=terminal.PLAIN, newline="\n")
    terminal.console(file=stream, width=width).print(renderable)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)


def words_of(table):
    """How often each word of a table's cells must be printed. Words longer than LONG_WORD may be broken."""
    cells = [cell.plain for column in table.columns for cell in column.cells]
    return Counter(word for cell in cells for word in cell.split() if len(word) <= LONG_WORD)


def test_every_command_is_tried():
    assert set(COMMANDS) <= set(TABLES)


@pytest.mark.parametrize("name", NAMES)
def test_no_cell_is_lost_at_any_width(shown, name):
    tables = tables_in(shown(name))
    assert tables
    expected = sum(map(words_of, tables), Counter())
    assert expected
    for width in WIDTHS:
        text = rendered(shown(name), width)
        if width > 20:  # at 20 columns, words are broken, but not lost
            missing = expected - Counter(text.split())
            assert not missing, (width, missing)
        letters = Counter("".join(expected.elements())) - Counter(text)
        assert not letters, (width, letters)
        assert max(map(cell_len, text.splitlines())) <= width
        assert "\N{HORIZONTAL ELLIPSIS}" not in text  # Rich marks cut text with it


@pytest.mark.parametrize("name", NAMES)
def test_every_table_is_printable_in_ascii(shown, name):
    text = rendered(shown(name), 80, "ascii")
    assert text.isascii()
    assert "\\u" not in text


PLAN_AT_40 = """\
h100-sxm: d 32, 1 head, n 256, full,
float16

boundary   shared memory/L2
M (words)  116,224
regime     large-cache
schedule   flash
tiles      rows 256 cols 16 span 256
words      33 k
bytes      66 k
"""
PLAN_AT_80 = """\
h100-sxm: d 32, 1 head, n 256, full, float16

  boundary                         schedule         words    bound
  M (words)          regime        tiles            bytes      gap        time
 ──────────────────────────────────────────────────────────────────────────────
  shared memory/L2   large-cache   flash             33 k   32.8 k   not known
  116,224                          rows 256 cols     66 k     1.01
                                   16 span 256
"""


@pytest.mark.parametrize(("width", "snapshot"), [(40, PLAN_AT_40), (80, PLAN_AT_80)])
def test_a_plan_as_it_is_printed(shown, width, snapshot):
    text = rendered(shown("plan"), width).replace("\N{NO-BREAK SPACE}", " ")
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[: snapshot.count("\n")] == [line.rstrip() for line in snapshot.splitlines()]


def run(*arguments, **environment):
    """Run `python -m redblue` in a separate process."""
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")
    }
    command = [sys.executable, "-m", "redblue", *arguments]
    return subprocess.run(command, capture_output=True, env=inherited | environment, timeout=60)


FLASH = ("schedules", "flash")


@pytest.mark.parametrize(
    "environment",
    [
        {"COLUMNS": "0", "NO_COLOR": "1"},
        {"PYTHONIOENCODING": "ascii"},
        *map(thorough, ({}, {"COLUMNS": "-7"}, {"COLUMNS": "wide"}, {"TERM": "dumb"})),
    ],
    ids=str,
)
def test_pipes_and_odd_environments_take_plain_text(environment):
    done = run(*FLASH, **environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"arXiv 2205.14135" in done.stdout
    assert b"\x1b" not in done.stdout


def test_the_c_locale_without_utf_8():
    done = run("mask", "causal", "--n", "64", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"##" in done.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", [(*FLASH, "--json"), thorough(FLASH), ("--help",)], ids=str)
def test_a_full_output_is_an_error_with_a_message(arguments):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "redblue", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot write the result to standard output: No space left on device")
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_a_reader_that_stops_is_no_error():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "redblue", "models", "--json"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


def test_progress_lines_stay_out_of_the_result(monkeypatch, tmp_path):
    """If standard error is not a terminal, a progress line goes there, and the output of --json stays JSON."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress, "_print_lines", lambda text, over: progress.message(text()))
    for arguments in (("sweep", *SIZES, "--words", "2000"), TABLES["measure"], TABLES["plan"]):
        done = CliRunner().invoke(app, [*arguments, "--json"])
        assert done.exit_code == 0
        json.loads(done.stdout)
        assert "ing" in done.stderr.splitlines()[0]
        assert "\x1b" not in done.output


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("redblue count fl", "flash1 flash flash_cluster flash_onepass flash_kept"),
        thorough("redblue plan -m this", "this-machine"),
    ],
)
def test_the_shell_completes_names(line, completed):
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    assert run(_REDBLUE_COMPLETE="complete_bash", **words).stdout.decode().split() == completed.split()


def test_a_plan_prints_itself(capsys):
    print(rb.plan(rb.Problem(64, 64, 32), memory="t4"))
    assert "shared memory/L2" in capsys.readouterr().out
