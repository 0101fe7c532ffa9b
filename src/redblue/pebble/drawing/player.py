"""A game to look at: one HTML page that plays it on the drawn graph, and a strip of pictures of it for papers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import whole_number
from redblue.pebble.drawing.layout import layout
from redblue.pebble.graph import Graph
from redblue.pebble.moves import COMPUTE, DELETE, LOAD, STORE, Game
from redblue.pebble.referee import check
from redblue.pebble.rules import Rules, rules_of

if TYPE_CHECKING:
    import jinja2

MOST_NODES, MOST_MOVES = 3000, 200_000  # that a browser draws at once, and that a page holds
SUFFIXES = (".html", ".svg", ".png")
RULES = {
    "red-blue": "red-blue: a node is computed when all its parents are red, as often as one likes",
    "one-shot": "one-shot: a node is computed once, when all its parents are red",
    "partial": "partial: a node's parents are aggregated into it one by one, each edge once",
}


def render(
    graph: Graph,
    moves: Iterable[Sequence[int]],
    red: int,
    rules: str | Rules = "red-blue",
    title: str = "",
    note: str = "",
) -> str:
    """The page that plays a game: it needs no other file and asks the network for nothing.

    title: what is played. note: what is known of the game, such as whether it is optimal.
    Raises what `check` does for a game that is not legal and finished, and RedblueError for one too large to be drawn.
    """
    rules, game = rules_of(rules), Game.of(moves)
    verdict = check(graph, game, red, rules)
    _check_size(graph, game)
    return _template().render(
        title=title or f"{graph.n} nodes, {red} red pebbles",
        note=note,
        rules=RULES[rules.name],
        verdict=verdict,
        game=_data(graph, game, red, rules),
    )


def strip(
    graph: Graph, moves: Iterable[Sequence[int]], red: int, rules: str | Rules = "red-blue", frames: int = 6
) -> str:
    """`frames` pictures of a game in a row, as SVG: after the first load, and at equal steps of its cost from there on.

    Raises as `render` does.
    """
    rules, game = rules_of(rules), Game.of(moves)
    check(graph, game, red, rules)
    _check_size(graph, game)
    whole_number("frames", frames)
    moved = np.cumsum(np.isin(game.kinds, (LOAD, STORE)))
    words = int(moved[-1]) if len(game) else 0
    shown = sorted({max(1, round(words * i / frames)) for i in range(1, frames + 1)}) if words else [0]
    times = [len(game) if n == words else int(np.searchsorted(moved, n, side="right")) for n in shown]
    return _strip(graph, _states(graph, game, rules, times), times, red, rules)


def write_game(
    path: str | os.PathLike[str],
    graph: Graph,
    moves: Iterable[Sequence[int]],
    red: int,
    rules: str | Rules = "red-blue",
    title: str = "",
    note: str = "",
    frames: int = 6,
) -> Path:
    """Write a page (.html) or a strip (.svg, .png), whole or not at all; returns where it lies.

    Raises as `render` does, and RedblueError for another ending or a file that cannot be written.
    """
    target = Path(path).resolve()
    if target.suffix not in SUFFIXES:
        raise RedblueError(f"{path} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, to say what to draw")
    if target.suffix == ".html":
        content = render(graph, moves, red, rules, title, note).encode()
    else:
        drawn = strip(graph, moves, red, rules, frames)
        content = drawn.encode() if target.suffix == ".svg" else _png(drawn)
    try:
        with tempfile.TemporaryDirectory(prefix=".redblue-", dir=target.parent) as folder:
            draft = Path(folder, "drawn")
            draft.write_bytes(content)
            os.replace(draft, target)
    except OSError as error:
        raise RedblueError(f"cannot write {path}: {error.strerror or error}; name another file") from None
    return target


def _png(drawn: str) -> bytes:
    import vl_convert  # here, for it takes a while and few need it

    return vl_convert.svg_to_png(drawn, scale=2)


def _check_size(graph: Graph, game: Game) -> None:
    if graph.n > MOST_NODES or len(game) > MOST_MOVES:
        raise RedblueError(
            f"a game is drawn with at most {MOST_NODES:,} nodes and {MOST_MOVES:,} moves, this one has {graph.n:,} and "
            f"{len(game):,}: take a smaller problem"
        )


def _data(graph: Graph, game: Game, red: int, rules: Rules) -> dict[str, Any]:
    """What the page's script plays."""
    return {
        "labels": graph.labels,
        "parents": [graph.parents_of(v).tolist() for v in range(graph.n)],
        "places": np.round(layout(graph), 3).tolist(),
        "blue": np.flatnonzero(rules.starts_blue(graph)).tolist(),
        "sinks": graph.sinks.tolist(),
        "words": rules.words_of(graph).tolist(),
        "capacities": [red, *(level.words for level in rules.further)],
        "loadCosts": rules.load_costs,
        "storeCosts": rules.store_costs,
        "computeCost": rules.compute_cost,
        "partial": rules.partial,
        "moves": [array.tolist() for array in (game.kinds, game.nodes, game.parents, game.levels)],
    }


@cache
def _environment() -> jinja2.Environment:
    import jinja2  # here, for `import redblue` does without it

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _template() -> jinja2.Template:
    return _environment().get_template("player.html.jinja")


def _states(graph: Graph, game: Game, rules: Rules, times: Sequence[int]) -> list[list[int]]:
    """After so many moves each: per node, a bit for each level of memory that has it."""
    slow = 1 << (rules.levels - 1)
    have = [slow if blue else 0 for blue in rules.starts_blue(graph).tolist()]
    states, wanted = [], list(times)
    for number, (kind, node, parent, level) in enumerate(game):
        while wanted and wanted[0] == number:
            states.append(have.copy())
            wanted.pop(0)
        if kind in (LOAD, STORE):
            have[node] |= 1 << (level + (kind == STORE))
        elif kind == DELETE:
            have[node] &= ~(1 << level)
        elif kind == COMPUTE and rules.partial:
            have[node] = 1
        else:
            have[node] |= 1
            if parent >= 0:
                have[parent] &= ~1
    return states + [have] * len(wanted)


def _strip(graph: Graph, states: list[list[int]], times: Sequence[int], red: int, rules: Rules) -> str:
    places = layout(graph)
    low, high = places.min(axis=0), places.max(axis=0)
    slow, words = 1 << (rules.levels - 1), rules.words_of(graph)
    frames = [
        {
            "move": time,
            "held": int(words[np.array(state) & 1 > 0].sum()),
            "nodes": [
                {"place": place, "red": have & 1, "blue": have & slow, "between": have & ~(1 | slow)}
                for place, have in zip(((places - low) * 40 + 20).tolist(), state, strict=True)
            ],
        }
        for time, state in zip(times, states, strict=True)
    ]
    edges = np.stack([graph.parents, graph.heads], axis=1).tolist()
    width, height = ((high - low) * 40 + 40).tolist()
    return (
        _environment()
        .get_template("strip.svg.jinja")
        .render(frames=frames, edges=edges, width=max(width, 120), height=height, red=red)
    )
