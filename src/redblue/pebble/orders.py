"""Orders in which a graph's nodes can be computed: as given, depth-first, in bands of levels, and tile by tile."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from redblue.pebble.graph import Graph

MOST_BITS = 4 * 10**9  # of the sets of inputs that outputs need, while tiles are chosen
EDGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # of tiles, in outputs


def orders(graph: Graph, needed: np.ndarray, red: int) -> Iterator[tuple[str, np.ndarray]]:
    """Names and orders of the `needed` nodes (a flag each), parents first.

    Tiles have up to `red` outputs. In a tile nodes are computed as late as they can be: all that are as far from an
    output together, but a chain that leads to a value used several times all at once. In two stages, what does not
    depend on such a value comes first, in tiles of its own (as P in attention that spills it).
    """
    yield "as given", np.flatnonzero(needed)
    yield "depth first", depth_first(graph, needed)
    late = lateness(graph, needed)
    for levels in range(1, min(red.bit_length() + 1, int(-late.min())) + 1):
        yield f"bands of {levels} levels", in_bands(graph, needed, late, levels, False)
        yield f"bands of {levels} levels, by what they load", in_bands(graph, needed, late, levels, True)
    early = needed & ~below_hubs(graph)
    stages = [("", [needed])] + ([("two stages, ", [early, needed & ~early])] if (needed & ~early).any() else [])
    for name, parts in stages:
        for size, order in tile_by_tile(graph, parts, red):
            yield f"{name}tiles of {size}", order


def depth_first(graph: Graph, needed: np.ndarray) -> np.ndarray:
    """Each output's ancestors just before it, parents in their order."""
    starts, parents, done = graph.starts.tolist(), graph.parents.tolist(), (~needed).tolist()
    order = []
    for sink in graph.sinks.tolist():
        stack = [(sink, starts[sink])]
        while stack:
            v, edge = stack.pop()
            if done[v]:
                continue
            while edge < starts[v + 1] and done[parents[edge]]:
                edge += 1
            if edge < starts[v + 1]:
                stack += [(v, edge + 1), (parents[edge], starts[parents[edge]])]
            else:
                done[v] = True
                order.append(v)
    return np.array(order, np.int64)


def siblings(graph: Graph) -> np.ndarray:
    """Each node's first parent, (n,), its own number if it has none: what shares parents is computed together."""
    first = np.arange(graph.n)
    np.minimum.at(first, graph.heads, graph.parents)
    return first


def lateness(graph: Graph, part: np.ndarray) -> np.ndarray:
    """Minus the longest way from each node through the part to one of its outputs, (n,)."""
    late, inside, starts, parents = [0] * graph.n, part.tolist(), graph.starts.tolist(), graph.parents.tolist()
    for v in reversed(range(graph.n)):
        if inside[v]:
            above = late[v] - 1
            for p in parents[starts[v] : starts[v + 1]]:
                late[p] = min(late[p], above)
    return np.array(late)


def gathered(graph: Graph, part: np.ndarray, late: np.ndarray) -> np.ndarray:
    """Lateness, but that of its end for a chain of nodes that leads to one with several children in the part, (n,).

    Chains whose own parents have several children are left as they are: they would keep these waiting.
    """
    (from_child, children), when, below = graph.children, late.tolist(), below_hubs(graph).tolist()
    inside = np.bincount(graph.parents[part[graph.heads]], minlength=graph.n).tolist()
    leads = [False] * graph.n  # to such a node, or is one
    for v in reversed(range(graph.n)):
        child = int(children[from_child[v]]) if inside[v] == 1 and graph.out_degree[v] == 1 else v
        leads[v] = not below[v] and (inside[v] > 1 or (child != v and leads[child]))
        if child != v and leads[child]:
            when[v] = when[child]
    return np.array(when)


