"""`redblue pebble ...`: five commands of the pebble game."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from redblue import pebble
from redblue.base.errors import RedblueError
from redblue.base.progress import working
from redblue.base.terminal import table
from redblue.cli.options import (
    Json,
    Words,
    known_schedule,
    memory_names,
    parse_tiles,
    schedule_names,
    size,
    with_problem,
)
from redblue.cli.output import show, written
from redblue.lab import traces
from redblue.pebble.drawing.player import check_drawing
from redblue.pebble.game_files import check_game_file
from redblue.problem import Problem

app = typer.Typer(
    help="Play the red-blue pebble game: find cheapest games, check games, bound their cost, and draw them.",
    epilog="Example: redblue pebble solve attention:n=2,d=1 --red 5",
    no_args_is_help=True,
)

GraphText = Annotated[
    str,
    typer.Argument(
        metavar="GRAPH",
        help="attention:n=2,d=1, matmul:2,2,2, fft:8, tree:2,3 ..., a file of edges, or a game (.jsonl).",
    ),
]
Red = Annotated[int | None, size("--red", help="Red pebbles: words of the cache.")]
RulesName = Annotated[str, typer.Option("--rules", help="red-blue, one-shot or partial.")]
Sliding = Annotated[bool, typer.Option("--sliding", help="Let a red pebble slide from a parent to the computed node.")]
Machine = Annotated[
    str | None,
    typer.Option(
        "--memory",
        "-m",
        help="Play on all levels of a machine's memory (catalogue name, this-machine or TOML file), instead of --red. "
        "solve then needs --heuristic.",
        autocompletion=memory_names,
    ),
]
FIGURES = ("cost", "loads", "stores", "computes", "peak", "moves")  # columns of the table of a game
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write the game here (.jsonl); - is stdout.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file even if redblue did not write it.")]
GamePath = Annotated[Path, typer.Argument(metavar="GAME", help="A game (.jsonl), as solve and trace write it.")]


def _red_and_rules(red: int | None, rules: str, sliding: bool, machine: str | None = None) -> tuple[int, pebble.Rules]:
    """Return the number of red pebbles and the rules. Raises RedblueError unless either red or machine is given."""
    if (red is None) == (machine is None):
        raise RedblueError("the game needs its red pebbles: give --red, such as --red 5, or --memory, not both")
    if machine is not None:
        red, levels = pebble.hierarchy(machine, name=rules)
        return red, replace(levels, sliding=sliding)
    assert red is not None
    return red, pebble.Rules(rules, sliding=sliding)


def _graph_data(graph: pebble.Graph) -> dict[str, Any]:
    """The graph's sizes and digest, for JSON."""
    return {
        "nodes": graph.n,
        "edges": len(graph.parents),
        "sources": len(graph.sources),
        "sinks": len(graph.sinks),
        "digest": graph.digest,
    }


def _verdict_data(verdict: pebble.Verdict) -> dict[str, Any]:
    """The referee's verdict, for JSON."""
    names = ("cost", "loads", "stores", "computes", "peak", "peaks", "by_boundary")
    return {name: getattr(verdict, name) for name in names}


def _show(data: dict[str, Any], lines: list[str], as_json: bool) -> None:
    """Print one game: as JSON, or as one or two sentences above a row of its figures."""
    rows = table((), FIGURES)
    rows.add_row(*(f"{x:,}" if isinstance(x, int | float) else str(x) for x in map(data.__getitem__, FIGURES)))
    show(data, Group(*map(Text, lines), rows), as_json)


def _board_text(graph: pebble.Graph, red: int, rules: pebble.Rules) -> str:
    """The graph's size, the pebbles of each level and the rules, in a line."""
    levels = "".join(f", then {level.words:,}" for level in rules.further)
    return f"{graph.n:,} nodes, {len(graph.parents):,} edges; {red:,} red pebbles{levels}; rules {rules.name}"


