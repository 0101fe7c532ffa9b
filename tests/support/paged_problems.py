"""Random paged problems, and the words of paged attention, counted without the schedule's code."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from redblue import Mask, PagedProblem

MASKS = st.one_of(
    st.just(Mask.full()),
    st.just(Mask.causal(align="bottom-right")),
    st.builds(
        Mask.sliding_window,
        st.one_of(st.none(), st.integers(0, 30)),
        st.one_of(st.none(), st.integers(0, 4)),
        st.just("bottom-right"),
    ),
)


@st.composite
def paged_problems(draw: st.DrawFn, masks: st.SearchStrategy[Mask] = MASKS) -> PagedProblem:
    """Draw problems whose tables share prefixes with earlier sequences, and some pages anywhere."""
    page, sequences, kv_heads = draw(st.integers(1, 5)), draw(st.integers(1, 5)), draw(st.integers(1, 2))
    keys = draw(st.lists(st.integers(0, 24), min_size=sequences, max_size=sequences))
    table: list[list[int]] = []
    for length in keys:
        pages = -(-length // page)
        prefix = draw(st.sampled_from(table))[: draw(st.integers(0, pages))] if table else []
        rest = pages - len(prefix[:pages])
        table.append([*prefix[:pages], *draw(st.lists(st.integers(0, 40), min_size=rest, max_size=rest))])
    d = draw(st.integers(1, 6))
    v_in_k = draw(st.booleans())
    return PagedProblem(
        draw(st.lists(st.integers(0, 4), min_size=sequences, max_size=sequences)),
        keys,
        page,
        d,
        draw(st.integers(1, d if v_in_k else 6)),
        kv_heads * draw(st.integers(1, 3)),
        kv_heads,
        table,
        v_in_k,
        "float64",
        draw(masks),
    )


@st.composite
def paged_tiles(draw: st.DrawFn) -> dict[str, int]:
    return {
        "rows": draw(st.integers(1, 20)),
        "cols": draw(st.integers(1, 12)),
        "piece": draw(st.integers(1, 30)),
        "shared": draw(st.sampled_from([1, 2, 4, 8, 64])),
        "few": draw(st.sampled_from([1, 4, 10**6])),
    }


def attended(problem: PagedProblem, b: int, query: int) -> set[int]:
    """Return the keys that one query of sequence b attends."""
    rule, keys = problem.mask.rule, problem.keys[b]
    place = query + keys - problem.queries[b]
    left, right = (math.inf if side is None else side for side in (rule.left, rule.right))
    return {key for key in range(keys) if place - left <= key <= place + right}


def words_by_hand(problem: PagedProblem, nodes, rows: int, piece: int, few: int) -> tuple[int, int]:
    """Return the words read and written for these nodes, key by key.

    Each node, key/value head, piece and block of rows moves its queries, the keys that any of its rows attends, a table
    entry per page of these keys, and d_v + 1 or d_v + 2 words per row. A merge reads unfinished results and writes d_v
    + 1 words per row.
    """
    group, d_v = problem.heads // problem.kv_heads, problem.d_v
    per_key = problem.d + (0 if problem.v_in_k else d_v)
    parts_of = [sum(b in node.members for node in nodes) for b in range(len(problem.keys))]
    reads = writes = 0
    unfinished = set()
    for node in nodes:
        queries = [(b, i) for b in node.members for i in range(problem.queries[b]) for _ in range(group)]
        size = piece if len(queries) <= few else max(1, node.stop - node.first)
        firsts = range(node.first, node.stop, size) or [node.first]
        final = len(node.members) == 1 and len(firsts) == 1 and parts_of[node.members[0]] == 1
        unfinished |= set() if final else set(node.members)
        for first in firsts:
            keys = set(range(first, min(first + size, node.stop)))
            for start in range(0, len(queries), rows):
                block = queries[start : start + rows]
                used = keys & set().union(*(attended(problem, b, i) for b, i in set(block)))
                reads += len(block) * problem.d + len(used) * per_key + len({key // problem.page for key in used})
                writes += len(block) * (d_v + (1 if final else 2))
                reads += 0 if final else len(block) * (d_v + 2)  # by the merge
    writes += sum(problem.queries[b] * group * (d_v + 1) for b in unfinished)
    return problem.kv_heads * reads, problem.kv_heads * writes
