"""The page that plays a game: it contains the game and everything else that it needs; its picture is separate."""

import json
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given

import redblue as rb
from redblue import RedblueError, pebble
from redblue.pebble import Further, IllegalMove, Rules, check, heuristic
from redblue.pebble.drawing.layout import layout
from redblue.pebble.drawing.player import _states, render, strip, write_game
from redblue.pebble.moves import LOAD, STORE, Game
from support.games import graphs, naive_game

GRAPH = pebble.attention_graph(2, 1)
FOUND = heuristic(GRAPH, 5)
LARGE = pebble.fft_graph(512)


def embedded(page):
    return json.loads(re.search(r'<script type="application/json" id="game">(.*?)</script>', page, re.DOTALL)[1])


def test_the_page_holds_the_game():
    game = embedded(render(GRAPH, FOUND.moves, 5))
    assert tuple(game["labels"]) == GRAPH.labels
    assert game["parents"] == [GRAPH.parents_of(v).tolist() for v in range(GRAPH.n)]
    moves = Game.from_arrays(*game["moves"])
    assert check(GRAPH, moves, game["capacities"][0]).cost == FOUND.cost


def test_the_page_needs_nothing_else():
    page = render(GRAPH, FOUND.moves, 5)
    assert "default-src 'none'" in page
    assert not re.search(r"""(src|href)\s*=\s*["']|@import|url\(""", page)
    assert set(re.findall(r"https?://[^\"']+", page)) == {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_keys_and_controls_are_there():
    page = render(GRAPH, FOUND.moves, 5)
    for id in ("first", "back", "play", "step", "last", "place", "speed", "bars", "cost"):
        assert f'id="{id}"' in page, id
    for key in ('" "', "ArrowLeft", "ArrowRight", "Home", "End"):
        assert f"{key}:" in page, key


def test_titles_and_labels_cannot_break_out():
    graph = pebble.from_edges([("</script><b>", "b")])
    page = render(graph, [(0, 0), (2, 1), (1, 1)], 2, title="<i>", note="<u>")
    assert "<b>" not in page
    assert "<i>" not in page
    assert "<u>" not in page


def test_traced_schedules_and_levels_are_played():
    traced = rb.trace("flash", rb.Problem(4, 4, 2), words=60)
    assert embedded(render(traced.graph, traced.moves, traced.red, traced.rules))["capacities"] == [traced.red]
    rules = Rules(further=(Further(9, 2, 2),))
    best = heuristic(pebble.fft_graph(4), 4, rules)
    game = embedded(render(pebble.fft_graph(4), best.moves, 4, rules))
    assert (game["capacities"], game["loadCosts"]) == ([4, 9], [1, 2])
    partial = heuristic(pebble.fft_graph(4), 2, "partial")
    assert embedded(render(pebble.fft_graph(4), partial.moves, 2, "partial"))["partial"]


@given(graphs(most=15))
def test_nodes_are_drawn_below_their_parents_and_apart(graph):
    places = layout(graph)
    for v in range(graph.n):
        assert all(places[p, 1] < places[v, 1] for p in graph.parents_of(v).tolist())
    for y in np.unique(places[:, 1]):
        assert (np.diff(np.sort(places[places[:, 1] == y, 0])) > 1 - 1e-9).all()


def test_a_graph_without_crossings_is_drawn_without():
    places = layout(pebble.tree_graph(2, 3))
    for level in range(3):
        row = [v for v in range(15) if places[v, 1] == level]
        child = [pebble.tree_graph(2, 3).children_of(v)[0] for v in sorted(row, key=lambda v: places[v, 0])]
        assert (np.diff(places[child, 0]) >= 0).all()


def test_a_strip_shows_the_game_from_its_first_words_to_its_end():
    drawn = ElementTree.fromstring(strip(GRAPH, FOUND.moves, 5, frames=4))
    captions = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert len(captions) == 8
    assert captions[-2] == f"after move {len(FOUND.moves)}"
    assert all(re.fullmatch(r"[0-5] of 5 red", text) for text in captions[1::2])
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}circle"))) == 4 * GRAPH.n


def test_a_strip_has_at_most_a_picture_for_each_word():
    words = sum(kind in (LOAD, STORE) for kind, *_ in FOUND.moves)
    assert strip(GRAPH, FOUND.moves, 5, frames=10**12) == strip(GRAPH, FOUND.moves, 5, frames=words)


def test_states_are_those_of_the_rules():
    """After all moves, inputs and outputs are blue, nothing is red, and slid pebbles and outdated words are gone."""
    last = _states(GRAPH, FOUND.moves, Rules(), [len(FOUND.moves)])[0]
    assert [v for v, have in enumerate(last) if have == 2] == sorted([*GRAPH.sources.tolist(), *GRAPH.sinks.tolist()])
    slid = [(0, 0), (2, 1, 0)]
    assert _states(pebble.chain_graph(2), Game.of(slid), Rules(sliding=True), [0, 1, 2]) == [[2, 0], [3, 0], [2, 1]]
    partial = [(0, 0), (2, 2, 0), (1, 2), (0, 1), (2, 2, 1)]
    states = _states(pebble.tree_graph(2, 1), Game.of(partial), Rules("partial"), [3, 5])
    assert [state[2] for state in states] == [3, 1]


def test_files(tmp_path):
    for name in ("game.html", "game.svg", "game.png"):
        assert write_game(tmp_path / name, GRAPH, FOUND.moves, 5).stat().st_size > 1000
    assert (tmp_path / "game.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["game.html", "game.png", "game.svg"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: render(LARGE, naive_game(LARGE), 3), "at most 3,000 nodes and 200,000 moves, this one has 5,120"),
        (lambda: strip(GRAPH, FOUND.moves, 5, frames=0), "frames must be a whole number of at least 1, got 0"),
        (lambda: write_game("game.gif", GRAPH, FOUND.moves, 5), "must end in .html, .svg, .png"),
        (lambda: write_game("/nowhere/game.svg", GRAPH, FOUND.moves, 5), "cannot write /nowhere/game.svg"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn(make, says):
    with pytest.raises(RedblueError, match=says):
        make()
    with pytest.raises(IllegalMove):
        render(GRAPH, [(2, 17)], 5)
