"""The trie of page tables: which keys are read once for several sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from redblue.paged_problem import PagedProblem

LEAST_SHARED = 64  # keys: a shorter run is not worth the partial results of sharing it


class Node(NamedTuple):
    """Keys first .. stop - 1, which all members (sequences) read from the same pages.

    Several members attend all of these keys with all of their queries. A single member's mask may exclude some.
    """

    first: int
    stop: int
    members: tuple[int, ...]


def shared_nodes(problem: PagedProblem, least: int = LEAST_SHARED, prefix_pages: int | None = None) -> tuple[Node, ...]:
    """Divide the keys of all sequences into nodes; those of a sequence come in ascending order.

    A run of pages is a node of several sequences if all of their tables name these pages in the same places, from their
    start on; if all of their queries attend all keys in them; and if the run has at least `least` keys. Runs nest:
    some of the sequences that share a node may share the next one. The remaining keys of a sequence are a node of its
    own. Sequences without queries are in no node; a sequence without keys has a node without keys.

    prefix_pages: None finds the shared runs; 0 shares none; otherwise all sequences share so many first pages, or as
    many as all of their queries attend, and nothing else.
    """
    page, table = problem.page, problem.table
    limits = [0 if prefix_pages == 0 else keys // page for keys in problem.shareable]  # pages
    members = [b for b, queries in enumerate(problem.queries) if queries]
    nodes: list[Node] = []

    def rest(b: int, begin: int) -> None:
        """Add the keys of one sequence from page `begin` on."""
        if begin * page < problem.keys[b] or not begin:
            nodes.append(Node(begin * page, problem.keys[b], (b,)))

    if prefix_pages and len(members) > 1:
        shared = min(prefix_pages, *(limits[b] for b in members))
        if shared:
            nodes.append(Node(0, shared * page, tuple(members)))
        for b in members:
            rest(b, shared)
        return tuple(nodes)

    # Sequences that share a run are neighbours in this order.
    members.sort(key=lambda b: tuple(table[b][: limits[b]]))
    # (members, begin, at): the members share their pages before `at`; those from `begin` on are in no node yet.
    pending = [(members, 0, 0)]
    while pending:
        members, begin, at = pending.pop()
        groups = _split(members, at, limits, table)
        if len(groups) > 1:
            pending.extend((group, begin, at) for group in reversed(groups))
            continue
        if len(members) < 2:
            for b in members:
                rest(b, begin)
            continue
        # Members are in order: all share the pages that the first and the last share, and page `at` is one of them.
        stop, most = at + 1, min(limits[b] for b in members)
        first, last = table[members[0]], table[members[-1]]
        while stop < most and first[stop] == last[stop]:
            stop += 1
        worth = (stop - begin) * page >= least
        if worth:
            nodes.append(Node(begin * page, stop * page, tuple(sorted(members))))
        pending.append((members, stop if worth else begin, stop))
    return tuple(nodes)


def _split(members: list[int], at: int, limits: list[int], table: Sequence[Sequence[int]]) -> list[list[int]]:
    """Divide sequences, which are in order, by their page at place `at`. One that ends before it is alone."""
    groups: list[list[int]] = []
    for b in members:
        before = groups[-1][-1] if groups else None
        if before is not None and min(limits[b], limits[before]) > at and table[b][at] == table[before][at]:
            groups[-1].append(b)
        else:
            groups.append([b])
    return groups
