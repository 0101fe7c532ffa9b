"""Many cores: how the tasks of the CPU kernels are distributed over up to 192 threads, simulated, and checked here."""

from __future__ import annotations

import os
import time
from statistics import median
from typing import Any

import altair as alt
import numpy as np

from redblue.base.cpus import usable_cpus
from redblue.kernels.cpu.task_list import TaskList, list_tasks
from redblue.lab.sharing import Block, share_out
from redblue.masks import Mask
from redblue.op.api import attention, attention_backward
from redblue.problem import Problem
from redblue.studies.experiments.experiment import Experiment, Point, Row, Table

CORES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192)
SOCKETS, MANY = 2, 64  # machines with at least MANY cores have two sockets, each with half of the cores
UPDATE = 0.2  # share of a backward block's time that adds to dQ: one of its five products
SIMULATED, MEASURED = "simulated", "measured"
CASES: dict[str, dict[str, Any]] = {
    "BERT, b 8, n 128": {"n_q": 128, "n_k": 128, "d": 64, "heads": 12, "batch": 8},
    "GPT-2, n 1024, causal": {"n_q": 1024, "n_k": 1024, "d": 64, "heads": 12, "mask": "causal"},
    "Llama 3 8B, n 2048, causal": {"n_q": 2048, "n_k": 2048, "d": 128, "heads": 32, "kv_heads": 8, "mask": "causal"},
    "8 heads, n 16384, window": {"n_q": 16_384, "n_k": 16_384, "d": 64, "heads": 8, "mask": "window"},
    "one head, n 8192": {"n_q": 8192, "n_k": 8192, "d": 64},
    "Llama 3 8B, decode, n 8192": {"n_q": 1, "n_k": 8192, "d": 128, "heads": 32, "kv_heads": 8},
}
WINDOW = 512  # keys before a query's own key
MASKS = {"full": Mask.full(), "causal": Mask.causal(), "window": Mask.sliding_window(WINDOW, 0)}
HUES = ("#0068a8", "#b0508a", "#cf5a00", "#5a8f3c", "#7a6ac2", "#3f4a54")
SECONDS = 0.4  # the calls of a measured row are repeated for this time


def problem_of(point: Point) -> Problem:
    shape = dict(CASES[point["case"]])
    mask = MASKS[shape.pop("mask", "full")]
    return Problem(**shape, mask=mask, dtype="float32", direction=point["direction"])


def directions(case: str) -> tuple[str, ...]:
    return ("forward",) if CASES[case]["n_q"] == 1 else ("forward", "backward")


def points(quick: bool) -> list[Point]:
    cpus = usable_cpus() if hasattr(os, "sched_setaffinity") else 1  # else no call can be confined to one CPU
    return [
        {"case": case, "direction": direction, "kind": kind, "cores": cores}
        for case in CASES
        for direction in directions(case)
        for kind, all_cores in ((SIMULATED, CORES), (MEASURED, (cpus,) if cpus > 1 else ()))
        for cores in all_cores
        if not quick or (kind == SIMULATED and cores <= 8 and CASES[case]["n_q"] <= 1024)
    ]


def measure(point: Point) -> list[Row]:
    """Simulate one call on the point's cores, or time it here with one thread and with all cores."""
    problem, cores = problem_of(point), point["cores"]
    if point["kind"] == SIMULATED:
        return [point | simulated(problem, cores, cores)]
    expected = simulated(problem, 1, cores)["time"] / simulated(problem, cores, cores)["time"]
    return [point | {"expected": expected, "speed_up": seconds(problem, 1) / seconds(problem, cores)}]


