"""One cell of the grid: check all contenders, then time them in alternation, after idle time and in a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch  # pyright: ignore[reportMissingImports]

from benchmarks.common.gate import REDBLUE, correct
from benchmarks.common.other_process import NEWEST_PYTORCH, VLLM, ZENTORCH, Other, raced
from benchmarks.common.results import Figure, Limit, Row
from benchmarks.common.timing import best_of, ratio, second_and_looped, spread
from benchmarks.cpu.calls import SHORT, Call
from benchmarks.cpu.gate import gate
from benchmarks.cpu.models.shapes import called
from benchmarks.cpu.peers import JAX, ONNXRUNTIME, OPENVINO, PYTORCH, as_tensors, contender

PEERS = (PYTORCH, ONNXRUNTIME, OPENVINO, JAX)
OTHERS = (ZENTORCH, NEWEST_PYTORCH, VLLM)  # in processes of their own
STATES = ("after idle", "loop")  # of the threads, in the order of `second_and_looped`
FORWARD, TRAINING = Limit(1.0), Limit(2.0)
MAX_BEHIND = 3  # times the best peer's time, in a trial

Timer = Callable[[], Sequence[float]]  # seconds in each state
Prepare = Callable[[Call], tuple[list[torch.Tensor], Timer]]


def contenders(peers: Iterable[str], others: Iterable[Other]) -> dict[str, Prepare]:
    """redblue and its peers, as functions that make a call once and return its results and its timer."""
    own = {name: partial(_here, name) for name in (REDBLUE, *peers)}
    return own | {other.peer: partial(_elsewhere, other) for other in others}


def _here(name: str, call: Call) -> tuple[list[torch.Tensor], Timer]:
    run = contender(name, call)
    return as_tensors(run()), partial(second_and_looped, run)


def _elsewhere(other: Other, call: Call) -> tuple[list[torch.Tensor], Timer]:
    return other.load(call.to_json()), partial(other.time, second_and_looped)


def right(call: Call, prepared: dict[str, Prepare], notes: dict[str, str]) -> dict[str, Timer]:
    """The timers of the contenders with correct results on the first and the last head. Raises Red if redblue is wrong.

    Adds the reasons why peers fail to `notes`, except for peers that do not support the call.
    """
    contenders = {name: partial(prepare, call) for name, prepare in prepared.items()}
    return correct(gate(call, sorted({0, call.heads - 1})), contenders, notes, note_refusals=False)


def near(timers: dict[str, Timer], notes: dict[str, str]) -> dict[str, Timer]:
    """redblue, and the peers that may be the best one: in a trial, at most MAX_BEHIND times slower in a state."""
    trial = {name: times for name, (times,) in raced(timers, 1, notes, warm_ups=0).items()}
    ours = {REDBLUE: trial.pop(REDBLUE)}
    best = [MAX_BEHIND * min(times) for times in zip(*trial.values(), strict=True)]
    return {
        name: timers[name]
        for name, times in (ours | trial).items()
        if name == REDBLUE or any(a <= b for a, b in zip(times, best, strict=True))
    }


def measure(shape: str, dtype: str, direction: str, rounds: int, prepared: dict[str, Prepare]) -> Row:
    """redblue over the best peer in each state, and the median rates of both in calls per second."""
    notes: dict[str, str] = {}
    timers = near(right(called(shape, dtype, direction), prepared, notes), notes)
    times = raced(timers, rounds, notes, warm_ups=0)  # the trial was one
    row = Row(f"{SHORT[dtype]} {direction}", shape, unit="calls/s")
    row.note = "; ".join(f"{name}: {reason}" for name, reason in notes.items())
    for place, state in enumerate(STATES if len(times) > 1 else ()):
        rates = {name: [1 / pair[place] for pair in pairs] for name, pairs in times.items()}
        best = best_of(rates, [name for name in rates if name != REDBLUE])
        limit = TRAINING if direction == "training" else FORWARD
        row.figures.append(Figure(f"{state}, over {best}", ratio(rates, REDBLUE, best), limit))
        row.rates |= {f"{name}, {state}": [spread(rates[name]).median] for name in (REDBLUE, best)}
    return row
