"""Graphs named on the command line: a constructor with its sizes, or a file."""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path

from redblue.base.arguments import checked_arguments
from redblue.base.errors import RedblueError, UnknownName
from redblue.pebble import constructors
from redblue.pebble.game_files import read_game
from redblue.pebble.graph import Graph, from_edges

CONSTRUCTORS = {
    "attention": constructors.attention_graph,
    "attention-backward": constructors.attention_backward_graph,
    "chain": constructors.chain_graph,
    "diamond": constructors.diamond_graph,
    "fft": constructors.fft_graph,
    "matmul": constructors.matmul_graph,
    "random": constructors.random_graph,
    "stencil": constructors.stencil_graph,
    "tree": constructors.tree_graph,
}


@checked_arguments
def graph_named(text: str) -> Graph:
    """Build or read the graph that `text` names.

    text: one of three forms.
        A constructor with its sizes, by name or in order: "attention:n=2,d=1" or "attention:2,1".
        A file of edges, one "parent child" per line; a line with one name is a node without edges, # starts a comment.
        A game that save_game wrote (.jsonl); its graph is returned.
    Raises UnknownName for an unknown constructor, RedblueError for wrong sizes and unreadable files, and GraphError for
    edges that are not a graph.
    """
    name, colon, sizes = text.partition(":")
    if colon and name in CONSTRUCTORS:
        return _constructed(name, sizes)
    path = Path(text)
    if path.suffix == ".jsonl":
        return read_game(path).graph
    if os.path.isfile(path):  # unlike Path.is_file, it takes any text, also one that is too long for a name
        return _edges(path)
    hint = "Give sizes as in attention:n=2,d=1, or a file of edges, or a game (.jsonl)"
    raise UnknownName("graph", name, CONSTRUCTORS, hint)


def _constructed(name: str, sizes: str) -> Graph:
    """Call a constructor with sizes such as "n=2,d=1" or "2,1"."""
    make = CONSTRUCTORS[name]
    parameters = [p for p in inspect.signature(make).parameters if p != "mask"]
    arguments: dict[str, int | str] = {}
    for position, part in enumerate(sizes.split(",")):
        key, equals, value = part.strip().rpartition("=")
        if not equals:
            key = parameters[position] if position < len(parameters) else part
        if key not in parameters or key in arguments or not (key == "accumulate" or re.fullmatch(r"\d{1,7}", value)):
            usage = ", ".join(parameters)
            raise RedblueError(f"{name} takes whole numbers for {usage}, by name or in order; got {part.strip()!r}")
        arguments[key] = value if key == "accumulate" else int(value)
    missing = [
        p.name for p in inspect.signature(make).parameters.values() if p.default is p.empty and p.name not in arguments
    ]
    if missing:
        raise RedblueError(f"{name} needs {', '.join(missing)} as well, as in {name}:{missing[0]}=4")
    return make(**arguments)


def _edges(path: Path) -> Graph:
    """Read a file of edges."""
    edges, nodes = [], {}
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()  # without the byte-order mark of some editors
    except (OSError, UnicodeDecodeError) as error:
        raise RedblueError(f"cannot read {path} as a list of edges: {error}") from None
    for number, line in enumerate(lines, start=1):
        parts = line.partition("#")[0].split()
        if len(parts) > 2:
            raise RedblueError(f'{path}, line {number}: an edge is "parent child", got {line.strip()[:60]!r}')
        nodes.update(dict.fromkeys(parts))
        if len(parts) == 2:
            edges.append((parts[0], parts[1]))
    return from_edges(edges, nodes)
