"""Orders in which to compute the nodes of a graph: as numbered, depth-first, in bands of levels, and tile by tile."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from redblue.pebble.graph import Graph

MAX_BITS = 4 * 10**9  # bits of all sets of inputs that outputs need
TILE_EDGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # lengths of a tile's edges, in outputs


def orders(graph: Graph, needed: np.ndarray, red: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the node numbers of each order of the needed nodes; parents come first in all of them.

    needed (n,): whether a node must be computed.
    Orders by tiles have up to `red` outputs per tile. Within a tile, nodes are computed as late as possible: nodes at
    the same distance from an output come together. In orders "chain by chain", a chain of nodes that leads to a
    value with several uses is computed without interruption. In orders of two stages, the nodes that do not depend on a
    value with several uses come first, in tiles of their own, as P does in attention that spills P.
    """
    yield "as given", np.flatnonzero(needed)
    yield "depth first", depth_first(graph, needed)
    late = lateness(graph, needed)
    for levels in range(1, min(red.bit_length() + 1, int(-late.min())) + 1):
        yield f"bands of {levels} levels", in_bands(graph, needed, late, levels, False)
        yield f"bands of {levels} levels, by their loads", in_bands(graph, needed, late, levels, True)
    early = needed & ~below_hubs(graph)
    stages = [("", [needed])] + ([("two stages, ", [early, needed & ~early])] if (needed & ~early).any() else [])
    for name, parts in stages:
        for size, order in tile_by_tile(graph, parts, red):
            yield f"{name}tiles of {size}", order


def depth_first(graph: Graph, needed: np.ndarray) -> np.ndarray:
    """Order each output's ancestors directly before it, by depth-first search."""
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


def lowest_parents(graph: Graph) -> np.ndarray:
    """Lowest parent of each node, (n,), or the node itself if it has none: a sort key that puts siblings together."""
    first = np.arange(graph.n)
    np.minimum.at(first, graph.heads, graph.parents)
    return first


def lateness(graph: Graph, part: np.ndarray) -> np.ndarray:
    """Return the negated length of each node's longest path within the part, (n,). The path starts at the node.

    part (n,): whether a node belongs to the part.
    """
    late, inside, starts, parents = [0] * graph.n, part.tolist(), graph.starts.tolist(), graph.parents.tolist()
    for v in reversed(range(graph.n)):
        if inside[v]:
            latest = late[v] - 1
            for p in parents[starts[v] : starts[v + 1]]:
                late[p] = min(late[p], latest)
    return np.array(late)


def gathered(graph: Graph, part: np.ndarray, late: np.ndarray) -> np.ndarray:
    """Lateness with chains gathered, (n,): each node of a chain gets the lateness of the chain's end.

    Only chains that end in a node with several children in the part are gathered, and only if no node of the chain
    depends on a hub (see below_hubs): the hub would have to stay red until the whole chain is computed.
    """
    (first_child, children), gathered_late, below = graph.children, late.tolist(), below_hubs(graph).tolist()
    inside = np.bincount(graph.parents[part[graph.heads]], minlength=graph.n).tolist()
    leads = [False] * graph.n  # whether the node leads to one with several children, or is one
    for v in reversed(range(graph.n)):
        child = int(children[first_child[v]]) if inside[v] == 1 and graph.out_degree[v] == 1 else v
        leads[v] = not below[v] and (inside[v] > 1 or (child != v and leads[child]))
        if child != v and leads[child]:
            gathered_late[v] = gathered_late[child]
    return np.array(gathered_late)


