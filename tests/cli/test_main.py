"""Every command with good and bad input: results as JSON, errors in one line with exit code 2."""

import json
import subprocess
import sys

import pytest

import redblue as rb
from redblue.base.errors import RedblueError
from redblue.cli.options import parse_mask, parse_tiles
from redblue.compiled import _core
from redblue.kernels.cpu import call as cpu
from support.command_line import refusal, run, run_json

SMALL = ["--n", "256", "--d", "32"]


def test_count():
    problem = rb.Problem(256, 256, 32)
    data = run_json("count", "flash", *SMALL, "--words", "2000")
    expected = rb.count("flash", problem, words=2000)
    assert (data["words"], data["tiles"]) == (expected.words, expected.tiles)
    assert run_json("count", "flash", *SMALL, "--tiles", "rows=8,cols=4", "--run")["tiles"] == {
        "rows": 8,
        "cols": 4,
        "span": 256,
    }
    assert [row["schedule"] for row in run_json("count", *SMALL, "--words", "2000")] == rb.list_schedules("forward")
    assert [row["schedule"] for row in run_json("count", *SMALL, "--words", "60")] == [
        "standard",
        "hybrid",
        "saha_ye",
        "small_cache",
    ]
    assert "flash forward with d = 32" in run("count", *SMALL, "--words", "60").output


@pytest.mark.thorough
def test_counting_by_running_equals_the_closed_form():
    sizes = ("--n", "64", "--d", "8", "--words", "150")
    arguments = ("count", *sizes, "--mask", "causal", "--direction", "backward", "--heads", "2")
    assert run_json(*arguments) == run_json(*arguments, "--run")


def test_sizes_are_read_alike_everywhere():
    plain = run_json("count", "flash", "--n", "4096", "--d", "64", "--words", "200000", "--tiles", "rows=1024")
    short = run_json("count", "flash", "--n", "4Ki", "--d", "6_4", "--words", "200K", "--tiles", "rows=1Ki")
    assert short == plain
    rows = run_json("sweep", "--n", "1Ki:4Ki:x2", "--d", "64", "--words", "12e3,4Ki", "--schedule", "flash")
    assert {(row["n_q"], row["capacity_words"]) for row in rows} >= {(1024, 12000), (4096, 4096)}
    assert run_json("mask", "causal", "--n", "1K", "--tile", "1e2,2_00")["tile"] == [100, 200]
    assert run_json("measure", *SMALL, "--words", "4Ki", "--with", "probe", "--line", "64B")["capacity_bytes"] == 16384


def test_schedules():
    rows = run_json("schedules")
    assert [row["name"] for row in rows] == rb.list_schedules()
    flash = run_json("schedules", "flash")
    assert flash == next(row for row in rows if row["name"] == "flash")
    assert flash["directions"] == ["forward", "backward"]
    assert flash["kernels"] == {"cpu": ["forward", "backward"], "gpu": ["forward", "backward"]}
    text = " ".join(run("schedules", "saha_ye").output.split())
    assert "forward no kernel Saha & Ye, ICML 2024" in text


def test_bound():
    rows = run_json("bound", *SMALL, "--words", "500")
    assert rows[0]["words"] == rb.lower_bound(rb.Problem(256, 256, 32), 500).words
    assert {row["proved"] for row in rows} == {True, False}
    assert "order only" in run("bound", *SMALL, "--words", "500").output


def test_plan():
    data = run_json("plan", *SMALL, "-m", "h100-sxm", "-m", "t4", "--dtype", "float32")
    assert [plan["memory"] for plan in data] == ["h100-sxm", "t4"]
    assert data[0]["levels"][0]["capacity_words"] == 227 * 1024 // 4
    data = run_json("plan", "gemma-2-9b", "-m", "t4", "--n", "512")
    assert len(data) == len(rb.model("gemma-2-9b"))
    assert {plan["problem"]["n_q"] for plan in data} == {512}
    assert "shared memory/L2" in " ".join(run("plan", *SMALL, "-m", "t4").output.split())


def test_memories():
    assert [machine["name"] for machine in run_json("memories")] == [*rb.list_memories(), "this-machine"]
    assert run_json("memories", "t4")["levels"][0]["capacity_bytes"] == 65536
    assert "arch_traits" in run("memories", "t4").output