def in_bands(graph: Graph, needed: np.ndarray, late: np.ndarray, levels: int, loads: bool) -> np.ndarray:
    """Bands of so many levels, counted from the outputs; in each, what hangs together is computed together.

    loads: whether nodes also hang together by a parent from outside their band.
    """
    band = -(-late // levels)
    component = list(range(2 * graph.n))  # of nodes, and after them of parents from outside

    def find(v: int) -> int:
        while component[v] != v:
            component[v] = v = component[component[v]]
        return v

    inside = (band[graph.heads] == band[graph.parents]) & needed[graph.parents]
    above = np.where(inside, graph.parents, graph.parents + graph.n)
    together = inside | loads
    for v, p in zip(graph.heads[together].tolist(), above[together].tolist(), strict=True):
        component[find(v)] = find(p)
    nodes = np.flatnonzero(needed)
    root = np.array([find(v) for v in nodes.tolist()], np.int64)
    return nodes[np.lexsort((nodes, siblings(graph)[nodes], late[nodes], root, band[nodes]))]


def below_hubs(graph: Graph) -> np.ndarray:
    """Whether a node depends on a computed one that has several children, (n,)."""
    hub = ((graph.in_degree > 0) & (graph.out_degree > 1)).tolist()
    below, starts, parents = [False] * graph.n, graph.starts.tolist(), graph.parents.tolist()
    for v in range(graph.n):
        below[v] = any(below[p] or hub[p] for p in parents[starts[v] : starts[v + 1]])
    return np.array(below)


def tile_by_tile(graph: Graph, parts: list[np.ndarray], red: int) -> Iterator[tuple[str, np.ndarray]]:
    """Sizes of tiles and orders: part after part, tile after tile of its outputs."""
    outputs = [_outputs(graph, part) for part in parts]
    reaches = [_inputs_of(graph, part, own) for part, own in zip(parts, outputs, strict=True)]
    first, lates = siblings(graph), [lateness(graph, part) for part in parts]
    whens = [gathered(graph, part, late) for part, late in zip(parts, lates, strict=True)]
    sizes = sorted({a * b for a, b in product(EDGES, EDGES) if a * b <= red})
    chains = any((when != late).any() for when, late in zip(whens, lates, strict=True))
    for size in sizes:
        tilings = [_tilings(reach, size) for reach in reaches]
        if not any(tilings):
            continue
        for choice in range(2 if max(map(len, tilings)) > 1 else 1):
            chosen = [found[min(choice, len(found) - 1)] if found else (0, 1, 0) for found in tilings]
            groups = [
                grouped(graph, part, own, _tiling(own.size, width or own.size, rows, cols or own.size))
                for part, own, (width, rows, cols) in zip(parts, outputs, chosen, strict=True)
            ]
            name = " and ".join(
                f"{rows} x {cols or own.size}" for (_, rows, cols), own in zip(chosen, outputs, strict=True)
            )
            for said, times in ((", chain by chain", whens), ("", lates)) if chains else (("", lates),):
                orders = []
                for part, group, late, when in zip(parts, groups, lates, times, strict=True):
                    nodes = np.flatnonzero(part)
                    orders.append(nodes[np.lexsort((nodes, first[nodes], late[nodes], when[nodes], group[nodes]))])
                yield f"{name} outputs{said}", np.concatenate(orders)


def grouped(graph: Graph, part: np.ndarray, outputs: np.ndarray, group: np.ndarray) -> np.ndarray:
    """For each node of the part the first group of its outputs that needs it, (n,)."""
    first = np.full(graph.n, group.size)
    first[outputs] = group
    groups, inside, starts, parents = first.tolist(), part.tolist(), graph.starts.tolist(), graph.parents.tolist()
    for v in reversed(range(graph.n)):
        if inside[v]:
            own = groups[v]
            for p in parents[starts[v] : starts[v + 1]]:
                if own < groups[p]:
                    groups[p] = own
    return np.array(groups)


def _outputs(graph: Graph, part: np.ndarray) -> np.ndarray:
    """Nodes of the part that are needed outside of it, or by nobody."""
    ends = np.zeros(graph.n, bool)
    ends[graph.parents[~part[graph.heads]]] = True
    ends[graph.sinks] = True
    return np.flatnonzero(part & ends)


def _inputs_of(graph: Graph, part: np.ndarray, outputs: np.ndarray) -> list[int]:
    """What each output needs, as sets of bits: nodes from outside the part, and those in it that have several children.

    Two tiles that need the same node load it twice, or keep it. Empty sets where they would take too much memory.
    """
    inside, starts, parents = part.tolist(), graph.starts.tolist(), graph.parents.tolist()
    fed = np.unique(graph.parents[part[graph.heads] & (~part[graph.parents] | (graph.out_degree[graph.parents] > 1))])
    if graph.n * fed.size > MOST_BITS:
        return [0] * outputs.size
    reach = [0] * graph.n
    for bit, v in enumerate(fed.tolist()):
        reach[v] = 1 << bit
    for v in range(graph.n):
        if inside[v]:
            for p in parents[starts[v] : starts[v + 1]]:
                reach[v] |= reach[p]
    return [reach[v] for v in outputs.tolist()]


def _tilings(reach: list[int], size: int) -> list[tuple[int, int, int]]:
    """(width, rows, cols) of the two tilings of outputs whose tiles of `size` need the fewest inputs.

    Outputs are taken for a matrix, row by row, of any width that divides their number.
    """
    count, found = len(reach), {}
    for rows in EDGES:
        cols = size // rows
        if rows * cols != size or rows * cols > count:
            continue
        for width in range(cols, count // rows + 1):
            if count % width == 0:
                needs = sum(_union(reach, width, rows, cols, at) for at in (0, count // width // 2 // rows * rows))
                found[rows, cols] = min(found.get((rows, cols), (needs, width)), (needs, width))
    best = sorted((needs, rows, cols, width) for (rows, cols), (needs, width) in found.items())[:2]
    return [(width, rows, cols) for _, rows, cols, width in best]


def _union(reach: list[int], width: int, rows: int, cols: int, row: int) -> int:
    """How many inputs the first tile from a row on needs."""
    needs = 0
    for r in range(row, min(row + rows, len(reach) // width)):
        for set_of_inputs in reach[r * width : r * width + cols]:
            needs |= set_of_inputs
    return needs.bit_count()


def _tiling(count: int, width: int, rows: int, cols: int) -> np.ndarray:
    """Which tile of rows x cols each entry of a matrix of that width lies in, tiles row by row."""
    row, col = np.divmod(np.arange(count), width)
    return row // rows * -(-width // cols) + col // cols