def in_bands(graph: Graph, needed: np.ndarray, late: np.ndarray, levels: int, loads: bool) -> np.ndarray:
    """Order the nodes by bands of `levels` levels, counted from the outputs, and by connected component in each band.

    loads: whether nodes with a common parent outside their band are connected, too.
    """
    band = -(-late // levels)
    component = list(range(2 * graph.n))  # union-find over nodes and, at n + number, parents outside the band

    def find(v: int) -> int:
        while component[v] != v:
            component[v] = v = component[component[v]]
        return v

    inside = (band[graph.heads] == band[graph.parents]) & needed[graph.parents]
    parent = np.where(inside, graph.parents, graph.parents + graph.n)
    connected = inside | loads
    for v, p in zip(graph.heads[connected].tolist(), parent[connected].tolist(), strict=True):
        component[find(v)] = find(p)
    nodes = np.flatnonzero(needed)
    root = np.array([find(v) for v in nodes.tolist()], np.int64)
    return nodes[np.lexsort((nodes, lowest_parents(graph)[nodes], late[nodes], root, band[nodes]))]


def below_hubs(graph: Graph) -> np.ndarray:
    """Whether each node depends on a computed node that has several children (a hub), (n,)."""
    hub = ((graph.in_degree > 0) & (graph.out_degree > 1)).tolist()
    below, starts, parents = [False] * graph.n, graph.starts.tolist(), graph.parents.tolist()
    for v in range(graph.n):
        below[v] = any(below[p] or hub[p] for p in parents[starts[v] : starts[v + 1]])
    return np.array(below)


def tile_by_tile(graph: Graph, parts: list[np.ndarray], red: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name of a tiling and its order: part after part and, in each part, tile after tile of its outputs."""
    outputs = [_outputs(graph, part) for part in parts]
    reaches = [_inputs_of(graph, part, own) for part, own in zip(parts, outputs, strict=True)]
    first_parent, plain = lowest_parents(graph), [lateness(graph, part) for part in parts]
    chained = [gathered(graph, part, late) for part, late in zip(parts, plain, strict=True)]
    sizes = sorted({a * b for a, b in product(TILE_EDGES, TILE_EDGES) if a * b <= red})
    variants = [("", plain)]
    if any((gathered != late).any() for gathered, late in zip(chained, plain, strict=True)):
        variants = [(", chain by chain", chained), ("", plain)]
    for size in sizes:
        tilings = [_tilings(reach, size) for reach in reaches]
        if not any(tilings):
            continue
        for rank in range(2 if max(map(len, tilings)) > 1 else 1):
            # A part with fewer outputs than `size` has no tiling: (0, 1, 0) makes all of its outputs one tile.
            chosen = [ranked[min(rank, len(ranked) - 1)] if ranked else (0, 1, 0) for ranked in tilings]
            groups = [
                grouped(graph, part, own, _tile_of_entry(own.size, width or own.size, rows, cols or own.size))
                for part, own, (width, rows, cols) in zip(parts, outputs, chosen, strict=True)
            ]
            name = " and ".join(
                f"{rows} x {cols or own.size}" for (_, rows, cols), own in zip(chosen, outputs, strict=True)
            )
            for suffix, variant in variants:
                orders = []  # the order of each part; lexsort sorts by its last key first
                for part, group, late, order_key in zip(parts, groups, plain, variant, strict=True):
                    nodes = np.flatnonzero(part)
                    orders.append(
                        nodes[np.lexsort((nodes, first_parent[nodes], late[nodes], order_key[nodes], group[nodes]))]
                    )
                yield f"{name} outputs{suffix}", np.concatenate(orders)


def grouped(graph: Graph, part: np.ndarray, outputs: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return the first group that needs each node of the part, (n,).

    outputs: the outputs of the part. group: the group of each output.
    """
    first = np.full(graph.n, group.size)
    first[outputs] = group
    groups, inside, starts, parents = first.tolist(), part.tolist(), graph.starts.tolist(), graph.parents.tolist()
    for v in reversed(range(graph.n)):
        if inside[v]:
            own_group = groups[v]
            for p in parents[starts[v] : starts[v + 1]]:
                if own_group < groups[p]:
                    groups[p] = own_group
    return np.array(groups)


def _outputs(graph: Graph, part: np.ndarray) -> np.ndarray:
    """Outputs of the part: its nodes with children outside the part, and its sinks."""
    ends = np.zeros(graph.n, bool)
    ends[graph.parents[~part[graph.heads]]] = True
    ends[graph.sinks] = True
    return np.flatnonzero(part & ends)


def _inputs_of(graph: Graph, part: np.ndarray, outputs: np.ndarray) -> list[int]:
    """Inputs that each output needs, as a bit set: nodes outside the part, and nodes in it with several children.

    Two tiles that share such a node must load it twice or keep it. If the sets would take more than MAX_BITS, all are
    empty.
    """
    inside, starts, parents = part.tolist(), graph.starts.tolist(), graph.parents.tolist()
    feeding = np.unique(
        graph.parents[part[graph.heads] & (~part[graph.parents] | (graph.out_degree[graph.parents] > 1))]
    )
    if graph.n * feeding.size > MAX_BITS:
        return [0] * outputs.size
    reach = [0] * graph.n
    for bit, v in enumerate(feeding.tolist()):
        reach[v] = 1 << bit
    for v in range(graph.n):
        if inside[v]:
            for p in parents[starts[v] : starts[v + 1]]:
                reach[v] |= reach[p]
    return [reach[v] for v in outputs.tolist()]


def _tilings(reach: list[int], size: int) -> list[tuple[int, int, int]]:
    """Return (width, rows, cols) of the two best tilings of the outputs into tiles of `size` outputs.

    The outputs are arranged as a matrix, row by row, of any width that divides their number. The best tilings need the
    fewest inputs, which are counted for two sample tiles: the first, and one in the middle.
    """
    count, best_width = len(reach), {}
    for rows in TILE_EDGES:
        cols = size // rows
        if rows * cols != size or rows * cols > count:
            continue
        for width in range(cols, count // rows + 1):
            if count % width == 0:
                inputs = sum(_inputs(reach, width, rows, cols, row) for row in (0, count // width // 2 // rows * rows))
                best_width[rows, cols] = min(best_width.get((rows, cols), (inputs, width)), (inputs, width))
    best = sorted((inputs, rows, cols, width) for (rows, cols), (inputs, width) in best_width.items())[:2]
    return [(width, rows, cols) for _, rows, cols, width in best]


def _inputs(reach: list[int], width: int, rows: int, cols: int, row: int) -> int:
    """Count the inputs of the leftmost tile that starts at `row`."""
    union = 0
    for r in range(row, min(row + rows, len(reach) // width)):
        for inputs in reach[r * width : r * width + cols]:
            union |= inputs
    return union.bit_count()


def _tile_of_entry(count: int, width: int, rows: int, cols: int) -> np.ndarray:
    """For each of `count` matrix entries, the number of its rows x cols tile. Entries and tiles go row by row."""
    row, col = np.divmod(np.arange(count), width)
    return row // rows * -(-width // cols) + col // cols