def test_models():
    assert [model["name"] for model in run_json("models")] == rb.list_models()
    data = run_json("models", "gpt2", "--n", "99")
    assert data["layers"][0]["problem"]["n_q"] == 99
    assert "gpt2" in run("models").output


def test_info(monkeypatch):
    cpu.isa.cache_clear()
    monkeypatch.setenv("REDBLUE_ISA", "portable")
    rows = run_json("info")["instruction_sets"]
    assert [row["name"] for row in rows] == [isa.name for isa in _core.list_isas()]
    assert [row["name"] for row in rows if row["chosen"]] == ["portable"]
    assert "forced by REDBLUE_ISA=portable" in run("info").output
    cpu.isa.cache_clear()
    monkeypatch.setenv("REDBLUE_ISA", "z80")
    with pytest.raises(rb.RedblueError, match="'z80'; this CPU can run: "):
        cpu.isa()
    monkeypatch.undo()
    cpu.isa.cache_clear()


@pytest.mark.parametrize("command", ["report", "plan", "count", "bound", "info", "memories", "models", "schedules"])
def test_every_command_has_help_with_an_example_and_json(command):
    text = run(command, "--help").output
    assert "Example: redblue" in text
    assert "--json" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["count", "flahs", *SMALL, "--words", "99"], "unknown schedule 'flahs'; nearest: flash"),
        (["count", "nosuch"], "unknown schedule 'nosuch'; known: flash"),  # reported before the missing sizes
        (["measure", "--schedule", "flash3"], "unknown schedule 'flash3'; nearest: flash"),
        (["pebble", "trace", "hybird"], "unknown schedule 'hybird'; nearest: hybrid"),
        (["schedules", "FLASH"], "unknown schedule 'FLASH'; nearest: flash"),
        (["plan", *SMALL, "-m", "this_machine"], "nearest: this-machine"),
        (["experiment", "croosing"], "unknown experiment 'croosing'; nearest: crossing"),
        (["measure", *SMALL, "--words", "4K", "--with", "cachegrnd"], "unknown meter 'cachegrnd'; nearest: cachegrind"),
        (["plan", "g" * 300], f"unknown model '{'g' * 60}'... (300 characters)"),
        (["pebble", "solve", "g" * 300, "--red", "3"], f"unknown graph '{'g' * 60}'... (300 characters)"),
        (["measure", "--n", "1e12", "--d", "64", "--words", "8Ki", "--with", "probe"], "needs about 1.02 PB of memory"),
        (["count", *SMALL, "--words", "2KiB"], "a size is counted, not measured in bytes: leave out the B of '2KiB'"),
        (["count", *SMALL, "--words", "1.5"], "a size must be a whole number, got '1.5'"),
        (["plan", "gpt3"], "unknown model 'gpt3'; nearest: gpt2"),
        (["plan", *SMALL, "-m", "h100"], "unknown memory 'h100'; nearest: h100-sxm"),
        (["report", "gpt3"], "unknown model 'gpt3'"),
        (["plan", "--n", "0", "--d", "4"], "n_q must be a whole number of at least 1, got 0"),
        (["plan", "--n", "4", "--d", "-4"], "d must be a whole number of at least 1, got -4"),
        (["plan", *SMALL, "--heads", "3", "--kv-heads", "2"], "heads (3) must be a multiple of kv_heads (2)"),
        (["count", "flash", *SMALL, "--words", "10"], "needs a cache of at least 99 words, got 10"),
        (["count", *SMALL, "--words", "2"], "small_cache forward with d = 32"),
        (["count", "flash", *SMALL], "give the cache's capacity in words, or the tiles"),
        (["count", "flash", *SMALL, "--tiles", "rows=x"], "rows must be a whole number such as 4096"),
        (["count", "flash", *SMALL, "--tiles", "rows"], "such as rows=64,cols=16; got 'rows'"),
        (["bound", *SMALL], "give --words"),
        (["bound", *SMALL, "--words", "-1"], "words must be a whole number of at least 1, got -1"),
        (["plan"], "--n or --n-q, --n or --n-k, --d not given"),
        (["plan", "gpt2", "--d", "4"], "--d cannot be given with a model"),
        (["plan", *SMALL, "--mask", "diagonal"], "mask must be full, causal"),
        (["plan", *SMALL, "--dtype", "int8"], "dtype must be one of"),
        (["plan", *SMALL, "--direction", "up"], "direction must be one of forward, backward"),
        (["memories", "missing.toml"], "missing.toml"),
        (["models", "gpt2", "--n", "-3"], "n must be a whole number of at least 1, got -3"),
        (["plan", *SMALL, "--n", "four"], "Invalid value for '--n'"),
        (["count", *SMALL, "--tiles", "rows=2,rows=3"], "each tile edge may be given once"),
        (["count", "", *SMALL, "--words", "99"], "unknown schedule ''"),
        (["plan", *SMALL, "--mask", "window:5,"], "mask must be full"),
        (["plan", *SMALL, "--mask", "window:" + "9" * 5000], "the numbers of a mask may have at most 18 digits"),
        (["count", *SMALL, "--words", "900", "--at-once", "2"], "at_once (2) must be at most the problem's streams (1"),
        (["plan", "gpt2", "--heads", "1"], "--heads cannot be given with a model"),
        (["count", "flash", "--n", "100000", "--d", "64", "--words", "9999", "--run"], "closed form counts the same"),
        (["frobnicate"], "No such command"),
    ],
)
def test_bad_input_is_refused(capsys, monkeypatch, arguments, says):
    assert says in refusal(capsys, monkeypatch, *arguments)


