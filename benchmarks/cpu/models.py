"""Measure attention at the shapes of models, in a loop and after idle time, compared with all installed peers.

Usage: python -m benchmarks.cpu.models [--rounds 5] [--only TEXT] [--json PATH] [--figure PATH] [--show]

A cell of the grid is the time of the best peer over redblue's. "loop": the last of several calls in a row. "after
idle": the second call after 20 ms without calls. Contenders are timed in alternation; after each, its threads get 20 ms
to go to sleep. Results on at most two heads are compared with float64 before anything is timed. The files are written
after every shape, so an interrupted run keeps what it has measured.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import altair as alt
import torch  # pyright: ignore[reportMissingImports]

import redblue as rb
from benchmarks.common.gate import MAX_OURS, MAX_PEER, relative_errors, unfused, within
from benchmarks.common.peak import multiply_adds
from benchmarks.common.places import RESULTS
from benchmarks.common.results import Figure, Limit, Row, read, write
from benchmarks.common.timing import THREADS, seconds_of, spread
from benchmarks.cpu.peers import ONNXRUNTIME, OPENVINO, PYTORCH, REDBLUE, SHORT, Call, contender, inputs, missing
from redblue.base import charts
from redblue.catalogue.detect import detect_cpu
from redblue.kernels.cpu.call import isa

IDLE_SECONDS = 0.02
LOOP_SECONDS = 0.01  # of calls in a loop before the timed call

# name: heads of all sequences, n_q, n_k, d, causal
SHAPES = {
    "Swin-T stage 1, 64 windows": (192, 49, 49, 32, False),
    "ViT-B/16, b 8": (96, 197, 197, 64, False),
    "ViT-B/16, b 1": (12, 197, 197, 64, False),
    "CLIP ViT-L/14, b 4": (64, 257, 257, 64, False),
    "DINOv2 ViT-L, b 1": (16, 1370, 1370, 64, False),
    "SAM ViT-B window, 25 windows": (300, 196, 196, 64, False),
    "SAM ViT-B global": (12, 4096, 4096, 64, False),
    "BERT, b 8, n 128": (96, 128, 128, 64, False),
    "BERT, b 1, n 128": (12, 128, 128, 64, False),
    "BERT, b 1, n 512": (12, 512, 512, 64, False),
    "MiniLM, b 32, n 32": (384, 32, 32, 32, False),
    "MiniLM, b 32, n 16": (384, 16, 16, 32, False),
    "CLIP text, b 8": (64, 77, 77, 64, True),
    "T5 encoder, n 512": (12, 512, 512, 64, False),
    "Whisper tiny, encoder": (6, 1500, 1500, 64, False),
    "Whisper large, encoder": (20, 1500, 1500, 64, False),
    "Whisper large, cross, decode": (20, 1, 1500, 64, False),
    "wav2vec 2.0, 10 s": (12, 499, 499, 64, False),
    "SD 1.5, n 4096": (8, 4096, 4096, 40, False),
    "SD 1.5, n 1024": (8, 1024, 1024, 80, False),
    "SD 1.5, n 256": (8, 256, 256, 160, False),
    "SD 1.5, cross": (8, 4096, 77, 40, False),
    "SDXL, n 1024, b 2": (40, 1024, 1024, 64, False),
    "SDXL, n 4096": (10, 4096, 4096, 64, False),
    "SDXL, cross": (10, 4096, 77, 64, False),
    "Flux, 4 of 24 heads, n 4608": (4, 4608, 4608, 128, False),
    "GPT-2, n 1024": (12, 1024, 1024, 64, True),
    "Llama 3 8B, prefill 512": (32, 512, 512, 128, True),
    "Llama 3 8B, prefill 2048": (32, 2048, 2048, 128, True),
    "Phi-3, prefill 512": (32, 512, 512, 96, True),
    "Gemma 7B, prefill 512": (16, 512, 512, 256, True),
    "Llama 3 8B, chunk 128 of 2048": (32, 128, 2048, 128, False),
    "Llama 3 8B, 5 drafts, n 4096": (32, 5, 4096, 128, False),
    "Llama 3 8B, decode, n 1024": (32, 1, 1024, 128, False),
    "Llama 3 8B, decode, n 4096": (32, 1, 4096, 128, False),
    "Gemma 7B, decode, n 4096": (16, 1, 4096, 256, False),
    "Perceiver, 512 of 2048": (8, 512, 2048, 32, False),
    "AlphaFold row, 128 x 128": (512, 128, 128, 32, False),
    "graph transformer, n 1000": (8, 1000, 1000, 16, False),
    "decision transformer, b 64": (64, 60, 60, 128, True),
}
COLUMNS = [(dtype, direction) for direction in ("forward", "training") for dtype in SHORT]
STATES = ("after idle", "loop")  # of the threads, in the order of `seconds_of`
Contenders = dict[str, Callable[[], Any]]


def contenders(call: Call, training: bool) -> Contenders:
    """Functions that make this call with redblue and with each installed peer that supports it.

    training: both passes.
    """
    if training:
        sdpa = torch.nn.functional.scaled_dot_product_attention
        mask = rb.Mask.causal() if call.causal else None
        forwards: dict[str, Callable[..., torch.Tensor]] = {
            REDBLUE: lambda q, k, v: rb.attention(q, k, v, mask=mask),
            PYTORCH: lambda q, k, v: sdpa(q, k, v, is_causal=call.causal),
        }
        x = inputs(call)
        leaves = [array.requires_grad_() for array in x[:3]]
        return {
            name: lambda forward=forward: torch.autograd.grad(forward(*leaves), leaves, x.dout)
            for name, forward in forwards.items()
        }
    crashes = {OPENVINO} if call.dtype == "bfloat16" and call.n_q == 1 else set()  # OpenVINO 2026.4.1
    peers = [peer for peer in (PYTORCH, ONNXRUNTIME, OPENVINO) if not missing(peer) and peer not in crashes]
    calls = {name: contender(name, call) for name in (REDBLUE, *peers)}
    return {name: run for name, run in calls.items() if run}


def check(call: Call, training: bool) -> list[str]:
    """The contenders with correct results. Raises SystemExit if redblue's results are wrong."""

    def textbook(dtype: torch.dtype | None) -> list[torch.Tensor]:
        x = inputs(call, dtype)
        q, k, v = (array.requires_grad_(training) for array in x[:3])
        out = unfused(q, k, v, call.causal)
        return list(torch.autograd.grad(out, (q, k, v), x.dout)) if training else [out]

    exact = textbook(torch.float64)
    allowed = relative_errors(textbook(None), exact)
    right = [
        name
        for name, run in contenders(call, training).items()
        if within(relative_errors(list(run()), exact), allowed, MAX_OURS if name == REDBLUE else MAX_PEER)
    ]
    if REDBLUE not in right:
        raise SystemExit(f"{call.title}: redblue is wrong")
    return right


