"""Evaluate one point of a sweep: a row for each schedule at each cache."""

from __future__ import annotations

from typing import Any

from redblue import schedules
from redblue.base.errors import RedblueError
from redblue.bounds import lower_bounds
from redblue.lab import planner
from redblue.lab.counts import Count, count
from redblue.problem import Problem
from redblue.schedules import NotCovered, TooFewWords
from redblue.studies.sweep.grid import Cache, Point

Row = dict[str, Any]  # figures by the columns below; None if not known

FITS, TOO_FEW_WORDS, NOT_COVERED, INVALID = "fits", "too few words", "not covered", "invalid"

# Column -> type. capacity_words: M. words: reads + writes. tiles: in the form of `redblue count --tiles`. bound: the
# name of the largest proved lower bound. gap: words over bound_words. reason: the reason if the row has no words.
COLUMNS: dict[str, type] = {
    **dict.fromkeys(("n_q", "n_k", "d", "d_v", "batch", "heads", "kv_heads"), int),
    **dict.fromkeys(("dtype", "mask"), str),
    "window": int,
    **dict.fromkeys(("direction", "memory", "boundary"), str),
    "capacity_words": int,
    **dict.fromkeys(("schedule", "status", "tiles"), str),
    **dict.fromkeys(("words", "reads", "writes", "peak", "flops"), int),
    "words_per_pair": float,
    "bound_words": int,
    "bound": str,
    "gap": float,
    "bytes": int,
    "seconds": float,
    "reason": str,
}


def evaluate(point: Point) -> list[Row]:
    """Count one point: for each cache, return a row for each schedule that applies. An invalid point has one row."""
    values = dict.fromkeys(COLUMNS) | point.fields | {"mask": point.mask_label, "window": point.window}
    try:
        problem = point.problem()
        values |= {name: getattr(problem, name) for name in point.fields.keys() | {"dtype", "direction"}}
        values |= {name: getattr(problem, name) for name in ("d_v", "batch", "heads", "kv_heads")}
        stream = problem.one_stream()
        pairs = problem.streams * stream.mask.nnz(stream.n_q, stream.n_k)
    except RedblueError as error:
        return [values | {"status": INVALID, "reason": str(error)}]
    return [row for cache in point.caches for row in _rows_of(point, problem, pairs, cache, values)]


def _rows_of(point: Point, problem: Problem, pairs: int, cache: Cache, values: Row) -> list[Row]:
    """The rows of a point at one cache. pairs: attended pairs of all streams; values: the columns of the problem."""
    boundary = cache.boundary
    words = cache.words if boundary is None else planner.capacity_words(boundary, problem)
    assert words is not None
    place: Row = {"memory": cache.memory, "boundary": boundary.name if boundary else None, "capacity_words": words}
    try:
        bounds = {p_given: _bound(problem, words, p_given) for p_given in (False, True)}
    except RedblueError as error:
        return [values | place | {"status": INVALID, "reason": str(error)}]
    place |= bounds[False]
    rows = []
    for name in point.schedules:
        bound = bounds[schedules.get(name).takes_p(problem.direction)]
        row = values | place | bound | {"schedule": name}
        try:
            result = count(name, problem, words=words)
        except NotCovered as error:
            if point.named:
                rows.append(row | {"status": NOT_COVERED, "reason": str(error)})
        except TooFewWords as error:
            rows.append(row | {"status": TOO_FEW_WORDS, "reason": str(error)})
        except RedblueError as error:
            rows.append(row | {"status": INVALID, "reason": str(error)})
        else:
            rows.append(row | _figures(result, pairs, bound.get("bound_words"), cache))
    return rows or [values | place | {"status": NOT_COVERED, "reason": "no schedule covers this direction and mask"}]


def _bound(problem: Problem, words: int, p_given: bool) -> Row:
    """The columns of the largest proved bound. p_given: whether the pass reads P."""
    bound = next((candidate for candidate in lower_bounds(problem, words, p_given=p_given) if candidate.proved), None)
    return {"bound_words": bound.words, "bound": bound.name} if bound else {}


def _figures(result: Count, pairs: int, bound_words: int | None, cache: Cache) -> Row:
    """The columns that a count fills."""
    size = result.words * result.problem.bytes_per_word
    speed = cache.boundary.bandwidth_bytes_per_second if cache.boundary else None
    return {
        "status": FITS,
        "tiles": ",".join(f"{edge}={length}" for edge, length in result.tiles.items()),
        "words": result.words,
        "reads": result.reads,
        "writes": result.writes,
        "peak": result.peak,
        "flops": result.flops,
        "words_per_pair": result.words / pairs if pairs else None,
        "gap": result.words / bound_words if bound_words else None,
        "bytes": size,
        "seconds": size / speed if speed else None,
    }
