"""Games as files of JSON Lines: a header that says what they are, one line per node, one line per move."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import whole_number
from redblue.pebble.graph import Builder, Graph
from redblue.pebble.moves import KINDS, Game
from redblue.pebble.rules import MOST_LEVELS, Rules, rules_of
from redblue.pebble.whole import LARGEST, is_whole

FORMAT, VERSION = "redblue pebble game", 1
AnyValue = TypeVar("AnyValue")


class Saved(NamedTuple):
    """A game as a file holds it; nobody has checked its moves."""

    graph: Graph
    moves: Game
    red: int
    rules: Rules


def save_game(
    path: str | os.PathLike[str],
    graph: Graph,
    moves: Iterable[Sequence[int]],
    red: int,
    rules: str | Rules = "red-blue",
) -> Path:
    """Write the game whole or not at all; returns where it lies. Raises RedblueError if it cannot be written there.

    Lines: the header {"format", "version", "graph" (its digest), "nodes", "moves", "red", "rules"}; for each node its
    name and its parents' numbers; for each move its kind, node, and parent and level unless they are -1 and 0.
    """
    game, target = Game.of(moves), Path(path).resolve()
    wrong = np.flatnonzero((game.kinds < 0) | (game.kinds >= len(KINDS)))
    if wrong.size:
        raise RedblueError(f"move {wrong[0]} has the kind {game.kinds[wrong[0]]}: 0 load, 1 store, 2 compute, 3 delete")
    header = {"format": FORMAT, "version": VERSION, "graph": graph.digest, "nodes": graph.n, "moves": len(game)}
    header |= {"red": whole_number("red", red), "rules": asdict(rules_of(rules))}
    try:
        with tempfile.TemporaryDirectory(prefix=".redblue-", dir=target.parent) as folder:
            draft = Path(folder, "game")
            with draft.open("w", encoding="utf-8") as file:
                file.write(json.dumps(header, default=float) + "\n")
                for v, label in enumerate(graph.labels):
                    file.write(json.dumps([label, *graph.parents_of(v).tolist()]) + "\n")
                for kind, *rest in game:
                    given = rest if rest[2] else rest[:2] if rest[1] != -1 else rest[:1]
                    file.write(json.dumps([KINDS[kind], *given]) + "\n")
            os.replace(draft, target)
    except OSError as error:
        raise RedblueError(f"cannot write the game to {path}: {error.strerror or error}; name another file") from None
    return target


def read_game(path: str | os.PathLike[str], graph: Graph | None = None) -> Saved:
    """The game that a file holds.

    Raises RedblueError, naming the line, for a file that is damaged, cut off, of a newer version, or no game at all;
    and, if `graph` is given, for a game on another graph.
    """
    try:
        with Path(path).open(encoding="utf-8") as file:
            found = _read(path, enumerate(file, start=1))
    except (OSError, UnicodeDecodeError) as error:
        raise RedblueError(f"cannot read {path} as a game: {error}") from None
    if graph is not None and found.graph != graph:
        raise RedblueError(f"{path} is a game for another graph: {found.graph!r}, not {graph!r}")
    return found


def _read(path: object, lines: Iterator[tuple[int, str]]) -> Saved:
    header = _line(path, lines, _header, "the header of a game")
    builder = Builder()
    names: set[str] = set()
    for _ in range(header["nodes"]):
        label, *parents = _line(path, lines, lambda found: _node(found, names), 'a node: ["name", parent, ...]')
        builder.node(label, *parents)
    graph = builder.graph()
    try:
        header["rules"].starts_blue(graph)
        header["rules"].words_of(graph)
    except RedblueError as error:
        raise RedblueError(f"{path}, line 1: {error}") from None
    if graph.digest != header["graph"]:
        raise RedblueError(f"{path}: its nodes are not those of the graph that its header names: the file was changed")
    rows = [_line(path, lines, _move, 'a move: ["load", node] and so on') for _ in range(header["moves"])]
    for number, text in lines:
        raise RedblueError(
            f"{path}, line {number}: the header says that the game ends before it; got {text.strip()[:60]!r}"
        )
    return Saved(graph, Game.of(rows), header["red"], header["rules"])


def _line(path: object, lines: Iterator[tuple[int, str]], parse: Callable[[Any], AnyValue], what: str) -> AnyValue:
    number, text = next(lines, (None, ""))
    if number is None:
        raise RedblueError(f"{path} ends too early: {what} is missing")
    try:
        return parse(json.loads(text))
    except RedblueError as error:
        raise RedblueError(f"{path}, line {number}: {error}") from None
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        raise RedblueError(f"{path}, line {number} is damaged: expected {what}, got {text.strip()[:60]!r}") from None


def _header(found: dict[str, Any]) -> dict[str, Any]:
    if found["format"] != FORMAT:
        raise ValueError
    if found["version"] != VERSION:
        raise RedblueError(
            f"the game has version {found['version']}, this redblue reads {VERSION}: use another redblue"
        )
    for name, least in (("nodes", 1), ("moves", 0), ("red", 1)):
        whole_number(name, found[name], least)
    known = {field.name for field in fields(Rules)}
    if unknown := sorted(set(found["rules"]) - known):
        raise RedblueError(f"the rules have the unknown field {unknown[0]!r}; known: {', '.join(sorted(known))}")
    return found | {"rules": Rules(**found["rules"])}


def _node(found: list[Any], names: set[str]) -> list[Any]:
    """A node that comes after the nodes `names`, to which it is added."""
    label, *parents = found
    if not isinstance(label, str) or not all(map(is_whole, parents)):
        raise ValueError
    if label in names:
        raise RedblueError(f"two nodes are named {label!r}")
    if odd := [p for p in parents if not 0 <= p < len(names)]:
        raise RedblueError(f"node {label!r} has the unknown parent {odd[0]}: {len(names)} nodes come before it")
    if len(set(parents)) < len(parents):
        raise RedblueError(f"node {label!r} has a parent twice")
    names.add(label)
    return found


def _move(found: list[Any]) -> tuple[int, ...]:
    kind, *rest = found
    if not 1 <= len(rest) <= 3 or not all(is_whole(x) and abs(x) <= LARGEST for x in rest):
        raise ValueError
    if len(rest) == 3 and not 0 <= rest[2] < MOST_LEVELS:
        raise RedblueError(f"there is no level {rest[2]}: levels are 0 to {MOST_LEVELS - 1}")
    return KINDS.index(kind), *rest
