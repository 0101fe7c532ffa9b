"""Compare redblue.jax with jax.nn.dot_product_attention on this CPU: `make bench`.

Both run under jit, in JAX's layout (batch, rows, heads, features). Every result is checked against float64 before any
call is timed: redblue's error may be at most twice that of JAX's unfused expression. Then both are timed in
alternation; ratios are medians over the rounds. Ctrl-C ends the run and keeps the results so far. Rows of --json that
are not measured again are kept, so that --only can split a run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
import numpy as np
import torch  # pyright: ignore[reportMissingImports]

from benchmarks.common.failures import Red
from benchmarks.common.gate import MAX_OURS, REDBLUE, relative_errors, within
from benchmarks.common.machine import versions
from benchmarks.common.options import QUICK, add_rounds, chosen, parser_of
from benchmarks.common.results import Figure, Limit, Row, merged, write
from benchmarks.common.timing import THREADS, race, rate, ratio
from benchmarks.cpu.attention import about, show
from benchmarks.cpu.calls import FLOPS
from benchmarks.cpu.in_jax import compiled, finished
from benchmarks.cpu.peers import JAX
from redblue.base.progress import INTERRUPTED
from redblue.jax import dot_product_attention
from redblue.lab import reference

CONTENDERS = {REDBLUE: dot_product_attention, JAX: jax.nn.dot_product_attention}
DIRECTIONS = "forward", "forward and backward"
MIN_RATIO = 1.0  # redblue must not be slower


@dataclass(frozen=True)
class Case:
    """One call of attention in both directions."""

    title: str
    n_q: int = 2048
    n_k: int = 2048
    heads: int = 8
    kv_heads: int = 8
    d: int = 64
    batch: int = 1
    dtype: str = "float32"
    options: dict[str, Any] = field(default_factory=dict)
    directions: tuple[str, ...] = DIRECTIONS

    def arrays(self) -> list[np.ndarray]:
        """Query, key, value and the gradient of the output."""
        rng = np.random.default_rng(0)
        shapes = [(self.n_q, self.heads), (self.n_k, self.kv_heads), (self.n_k, self.kv_heads), (self.n_q, self.heads)]
        drawn = (rng.standard_normal((self.batch, *shape, self.d), np.float32) for shape in shapes)
        return [np.asarray(x.astype(jnp.dtype(self.dtype))) for x in drawn]

    def attends(self) -> np.ndarray | None:
        """The pairs that the options allow."""
        rows, keys = np.arange(self.n_q)[:, None], np.arange(self.n_k)
        pairs = np.ones((self.n_q, self.n_k), bool)
        if self.options.get("is_causal"):
            pairs &= keys <= rows
        if "local_window_size" in self.options:
            left, right = self.options["local_window_size"]
            pairs &= (keys >= rows - left) & (keys <= rows + right)
        return None if pairs.all() else pairs

    def flops(self, direction: str) -> int:
        """FLOPs of two products forward and five backward, with a full mask."""
        per_pair = FLOPS["forward" if direction == DIRECTIONS[0] else "training"]
        return per_pair * self.batch * self.heads * self.n_q * self.n_k * self.d


CASES = (
    Case("fp32"),
    Case("fp32, causal", options={"is_causal": True}),
    Case("bf16, causal", dtype="bfloat16", options={"is_causal": True}),
    Case("fp32, 4 of 16 heads", n_q=1024, n_k=1024, heads=16, kv_heads=4, d=128, options={"is_causal": True}),
    Case("fp32, window 128", n_q=4096, n_k=4096, heads=4, kv_heads=4, options={"local_window_size": (128, 0)}),
    Case("fp32, batch of 16 short texts", n_q=128, n_k=128, heads=12, kv_heads=12, batch=16),
    Case("fp32, one token", n_q=1, n_k=4096, heads=32, kv_heads=8, d=128, directions=DIRECTIONS[:1]),
)


def runs(case: Case, direction: str) -> dict[str, Callable[..., Any]]:
    """The contenders under jit."""
    both = direction != DIRECTIONS[0]
    return {name: compiled(attend, both, **case.options) for name, attend in CONTENDERS.items()}


def exact(case: Case, direction: str) -> list[np.ndarray]:
    """The results in float64."""
    q, k, v, dout = (x.astype(np.float64).swapaxes(1, 2) for x in case.arrays())
    results = [reference.forward(q, k, v, case.attends()).out]
    if direction != DIRECTIONS[0]:
        results += reference.backward(q, k, v, dout, case.attends())[:3]
    return [x.swapaxes(1, 2) for x in results]


def check(case: Case) -> None:
    """Raise Red if redblue's errors are more than twice those of JAX."""
    inputs = [jnp.asarray(x) for x in case.arrays()]
    for direction in case.directions:
        expected = [torch.from_numpy(np.ascontiguousarray(x)) for x in exact(case, direction)]
        errors = {
            name: relative_errors([torch.from_numpy(np.array(x, np.float64)) for x in call(*inputs)], expected)
            for name, call in runs(case, direction).items()
        }
        if not within(errors[REDBLUE], errors[JAX], MAX_OURS):
            raise Red(f"{case.title}, {direction}: errors {errors[REDBLUE]}, errors of JAX {errors[JAX]}")


def run(case: Case, direction: str, rounds: int, seconds: float) -> Row:
    """Time both contenders in turns."""
    inputs = [jnp.asarray(x) for x in case.arrays()]
    flops = case.flops(direction) / 1e9
    measured = {
        name: partial(rate, partial(finished, call, inputs), flops, seconds)
        for name, call in runs(case, direction).items()
    }
    rates = race(measured, rounds)
    figures = [Figure("redblue over JAX", ratio(rates, REDBLUE, JAX), Limit(must=MIN_RATIO))]
    return Row("JAX", f"{case.title}, {direction}", figures, rates)


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--quick", action="store_true", help="3 short rounds, to test that the benchmark works")
    add_rounds(parser, 15, 0.1)
    parser.add_argument("--check", action="store_true", help="only check results against float64")
    parser.add_argument("--only", default="", help="only the case of this title, or those whose title contains it")
    parser.add_argument("--json", type=Path, help="file for the results; other rows of it stay")
    options = parser.parse_args()
    vars(options).update(QUICK if options.quick else {})
    named = [case for case in CASES if case.title == options.only]
    options.cases = named or chosen(parser, options.only, CASES, lambda case: case.title)
    return options


def main() -> None:
    options = arguments()
    load = os.getloadavg()[0]
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])  # before XLA creates its threads, one per CPU
    torch.set_num_threads(THREADS)  # redblue uses this number of threads if PyTorch is loaded
    rows, complete = list[Row](), True
    try:
        for case in options.cases:
            check(case)
        if options.check:
            return
        for case in options.cases:
            rows.extend(run(case, direction, options.rounds, options.seconds) for direction in case.directions)
    except Red as red:
        sys.exit(f"wrong result, so nothing is timed: {red}")
    except KeyboardInterrupt:
        complete = False
    facts = about(options.rounds, options.seconds, load)
    facts |= {"complete": complete, "versions": facts["versions"] | versions(("jax", "jaxlib"))}
    show(facts, rows)
    if options.json and rows:
        write(options.json, facts, merged(options.json, rows))
    if not complete:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
