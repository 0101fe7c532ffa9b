"""Games saved as JSON Lines: a header, then one line per node, then one line per move."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from redblue.base.arguments import checked_arguments
from redblue.base.errors import RedblueError
from redblue.base.files import Target, check_target
from redblue.base.integers import whole_number
from redblue.pebble.graph import Builder, Graph
from redblue.pebble.moves import KINDS, Game
from redblue.pebble.rules import MAX_LEVELS, Rules, rules_of
from redblue.pebble.whole_arrays import INT64_MAX, is_whole

FORMAT, VERSION = "redblue pebble game", 1
MARK = f'{{"format": "{FORMAT}"'.encode()  # every game file begins so
AnyValue = TypeVar("AnyValue")


class Saved(NamedTuple):
    """A game read from a file. The referee has not checked its moves."""

    graph: Graph
    moves: Game
    red: int
    rules: Rules


@checked_arguments
def save_game(
    path: str | os.PathLike[str],
    graph: Graph,
    moves: Iterable[Sequence[int]],
    red: int,
    rules: str | Rules = "red-blue",
    force: bool = False,
) -> Path:
    """Write a game to a file, atomically, and return the file's absolute path.

    force: replace an existing file that is not a game.

    The lines are JSON:
    - the header {"format", "version", "graph" (its digest), "nodes", "moves", "red", "rules"};
    - per node [name, parent, ...];
    - per move [kind, node, parent, level], where a level of 0 and then a parent of -1 are left out.
    Raises RedblueError for a move of unknown kind, and for a file that must not be replaced or cannot be written.
    """
    game, target = Game.of(moves), check_game_file(path, force)
    invalid = np.flatnonzero((game.kinds < 0) | (game.kinds >= len(KINDS)))
    if invalid.size:
        raise RedblueError(
            f"move {invalid[0]} has the kind {game.kinds[invalid[0]]}: 0 load, 1 store, 2 compute, 3 delete"
        )
    header = {"format": FORMAT, "version": VERSION, "graph": graph.digest, "nodes": graph.n, "moves": len(game)}
    header |= {"red": whole_number("red", red), "rules": dataclasses.asdict(rules_of(rules))}

    def save(draft: Path) -> None:
        with draft.open("w", encoding="utf-8") as file:
            file.write(json.dumps(header) + "\n")
            for v, label in enumerate(graph.labels):
                file.write(json.dumps([label, *graph.parents_of(v).tolist()]) + "\n")
            for kind, *rest in game:
                shortened = rest if rest[2] else rest[:2] if rest[1] != -1 else rest[:1]
                file.write(json.dumps([KINDS[kind], *shortened]) + "\n")

    return target.write(save).resolve()


def check_game_file(path: str | os.PathLike[str], force: bool) -> Target:
    """Check, before the work, that a game can be saved at `path`. Raises as `save_game` does."""
    return check_target(path, (".jsonl", ""), force, MARK)


@checked_arguments
def read_game(path: str | os.PathLike[str], graph: Graph | None = None) -> Saved:
    """Read a game from a file.

    graph: the graph that the game must be on; None accepts any.
    Raises RedblueError, naming the line, for a file that is damaged, truncated, of another version or not a game, and
    for a game on another graph.
    """
    try:
        with Path(path).open(encoding="utf-8-sig") as file:
            saved = _read(path, enumerate(file, start=1))
    except RedblueError:
        raise
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a name that no file can have
        raise RedblueError(f"cannot read {path} as a game: {error}") from None
    if graph is not None and saved.graph != graph:
        raise RedblueError(f"{path} is a game for another graph: {saved.graph!r}, not {graph!r}")
    return saved


def _read(path: object, lines: Iterator[tuple[int, str]]) -> Saved:
    """Parse and check all lines. lines: (number from 1, text) of each."""
    header = _line(path, lines, _header, "the header of a game")
    builder = Builder()
    names: set[str] = set()
    for _ in range(header["nodes"]):
        label, *parents = _line(path, lines, lambda fields: _node(fields, names), 'a node: ["name", parent, ...]')
        builder.node(label, *parents)
    graph = builder.graph()
    try:
        header["rules"].starts_blue(graph)
        header["rules"].words_of(graph)
    except RedblueError as error:
        raise RedblueError(f"{path}, line 1: {error}") from None
    if graph.digest != header["graph"]:
        raise RedblueError(f"{path}: its nodes differ from the graph that its header names: the file was changed")
    rows = [_line(path, lines, _move, 'a move: ["load", node] and so on') for _ in range(header["moves"])]
    for number, text in lines:
        raise RedblueError(
            f"{path}, line {number}: the header says that the game ends before it; got {text.strip()[:60]!r}"
        )
    return Saved(graph, Game.of(rows), header["red"], header["rules"])


def _line(path: object, lines: Iterator[tuple[int, str]], parse: Callable[[Any], AnyValue], expected: str) -> AnyValue:
    """Parse the next line. expected: describes the line in errors."""
    number, text = next(lines, (None, ""))
    if number is None:
        raise RedblueError(f"{path} ends too early: {expected} is missing")
    try:
        return parse(json.loads(text))
    except RedblueError as error:
        raise RedblueError(f"{path}, line {number}: {error}") from None
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        raise RedblueError(
            f"{path}, line {number} is damaged: expected {expected}, got {text.strip()[:60]!r}"
        ) from None


def _header(header: dict[str, Any]) -> dict[str, Any]:
    """Check the header's fields, and replace "rules" by Rules."""
    if header["format"] != FORMAT:
        raise ValueError
    if header["version"] != VERSION:
        raise RedblueError(
            f"the game has version {header['version']}, this redblue reads {VERSION}: use another redblue"
        )
    if not isinstance(header["graph"], str):
        raise TypeError
    for name, least in (("nodes", 1), ("moves", 0), ("red", 1)):
        whole_number(name, header[name], least)
    known = {field.name for field in dataclasses.fields(Rules)}
    if unknown := sorted(set(header["rules"]) - known):
        raise RedblueError(f"the rules have the unknown field {unknown[0]!r}; known: {', '.join(sorted(known))}")
    return header | {"rules": Rules(**header["rules"])}


def _node(fields: list[Any], names: set[str]) -> list[Any]:
    """Check a node [name, parent, ...], and add its name to `names`, the names of the nodes before it."""
    label, *parents = fields
    if not isinstance(label, str) or not all(map(is_whole, parents)):
        raise ValueError
    if label in names:
        raise RedblueError(f"two nodes are named {label!r}")
    if unknown := [p for p in parents if not 0 <= p < len(names)]:
        raise RedblueError(f"node {label!r} has the unknown parent {unknown[0]}: {len(names)} nodes come before it")
    if len(set(parents)) < len(parents):
        raise RedblueError(f"node {label!r} has a parent twice")
    names.add(label)
    return fields


def _move(fields: list[Any]) -> tuple[int, ...]:
    """Check a move [kind, node, parent, level], in which the last two may be left out, and return its numbers."""
    kind, *rest = fields
    if not 1 <= len(rest) <= 3 or not all(is_whole(x) and abs(x) <= INT64_MAX for x in rest):
        raise ValueError
    if len(rest) == 3 and not 0 <= rest[2] < MAX_LEVELS:
        raise RedblueError(f"there is no level {rest[2]}: levels are 0 to {MAX_LEVELS - 1}")
    return KINDS.index(kind), *rest
