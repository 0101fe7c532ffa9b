"""`redblue sweep`: its output and files, its refusals, and its guide's examples."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import redblue as rb
from redblue import problem
from redblue.cli.main import app, main
from redblue.cli.sweep import AXES
from redblue.lab.text import STANDARD_REMARK
from redblue.studies import sweep
from redblue.studies.sweep import axes as sweep_axes
from redblue.studies.sweep import runner

SMALL = ["--n", "64:256:x2", "--d", "8", "--words", "500"]
GUIDE = (Path(__file__).parents[2] / "docs" / "lab" / "sweeps.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", GUIDE, flags=re.DOTALL)
COMMANDS = [
    line
    for language, text in BLOCKS
    if language == "console"
    for line in text.splitlines()
    if line.startswith("redblue ")
]
SCRIPTS = [text for language, text in BLOCKS if language == "python"]


def run(*arguments):
    return CliRunner().invoke(app, ["sweep", *arguments])


def through_main(capsys, monkeypatch, *arguments):
    """Exit code, stdout and stderr (one line each) of the entry point."""
    monkeypatch.setattr(sys, "argv", ["redblue", "sweep", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return stopped.value.code, " ".join(captured.out.split()), " ".join(captured.err.replace("│", " ").split())


def test_json_holds_every_row():
    result = run(*SMALL, "--json", "--heads", "4", "--kv-heads", "2,3", "--window", "7", "--jobs", "1")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    options = {"n": "64:256:x2", "d": 8, "words": 500, "heads": 4, "kv_heads": [2, 3], "window": 7}
    assert rows == sweep.run(options, jobs=1)
    flash_row = next(row for row in rows if (row["n_q"], row["kv_heads"], row["schedule"]) == (128, 2, "flash"))
    made = rb.Problem(128, 128, 8, heads=4, kv_heads=2, mask=rb.Mask.sliding_window(7))
    assert flash_row["words"] == rb.count("flash", made, words=500).words
    assert {row["status"] for row in rows} == {"fits", "invalid"}


def test_the_table_shows_the_best_schedule_of_each_point():
    result = run(*SMALL, "--mask", "full,causal", "--jobs", "1")
    assert result.exit_code == 0
    for mask, made in (("full", rb.Mask.full()), ("causal", rb.Mask.causal())):
        for n in (64, 128, 256):
            names = "flash", "flash_kept", "small_cache"
            counts = [rb.count(name, rb.Problem(n, n, 8, mask=made), words=500) for name in names]
            best = min(counts, key=lambda count: count.words)
            line = next(line for line in result.stdout.splitlines() if line.split()[:2] == [mask, str(n)])
            assert line.split()[2] == best.schedule
            assert f" {best.words / made.nnz(n, n):.3g} " in line


def test_a_long_table_is_cut_and_says_so(tmp_path):
    result = run("--n", "64:164:+1", "--d", "8", "--words", "500", "--schedule", "flash", "--jobs", "1")
    assert "40 of 101 places shown; give -o FILE for all rows" in " ".join(result.stdout.split())
    assert [line.split()[0] for line in result.stdout.splitlines() if " flash " in line] == [
        str(n) for n in (*range(64, 84), *range(145, 165))
    ]
    path = tmp_path / "r.csv"
    result = run("--n", "64:164:+1", "--d", "8", "--words", "500", "--schedule", "flash", "-o", str(path))
    assert "all 101 rows are in" in " ".join(result.stdout.split())
    assert len(path.read_text().splitlines()) == 102


def test_what_does_not_fit_and_what_is_invalid_is_said():
    result = run(
        "--n", "64", "--d", "8,99", "--words", "40", "--schedule", "flash", "--heads", "2,3", "--kv-heads", "2"
    )
    said = " ".join(result.stdout.split())
    assert result.exit_code == 0
    assert "2 invalid: heads (3) must be a multiple of kv_heads (2)" in said
    assert "none fits: flash forward with d = 99, d_v = 99 needs a cache of at least" in said


def test_output_and_picture_are_written_and_then_kept(tmp_path, capsys, monkeypatch):
    output, picture = tmp_path / "r.jsonl", tmp_path / "p.svg"
    arguments = [*SMALL, "-o", str(output), "--picture", str(picture), "--y", "gap", "--jobs", "1"]
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert f"written: {output}" in result.stderr
    assert sweep.read(output) == sweep.run({"n": "64:256:x2", "d": 8, "words": 500}, jobs=1)
    assert "gap: words over the best proved bound" in picture.read_text()
    before = output.read_bytes(), picture.read_bytes()
    for again in (arguments, [*SMALL, "--picture", str(picture)]):
        code, _, said = through_main(capsys, monkeypatch, *again)
        assert (code, before) == (2, (output.read_bytes(), picture.read_bytes()))
        assert "exists: name another file, or replace it with --force" in said
    assert run(*arguments, "--force").exit_code == 0


def test_rows_are_said_to_be_written_where_nothing_can_be_drawn(tmp_path, capsys, monkeypatch):
    """No schedule fits, which only counting shows."""
    monkeypatch.chdir(tmp_path)
    arguments = ["--n", "64,65", "--d", "8", "--words", "1", "-o", "r.csv", "--picture", "p.svg", "--jobs", "1"]
    code, out, said = through_main(capsys, monkeypatch, *arguments)
    assert code == 2
    assert "none fits" in out
    assert said.index("written: r.csv") < said.index("error: nothing to draw: there is no words_per_pair at any point")
    assert [path.name for path in tmp_path.iterdir()] == ["r.csv"]


def test_boundaries_that_a_picture_lacks_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["--n", "64,65", "--d", "8", "-m", "t4,h100-sxm", "--jobs", "1"]
    result = run(*arguments, "--picture", "p.svg", "--y", "seconds")
    assert result.exit_code == 0, result.output
    said = "not in the picture, as their bandwidth is not known: t4: shared memory/L2, h100-sxm: shared memory/L2\n"
    assert said in result.stderr
    assert "not in the picture" not in run(*arguments, "--picture", "q.svg").stderr


def test_what_standard_is_given_is_said(tmp_path):
    """As `count` says: backward, `standard` starts with more given than the others."""
    arguments = ["--n", "64,65", "--d", "8", "--words", "500", "--jobs", "1"]
    for more, remarked in (
        (["--direction", "backward"], True),
        (["--direction", "forward,backward", "--schedule", "standard"], True),
        (["--direction", "backward", "--schedule", "flash"], False),
        ([], False),
    ):
        said = " ".join(run(*arguments, *more, "--picture", str(tmp_path / "p.svg"), "--force").stdout.split())
        assert (STANDARD_REMARK in said) == remarked
        assert (STANDARD_REMARK in (tmp_path / "p.svg").read_text()) == remarked


def interrupt_after(points, monkeypatch):
    """Press Ctrl-C while a point is counted."""
    real, done = runner.evaluate, []

    def evaluate(point):
        if len(done) == points:
            raise KeyboardInterrupt
        done.append(point)
        return real(point)

    monkeypatch.setattr(runner, "evaluate", evaluate)


def test_ctrl_c_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        interrupt_after(2, patch)
        code, out, said = through_main(capsys, patch, *SMALL, "-o", "my rows.csv", "--jobs", "1", "--restart")
    assert (code, out) == (130, "")
    assert "stopped: 2 of 3 points are done, kept in my rows.csv.partial.jsonl" in said
    again = said.split("to go on: redblue sweep ")[1]
    assert again == "--n 64:256:x2 --d 8 --words 500 -o 'my rows.csv' --jobs 1"
    assert run(*shlex.split(again)).exit_code == 0
    assert sweep.read("my rows.csv") == sweep.run({"n": "64:256:x2", "d": 8, "words": 500}, jobs=1)
    assert not Path("my rows.csv.partial.jsonl").exists()


def test_ctrl_c_repeats_a_range_as_it_was_given(tmp_path, capsys, monkeypatch):
    """Rich would read ":100:" as an emoji."""
    monkeypatch.chdir(tmp_path)
    interrupt_after(2, monkeypatch)
    options = ["--n", "10:100:x2", "--d", "8", "--words", "500", "-o", "r.csv", "--jobs", "1"]
    _, _, said = through_main(capsys, monkeypatch, *options)
    assert said.endswith("to go on: redblue sweep " + " ".join(options))


def test_ctrl_c_without_an_output_says_that_nothing_is_kept(capsys, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_after(1, patch)
        code, _, said = through_main(capsys, patch, *SMALL, "--jobs", "1")
    assert code == 130
    assert "stopped: 1 of 3 points are done, not kept: give -o FILE" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "n or n_q, n or n_k, d, words or memory not given"),
        (["--n", "64", "--d", "8"], "words or memory not given"),
        (["--n", "64:128", "--d", "8", "--words", "99"], "n takes VALUE, a list A,B,C, or a range"),
        (
            ["--n", "64", "--d", "8", "--words", "99", "--mask", "full", "--window", "3"],
            "window cannot be given with mask",
        ),
        (["--n", "64", "--d", "8", "--words", "99", "--mask", "diagonal"], "mask must be full, causal"),
        (["--n", "64", "--d", "8", "--words", "99", "--dtype", "float16,int8"], "got 'int8'"),
        (["--n", "64", "--d", "8", "--words", "99", "--direction", "up"], "direction must be one of forward, backward"),
        (["--n", "64", "--d", "8", "--words", "99", "--schedule", "flahs"], "unknown schedule 'flahs'; nearest: flash"),
        (["--n", "64", "--d", "8", "-m", "h100"], "unknown memory 'h100'; nearest: h100-sxm"),
        (
            ["--n", "64", "--d", "8", "--words", "99", "--heads", "3", "--kv-heads", "2"],
            "none of the 1 points is a valid",
        ),
        ([*SMALL, "-o", "r.xlsx"], "must end in .csv, .parquet, .jsonl"),
        ([*SMALL, "-o", "no/r.csv"], "there is no folder no"),
        ([*SMALL, "--picture", "p.jpg"], "must end in .svg, .png, .html"),
        ([*SMALL, "--picture", "p.svg", "--x", "d"], "x must be an axis of several values, which are n; got 'd'"),
        (
            [*SMALL, "--picture", "p.svg", "--schedule", "flash1,hybrid", "--direction", "gradient_x"],
            "nothing to draw: no point has a direction and a mask that flash1 or hybrid covers",
        ),
        (
            ["--n", "64,65", "--d", "8", "-m", "unknown.toml", "--picture", "p.svg", "--y", "seconds"],
            "nothing to draw: the bandwidth is not known at any boundary of unknown.toml",
        ),
        (["--n", "9" * 5000, "--d", "8", "--words", "99"], "n takes numbers of at most 10^18"),
        ([*SMALL, "--picture", "p.svg", "--y", "up"], "y must be one of words_per_pair, gap"),
        ([*SMALL, "--jobs", "0"], "Invalid value for '--jobs'"),
        ([*SMALL, "--colour", "red"], "No such option"),
    ],
)
def test_bad_input_exits_with_2(arguments, says, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "evaluate", lambda point: pytest.fail("worked"))
    levels = "".join(
        f'[[m.levels]]\nname = "{name}"\n{size}\n' for name, size in (("L1", "capacity = {kib = 32}"), ("RAM", ""))
    )
    Path("unknown.toml").write_text(f'[m]\ntitle = "M"\nkind = "cpu"\n{levels}')
    code, out, said = through_main(capsys, monkeypatch, *arguments)
    assert (code, out) == (2, "")
    assert says in said
    assert os.listdir(tmp_path) == ["unknown.toml"]


def test_help_has_every_axis_the_grammar_and_an_example():
    text = " ".join(run("--help").output.replace("│", " ").split())
    assert set(AXES) == {*sweep_axes.MINIMUM, *sweep_axes.NAMES}
    assert set(problem.Problem.__dataclass_fields__) <= set(AXES)
    for said in (*(f"--{name.replace('_', '-')} " for name in AXES), "Example: redblue sweep", "--json"):
        assert said in text
    assert sweep.GRAMMAR.removeprefix("VALUE, a list ") in text


# The guide


def test_the_guide_has_examples():
    assert len(COMMANDS) >= 4
    assert len(SCRIPTS) == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_guide(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if ".parquet" in command:
        pytest.importorskip("pyarrow", reason="Parquet is NOT tested: pip install 'redblue[parquet]'")
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert result.exit_code == 0, result.output
    assert len(list(tmp_path.iterdir())) == command.count("-o ") + command.count("--picture ")


def test_the_python_example_of_the_guide(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(SCRIPTS[0], "sweeps.md", "exec"), {})
    assert capsys.readouterr().out.startswith("flash rows=")
    assert {path.name for path in tmp_path.iterdir()} == {"causal.csv", "causal.svg"}


@pytest.mark.thorough
@pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None,
    reason="the Dask cluster is NOT tested: pip install 'redblue[dask]'",
)
def test_a_dask_cluster_takes_the_sweep_over(tmp_path):
    """The guide's example as a script: its two worker processes, not the script itself, count every point."""
    # Workers import the script, as in multiprocessing, so that they also record who counts.
    noting = (
        "import os; import redblue.studies.sweep.runner as r; real = r.evaluate\n"
        "def evaluate(point):\n    open(f'{point.index}-by-{os.getpid()}', 'w').close(); return real(point)\n"
        "r.evaluate = evaluate\n"
    )
    (tmp_path / "example.py").write_text(noting + SCRIPTS[1] + "    print(os.getpid())\n")
    done = subprocess.run([sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = sweep.run({"n": "1024:8192:x2", "d": [64, 128], "words": 12288}, jobs=1)
    said, own = done.stdout.splitlines()
    assert said == f"{len(rows)} rows"
    assert sweep.read(tmp_path / "cluster.jsonl") == rows
    counted = [path.name.split("-by-") for path in tmp_path.glob("*-by-*")]
    assert sorted(int(point) for point, _ in counted) == list(range(8))
    assert own not in {process for _, process in counted}


def test_the_tables_of_the_guide_name_every_axis_and_column():
    assert {name.replace("_", "-") for name in AXES} <= set(re.findall(r"--([a-z-]+)", GUIDE))
    named = set(re.findall(r"`(\w+)`", GUIDE))
    first, last = list(sweep.COLUMNS).index("n_q"), list(sweep.COLUMNS).index("direction")
    assert {"n_q", "direction"} <= named
    assert set(list(sweep.COLUMNS)[:first] + list(sweep.COLUMNS)[last + 1 :]) <= named
