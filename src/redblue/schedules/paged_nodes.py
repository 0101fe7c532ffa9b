"""The trie of page tables: nodes, whose keys are read once for several sequences, and their division into pieces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from redblue.base.integers import LARGEST, ceil_div
from redblue.masks.patterns.band import Band
from redblue.paged_problem import PagedProblem
from redblue.schedules.schedule import blocks

# Sharing a shorter run of keys saves less than its partial results cost. The core has the same constant,
# kMinSharedKeys; tests/kernels/cpu/test_paged_words.py compares them.
MIN_SHARED_KEYS = 64


class Node(NamedTuple):
    """Keys first .. stop - 1, which all members (sequences) read from the same pages.

    If there are several members, all of their queries attend all of these keys. The mask of a single member may exclude
    some of the keys.
    """

    first: int
    stop: int
    members: tuple[int, ...]


def shared_nodes(
    problem: PagedProblem, min_keys: int = MIN_SHARED_KEYS, prefix_pages: int | None = None
) -> tuple[Node, ...]:
    """Divide the keys of all sequences into nodes; the nodes of a sequence come in ascending order.

    A run of pages is a node of several sequences if all of their tables are equal from the start to the end of the run,
    all of their queries attend all keys of the run, and the run has at least `min_keys` keys. Runs nest:
    some of the sequences that share a node may share the next one. The remaining keys of a sequence are a node of its
    own. Sequences without queries are in no node; a sequence without keys has a node without keys.

    prefix_pages: None: find the shared runs. 0: share nothing. Any other number: all sequences share this many pages at
    their beginning, and nothing else; they share fewer pages if some query does not attend all of these.
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
    # (members, begin, place): the members share their pages before `place`; pages from `begin` on are in no node yet.
    pending = [(members, 0, 0)]
    while pending:
        members, begin, place = pending.pop()
        groups = _split(members, place, limits, table)
        if len(groups) > 1:
            pending.extend((group, begin, place) for group in reversed(groups))
            continue
        if len(members) < 2:
            for b in members:
                rest(b, begin)
            continue
        # Members are in order: all share the pages that the first and the last share, and page `place` is one of them.
        stop, most = place + 1, min(limits[b] for b in members)
        first, last = table[members[0]], table[members[-1]]
        while stop < most and first[stop] == last[stop]:
            stop += 1
        worth = (stop - begin) * page >= min_keys
        if worth:
            nodes.append(Node(begin * page, stop * page, tuple(sorted(members))))
        pending.append((members, stop if worth else begin, stop))
    return tuple(nodes)


def _split(members: list[int], place: int, limits: list[int], table: Sequence[Sequence[int]]) -> list[list[int]]:
    """Divide sequences, which are in order, by their page at `place`. A sequence that ends before it is alone."""
    groups: list[list[int]] = []
    for b in members:
        before = groups[-1][-1] if groups else None
        if before is not None and min(limits[b], limits[before]) > place and table[b][place] == table[before][place]:
            groups[-1].append(b)
        else:
            groups.append([b])
    return groups


class Tiles(NamedTuple):
    rows: Any  # rows of a node (queries times query heads per key/value head) that stay
    cols: Any = 1  # keys that stream by together
    piece: Any = LARGEST  # keys of a node that a block of rows walks through; the results of several walks are merged
    shared: Any = MIN_SHARED_KEYS  # fewest keys of a run that sequences share
    few: Any = LARGEST  # nodes with more rows are not cut into pieces

    # The tiles that hold the fewest words share nothing: the merge after sharing would hold more words.
    SMALLEST = MappingProxyType({"shared": LARGEST, "few": LARGEST})


class Part(NamedTuple):
    """A node, with its rows, pieces and partial results in the schedule.

    rows: of the stream. piece: keys of a piece. partials: first row of its partial results, which lie piece after
    piece; None if its results are final. band: the mask of a single member; None if all rows attend all keys.
    """

    node: Node
    rows: range
    piece: int
    partials: int | None
    band: Band | None

    @property
    def walks(self) -> int:
        """Number of pieces, each walked through by itself. A node without keys has one piece without keys."""
        return max(1, ceil_div(self.node.stop - self.node.first, self.piece))

    @property
    def keys(self) -> range:
        """The keys of the node."""
        return range(self.node.first, self.node.stop)

    @property
    def pieces(self) -> list[range]:
        """The keys of each piece."""
        return list(blocks(self.keys, self.piece)) or [self.keys]

    def band_rows(self, i: range) -> range:
        """Return rows of the stream as rows of the band."""
        return range(i.start - self.rows.start, i.stop - self.rows.start)

    def stored(self, piece: int, i: range) -> range:
        """Return the rows of the arrays of partial results in which the rows i of a piece are stored."""
        assert self.partials is not None
        shift = self.partials + piece * len(self.rows) - self.rows.start
        return range(i.start + shift, i.stop + shift)


def parts_of(p: PagedProblem, t: Tiles, nodes: tuple[Node, ...] | None = None) -> list[Part]:
    """Return the parts of a stream, whose sequences are in the order of their pages (PagedProblem.one_stream).

    nodes: the nodes of the stream; None: the nodes that share runs of at least t.shared keys.
    """
    nodes = shared_nodes(p, t.shared) if nodes is None else nodes
    rows, nodes_of = rows_of(p), Counter(b for node in nodes for b in node.members)
    parts, stored = [], 0
    for node in nodes:
        first, alone = node.members[0], len(node.members) == 1
        part_rows = range(rows[first].start, rows[node.members[-1]].stop)
        piece = max(1, min(node.stop - node.first, LARGEST if len(part_rows) > t.few else t.piece))
        part = Part(node, part_rows, piece, stored, p.band(first) if alone else None)
        if alone and part.walks == 1 and nodes_of[first] == 1:
            part = part._replace(partials=None)
        else:
            stored += part.walks * len(part_rows)
        parts.append(part)
    return parts


def rows_of(p: PagedProblem) -> list[range]:
    """Return the rows of each sequence in the arrays of one stream."""
    ends = np.cumsum([0, *(p.group * n for n in p.queries)]).tolist()
    return [range(a, b) for a, b in pairwise(ends)]
