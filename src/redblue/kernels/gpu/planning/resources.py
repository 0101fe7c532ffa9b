"""A model of the shared memory and registers that Triton's compiler takes, so that plans need no compilation.

Shared memory holds operands that stay, tiles that stream by, and results that become operands (P and dS). The model
depends on the architecture:

- from sm_80 on, streaming tiles are prefetched into `stages - 1` buffers;
- on sm_90 and sm_100 into `stages` buffers, since products still read one tile while the next arrives;
- with one stage nothing is prefetched, and only one streaming tile is held at a time;
- without tensor cores (sm_75, where Triton does not use them, and float32 without TF32) operands have 4 bytes, and a
  thread holds the operands of a whole product in registers.

Results that are stored at the end pass through shared memory too, but reuse the space of operands.

Bytes of shared memory that Triton 3.9.0 takes for flash forward (float16, causal):

    d      rows x cols x stages                        sm_80, sm_120    sm_90
    128    128 x 32 x 2                                49,152           65,536
    128    128 x 32 x 3                                65,536           81,920
    128    128 x 64 x 2, with float32 bias or dropout  98,304           131,072
    512    64 x 32 x 2                                 135,168          196,608

P may pass through shared memory to become an operand. Plans take no bytes for P (first two rows), the bytes of P (last
row), or twice these bytes with a bias or dropout (third row). The model adds twice the bytes of P to every plan. But on
sm_90 in 16 bits, P and dS stay in registers if each warp owns 16 or more rows of scores: forward, 128 x 128 x 3 with 8
warps takes exactly the 229,376 bytes of its operands. dK and dV take up to 2,048 bytes more, for the statistics of
rows. sm_100 takes up to 1,400 bytes more for barriers; its flash backward also holds a second copy of streaming tiles
with fewer than 64 rows, and of a bias.

A softcap, ALiBi and sinks take no shared memory. A bias takes registers for the addresses of its elements, and dropout
takes registers for its random bits. The table shows the bytes that a thread on sm_80 spilled if the plan ignored the
call's bias or dropout (flash, d 128, 8 warps, 2 stages). The last column shows calls that have neither:

    kernel                          bias     dropout    neither
    forward, 128 x 64               1,036    116        0
    dK and dV, 32 rows, 128 keys    820      64         32

So the model counts a bias and dropout as additional tiles of scores.

The model must never be below the compiler's figures; benchmarks/gpu/fit.py compares it with every plan.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from redblue.base.dtypes import BYTES_PER_WORD
from redblue.kernels.gpu.planning.card import Card

SLACK = 1024  # bytes, for barriers, padding, and exchanges while a row is summed
MAX_REGISTERS = 255  # per thread
# The shares of a thread's registers that summed results may take, and that all results together may take. Beyond these
# shares Triton spills hundreds of bytes; within them, mostly none.
SUMS, RESULTS = 0.51, 0.64
# On sm_90 in 16 bits, if each warp owns whole rows of scores, P and dS become operands without leaving their registers.
# RESULTS_WITHIN_WARPS then replaces RESULTS.
RESULTS_WITHIN_WARPS = 0.76
WARPGROUP_ROWS, WARP_ROWS = 64, 16  # rows that a warpgroup, and a warp, multiplies
# Without tensor cores, twice the results plus half of a product's operands may be at most this many times a thread's
# registers: SCALAR for operands of 4 bytes, CONVERTED for operands that are converted from fewer bytes
SCALAR, CONVERTED = 1.53, 0.9
LOADED = 7  # weight of streaming tiles that pass through registers on their way to shared memory


class Footprint(NamedTuple):
    """The elements that a block of a Triton kernel holds on chip."""

    stay: int  # operands that stay
    stream: tuple[int, ...]  # tiles that stream by
    exchanged: int  # results that pass through shared memory to become operands
    sums: int  # results that are summed
    scores: int  # other results
    stored: int  # the largest tile that is stored
    product: tuple[int, int, int]  # rows, columns and summed features of the product with the most operands
    added: int = 0  # further elements that are exchanged for a bias or dropout
    transposed: int = 0  # streaming tiles with an edge below 64 that are multiplied both as stored and transposed
    waiting: int = 0  # operands that wait in registers, on architectures whose products read operands from registers
    all_at_once: bool = False  # whether all streaming tiles are held at once even where nothing is prefetched
    tall: int = 0  # rows of results that become operands within their warp, on sm_90; 0: they may change warps


class Resources(NamedTuple):
    """The share of a multiprocessor that a block takes."""

    shared_bytes: int
    pressure: float  # register pressure: up to 1, hardly any registers spill


def resources(footprint: Footprint, dtype: str, card: Card, warps: int, stages: int) -> Resources:
    """The resources of a block, by the model."""
    word, threads, family = BYTES_PER_WORD[dtype], warps * card.warp, card.arch // 10
    registers = min(MAX_REGISTERS, card.registers // threads)
    per_number = max(1, word // 4)  # registers per number
    waiting = footprint.waiting if family not in (9, 10) else 0  # on sm_90 and sm_100 products read shared memory
    within_warps = family == 9 and word == 2 and footprint.tall >= max(WARPGROUP_ROWS, WARP_ROWS * warps)
    results = RESULTS_WITHIN_WARPS if within_warps else RESULTS
    numbers = max(footprint.sums / SUMS, (footprint.sums + footprint.scores + waiting) / results) / threads
    if without_tensor_cores(dtype, card):
        rows, cols, inner = footprint.product
        operands = (rows + cols) / math.sqrt(threads) * inner  # the model arranges threads in a square
        numbers = 2 * (footprint.sums + footprint.scores) / threads + operands / 2
        if footprint.all_at_once and word >= 4 and not pipelines(card):
            numbers += LOADED * sum(footprint.stream) / threads
        numbers /= SCALAR if word >= 4 else CONVERTED
        word = max(word, 4)
    streaming, exchanged = max(footprint.stream), 0 if within_warps else footprint.exchanged
    if stages > 1 and pipelines(card):
        streaming = (stages if family in (9, 10) else stages - 1) * sum(footprint.stream)
    elif footprint.all_at_once:
        streaming = max(streaming, sum(footprint.stream) - exchanged // 2)
    if family == 10:
        exchanged = max(exchanged, footprint.transposed) + footprint.added  # one exchange more than elsewhere
    slack = SLACK * (2 if family == 10 or within_warps else 1)
    shared = word * max(footprint.stay + streaming + exchanged + footprint.added, footprint.stored) + slack
    return Resources(shared, per_number * numbers / registers)


def pipelines(card: Card) -> bool:
    """Whether Triton prefetches tiles on this card."""
    return not 0 < card.arch < 80


def without_tensor_cores(dtype: str, card: Card) -> bool:
    """Whether products run without tensor cores."""
    return not pipelines(card) or dtype in ("float32", "float64")
