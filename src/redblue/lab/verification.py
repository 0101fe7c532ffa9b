"""Verify a schedule by running it: results against the float64 reference, closed form against the words counted.

A registered schedule thereby keeps the same promise as a built-in one, whose tests draw such cases at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from redblue.base.errors import RedblueError
from redblue.bounds import lower_bound
from redblue.lab import counts
from redblue.machine import CapacityError, Counting, Machine, MachineError, Numeric
from redblue.masks import Mask
from redblue.masks.storage.sparse import Csr
from redblue.problem import Problem
from redblue.schedules.schedule import WHOLE, Cost, Pass, Schedule, TooFewWords
from redblue.schedules.stored_index import StoredIndex, index_room, index_words

MAX_ERROR = 1e-10  # allowed error of an output, relative to float64
LARGE_SCORES = 50.0  # factor of queries and keys: exp of such scores overflows without a row maximum
EDGES = (1, 2, 3, 16)  # tile edges: some divide the axes, some do not, the last one spans them
LARGER = (211, 173, 24, 20)  # n_q, n_k, d, d_v of the problem that is counted without numbers

T = TypeVar("T")


def verify(schedule: Schedule) -> None:
    """Run every pass of the schedule on small problems, and count a larger one.

    Raises RedblueError, which names pass, problem and tiles.
    """
    for direction, one_pass in schedule.passes.items():
        for problem in _problems(schedule, direction):
            tried = [_tiles(schedule, one_pass, problem, edge) for edge in EDGES]
            for tiles in tried:
                _verify_run(schedule, one_pass, problem, tiles)
            _verify_search(schedule, one_pass, problem, tried[1])
            if schedule.drop_in and not problem.mask.on(problem.n_q, problem.n_k).is_full:
                _verify_index(schedule, one_pass, problem, tried[1])
        _verify_larger(schedule, one_pass, Problem(*LARGER, direction=direction))
        if schedule.safe:
            _verify_large_scores(schedule, Problem(6, 8, 4, 3, dtype="float64", direction=direction))


def _problems(schedule: Schedule, direction: str) -> Iterator[Problem]:
    """Yield small problems: sizes of 1, primes, d_v != d, and masks with rows that attend no key."""
    for sizes in ((7, 9, 4, 3), (1, 1, 1, 1), (12, 8, 2, 5)):
        yield Problem(*sizes, dtype="float64", direction=direction)
    if not schedule.full_only:
        layout = np.array([[1, 0, 1], [0, 0, 1], [0, 0, 0]], bool)
        masks = (Mask.causal("bottom-right"), Mask.sliding_window(2, 1), Mask.blocks(layout, (4, 3)))
        yield from (Problem(11, 8, 3, 4, dtype="float64", mask=mask, direction=direction) for mask in masks)


def _tiles(schedule: Schedule, one_pass: Pass, problem: Problem, edge: int) -> Any:
    """Return tiles whose edges are all `edge`, except for edges that span their axis by default."""
    edges = {name: edge for name in one_pass.edges if name not in WHOLE}
    return _calling(schedule, problem, edges, "tile_type", lambda: schedule.make_tiles(problem, edges))


def _cost(schedule: Schedule, one_pass: Pass, problem: Problem, tiles: Any) -> Cost:
    """Return the closed form, after a check of its type."""
    cost = _calling(schedule, problem, tiles, "cost", lambda: one_pass.cost(problem, tiles))
    fields = [getattr(cost, name, None) for name in ("reads", "writes", "peak", "flops")]
    if not isinstance(cost, Cost) or not all(isinstance(x, (int, np.integer)) and x >= 0 for x in fields):
        where = _where(schedule, problem, tiles)
        raise RedblueError(f"{where}: cost must return a redblue.schedules.Cost of whole numbers, got {cost!r}")
    return cost


def _verify_run(schedule: Schedule, one_pass: Pass, problem: Problem, tiles: Any) -> None:
    """Compare one run with the closed form and with the float64 reference."""
    where, closed = _where(schedule, problem, tiles), _cost(schedule, one_pass, problem, tiles)
    arrays, expected = counts.example(problem)
    machine, outputs = _run(schedule, problem, tiles, Numeric(closed.peak, counts.MAX_MOVES), arrays)
    for name, output in outputs.items():
        error = counts.relative_error(output, expected[name])
        if error > MAX_ERROR:
            raise RedblueError(f"{where}: {name} differs from the float64 reference by {error:.2g}: wrong arithmetic")
    _compare(where, closed, machine, ("reads", "writes", "flops", *(["peak"] if problem.mask.is_full else [])))


def _compare(where: str, closed: Cost, machine: Machine, fields: tuple[str, ...]) -> None:
    """Raise RedblueError unless the closed form equals the machine's counts."""
    for field in fields:
        stated, counted = int(getattr(closed, field)), getattr(machine, field)
        if stated != counted:
            raise RedblueError(f"{where}: the closed form states {field} = {stated:,}, and the run has {counted:,}")