@app.command(epilog="Example: redblue pebble solve attention:n=2,d=1 --red 5 -o game.jsonl. Large: --heuristic")
def solve(
    graph: GraphText,
    red: Red = None,
    rules: RulesName = "red-blue",
    sliding: Sliding = False,
    memory: Machine = None,
    heuristic: Annotated[
        bool, typer.Option("--heuristic", help="Find a cheap game on a graph of any size, without proof.")
    ] = False,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds until the search ends with the best game so far.")
    ] = None,
    output: Output = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Find the cheapest game on a graph, with proof. After Ctrl-C or the time limit: the best so far, and a bound."""
    target = None if output is None else check_game_file(output, force)
    parsed = pebble.graph_named(graph)
    words, rule_set = _red_and_rules(red, rules, sliding, memory)
    if heuristic:
        if time_limit is not None:
            raise RedblueError("--time-limit is for the exact search: leave it out with --heuristic")
        with working("comparing games"):
            game = pebble.heuristic(parsed, words, rule_set)
        moves, verdict = game.moves, game.verdict
        proof = "optimal, proved" if game.gap == 1 else f"{game.gap:.2f} x the best bound, {game.bound.words:,}"
        summary = f"{proof}; order: {game.order}; eviction: {game.eviction}; {game.tried:,} games compared"
        details: dict[str, Any] = {
            "optimal": game.gap == 1,
            "lower_bound": game.bound.words,
            "bound": game.bound.method,
        }
        details |= {"order": game.order, "eviction": game.eviction, "tried": game.tried}
    else:
        solution = _search(parsed, words, rule_set, time_limit)
        moves, verdict = solution.moves, pebble.check(parsed, solution.moves, words, rule_set)
        proof = "optimal, proved" if solution.optimal else f"not proved optimal: at least {solution.lower_bound:,}"
        summary = f"{proof}; {solution.nodes:,} positions searched in {solution.seconds:.2f} s"
        details = {name: getattr(solution, name) for name in ("optimal", "lower_bound", "nodes", "seconds")}
    details["positions"] = details.pop("nodes", None)
    data = {
        "graph": _graph_data(parsed),
        "red": words,
        "rules": rule_set.name,
        **_verdict_data(verdict),
        **details,
        "moves": len(moves),
    }
    if target is None or not target.is_stdout:
        _show(data, [_board_text(parsed, words, rule_set), summary], as_json)
    if output is not None:  # last, because a full disk must not lose the figures of a long search
        pebble.save_game(output, parsed, moves, words, rule_set, force)


def _search(graph: pebble.Graph, red: int, rules: pebble.Rules, time_limit: float | None) -> pebble.Solution:
    """Run the exact search; report its best cost and bound so far on standard error."""
    with working("searching") as say:

        def progress(now: pebble.Progress) -> None:
            best = "none" if now.cost is None else f"{now.cost:,}"
            say(f"best {best}, at least {now.lower_bound:,}; {now.nodes:,} positions, {now.seconds:.0f} s")

        return pebble.solve(graph, red, rules, time_limit=time_limit, progress=progress)


@app.command(epilog="Example: redblue pebble check game.jsonl. On this graph only: --graph attention:n=2,d=1")
def check(
    game: GamePath,
    graph: Annotated[str | None, typer.Option("--graph", help="Refuse a game on any other graph.")] = None,
    as_json: Json = False,
) -> None:
    """Play a saved game by its rules, and name the first move that breaks a rule."""
    saved = pebble.read_game(game, None if graph is None else pebble.graph_named(graph))
    verdict = pebble.check(*saved)
    data = {"graph": _graph_data(saved.graph), "red": saved.red, "rules": saved.rules.name, "legal": True}
    data |= _verdict_data(verdict) | {"moves": len(saved.moves)}
    _show(data, [_board_text(saved.graph, saved.red, saved.rules), "legal and finished"], as_json)


@app.command(epilog="Example: redblue pebble bound attention:n=2,d=1 --red 5 --rules one-shot")
def bound(
    graph: GraphText,
    red: Red = None,
    rules: RulesName = "red-blue",
    sliding: Sliding = False,
    memory: Machine = None,
    as_json: Json = False,
) -> None:
    """Print lower bounds on the cost of every game by these rules, the best first."""
    parsed = pebble.graph_named(graph)
    words, rule_set = _red_and_rules(red, rules, sliding, memory)
    with working("bounding"):
        bounds = pebble.lower_bounds(parsed, words, rule_set)
    rows = table(("bound",), ("at least",))
    for result in bounds:
        rows.add_row(result.method, f"{result.words:,}")
    data = {"graph": _graph_data(parsed), "red": words, "rules": rule_set.name}
    data |= {"bounds": [{"method": result.method, "words": result.words} for result in bounds]}
    show(data, Group(Text(_board_text(parsed, words, rule_set)), rows), as_json)


@app.command(epilog="Example: redblue pebble trace flash --n 4 --d 2 --words 40 -o game.jsonl")
@with_problem
def trace(
    problem: Problem,
    schedule: Annotated[
        str,
        typer.Argument(
            help="The name of a schedule (redblue schedules lists them).",
            callback=known_schedule,
            autocompletion=schedule_names,
        ),
    ],
    words: Words = None,
    tiles: Annotated[str | None, typer.Option(help="Tile edges, such as rows=64,cols=16.")] = None,
    output: Output = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Convert a run of a schedule to a game that the referee accepts: every load, computation and store."""
    target = None if output is None else check_game_file(output, force)
    with working("tracing"):
        traced = traces.trace(schedule, problem, words=words, tiles=parse_tiles(tiles))
    data = {"graph": _graph_data(traced.graph), "red": traced.red, "schedule": schedule, "tiles": traced.count.tiles}
    data |= _verdict_data(traced.verdict) | {"moves": len(traced.moves), "counted_words": traced.count.words}
    summary = f"the schedule counts {traced.count.words:,} words moved and at most {traced.count.peak:,} held"
    if target is None or not target.is_stdout:
        _show(data, [_board_text(traced.graph, traced.red, traced.rules), summary], as_json)
    if output is not None:
        pebble.save_game(output, traced.graph, traced.moves, traced.red, traced.rules, force)


@app.command(epilog="Example: redblue pebble play game.jsonl -o game.html. For a paper: -o game.svg --frames 8")
def play(
    game: GamePath,
    output: Annotated[Path, typer.Option("--output", "-o", help="A page (.html), or a strip (.svg, .png).")] = Path(
        "game.html"
    ),
    title: Annotated[str, typer.Option(help="Title of the page; the file's name if left out.")] = "",
    frames: Annotated[int, typer.Option(help="Pictures in a strip.")] = 6,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Draw a saved game as a page that plays it move by move, or as a strip of pictures."""
    target = check_drawing(output, force)
    saved = pebble.read_game(game)
    path = pebble.write_game(output, *saved, title=title or game.stem, frames=frames, force=force)
    if as_json and not target.is_stdout:
        show({"written": str(path), "moves": len(saved.moves)}, "", as_json)
    else:
        written(output)