def second_and_looped(run: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of the second call after idle time, and of a call in a loop."""
    time.sleep(IDLE_SECONDS)
    first, second = seconds_of(run), seconds_of(run)
    loop = [second]
    while sum(loop) < LOOP_SECONDS and first < LOOP_SECONDS:
        loop.append(seconds_of(run))
    return second, statistics.median(loop[1:] or loop)


def measure(name: str, dtype: str, direction: str, rounds: int) -> Row:
    """redblue over the best peer, in a loop and after idle time, and the median rates in calls per second."""
    heads, n_q, n_k, d, causal = SHAPES[name]
    training = direction == "training"
    call = replace(Call(d, dtype), heads=heads, n_q=n_q, n_k=n_k, causal=causal)
    right = check(replace(call, heads=min(heads, 2)), training)
    calls = {peer: run for peer, run in contenders(call, training).items() if peer in right}
    for run in calls.values():
        run()
    times: dict[str, list[tuple[float, float]]] = {peer: [] for peer in right}
    for _ in range(rounds):
        for peer, run in calls.items():
            times[peer].append(second_and_looped(run))
    row = Row(f"{SHORT[dtype]} {direction}", name, unit="calls/s")
    for place, when in enumerate(STATES):
        rates = {peer: [1 / pair[place] for pair in pairs] for peer, pairs in times.items()}
        best = max((peer for peer in rates if peer != REDBLUE), key=lambda peer: spread(rates[peer]).median)
        ratio = spread([a / b for a, b in zip(rates[REDBLUE], rates[best], strict=True)])
        row.figures.append(Figure(f"{when}, over {best}", ratio, Limit(2.0 if training else 1.0)))
        row.rates |= {f"{peer}, {when}": [spread(rates[peer]).median] for peer in (REDBLUE, best)}
    return row


def draw(about: dict[str, Any], rows: list[Row], path: Path) -> None:
    """Draw the grid as a heat map: a row per shape; a column per number type, direction and state of the threads."""
    cells = [
        {"shape": row.case, "column": f"{row.measure}, {when}", "ratio": figure.value.median}
        for row in rows
        for when, figure in zip(STATES, row.figures, strict=True)
    ]
    columns = [f"{SHORT[dtype]} {direction}, {when}" for dtype, direction in COLUMNS for when in STATES]
    base = alt.Chart(alt.Data(values=cells)).encode(
        x=alt.X("column:N", sort=columns, title=None, axis=alt.Axis(labelAngle=-35, labelLimit=200)),
        y=alt.Y("shape:N", sort=list(SHAPES), title=None, axis=alt.Axis(labelLimit=300)),
    )
    scale = alt.Scale(type="log", domain=[0.5, 1, 4], range=["#c0392b", "#f7f7f7", "#2c7fb8"], clamp=True)
    heat = base.mark_rect().encode(color=alt.Color("ratio:Q", scale=scale, legend=None))
    text = base.mark_text(fontSize=9).encode(text=alt.Text("ratio:Q", format=".2f"))
    title = f"redblue over the best peer, {about['isa']}, {about['threads']} threads, {about['date'][:10]}"
    chart = (heat + text).properties(width=560, height=18 * len(SHAPES), title=title)
    charts.write(chart.to_dict(), path, force=True)


def summary(rows: list[Row]) -> str:
    """For each column: geometric mean, number of cells below the required ratio, and the worst cells."""
    lines = ["| | cells | geometric mean | below the required ratio | worst |", "|---|---|---|---|---|"]
    for measured in dict.fromkeys(row.measure for row in rows):
        for place, when in enumerate(STATES):
            cells = [(row.case, row.figures[place]) for row in rows if row.measure == measured]
            mean = statistics.geometric_mean(figure.value.median for _, figure in cells)
            below = sum(figure.met == "no" for _, figure in cells)
            cells.sort(key=lambda cell: cell[1].value.median)
            worst = "; ".join(f"{figure.value.median:.2f} {case}" for case, figure in cells[:3])
            lines.append(f"| {measured}, {when} | {len(cells)} | {mean:.2f} | {below} | {worst} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="measure only shapes whose name holds this text")
    parser.add_argument("--json", type=Path, default=RESULTS / "models.json")
    parser.add_argument("--figure", type=Path, default=RESULTS / "models.svg")
    parser.add_argument("--show", action="store_true", help="measure nothing; draw the figure of the kept results")
    given = parser.parse_args()
    if given.show:
        draw(*read(given.json), given.figure)
        return
    torch.set_num_threads(THREADS)
    rows: list[Row] = []
    peaks = {dtype: round(multiply_adds(dtype, 0.5)() / 1e9) for dtype, _ in COLUMNS}
    about = {"date": datetime.datetime.now().isoformat(timespec="seconds"), "isa": isa().name, "threads": THREADS}
    about |= {"cpu": detect_cpu().model, "peak_gflops": peaks}
    for name in SHAPES:
        if given.only in name:
            for dtype, direction in COLUMNS:
                row = measure(name, dtype, direction, given.rounds)
                rows.append(row)
                cells = ", ".join(f"{figure.value.median:.2f} {figure.what}" for figure in row.figures)
                print(f"{name}, {row.measure}: {cells}", flush=True)
            write(given.json, about, rows)
            draw(about, rows, given.figure)
    print(summary(rows))


if __name__ == "__main__":
    main()
