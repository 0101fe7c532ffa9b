"""Draw a game: an HTML page that plays it on the graph, and a strip of pictures for papers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from redblue.base.arguments import checked_arguments
from redblue.base.errors import RedblueError
from redblue.base.files import Target, as_path, check_target
from redblue.base.integers import whole_number
from redblue.pebble.drawing.layout import layout
from redblue.pebble.graph import Graph
from redblue.pebble.moves import COMPUTE, DELETE, LOAD, STORE, Game
from redblue.pebble.referee import check
from redblue.pebble.rules import Rules, rules_of

if TYPE_CHECKING:
    import jinja2

MAX_NODES, MAX_MOVES = 3000, 200_000  # limits of a browser: nodes drawn at once, moves in a page
SUFFIXES = (".html", ".svg", ".png")
# Pages and strips begin with these marks, so that an existing drawing is recognised and may be replaced. A .png file
# has no mark, so an existing .png file is replaced only by force.
MARKS = {".html": b"<!doctype html>\n<!-- redblue pebble play -->", ".svg": b"<!-- redblue pebble play -->"}
RULES = {
    "red-blue": "red-blue: a node is computed when all its parents are red, any number of times",
    "one-shot": "one-shot: a node is computed once, when all its parents are red",
    "partial": "partial: a node's parents are aggregated into it one by one, each edge once",
}


@checked_arguments
def render(
    graph: Graph,
    moves: Iterable[Sequence[int]],
    red: int,
    rules: str | Rules = "red-blue",
    title: str = "",
    note: str = "",
) -> str:
    """Return an HTML page that plays a game. The page needs no other file and no network.

    title: heading of the page; the sizes if empty. note: a line below the heading, such as whether the game is optimal.
    Raises as `check` does for a game that is illegal or unfinished, and RedblueError for a game too large to draw.
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


@checked_arguments
def strip(
    graph: Graph, moves: Iterable[Sequence[int]], red: int, rules: str | Rules = "red-blue", frames: int = 6
) -> str:
    """Return `frames` pictures of a game side by side, as SVG, with equally many loads and stores between them.

    A game of fewer loads and stores has fewer pictures.
    Raises as `render` does, and RedblueError for `frames` below 1.
    """
    rules, game = rules_of(rules), Game.of(moves)
    check(graph, game, red, rules)
    _check_size(graph, game)
    whole_number("frames", frames)
    transfers = np.cumsum(np.isin(game.kinds, (LOAD, STORE)))
    total = int(transfers[-1]) if len(game) else 0
    frames = min(frames, total)
    counts = sorted({max(1, round(total * i / frames)) for i in range(1, frames + 1)}) if total else [0]
    times = [len(game) if n == total else int(np.searchsorted(transfers, n, side="right")) for n in counts]
    return _strip(graph, _states(graph, game, rules, times), times, red, rules)


@checked_arguments
def write_game(
    path: str | os.PathLike[str],
    graph: Graph,
    moves: Iterable[Sequence[int]],
    red: int,
    rules: str | Rules = "red-blue",
    title: str = "",
    note: str = "",
    frames: int = 6,
    force: bool = False,
) -> Path:
    """Write a page (.html) or a strip (.svg, .png) to a file, atomically, and return the file's absolute path.

    title, note: as for `render`. frames: as for `strip`. force: replace an existing file that is no drawn game.
    Raises as `render` does, and RedblueError for another suffix and for a file that must not be replaced or cannot be
    written.
    """
    target = check_drawing(path, force)
    if target.suffix == ".html":
        content = render(graph, moves, red, rules, title, note).encode()
    else:
        svg = strip(graph, moves, red, rules, frames)
        content = svg.encode() if target.suffix == ".svg" else _png(svg)
    return target.write(lambda draft: draft.write_bytes(content)).resolve()


def check_drawing(path: str | os.PathLike[str], force: bool) -> Target:
    """Check, before the work, that a game can be drawn at `path`. Raises as `write_game` does."""
    return check_target(path, SUFFIXES, force, MARKS.get(as_path(path).suffix.lower()))


def _png(svg: str) -> bytes:
    """Convert SVG to PNG."""
    import vl_convert  # imported here because the import is slow and only PNG needs it

    return vl_convert.svg_to_png(svg, scale=2)


def _check_size(graph: Graph, game: Game) -> None:
    """Raise RedblueError if a browser could not draw the game."""
    if graph.n > MAX_NODES or len(game) > MAX_MOVES:
        raise RedblueError(
            f"a game is drawn with at most {MAX_NODES:,} nodes and {MAX_MOVES:,} moves, this one has {graph.n:,} and "
            f"{len(game):,}: take a smaller problem"
        )


def _data(graph: Graph, game: Game, red: int, rules: Rules) -> dict[str, Any]:
    """Collect the data that the page's script (player.js) plays."""
    return {
        "labels": graph.labels,
        "parents": [graph.parents_of(v).tolist() for v in range(graph.n)],
        "positions": np.round(layout(graph), 3).tolist(),
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
    import jinja2  # imported here, so that `import redblue` does not load jinja2

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
    """Return the pebbles after each number of moves in `times` (ascending): per node, a bit per level that holds it."""
    slow = 1 << (rules.levels - 1)
    pebbles = [slow if blue else 0 for blue in rules.starts_blue(graph).tolist()]
    states, remaining = [], list(times)
    for number, (kind, node, parent, level) in enumerate(game):
        while remaining and remaining[0] == number:
            states.append(pebbles.copy())
            remaining.pop(0)
        if kind in (LOAD, STORE):
            pebbles[node] |= 1 << (level + (kind == STORE))
        elif kind == DELETE:
            pebbles[node] &= ~(1 << level)
        elif kind == COMPUTE and rules.partial:
            pebbles[node] = 1
        else:
            pebbles[node] |= 1
            if parent >= 0:
                pebbles[parent] &= ~1
    return states + [pebbles] * len(remaining)


def _strip(graph: Graph, states: list[list[int]], times: Sequence[int], red: int, rules: Rules) -> str:
    """Draw the states side by side, as SVG. times: number of moves before each."""
    positions = layout(graph)
    low, high = positions.min(axis=0), positions.max(axis=0)
    slow, words = 1 << (rules.levels - 1), rules.words_of(graph)
    frames = [
        {
            "move": time,
            "held": int(words[np.array(state) & 1 > 0].sum()),
            "nodes": [
                {"position": position, "red": have & 1, "blue": have & slow, "between": have & ~(1 | slow)}
                for position, have in zip(((positions - low) * 40 + 20).tolist(), state, strict=True)
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
