"""Games as files: round trips, and errors that name the damaged line."""

import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue import RedblueError, pebble
from redblue.pebble import Further, Game, Rules, heuristic, read_game, save_game
from support.examples import examples
from support.games import graphs, rule_sets

GRAPH = pebble.tree_graph(2, 1)
MOVES = [(0, 0), (0, 1), (2, 2), (1, 2)]


@pytest.fixture
def file(tmp_path):
    return save_game(tmp_path / "game.jsonl", GRAPH, MOVES, 3)


@examples(40)
@given(data=st.data())
def test_what_is_written_is_read(data, tmp_path_factory):
    graph = data.draw(graphs())
    rules = data.draw(rule_sets(graph))
    size = data.draw(st.integers(0, 9))
    draw = np.random.default_rng(data.draw(st.integers(0, 99)))
    rows = draw.integers((0, 0, -1, 0), (4, graph.n, graph.n, 3), (size, 4))
    path = tmp_path_factory.mktemp("games") / "game"
    save_game(path, graph, Game.of(rows.tolist()), 5, rules)
    contents = read_game(path, graph)
    assert contents == (graph, Game.of(rows.tolist()), 5, rules)
    assert contents.graph.labels == graph.labels


def test_labels_that_are_no_text_are_converted(tmp_path):
    graph = pebble.Graph((0, (1, 2), "x"), [0, 0, 0, 2], [0, 1])
    assert graph.labels == ("0", "(1, 2)", "x")
    assert read_game(save_game(tmp_path / "game", graph, [(0, 0)], 3)).graph.labels == graph.labels
    with pytest.raises(RedblueError, match=r"move 0 .* needs its parents red; not red: 0, "):
        pebble.check(graph, [(2, 2)], 3)
    with pytest.raises(pebble.GraphError, match="two nodes are named '0'"):
        pebble.Graph((0, "0"), [0, 0, 0], [])


def test_a_file_is_readable_by_people(file):
    header, *lines = file.read_text().splitlines()
    assert json.loads(header)["format"] == "redblue pebble game"
    assert lines == [
        '["t1[0]"]',
        '["t1[1]"]',
        '["t0[0]", 0, 1]',
        '["load", 0]',
        '["load", 1]',
        '["compute", 2]',
        '["store", 2]',
    ]


@pytest.mark.parametrize(
    ("line", "text", "says"),
    [
        (0, "nonsense", r"line 1 is damaged: expected the header of a game, got 'nonsense'"),
        (0, '{"format": "csv"}', "line 1 is damaged"),
        (0, "[]", "line 1 is damaged"),
        (2, '["t1[0]"]', r"two nodes are named 't1\[0\]'"),
        (2, '["other", "parent"]', "line 3 is damaged: expected a node"),
        (3, '["t0[0]", 0]', "differ from the graph that its header names"),
        (3, '["t0[0]", 0, 9]', "unknown parent 9"),
        (2, '["t1[0]"]', r"line 3: two nodes are named 't1\[0\]'"),
        (3, '["t0[0]", 0, 0]', "line 4: node .* has a parent twice"),
        (3, '["t0[0]", 3]', "line 4: node .* unknown parent 3"),
        (5, f'["load", {10**30}]', "line 6 is damaged"),
        (5, '["load", 0, -1, 256]', "line 6: there is no level 256"),
        (5, '["lift", 1]', "line 6 is damaged: expected a move"),
        (5, '["load"]', "line 6 is damaged"),
        (5, '["load", 1.5]', "line 6 is damaged"),
        (5, '["load", 1', "line 6 is damaged"),
        (5, "", "line 6 is damaged"),
        (7, None, "ends too early: a move"),
        (8, '["store", 2]', "line 9: the header says that the game ends before it"),
    ],
)
def test_a_damaged_line_is_named(file, line, text, says):
    lines = file.read_text().splitlines()
    lines[line : line + 1] = [] if text is None else [text]
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(RedblueError, match=says):
        read_game(file)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("version", 2, "line 1: the game has version 2, this redblue reads 1"),
        ("nodes", "3", "line 1: nodes must be a whole number of at least 1, got '3'"),
        ("nodes", -3, "line 1: nodes must be a whole number of at least 1, got -3"),
        ("red", -3, "line 1: red must be"),
        ("red", 10**30, "line 1: red must be at most"),
        ("rules", {"constants": [99]}, "line 1: constants name node 99"),
        ("rules", {"sliding": "no"}, "line 1: sliding must be True or False, got 'no'"),
        ("rules", {"weights": [10**30, 1, 1]}, r"line 1: weights\[0\] must be at most"),
        ("rules", {"weights": [1]}, "line 1: weights are given for 1 nodes"),
        ("rules", {"load_cost": 10**400}, "line 1"),
        ("rules", {"name": "chess"}, "line 1: rules must be 'red-blue'"),
        ("rules", {"gravity": 1}, "line 1: the rules have the unknown field 'gravity'; known: "),
    ],
)
def test_a_damaged_header_is_named(file, field, value, says):
    header, *lines = file.read_text().splitlines()
    file.write_text("\n".join([json.dumps(json.loads(header) | {field: value}), *lines]))
    with pytest.raises(RedblueError, match=says):
        read_game(file)


def test_what_no_file_can_hold_is_refused(tmp_path):
    with pytest.raises(RedblueError, match="move 1 has the kind 9"):
        save_game(tmp_path / "game", GRAPH, [(0, 0), (9, 1)], 3)
    assert not (tmp_path / "game").exists()


def test_numpy_scalars_are_saved_as_numbers(tmp_path):
    rules = Rules(load_cost=np.float32(2), store_cost=np.int64(3), weights=np.array([1, 1, 1]))
    save_game(tmp_path / "game", GRAPH, MOVES, np.int64(3), rules)
    assert read_game(tmp_path / "game").rules == rules


def test_every_cost_is_read_as_it_was(tmp_path):
    rules = Rules(load_cost=Fraction(1, 3), store_cost=2**53 + 1, further=(Further(9, Fraction(2, 3), 2**53 + 1),))
    assert rules.load_cost == 1 / 3
    save_game(tmp_path / "game", GRAPH, MOVES, 3, rules)
    assert read_game(tmp_path / "game").rules == rules


def test_a_byte_order_mark_is_ignored(file):
    file.write_text(file.read_text(), encoding="utf-8-sig")
    assert read_game(file, GRAPH).red == 3


def test_a_game_for_another_graph(file):
    assert read_game(file, GRAPH).red == 3
    with pytest.raises(RedblueError, match=r"a game for another graph: Graph\(3 nodes.*not Graph\(2 nodes"):
        read_game(file, pebble.chain_graph(2))


def test_files_that_cannot_be(tmp_path):
    with pytest.raises(RedblueError, match="cannot read"):
        read_game(tmp_path / "none.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RedblueError, match="cannot read"):
        read_game(tmp_path / "binary")
    with pytest.raises(RedblueError, match=r"cannot write .*there is no folder"):
        save_game(tmp_path / "none" / "game", GRAPH, MOVES, 3)
    assert list(tmp_path.iterdir()) == [tmp_path / "binary"]


def test_a_solved_game_survives(tmp_path):
    graph = pebble.fft_graph(4)
    rules = Rules("partial")
    best = heuristic(graph, 3, rules)
    save_game(tmp_path / "game", graph, best.moves, 3, rules)
    assert pebble.check(*read_game(tmp_path / "game")) == best.verdict
