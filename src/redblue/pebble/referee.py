"""The referee: plays a game by its rules, counts the words moved, and names the first move that breaks a rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from redblue.base.arguments import checked_arguments
from redblue.base.errors import RedblueError
from redblue.compiled import _core
from redblue.pebble.graph import Graph
from redblue.pebble.moves import KINDS, LOAD, STORE, Game, Move
from redblue.pebble.rules import Rules, board_of, check_red, rules_of

MAX_NAMED = 6  # nodes named in a message

# Error code of the compiled referee -> (name of the broken rule, message about node {v} and parent {p}).
BROKEN = {
    1: ("kind", "there is no move of kind {kind}: 0 load, 1 store, 2 compute, 3 delete"),
    2: ("node", "the graph has no node {node}: its nodes are 0 to {last}"),
    3: (
        "level",
        "this move has no level {level}: loads, stores and deletions have levels up to {outermost}, computations 0",
    ),
    4: ("pebble", "{v} has no {pebble} to {kind}"),
    5: ("capacity", "{v} needs {words} more words at its level, where {held} of {capacity} are held"),
    6: ("input", "{v} is an input: it is loaded, not computed"),
    7: ("parents", "{v} needs its parents red; not red: {missing}"),
    8: ("once", "{v} may be computed{from_p} only once, and was computed before"),
    9: ("parent", "{v} has no parent {p}; it has {parents}"),
    10: ("sliding", "the pebble of {p} may not slide to {v}: these rules have no sliding"),
    11: ("incomplete", "{p} is not finished, so it cannot be aggregated into {v}: unmarked edges lead into it"),
    12: ("not loaded", "the aggregate of {v} lies in slow memory: load it before more is aggregated into it"),
    13: ("dark", "{v} is dark red, and slow memory does not hold its value, which is still needed: store it first"),
}


class IllegalMove(RedblueError):
    """A move breaks a rule.

    number: index of the move, from 0. move: the move. rule: name of the broken rule, from BROKEN.
    node: label of the move's node. missing: labels of the parents that the move needs red and that are not red.
    """

    def __init__(self, number: int, move: Move, rule: str, node: str, missing: tuple[str, ...], reason: str) -> None:
        kind = KINDS[move.kind] if 0 <= move.kind < len(KINDS) else f"kind {move.kind}"
        super().__init__(f"move {number} ({kind} {node}) breaks the rule {rule!r}: {reason}")
        self.number, self.move, self.rule, self.node, self.missing = number, move, rule, node, missing


class Unfinished(RedblueError):
    """All moves of the game are legal, but the game ends too early.

    sinks: labels of the sinks that lack their pebble; with partial computation, of the nodes with unmarked edges.
    """

    def __init__(self, sinks: tuple[str, ...], reason: str) -> None:
        super().__init__(f"the game is not finished: {reason}: {_first_few(sinks)}")
        self.sinks = sinks


@dataclass(frozen=True)
class Verdict:
    """Cost and counts of a finished game.

    cost: total of all moves, by the costs of the rules.
    loads, stores: words moved, summed over all boundaries.
    by_boundary: (loads, stores) of each boundary, nearest first.
    computes: computations; with partial computation, edges marked.
    peak: largest number of words that were red at once. peaks: the same for each level but slow memory.
    """

    cost: float
    loads: int
    stores: int
    computes: int
    peak: int
    peaks: tuple[int, ...]
    by_boundary: tuple[tuple[int, int], ...]


@checked_arguments
def check(graph: Graph, moves: Iterable[Sequence[int]], red: int, rules: str | Rules = "red-blue") -> Verdict:
    """Play `moves` with `red` words of red pebbles, and return their cost.

    moves: a Game, or any moves that Game.of accepts. Redundant moves are legal and cost as usual: loading a red node,
    storing a blue node, and computing a red node where recomputation is allowed.
    Raises IllegalMove for the first move that breaks a rule, Unfinished if the game ends too early, and RedblueError
    if `red` words cannot compute every node.
    """
    rules, game = rules_of(rules), Game.of(moves)
    check_red(graph, red, rules)
    referee = _core.PebbleReferee(board_of(graph, (red, *(level.words for level in rules.further)), rules))
    legal = referee.play(game.kinds, game.nodes, game.parents, game.levels)
    if legal < len(game):
        raise _illegal(graph, red, rules, referee, legal, game[legal])
    _check_finished(graph, rules, referee)
    by_boundary = tuple(zip(referee.loaded, referee.stored, strict=True))
    costs = zip(rules.load_costs, rules.store_costs, by_boundary, strict=True)
    moved = sum(load * loads + store * stores for load, store, (loads, stores) in costs)
    return Verdict(
        cost=moved + rules.compute_cost * referee.computes,
        loads=sum(referee.loaded),
        stores=sum(referee.stored),
        computes=referee.computes,
        peak=referee.peak[0],
        peaks=tuple(referee.peak),
        by_boundary=by_boundary,
    )


def _illegal(
    graph: Graph, red: int, rules: Rules, referee: _core.PebbleReferee, number: int, move: Move
) -> IllegalMove:
    """Describe the move at which the compiled referee stopped."""
    rule, text = BROKEN[referee.broken]
    is_node = 0 <= move.node < graph.n
    parents = graph.parents_of(move.node) if is_node else np.array([], np.int64)
    needed = parents if rule == "parents" and not rules.partial else [move.parent] if rule == "parents" else []
    have = referee.have()
    missing = tuple(graph.labels[p] for p in needed if not have[p] & 1)
    capacities = (red, *(level.words for level in rules.further))
    # A store fills the next level. A level that does not exist needs no capacity in the text.
    level = min(max(0, move.level) + (move.kind == STORE), len(capacities) - 1)
    node, p = (graph.labels[v] if 0 <= v < graph.n else str(v) for v in (move.node, move.parent))
    reason = text.format(
        v=node,
        p=p,
        kind=KINDS[move.kind] if 0 <= move.kind < len(KINDS) else move.kind,
        node=move.node,
        last=graph.n - 1,
        level=move.level,
        outermost=rules.levels - 2,
        pebble=_pebble(move.level + (move.kind == LOAD), rules.levels),
        words=rules.words_of(graph)[move.node] if is_node else 0,
        capacity=capacities[level],
        held=referee.held[level],
        missing=_first_few(missing),
        parents=_first_few([graph.labels[p] for p in parents]) or "none",
        from_p=f" from {p}" if rules.partial and move.parent >= 0 else "",
    )
    return IllegalMove(number, move, rule, node, missing, reason)


def _pebble(level: int, levels: int) -> str:
    """Name the pebble of a level: red, blue, or by its level."""
    if level == 0:
        return "red pebble"
    return "blue pebble" if level == levels - 1 else f"pebble of level {level}"


def _check_finished(graph: Graph, rules: Rules, referee: _core.PebbleReferee) -> None:
    """Raise Unfinished if a sink lacks its pebble or, with partial computation, an edge is unmarked."""
    have, sinks = referee.have(), graph.sinks
    if rules.partial:
        unmarked = np.flatnonzero(referee.marked_in() < graph.in_degree)
        if unmarked.size:
            raise Unfinished(tuple(graph.labels[v] for v in unmarked), "nodes with unmarked edges")
    blue = 1 << (rules.levels - 1)
    lacking = sinks[have[sinks] & blue == 0] if rules.sinks_end_blue else sinks[have[sinks] == 0]
    if lacking.size:
        colour = "blue " if rules.sinks_end_blue else ""
        raise Unfinished(tuple(graph.labels[v] for v in lacking), f"sinks without their {colour}pebble")


def _first_few(labels: Sequence[str]) -> str:
    """List the first MAX_NAMED labels, and say how many more there are."""
    more = len(labels) - MAX_NAMED
    return ", ".join(labels[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