def test_bad_files_are_refused(capsys, monkeypatch, tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"hidden_size": 64}')
    assert "is_causal" in refusal(capsys, monkeypatch, "plan", str(config))
    config.write_text('{"hidden_size": 64, "is_causal": true, "num_hidden_layers": 2}')
    assert "num_attention_heads" in refusal(capsys, monkeypatch, "plan", str(config))
    config.write_text("not json")
    assert str(config).split("/")[-1] in refusal(capsys, monkeypatch, "plan", str(config))
    toml = tmp_path / "m.toml"
    toml.write_text(
        '[m]\ntitle = "M"\nkind = "cpu"\n[[m.levels]]\nname = "L1"\ncapacity = 32\n[[m.levels]]\nname = "RAM"\n'
    )
    assert "unit" in refusal(capsys, monkeypatch, "plan", *SMALL, "-m", str(toml))


def test_unwritable_output_is_refused_before_any_work(capsys, monkeypatch, tmp_path):
    said = refusal(capsys, monkeypatch, "report", "gpt2", "-m", "t4", "-o", str(tmp_path / "no" / "page.html"))
    assert "page.html" in said
    assert "it is a folder" in refusal(capsys, monkeypatch, "report", "gpt2", "-m", "t4", "-o", str(tmp_path))


def test_version():
    result = run("--version")
    assert result.exit_code == 0
    assert rb.__version__ in result.output


def test_masks_and_tiles_from_text():
    assert parse_mask("window:8,2") == rb.Mask.sliding_window(8, 2)
    assert parse_mask("causal-bottom-right") == rb.Mask.causal(align="bottom-right")
    assert parse_tiles("rows=3, cols=4") == {"rows": 3, "cols": 4}
    for wrong in ("window:", "window:1,b", "Causal"):
        with pytest.raises(RedblueError):
            parse_mask(wrong)


def test_the_installed_command_runs():
    command = [sys.executable, "-m", "redblue.cli.main", "count", "flash", *SMALL, "--tiles", "rows=8", "--json"]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(made.stdout)["schedule"] == "flash"


def test_recount_shows_what_was_printed_and_what_is_counted(capsys, monkeypatch):
    rows = run_json("recount")
    assert {"case", "schedule", "expected", "counted", "ratio", "source"} <= set(rows[0])
    assert [row["counted"] for row in rows if row["schedule"] == "flash1" and row["unit"] == "words"] == [
        4544,
        2496,
        1472,
    ]
    shown = run("recount").output
    assert "25.23 GB" in shown
    assert "4.61 GB" in shown


def test_heads_at_once_on_the_command_line():
    options = ("count", "flash", *SMALL, "--words", "900", "--heads", "2")
    alone, together = run_json(*options), run_json(*options, "--at-once", "2")
    assert together["words"] > alone["words"]
    assert together["at_once"] == 2
