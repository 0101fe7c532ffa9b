"""Find the cheapest game by brute force: Dijkstra's algorithm over all reachable positions."""

import heapq
from itertools import count

import numpy as np

from redblue.pebble import Rules, random_graph


def cheapest(graph, red, rules):
    """Return the least cost of a game; None if there is no game."""
    rules = Rules(rules) if isinstance(rules, str) else rules
    words, blue = rules.words_of(graph).tolist(), rules.starts_blue(graph)
    parents = [frozenset(graph.parents_of(v).tolist()) for v in range(graph.n)]
    children = [frozenset(graph.children_of(v).tolist()) for v in range(graph.n)]
    edges = frozenset((p, v) for v in range(graph.n) for p in parents[v])
    sinks = frozenset(graph.sinks.tolist())
    start = (frozenset(), frozenset(np.flatnonzero(blue).tolist()), frozenset())
    costs, ties = {start: 0}, count()
    queue = [(0, next(ties), start)]
    while queue:
        cost, _, state = heapq.heappop(queue)
        if cost > costs[state]:
            continue
        reds, blues, done = state
        ended = not (sinks - (blues if rules.sinks_end_blue else reds | blues))
        if ended and not (rules.partial and edges - done):
            return cost
        for price, after in _moves(reds, blues, done, graph, rules, words, blue, parents, children, sinks):
            if sum(words[v] for v in after[0]) <= red and cost + price < costs.get(after, float("inf")):
                costs[after] = cost + price
                heapq.heappush(queue, (cost + price, next(ties), after))
    return None


def _moves(reds, blues, done, graph, rules, words, starts_blue, parents, children, sinks):
    """Yield (price, next position) of each legal move. done: nodes computed, or edges marked and sources computed."""
    for v in blues - reds:
        yield rules.load_cost * words[v], (reds | {v}, blues, done)
    for v in reds:
        if v not in blues:
            yield rules.store_cost * words[v], (reds, blues | {v}, done)
        unmarked = any((p, v) not in done for p in parents[v]) or any((v, c) not in done for c in children[v])
        kept = v in sinks and rules.sinks_end_blue
        if not rules.partial or v in blues or not (unmarked or kept):
            yield 0, (reds - {v}, blues, done)
    for v in range(graph.n):
        if starts_blue[v]:
            continue
        if rules.partial and parents[v]:
            for p in parents[v] & reds:
                complete = all((q, p) in done for q in parents[p])
                if (p, v) not in done and complete and (v in reds or v not in blues):
                    yield rules.compute_cost, (reds | {v}, blues - {v}, done | {(p, v)})
        elif parents[v] <= reds and v not in done:
            after = done | {v} if rules.name != "red-blue" else done
            yield rules.compute_cost, (reds | {v}, blues, after)
            if rules.sliding:
                for p in parents[v]:
                    yield rules.compute_cost, ((reds - {p}) | {v}, blues, after)


def drawn(seed, nodes=6):
    """Return a random graph of 3 to `nodes` nodes."""
    draw = np.random.default_rng(seed)
    n = int(draw.integers(3, nodes + 1))
    return random_graph(seed, n, int(draw.integers(1, n)), int(draw.integers(1, 4)))