def _verify_larger(schedule: Schedule, one_pass: Pass, problem: Problem) -> None:
    """Count a larger problem, and compare its words with the lower bound."""
    tiles = _tiles(schedule, one_pass, problem, EDGES[-1])
    where, closed = _where(schedule, problem, tiles), _cost(schedule, one_pass, problem, tiles)
    machine, _ = _run(schedule, problem, tiles, Counting(closed.peak, counts.MAX_MOVES), {})
    _compare(where, closed, machine, ("reads", "writes", "flops", "peak"))
    words, bound = machine.reads + machine.writes, lower_bound(problem, words=int(closed.peak)).words
    if schedule.drop_in and words < bound:
        raise RedblueError(f"{where}: {words:,} words, fewer than the {bound:,} that any schedule must move")


def _verify_search(schedule: Schedule, one_pass: Pass, problem: Problem, tiles: Any) -> None:
    """Search the tiles for a cache that just holds `tiles`: the search must return tiles that fit into it."""
    closed = _cost(schedule, one_pass, problem, tiles)
    try:
        best = _calling(schedule, problem, tiles, "search", lambda: schedule.tiles(problem, int(closed.peak)))
    except TooFewWords as error:
        raise RedblueError(
            f"{_where(schedule, problem, tiles)}: these tiles fit, but the search fails: {error}"
        ) from None
    least = _cost(schedule, one_pass, problem, best)
    if least.peak > closed.peak:
        where = _where(schedule, problem, best)
        raise RedblueError(f"{where}: the search for {closed.peak} words returns tiles that hold {least.peak}")


def _verify_index(schedule: Schedule, one_pass: Pass, problem: Problem, tiles: Any) -> None:
    """Run with a stored mask: the sweeps must state the words of the index that the run reads."""
    arrays, expected = counts.example(problem)
    sweeps = _calling(schedule, problem, tiles, "sweeps", lambda: tuple(one_pass.sweeps(problem, tiles)))
    where, stated = _where(schedule, problem, tiles), index_words(problem, Csr(), sweeps)
    capacity = int(_cost(schedule, one_pass, problem, tiles).peak) + index_room(problem, sweeps)
    machine, outputs = _run(schedule, problem, tiles, Numeric(capacity), arrays, Csr())
    assert isinstance(machine.index, StoredIndex)
    if machine.index.words == 0:
        raise RedblueError(f"{where}: the program never looks up the mask: call machine.cols_of for each block")
    if machine.index.words != stated:
        raise RedblueError(
            f"{where}: the sweeps state {stated} words of a CSR index, and the run reads {machine.index.words}"
        )
    if any(counts.relative_error(outputs[name], expected[name]) > MAX_ERROR for name in outputs):
        raise RedblueError(f"{where}: the result is wrong with a stored mask: read its entries through the machine")


def _verify_large_scores(schedule: Schedule, problem: Problem) -> None:
    """Run on scores whose exponential overflows: a safe schedule's outputs stay finite."""
    arrays, _ = counts.example(problem)
    large = {name: array * LARGE_SCORES if name in ("q", "k", "a1", "a2") else array for name, array in arrays.items()}
    if "lse" in large:
        large |= {name: array for name, array in _reference_of(large).items() if name in large}
    tiles = _tiles(schedule, schedule.passes[problem.direction], problem, 2)
    _, outputs = _run(schedule, problem, tiles, Numeric(), large)
    for name, output in outputs.items():
        if not np.isfinite(output).all():
            raise RedblueError(
                f"{_where(schedule, problem, tiles)}: {name} overflows on large scores: subtract the row maximum, or "
                "give safe=False"
            )


def _reference_of(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs of the forward pass, which a backward pass reads."""
    attends = np.ones((len(arrays["q"]), len(arrays["k"])), bool)
    return counts.reference.forward(arrays["q"], arrays["k"], arrays["v"], attends)._asdict()


def _run(
    schedule: Schedule, problem: Problem, tiles: Any, machine: Machine, arrays: dict[str, np.ndarray], *index: Any
) -> tuple[Any, dict[str, Any]]:
    """Run the schedule; an error names the problem and the tiles."""
    run = lambda: counts.execute(schedule, problem, tiles, machine, arrays, *index)  # noqa: E731
    return _calling(schedule, problem, tiles, "run", run)


def _calling(schedule: Schedule, problem: Problem, tiles: Any, part: str, call: Callable[[], T]) -> T:
    """Call a user's function; its errors become RedblueErrors that name the part, the problem and the tiles."""
    where = _where(schedule, problem, tiles)
    try:
        return call()
    except TooFewWords:
        raise
    except CapacityError as error:
        raise CapacityError(f"{where}: the run exceeds the peak that the closed form states: {error}") from error
    except MachineError as error:
        raise type(error)(f"{where}: {error}") from error
    except RedblueError as error:
        raise RedblueError(f"{where}: {error}") from error
    except Exception as error:
        advice = "; without a search of its own, a pass needs a cost that takes arrays of edges" * (part == "search")
        raise RedblueError(f"{where}: {part} raised {type(error).__name__}: {error}{advice}") from error


def _where(schedule: Schedule, problem: Problem, tiles: Any) -> str:
    """Name the pass, the problem and the tiles of a message."""
    sizes = f"n_q={problem.n_q}, n_k={problem.n_k}, d={problem.d}, d_v={problem.d_v}, {problem.mask!r}"
    return f"{schedule.name} {problem.direction} ({sizes}; {_edges(tiles)})"


def _edges(tiles: Any) -> str:
    """Name the tile edges."""
    edges = tiles if isinstance(tiles, dict) else tiles._asdict()
    return ", ".join(f"{edge}={length}" for edge, length in edges.items())
