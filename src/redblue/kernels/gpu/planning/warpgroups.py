"""Tiles of flash on sm_90 in 16 bits, where groups of four warps multiply: each kernel has its own settings.

A warp owns 16 whole rows of a tile of scores. With fewer rows, P and dS pass through shared memory to become operands,
and a kernel takes twice as long (dK and dV, d 128: 64 keys with 8 warps). With more rows, threads run out of
registers, or nearly do.

TFLOP/s measured on an H100 with Triton 3.6.0 (32 heads, n 8192, bf16):

    pass              tiles, rows x cols                               full    causal
    forward, d 128    128 x 128                                        557     490
                      256 x 64                                         577     460
                      64 x 64 with 4 warps                             544     499
                      128 x 64                                         527     488
                      128 x 64 with 2 stages                           428     364
    forward, d 64     64 x 64 with 4 warps                             470     392
                      128 x 64                                         465     355
                      128 x 128                                        375     323
    backward, d 128   dQ 128 x 64, dK and dV 64 x 128, three stages    478
                      dQ 128 x 64, dK and dV 64 x 128, two stages      396
                      dQ 128 x 32, dK and dV 32 x 128                  417
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

from redblue.base.dtypes import SIXTEEN_BITS
from redblue.kernels.gpu.launch import PlanOptions
from redblue.kernels.gpu.planning.card import BUSY, Card
from redblue.kernels.gpu.planning.footprints import Part
from redblue.kernels.gpu.planning.resources import WARP_ROWS, WARPGROUP_ROWS, resources
from redblue.kernels.sizes import Sizes

ARCHITECTURE = 9  # the compute capability whose products these plans are for
STAY, STREAM, WARPS, STAGES = (16, 32, 64, 128, 256), (128, 64, 32, 16), (8, 4), (3, 2, 1)
SHORT = 64  # shorter streaming tiles feed products too slowly: shared memory limits them to two thirds of their speed
EXPONENTIALS_BIND = 64  # features up to which exponentials take most of the time; small blocks overlap them better
LONG_KEYS_FROM = 128  # features from which 128 streaming keys are faster than 64, forward, unless a mask lists tiles
NEARLY = 1.02  # register pressure up to which tiles are worth timing, although a few dozen bytes spill
SLACK = 2048  # shared bytes of a multiprocessor beyond a block's limit, plus the bytes that the model overestimates
FEW_WARPS = 8  # warps per multiprocessor: with fewer, products wait for memory


class Tile(NamedTuple):
    """The tiles of one kernel, its settings, and the quantities that decide its rank."""

    edges: dict[str, int]
    stay: int
    stream: int
    warps: int
    stages: int
    shared_bytes: int
    pressure: float
    idle: float
    words: int


def covers(name: str, direction: str, sizes: Sizes, dtype: str, card: Card, options: PlanOptions) -> bool:
    """Whether this module plans the call. Calls with a bias or dropout are excluded: both need shared memory anyway."""
    rows = min(sizes.n_q * sizes.group, sizes.n_k)
    return (
        name == "flash"
        and direction in ("forward", "backward")
        and dtype in SIXTEEN_BITS
        and card.arch // 10 == ARCHITECTURE
        and rows >= WARPGROUP_ROWS
        and not (options.bias or options.dropout)
    )


def ranked(
    part: Part,
    stream: str,
    tiles: Any,
    sizes: Sizes,
    dtype: str,
    card: Card,
    options: PlanOptions,
    count: Callable[[Any], int],
) -> list[Tile]:
    """The tiles of a kernel that fit the card, the best first.

    stream: the edge of its streaming tiles. tiles: tiles of all kernels, in which this kernel's tiles are replaced.
    count: a function that counts the words that tiles move.
    """
    (stay,) = part.edges
    candidates = []
    for height, length, warps, stages in product(STAY, STREAM, WARPS, STAGES):
        if length > sizes.n_k or height > (128 if _backward(tiles) else max(STAY)):
            continue
        t = tiles._replace(**{stay: height, stream: length})
        needed = resources(part.footprint(t, sizes, options), dtype, card, warps, stages)
        if needed.shared_bytes > card.shared_bytes:
            continue
        pressure = needed.pressure
        if options.listed or options.softcap:  # registers also hold bits or a derivative: use the stricter model
            footprint = part.footprint(t, sizes, options)._replace(tall=0)
            pressure = resources(footprint, dtype, card, warps, stages).pressure
        idle = max(0.0, 1 - part.blocks(t, sizes) / (BUSY * card.multiprocessors))
        edges = {stay: height, stream: length}
        candidates.append(Tile(edges, height, length, warps, stages, needed.shared_bytes, pressure, idle, count(t)))
    forward = not _backward(tiles)
    long = forward and not options.listed and max(sizes.d, sizes.d_v) >= LONG_KEYS_FROM
    small = forward and max(sizes.d, sizes.d_v) <= EXPONENTIALS_BIND
    return sorted(candidates, key=lambda tile: _rank(tile, long, small, card))


def _backward(tiles: Any) -> bool:
    return "dkv_rows" in tiles._fields


def _rank(tile: Tile, long: bool, small: bool, card: Card) -> tuple[float, ...]:
    """The order of tiles: lower is better. long, small: whether long streaming tiles, or small blocks, come first."""
    length = 2 * SHORT if long and tile.stay >= 2 * SHORT else SHORT
    if tile.stay < WARP_ROWS * tile.warps:
        length = SHORT // 2  # with 64, some hundred bytes spilled
    return (
        max(1.0, tile.pressure),
        tile.idle,
        abs(math.log2(tile.stay / (WARP_ROWS * tile.warps))),
        (card.shared_bytes + SLACK) // tile.shared_bytes * tile.warps < FEW_WARPS,
        small and tile.stay > WARPGROUP_ROWS,
        round(math.log(tile.words, 1.03)),
        tile.stages == 1,
        abs(math.log2(tile.stream / length)),
        -tile.stages,
        tile.words,
    )


def alternatives(tiles: list[Tile]) -> list[Tile]:
    """Further tiles worth timing: first with other resident tiles, then with other streaming tiles or stages."""
    first = tiles[0]
    near = [
        tile
        for tile in tiles[1:]
        if tile.pressure <= max(NEARLY, first.pressure)
        and tile.idle <= first.idle
        and tile.stages >= min(2, first.stages)
        and tile.words <= 2.1 * first.words
    ]
    chosen: list[Tile] = []
    heights = {(first.stay, first.warps)}
    for tile in near:
        fits = tile.stream >= min(SHORT, first.stream) and tile.stay in (WARP_ROWS * tile.warps, max(STAY))
        if (tile.stay, tile.warps) not in heights and fits:
            heights.add((tile.stay, tile.warps))
            chosen.append(tile)
    same = [tile for tile in near if (tile.stay, tile.warps) == (first.stay, first.warps)]
    chosen = chosen[:2]
    others = [tile for tile in same if tile.stream != first.stream and tile.stream >= SHORT // 2]
    chosen += sorted(others, key=lambda tile: tile.stream < SHORT)[:1]
    chosen += [tile for tile in same if tile.stream == first.stream and tile.stages != first.stages][:1]
    return chosen
