"""Measure calls after a pause, beside a busy process, and alternating with PyTorch's products.

A benchmark that calls in a loop keeps all threads awake; a real program pauses between its calls. Each contender has
its own processes, because threads that spin after a call slow down the next contender. Every process calls attention in
a loop, then twice after each pause: the first call wakes the threads, the second one shows whether each thread stays on
its own CPU. The time of the loop is the unit of all ratios. CPU time over wall time is near the number of threads if
all of them work. A contender with one thread wakes no other thread: its ratios are the part of the loss that the pause
itself causes, by cold caches and a CPU that slept.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import redblue as rb
from benchmarks.common.machine import facts_of_run
from benchmarks.common.options import at_least, parser_of
from benchmarks.common.timing import THREADS, seconds_of
from redblue.lab import reference

PAUSES_MS = (0, 1, 5, 20, 100)
SHAPES = {"BERT": (8, 12, 128, 64), "Swin": (64, 4, 49, 32), "one head": (1, 1, 2048, 64)}
NUMPY, TORCH, SDPA, ALONE = "redblue, NumPy", "redblue, PyTorch", "PyTorch", "redblue, one thread"
CONTENDERS = (NUMPY, TORCH, SDPA, ALONE)


def contender(name: str, shape: tuple[int, ...]) -> Callable[[], Any]:
    """A call of attention on new random inputs. redblue's result is compared with float64 first."""
    arrays = [np.random.default_rng(seed).standard_normal(shape, dtype=np.float32) for seed in range(3)]
    if name == NUMPY:
        call = partial(rb.attention, *arrays)
        result = call()
    else:
        import torch  # pyright: ignore[reportMissingImports]

        torch.set_num_threads(1 if name == ALONE else THREADS)
        tensors = [torch.from_numpy(array) for array in arrays]
        attention: Callable[..., Any] = (
            torch.nn.functional.scaled_dot_product_attention if name == SDPA else rb.attention
        )
        call = partial(attention, *tensors)
        result = call().numpy()
    if not np.allclose(result, reference.forward(*arrays).out, atol=1e-5):
        raise SystemExit(f"{name} {shape}: wrong result")
    return call


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of one call, and the ratio of the process's CPU seconds to them."""
    cpu = time.process_time()
    seconds = seconds_of(call)
    return seconds, (time.process_time() - cpu) / seconds


def after_pauses(call: Callable[[], Any]) -> list[dict[str, float]]:
    """Medians of the first and of the second call after each pause, as multiples of a call in a loop."""
    for _ in range(3):
        call()
    loop = statistics.median(timed(call)[0] for _ in range(40))
    rows = []
    for pause in PAUSES_MS:
        first, second = [], []
        for _ in range(8 if pause > 50 else 16):
            time.sleep(pause / 1e3)
            first.append(timed(call))
            second.append(timed(call))
        rows.append(
            {
                "pause_ms": pause,
                "loop_us": loop * 1e6,
                "first": statistics.median(seconds for seconds, _ in first) / loop,
                "second": statistics.median(seconds for seconds, _ in second) / loop,
                "cpu_over_wall": statistics.fmean(share for _, share in first),
            }
        )
    return rows


def in_turns(call: Callable[[], Any]) -> dict[str, float]:
    """Times of attention after a PyTorch product and of the product after attention, as multiples of their times in
    loops."""
    import torch  # pyright: ignore[reportMissingImports]

    square = torch.randn(512, 512)
    product = partial(torch.matmul, square, square)

    def median(timed_call: Callable[[], Any], before: Callable[[], Any] | None = None) -> float:
        values = []
        for _ in range(60):
            if before:
                before()
            values.append(timed(timed_call)[0])
        return statistics.median(values)

    return {
        "attention_after_product": median(call, product) / median(call),
        "product_after_attention": median(product, call) / median(product),
    }


def measure(name: str) -> dict[str, Any]:
    """All figures of one contender, measured in this process."""
    pauses = {shape: after_pauses(contender(name, sizes)) for shape, sizes in SHAPES.items()}
    alternating = (
        {} if name in (NUMPY, ALONE) else {shape: in_turns(contender(name, sizes)) for shape, sizes in SHAPES.items()}
    )
    return {"pauses": pauses, "turns": alternating}


def neighbour() -> None:
    """Keep one CPU busy."""
    while True:
        pass


def run(name: str, busy: bool) -> dict[str, Any]:
    """Measure a contender in a separate process, beside a busy process or alone."""
    beside = multiprocessing.get_context("spawn").Process(target=neighbour, daemon=True)
    if busy:
        beside.start()
    try:
        command = [sys.executable, "-m", "benchmarks.cpu.threads", "--measure", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        if busy:
            beside.kill()
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def medians(results: list[Any]) -> Any:
    """Merge results of equal structure: each number is the median over the results."""
    first = results[0]
    if isinstance(first, dict):
        return {key: medians([result[key] for result in results]) for key in first}
    if isinstance(first, list):
        return [medians(list(each)) for each in zip(*results, strict=True)]
    return round(statistics.median(results), 3)


def table(results: dict[str, dict[str, Any]]) -> str:
    """All figures as Markdown, for docs/results/threads.md."""
    head = [f"{pause} ms" for pause in PAUSES_MS]
    lines = [f"| neighbour | shape | contender | loop, us | {' | '.join(head)} |", "|---" * (4 + len(head)) + "|"]
    for beside, contenders in results.items():
        for shape in SHAPES:
            for name, result in contenders.items():
                rows = result["pauses"][shape]
                cells = [f"{row['first']:.2f} / {row['second']:.2f} ({row['cpu_over_wall']:.2f})" for row in rows]
                lines.append(f"| {beside} | {shape} | {name} | {rows[0]['loop_us']:.0f} | {' | '.join(cells)} |")
    lines += [
        "",
        "| neighbour | shape | contender | attention after product | product after attention |",
        "|---" * 5 + "|",
    ]
    for beside, contenders in results.items():
        for name, result in contenders.items():
            for shape, ratios in result["turns"].items():
                figures = f"{ratios['attention_after_product']:.2f} | {ratios['product_after_attention']:.2f}"
                lines.append(f"| {beside} | {shape} | {name} | {figures} |")
    return "\n".join(lines)


def main() -> None:
    parser = parser_of(__doc__)
    rounds = "processes of each contender, over which figures are medians (%(default)s)"
    parser.add_argument("--rounds", type=at_least(1), default=3, help=rounds)
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--measure", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return
    results: dict[str, dict[str, Any]] = {}
    for beside in ("idle", "busy"):
        rounds = [{name: run(name, beside == "busy") for name in CONTENDERS} for _ in range(options.rounds)]
        results[beside] = {name: medians([each[name] for each in rounds]) for name in CONTENDERS}
    print(table(results))
    if options.json:
        options.json.write_text(json.dumps(facts_of_run() | results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
