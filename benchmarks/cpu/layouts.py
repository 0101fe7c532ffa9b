"""Measure attention on the layouts that layers of models use, compared with contiguous (B, H, n, d).

"(B, n, H, d)": the arrays are transposed views of that layout, which linear layers write. "packed": q, k and v are
views of one tensor (B, n, 3, H, d). The gradient of the output has the layout of the arrays. A figure is the time of a
call over the time of the call on contiguous arrays, round by round. Every result is compared with float64 before a call
is timed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch  # pyright: ignore[reportMissingImports]

import redblue as rb
from benchmarks.common.failures import Red
from benchmarks.common.gate import gate_of, unfused
from benchmarks.common.journal import core
from benchmarks.common.machine import facts_of_run
from benchmarks.common.options import add_rounds, chosen, parser_of
from benchmarks.common.results import Figure, Limit, Row, write
from benchmarks.common.timing import THREADS, race, rate, ratio, spread
from benchmarks.cpu.calls import DTYPES, SHORT, Call, Inputs, Run, in_torch
from benchmarks.cpu.models.shapes import called

BATCHES = {  # sequences of a call at these shapes of the grid
    "BERT, b 8, n 128": 8,
    "ViT-B/16, b 8": 8,
    "Swin-T stage 1, 64 windows": 64,
    "CLIP text, b 8": 8,
    "GPT-2, n 1024": 1,
    "Llama 3 8B, decode, n 4096": 1,
}
CONTIGUOUS, ROWS_OUTSIDE, PACKED = "(B, H, n, d)", "(B, n, H, d)", "packed"
CASES = [
    (shape, dtype, direction)
    for direction in ("forward", "training")
    for dtype in ("float32", "bfloat16")
    for shape in BATCHES
]
SLOWER = Limit(1.05)


def contiguous(call: Call, batch: int) -> Inputs:
    """Normally distributed arrays (B, H, n, d), the same for every layout."""
    generator = torch.Generator().manual_seed(0)
    rows = (call.n_q, call.n_k, call.n_k, call.n_q)
    shapes = [(batch, call.heads // batch, n, call.d) for n in rows]
    return Inputs(*(torch.randn(shape, generator=generator).to(DTYPES[call.dtype]) for shape in shapes))


def rows_outside(x: Inputs) -> Inputs:
    return Inputs(*(array.transpose(1, 2).contiguous().transpose(1, 2) for array in x))


def packed(x: Inputs) -> Inputs:
    """The queries are the last rows of the packed tensor."""
    batch, heads, n, d = x.k.shape
    views = x.k.new_zeros(batch, n, 3, heads, d).permute(2, 0, 3, 1, 4)
    q, k, v = views[0, :, :, n - x.q.shape[2] :], views[1], views[2]
    for view, array in zip((q, k, v), x[:3], strict=True):
        view.copy_(array)
    return Inputs(q, k, v, rows_outside(x).dout)


LAYOUTS: dict[str, Callable[[Inputs], Inputs]] = {CONTIGUOUS: lambda x: x, ROWS_OUTSIDE: rows_outside, PACKED: packed}


def right(call: Call, x: Inputs) -> dict[str, Run]:
    """The runs of redblue on each layout. Raises Red if one of their results is wrong."""
    mask = rb.Mask.causal() if call.causal else None
    textbook = partial(unfused, causal=call.causal)

    def results(dtype: torch.dtype) -> list[torch.Tensor]:
        return in_torch(call.direction, Inputs(*(a.to(dtype, copy=True) for a in x)), textbook)()

    gate, runs = gate_of(call.title, results, x.q.dtype, ours=tuple(LAYOUTS)), {}
    for name, layout in LAYOUTS.items():
        arrays = Inputs(*(array.detach() for array in layout(x)))
        runs[name] = in_torch(call.direction, arrays, lambda q, k, v: rb.attention(q, k, v, mask=mask))
        gate.check(name, runs[name]())
    return runs


def measure(shape: str, dtype: str, direction: str, rounds: int, seconds: float) -> Row:
    call = called(shape, dtype, direction)
    runs = right(call, contiguous(call, BATCHES[shape]))
    rates = race({name: partial(rate, run, 1, seconds) for name, run in runs.items()}, rounds)
    figures = [Figure(name, ratio(rates, CONTIGUOUS, name), SLOWER, at_most=True) for name in (ROWS_OUTSIDE, PACKED)]
    return Row(f"{SHORT[dtype]} {direction}", shape, figures, rates, "calls/s")


def table(rows: list[Row]) -> str:
    """The time on each layout over that on contiguous arrays, and the median time on contiguous arrays."""
    lines = [f"| | | {ROWS_OUTSIDE} | {PACKED} | us, contiguous |", "|---|---|---|---|---|"]
    for row in rows:
        figures = " | ".join(f"{figure.value.median:.2f}" for figure in row.figures)
        lines.append(f"| {row.measure} | {row.case} | {figures} | {1e6 / spread(row.rates[CONTIGUOUS]).median:.0f} |")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    add_rounds(parser, 15, 0.05)
    parser.add_argument("--only", default="", help="measure only shapes whose name contains this text")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    options.cases = chosen(parser, options.only, CASES, lambda case: case[0])
    return options


def main() -> None:
    options = arguments()
    torch.set_num_threads(THREADS)
    about = facts_of_run(core=core(), torch=torch.__version__)
    rows = []
    try:
        for shape, dtype, direction in options.cases:
            rows.append(measure(shape, dtype, direction, options.rounds, options.seconds))
            if options.json:
                write(options.json, about, rows)
    except Red as red:
        sys.exit(f"wrong result, so the run ends: {red}")
    except KeyboardInterrupt:
        pass
    print(table(rows))


if __name__ == "__main__":
    main()
