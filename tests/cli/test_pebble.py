"""The commands redblue pebble ..., and graphs from a line of text."""

import json
import os
import re

import pytest
from typer.testing import CliRunner

from redblue import RedblueError, pebble
from redblue.cli import main
from redblue.pebble import graph_named


def invoke(*arguments):
    return CliRunner().invoke(main.app, ["pebble", *map(str, arguments)])


def run(*arguments):
    result = invoke(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def data(*arguments):
    return json.loads(run(*arguments, "--json").stdout)


def test_solve_check_and_play(tmp_path):
    game = tmp_path / "game.jsonl"
    solved = data("solve", "fft:4", "--red", 4, "-o", game)
    assert (solved["cost"], solved["optimal"], solved["lower_bound"]) == (11, True, 11)
    checked = data("check", game, "--graph", "fft:points=4")
    assert (checked["legal"], checked["cost"], checked["graph"]) == (True, 11, solved["graph"])
    written = data("play", game, "-o", tmp_path / "game.html")
    assert written["moves"] == checked["moves"]
    assert run("play", game, "-o", tmp_path / "game.html", "--title", "A butterfly").stdout == ""
    assert "<h1>A butterfly</h1>" in (tmp_path / "game.html").read_text()
    run("play", game, "-o", tmp_path / "game.svg", "--frames", 3)
    assert (tmp_path / "game.svg").read_text().count("after move") == 3


@pytest.mark.thorough
def test_tables_say_what_is_proved(tmp_path):
    assert "optimal, proved" in run("solve", "tree:2,2", "--red", 3).output
    assert "optimal, proved" in run("solve", "tree:2,2", "--red", 3, "--heuristic").output
    assert "x the best bound, 128" in run("solve", "fft:64", "--red", 4, "--heuristic").output
    assert "rules partial" in run("solve", "tree:2,2", "--red", 2, "--rules", "partial").output
    assert data("solve", "tree:2,2", "--red", 2, "--sliding", "--heuristic")["peak"] == 2
    assert len(data("solve", "fft:4", "-m", "h100-sxm", "--heuristic")["peaks"]) >= 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's full device")
@pytest.mark.parametrize(
    "command",
    [["solve", "fft:4", "--red", 4], ["trace", "flash", "--n", 4, "--d", 2, "--words", 40]],
    ids=lambda c: c[0],
)
def test_a_full_disk_does_not_lose_the_figures(command):
    result = invoke(*command, "--json", "-o", "/dev/full")
    assert isinstance(result.exception, RedblueError)
    assert json.loads(result.stdout)["cost"] == data(*command)["cost"]
    assert "peak" in invoke(*command, "-o", "/dev/full").stdout


def test_bounds():
    bounds = data("bound", "fft:4", "--red", 3, "--rules", "one-shot")["bounds"]
    assert bounds[0]["words"] >= bounds[-1]["words"]
    assert {"compulsory", "partition"} <= {bound["method"] for bound in bounds}
    assert "compulsory" in run("bound", "fft:4", "-m", "h100-sxm").output


def test_schedules_are_traced(tmp_path):
    game = tmp_path / "game.jsonl"
    traced = data("trace", "flash", "--n", 4, "--d", 2, "--words", 40, "-o", game)
    assert traced["loads"] + traced["stores"] == traced["counted_words"]
    assert data("check", game)["cost"] == traced["cost"]
    assert "the schedule counts" in run("trace", "flash", "--n", 4, "--d", 2, "--tiles", "rows=2,cols=1").output


def test_a_time_limit_gives_the_best_so_far():
    result = data("solve", "attention:3,2", "--red", 6, "--time-limit", 0.3)
    assert result["lower_bound"] <= result["cost"]
    assert result["optimal"] == (result["lower_bound"] == result["cost"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["solve", "fft:4"], "give --red, such as --red 5, or --memory, not both"),
        (["solve", "fft:4", "--red", "3", "-m", "t4"], "not both"),
        (["solve", "fft:4", "--red", "2"], "red is 2: this graph needs at least 3"),
        (["solve", "fft:4", "--red", "-2"], "at least 1, got -2"),
        (["solve", "fft:4", "--red", "3", "--rules", "chess"], "or Rules, got 'chess'"),
        (["solve", "fft:4", "--red", "3", "--heuristic", "--time-limit", "3"], "leave it out with --heuristic"),
        (["solve", "fft:64", "--red", "3"], "at most 128 nodes"),
        (["solve", "fft:4", "-m", "h100-sxm"], "two levels"),
        (["check", "none.jsonl"], "cannot read none.jsonl"),
        (["play", "none.jsonl"], "cannot read none.jsonl"),
        (["trace", "flash", "--n", "4", "--d", "2"], "give the cache's capacity"),
    ],
)
def test_bad_input_is_an_error_of_its_own(arguments, says):
    result = invoke(*arguments)
    assert isinstance(result.exception, RedblueError)
    assert says in str(result.exception)


def test_exit_code_2(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["redblue", "pebble", "solve", "fft:4", "--red", "2"])
    with pytest.raises(SystemExit) as stopped:
        main.main()
    assert stopped.value.code == 2
    assert "this graph needs at least 3" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["solve", "check", "trace", "play", "bound"])
def test_every_command_shows_an_example(command):
    assert f"Example: redblue pebble {command}" in re.sub(r"\s+", " ", run(command, "--help").output)


# Graphs from text -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "graph"),
    [
        ("attention:n=2,d=1", pebble.attention_graph(2, 1)),
        ("attention:3,2,d_v=1", pebble.attention_graph(3, 2, 1)),
        ("attention-backward:2,1", pebble.attention_backward_graph(2, 1)),
        ("matmul:2,2,2,accumulate=products", pebble.matmul_graph(2, 2, 2, "products")),
        ("random:seed=3, nodes=9", pebble.random_graph(3, 9)),
    ],
)
def test_constructors_by_name(text, graph):
    assert graph_named(text) == graph


def test_files_of_edges(tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("# a graph\na c\nb c  # two inputs\n\nalone\n")
    graph = graph_named(str(path))
    assert graph.labels == ("a", "b", "c", "alone")
    assert graph.parents_of(graph.numbers["c"]).tolist() == [graph.numbers["a"], graph.numbers["b"]]
    path.write_text("a b\na c\n", encoding="utf-8-sig")  # with a byte-order mark, as some editors write it
    assert graph_named(str(path)) == pebble.from_edges([("a", "b"), ("a", "c")])
    path.write_text("a b\na b c\n")
    with pytest.raises(RedblueError, match='line 2: an edge is "parent child"'):
        graph_named(str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(RedblueError, match="cannot read"):
        graph_named(str(path))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("attenton:2,1", "unknown graph 'attenton'; nearest: attention"),
        ("none.txt", "unknown graph 'none.txt'"),
        ("attention:2", "attention needs d as well, as in attention:d=4"),
        ("attention:2,x", "attention takes whole numbers for n, d, d_v, accumulate, by name or in order; got 'x'"),
        ("attention:2,d=1,d=1", "got 'd=1'"),
        ("attention:2,1,1,fma,7", "got '7'"),
        ("attention:2,1,accumulate=fast", "accumulate must be 'fma' or 'products', got 'fast'"),
        ("fft:6", "points must be a power of two"),
        ("fft:-4", "got '-4'"),
    ],
)
def test_what_is_no_graph(text, says):
    with pytest.raises(RedblueError, match=re.escape(says)):
        graph_named(text)
