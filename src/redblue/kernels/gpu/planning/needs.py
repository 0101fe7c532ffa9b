"""What a kernel needs of a multiprocessor: a model of what Triton allocates, so that no plan has to be compiled first.

Shared memory holds operands that stay, tiles that stream by, and results on their way to being operands (P and dS).
How it is filled depends on what multiplies:

- from sm_80 on, streaming tiles are copied ahead into `stages - 1` buffers;
- on sm_90 and sm_100 into `stages`, since products still read one while the next arrives;
- with one stage there is no copying ahead, and of all streaming tiles one is there at a time;
- sm_75, where Triton does not use the tensor cores, and float32 without TF32 multiply one by one: with operands of 4
  bytes, of which a thread holds those of a whole product in registers.

What is stored at the end passes through shared memory too, but in the place of what the loop no longer needs.

As Triton 3.9.0 compiles them, flash forward in float16, causal, takes this many bytes: d 128, rows x cols x stages
128 x 32 x 2 and 128 x 32 x 3: 49,152 and 65,536 on sm_80 and sm_120, 65,536 and 81,920 on sm_90; d 512, 64 x 32 x 2:
135,168, and 196,608. That is the model but for what is exchanged: P (R C elements), which need not be always, and twice
that with a bias or dropout (d 128, 128 x 64 x 2: 98,304 on sm_80, 131,072 on sm_90); sm_100 has up to 1,400 more for
barriers, and there flash backward takes tiles of fewer than 64 that stream by twice, and a bias once more.

A softcap and sinks take nothing. A bias takes registers, for the addresses of its elements, and so do dropout's bits:
of flash, d 128, 128 x 64 forward, and 32 rows x 128 keys for dK and dV, with tiles planned without them, a bias spilled
1,036 and 820 bytes of a thread on sm_80, dropout 116 and 64 (8 warps, 2 stages; neither: 0 and 32). So scores count
as more tiles with them.

The model is to be never below; benchmarks/gpu_fit.py holds it against every plan.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from redblue.kernels.gpu.planning.card import Card

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
SLACK = 1024  # bytes, for barriers, padding, and what is exchanged to sum over a row
MOST_REGISTERS = 255  # of a thread
# How many of a thread's registers results that are summed may take, and all results. Beyond, Triton spills hundreds of
# bytes; up to them, mostly none.
SUMS, RESULTS = 0.51, 0.64
# Where products are made one by one: twice the results and half of a product's operands, of 4 bytes and of fewer.
ONE_BY_ONE, CONVERTED = 1.53, 0.9
LOADED = 7  # and so many times what streams by together, where it passes through registers on its way


class Phase(NamedTuple):
    """A Triton kernel, by what a block of it holds, in elements."""

    stay: int  # operands that stay
    stream: tuple[int, ...]  # tiles that stream by
    exchanged: int  # results that become operands
    sums: int  # results that are summed
    scores: int  # other results
    stored: int  # the largest tile that is stored
    product: tuple[int, int, int]  # the one of most operands: rows, columns, and what is summed over
    added: int = 0  # what is exchanged for a bias or dropout, beyond results
    both_ways: int = 0  # of the streaming tiles: factors as they lie and turned, with an edge of less than 64
    waiting: int = 0  # operands that wait in registers, where products take them from there
    together: bool = False  # whether streaming tiles are there at once even where nothing is copied ahead


class Need(NamedTuple):
    shared_bytes: int
    pressure: float  # on registers: up to 1 hardly any are spilled


def need(phase: Phase, dtype: str, card: Card, warps: int, stages: int) -> Need:
    word, threads, family = BYTES[dtype], warps * card.warp, card.arch // 10
    registers = min(MOST_REGISTERS, card.registers // threads)
    wide = max(1, word // 4)  # registers of a number
    waiting = phase.waiting if family not in (9, 10) else 0  # there products read shared memory
    takes = max(phase.sums / SUMS, (phase.sums + phase.scores + waiting) / RESULTS) / threads
    if one_by_one(dtype, card):
        rows, cols, inner = phase.product
        operands = (rows + cols) / math.sqrt(threads) * inner  # threads lie in a square
        takes = 2 * (phase.sums + phase.scores) / threads + operands / 2
        if phase.together and word >= 4 and not pipelines(card):
            takes += LOADED * sum(phase.stream) / threads
        takes /= ONE_BY_ONE if word >= 4 else CONVERTED
        word = max(word, 4)
    streaming, exchanged = max(phase.stream), phase.exchanged
    if stages > 1 and pipelines(card):
        streaming = (stages if family in (9, 10) else stages - 1) * sum(phase.stream)
    elif phase.together:
        streaming = max(streaming, sum(phase.stream) - exchanged // 2)
    if family == 10:
        exchanged = max(exchanged, phase.both_ways) + phase.added  # and what all others exchange, once more
    slack = SLACK * (2 if family == 10 else 1)
    shared = word * max(phase.stay + streaming + exchanged + phase.added, phase.stored) + slack
    return Need(shared, wide * takes / registers)


def pipelines(card: Card) -> bool:
    """Whether Triton copies ahead on it."""
    return not 0 < card.arch < 80


def one_by_one(dtype: str, card: Card) -> bool:
    """Whether products are made without tensor cores."""
    return not pipelines(card) or dtype in ("float32", "float64")