def simulated(problem: Problem, threads: int, cores: int) -> Row:
    """Simulate a call with `threads` threads, planned for `cores` cores.

    time: in pairs of a query and a key. used, waited: shares of all threads' time. sockets_per_stream: how many sockets
    read the keys (forward) or the queries (backward) of a stream, on average.
    """
    tasks = list_tasks(problem, threads, cores)
    shared = share_out(blocks(problem, tasks), threads)
    sockets = SOCKETS if cores >= MANY else 1
    homes = {(stream, thread * sockets // threads) for stream, thread in zip(tasks.stream, shared.thread, strict=True)}
    return {
        "tasks": len(tasks.stream),
        "time": shared.seconds,
        "used": shared.used,
        "waited": shared.waited,
        "sockets": sockets,
        "sockets_per_stream": len(homes) / problem.streams,
    }


def blocks(problem: Problem, tasks: TaskList) -> list[list[Block]]:
    """The blocks of each task. The kernels compute whole panels of rows with the keys that some row attends."""
    rows, lanes, group = problem.n_q * problem.group, tasks.lanes, problem.group
    starts = np.arange(0, rows, lanes)
    low = np.maximum(starts // group + tasks.mask.first, 0)
    high = np.minimum((np.minimum(starts + lanes, rows) - 1) // group + tasks.mask.end, problem.n_k)
    if problem.direction == "forward":
        keys = -(-problem.n_k // tasks.tile.pieces)
        work = []
        for start, count, piece in zip(tasks.start, tasks.size, tasks.piece, strict=True):
            panels = slice(start // lanes, -(-(start + count) // lanes))
            attended = np.minimum(high[panels], (piece + 1) * keys) - np.maximum(low[panels], piece * keys)
            work.append([Block(lanes * float(np.maximum(attended, 0).sum()))])
        return work
    updates = np.zeros((problem.streams, len(starts)), int)
    work = []
    for stream, start, count in zip(tasks.stream, tasks.start, tasks.size, strict=True):
        attended = np.minimum(high, start + count) - np.maximum(low, start)
        panels = np.flatnonzero(attended > 0)
        pairs = lanes * attended[panels].astype(float)
        arrays, before = stream * len(starts) + panels, updates[stream, panels]
        fields_of_blocks = zip((1 - UPDATE) * pairs, arrays, before, UPDATE * pairs, strict=True)
        work.append([Block(*fields) for fields in fields_of_blocks])
        updates[stream, panels] += 1
    return work


def seconds(problem: Problem, threads: int) -> float:
    """The median time of a call on `threads` CPUs of this machine."""
    random = np.random.default_rng(0)
    heads, kv_heads = (problem.batch, problem.heads), (problem.batch, problem.kv_heads)
    q = random.standard_normal((*heads, problem.n_q, problem.d), dtype=np.float32)
    k, v = (random.standard_normal((*kv_heads, problem.n_k, problem.d), dtype=np.float32) for _ in range(2))
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:threads])
    try:
        out, lse = attention(q, k, v, mask=problem.mask, return_lse=True)
        times, end = [], time.perf_counter() + SECONDS
        while len(times) < 3 or time.perf_counter() < end:
            start = time.perf_counter()
            if problem.direction == "forward":
                attention(q, k, v, mask=problem.mask)
            else:
                attention_backward(out, q, k, v, out, lse, mask=problem.mask)
            times.append(time.perf_counter() - start)
        return median(times)
    finally:
        os.sched_setaffinity(0, allowed)


def of(rows: list[Row], kind: str) -> list[Row]:
    return [row for row in rows if row["kind"] == kind]


def figure(rows: list[Row]) -> alt.FacetChart | alt.HConcatChart:
    """The share of all cores' time in which they compute, over the cores, one line for each call."""
    values = [
        {"case": row["case"], "direction": row["direction"], "cores": row["cores"], "used": row["used"]}
        for row in of(rows, SIMULATED)
    ]
    most = max(value["cores"] for value in values)
    x = alt.X(
        "cores:Q",
        title="cores",
        scale=alt.Scale(type="log", base=2, domain=[1, most]),
        axis=alt.Axis(
            values=[cores for cores in CORES if cores <= most and cores not in (96, 128)], format="d", grid=False
        ),
    )
    y = alt.Y("used:Q", title="share of all cores' time that computes", scale=alt.Scale(domain=[0, 1]))
    colour = alt.Color(
        "case:N",
        scale=alt.Scale(domain=list(CASES), range=list(HUES)),
        legend=alt.Legend(title=None, columns=3, labelLimit=240),
    )
    charts = []
    for direction in ("forward", "backward"):
        part = [value for value in values if value["direction"] == direction]
        base = alt.Chart(alt.Data(values=part)).encode(x=x, y=y, color=colour)
        layers = [base.mark_line(strokeWidth=2), base.mark_point(filled=True, size=40, opacity=1)]
        charts.append(alt.LayerChart(layer=layers).properties(width=290, height=260, title=direction))
    return alt.hconcat(*charts)


def tables(rows: list[Row]) -> list[Table]:
    simulated_lines = [
        (
            row["case"],
            row["direction"],
            str(row["cores"]),
            f"{row['tasks']:,}",
            f"{row['used']:.2f}",
            f"{row['waited']:.2f}",
            f"{row['sockets_per_stream']:.2f} of {row['sockets']}",
        )
        for row in of(rows, SIMULATED)
        if row["cores"] in (2, 16, 64, 192)
    ]
    columns = ("call", "direction", "cores", "tasks", "share computing", "share waiting", "sockets that read a stream")
    measured_lines = [
        (row["case"], row["direction"], str(row["cores"]), f"{row['expected']:.2f}", f"{row['speed_up']:.2f}")
        for row in of(rows, MEASURED)
    ]
    check = ("call", "direction", "cores", "simulated speed-up", "measured speed-up")
    tables = [Table("Shares of the threads' time, simulated", columns, simulated_lines, 2)]
    return [*tables, Table("Speed-ups on this machine", check, measured_lines, 2)] if measured_lines else tables


def findings(rows: list[Row]) -> list[str]:
    simulations = of(rows, SIMULATED)
    most = max(row["cores"] for row in simulations)
    at_most = [row for row in simulations if row["cores"] == most]
    worst = min(at_most, key=lambda row: row["used"])
    waits = max(simulations, key=lambda row: row["waited"])
    lines = [
        f"On {most} cores, the threads compute for {min(row['used'] for row in at_most):.0%} to "
        f"{max(row['used'] for row in at_most):.0%} of their time, depending on the call. The smallest share is that "
        f"of `{worst['case']}`, {worst['direction']}, which has {worst['tasks']:,} tasks.",
        f"In backward calls, threads wait for at most {waits['waited']:.0%} of their time for another task's update of "
        f"dQ (`{waits['case']}`, {waits['cores']} cores).",
    ]
    sockets = [row for row in simulations if row["sockets"] > 1]
    if sockets:
        read = sum(row["sockets_per_stream"] for row in sockets) / len(sockets)
        lines.append(
            f"A stream is a key head of one batch entry, with its query heads. On machines with two sockets, the keys "
            f"of a stream (backward: the queries) are read by {read:.2f} of the {SOCKETS} sockets on average, because "
            f"the order of the tasks ignores the sockets."
        )
    checked = of(rows, MEASURED)
    if checked:
        errors = [row["speed_up"] / row["expected"] for row in checked]
        lines.append(
            f"On this machine, the measured speed-ups are {min(errors):.2f} to {max(errors):.2f} times the simulated "
            f"speed-ups."
        )
    return lines


EXPERIMENT = Experiment(
    name="cores",
    title="Many cores",
    question="How evenly are the tasks of a call distributed over many cores, and how long do threads wait?",
    points=points,
    measure=measure,
    figure=figure,
    tables=tables,
    findings=findings,
    method=f"""
Simulated, not measured, because no machine with many cores was at hand. The compiled C++ code lists the tasks of a call
for the given number of threads. Tiles are planned for the same number of cores, each with the caches of this machine.
The threads take the tasks in the order of the list. The time of a task is proportional to the number of its pairs of a
query and a key. All pairs of a panel of rows count, because the kernels compute whole panels. In the backward pass, the
update of dQ takes {UPDATE:.0%} of a panel's time and waits for the previous update of the same rows. The simulation
makes three assumptions: all threads start at once, every core is equally fast, and memory is never the limit. From
{MANY} cores on, the machine has two sockets, and each socket runs half of the threads.

- *Calls*: b is the batch size. With the window, each query attends its own key and the {WINDOW} keys before it.
- *Share computing*, *share waiting*: the shares of all threads' time in which threads compute, and in which they wait
  for another task's update of dQ. In the rest of the time, threads have no task left.
- *Speed-ups on this machine*: the same calls are timed in float32, with one thread and with one thread for each core.
""",
    alone=True,
)
