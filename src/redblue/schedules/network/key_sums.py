"""The gradients of keys on their way to the owners of the keys: along a ring, or directly."""

from __future__ import annotations

import numpy as np

from redblue.machine.network import Message, Network
from redblue.schedules.network.layout import KEY_SUMS, WHOLE, Layout, Part


def move_key_sums(net: Network, c: Layout, step: int) -> None:
    """Send the gradients of this step's keys to the next process, and add the gradients that arrived a step earlier."""
    (_pass if c.travel == "ring" else _send_home)(net, c, step)


def finish_key_sums(net: Network, c: Layout) -> None:
    """Add up the gradients that are still on their way after the last step."""
    (_finish_ring if c.travel == "ring" else _finish_direct)(net, c)


# Along a ring: each process adds its part and passes the sum on; the last one passes it to the owner of the keys.


def _pass(net: Network, c: Layout, step: int) -> None:
    if not step:
        return  # the keys of the process's own node: their sums stay
    messages = []
    for p in range(net.processes):
        before, after = c.neighbour(p, -1), c.neighbour(p, 1)
        for shard in c.keys_at(p, step):
            rows = c.summed_keys(p, step, shard)
            for array in KEY_SUMS:
                name = Part(array, shard, c.part(p), p)
                if p in net.here and step > 1:
                    came = Part(array, shard, c.part(p), before)
                    arrived = c.summed_keys(before, step - 1, shard)
                    _sum_rows(net, c, p, name, rows, {name: c.needed_keys(p, shard), came: arrived})
                if net.involves(p, after):
                    messages.append(Message(p, after, name, rows))
    net.exchange(messages)
    for p in net.here:
        net.drop(p, [Part(array, shard, c.part(p), p) for shard in c.keys_at(p, step) for array in KEY_SUMS])


def _finish_ring(net: Network, c: Layout) -> None:
    rounded = c.whole_keys
    messages = []
    for p in range(net.processes):
        before, last = c.neighbour(p, -1), c.steps - 1
        for shard in c.keys_at(p, 0):
            if not net.involves(p, shard):
                continue
            rows = c.passed_keys(p, 0, shard)
            for array in KEY_SUMS:
                name, came = Part(array, shard, c.part(p), p), Part(array, shard, c.part(p), before)
                if p in net.here:
                    parts = {name: c.needed_keys(p, shard)}
                    if last:
                        parts[came] = c.summed_keys(before, last, shard)
                    _sum_rows(net, c, p, name, rows, parts)
                if shard != p:
                    messages.append(Message(p, shard, _round(net, c, p, name, rows) if rounded else name, rows))
    net.exchange(messages)
    for p in net.here:
        for maker in c.key_makers(p, 0):
            own = maker == p
            _add(net, c, p, maker, c.passed_keys(maker, 0, p), rounded and not own)


# Directly: each process sends its part to the owner, which adds it while it computes the next step.


def _send_home(net: Network, c: Layout, step: int) -> None:
    messages = []
    for p in range(net.processes):
        for shard in c.keys_at(p, step):
            if shard == p or not net.involves(p, shard):
                continue
            rows = c.needed_keys(p, shard)
            for array in KEY_SUMS:
                name = Part(array, shard, c.part(p), p)
                messages.append(Message(p, shard, _round(net, c, p, name, rows) if c.whole_keys else name, rows))
    net.exchange(messages)
    for p in net.here:
        others = [shard for shard in c.keys_at(p, step) if shard != p]
        net.drop(p, [Part(array, shard, c.part(p), p) for shard in others for array in KEY_SUMS])
        if step:
            _add_arrived(net, c, p, step - 1)


def _finish_direct(net: Network, c: Layout) -> None:
    for p in net.here:
        _add_arrived(net, c, p, c.steps - 1)


def _add_arrived(net: Network, c: Layout, p: int, step: int) -> None:
    for maker in c.key_makers(p, step):
        _add(net, c, p, maker, c.needed_keys(maker, p), c.whole_keys and maker != p)


# Sums ----------------------------------------------------------------------------------------------------------------


def _round(net: Network, c: Layout, p: int, name: Part, rows: np.ndarray) -> Part:
    """Round a sum to the type of the inputs; returns its new name."""
    rounded = name._replace(array=name.array.removesuffix("_sum"))
    if p in net.here and len(rows):
        net.apply(p, "round", [name], {rounded: c.shape(rounded, rows)})
        net.drop(p, [name])
    return rounded


def _sum_rows(net: Network, c: Layout, p: int, total: Part, rows: np.ndarray, parts: dict[Part, np.ndarray]) -> None:
    """total <- the sum of the parts that have rows, on the union of their rows."""
    reads = [name for name, own in parts.items() if len(own)]
    if reads and reads != [total]:
        net.apply(p, "sum_rows", reads, {total: c.shape(total, rows)})
        net.drop(p, [name for name in reads if name != total])


def _add(net: Network, c: Layout, p: int, maker: int, rows: np.ndarray, rounded: bool) -> None:
    """Add the partial dK and dV that process `maker` computed for the keys of process p."""
    if not len(rows):
        return
    for array in KEY_SUMS:
        total = Part(array, p, WHOLE)
        came = Part(array.removesuffix("_sum") if rounded else array, p, c.part(maker), maker)
        net.apply(p, "add", [total, came], {total: c.shape(total, c.all_rows(p, True))}, layout=c)
        net.drop(p, [came])
