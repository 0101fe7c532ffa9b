"""The tables of the experiment `training`, part by part, and the figures that they share with its findings."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from redblue.studies.experiments.experiment import Row, Table
from redblue.studies.training.names import FLEX, NONE, PARTS, REDBLUE, SDPA, UNFUSED

MIB = 2**20
TYPES = {"float32": "fp32", "bfloat16": "bf16"}
# The names of a row's run: with --quick, which measures few points, or with --full.
SIZES = {True: "`--quick`", False: "`--full`"}
REQUIRED = {("float32", 512): 1.1, ("float32", 2048): 1.4, ("float32", 8192): 1.8}
REQUIRED |= {("bfloat16", 512): 1.3, ("bfloat16", 2048): 1.6, ("bfloat16", 8192): 2.0}
REQUIRED_SPARSE = {REDBLUE: 4, SDPA: 8}  # at n 16,384: the block-sparse step's speed over the dense step of each


def of(rows: list[Row], part: str) -> list[Row]:
    """The measured rows of a part, without the rows that only say why nothing was measured."""
    return [row for row in rows if row["part"] == part and "skipped" not in row]


def grouped(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """The rows by the values of some keys."""
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    return dict(groups)


def curve_groups(rows: list[Row]) -> list[dict[str, Row]]:
    """The runs of one model on one text, by attention and threads; those without PyTorch's SDPA are left out."""
    groups = grouped(of(rows, "curves"), "quick", "n", "dtype", "text").values()
    named = [{curve_name(row): row for row in group} for group in groups]
    return [group for group in named if SDPA in group]


def curve_name(row: Row) -> str:
    return row["contender"] + (", one thread" if row["threads"] == 1 else "")


def difference(a: Row, b: Row) -> float:
    """The largest difference between two loss curves."""
    return max(abs(x - y) for x, y in zip(a["losses"], b["losses"], strict=True))


def standard_error(row: Row) -> float:
    """The standard error of the accuracy on the tested examples."""
    return (row["accuracy"] * (1 - row["accuracy"]) / row["tested"]) ** 0.5


def median_speedup(seconds: dict[str, list[float]], ours: str, theirs: str) -> float:
    """The median over the rounds of the seconds of `theirs` over those of `ours`."""
    return statistics.median(b / a for a, b in zip(seconds[ours], seconds[theirs], strict=True))


def limit(row: Row) -> float:
    """Amdahl's limit: the speed-up over PyTorch's SDPA if attention took no time at all."""
    return median_speedup(row["seconds"], NONE, SDPA)


def required_speed(row: Row) -> float | None:
    """The speed that this project requires of a step; None for other sizes, and for the short runs of --quick."""
    return None if row["quick"] else REQUIRED.get((row["dtype"], row["n"]))


def attention_speedup(row: Row) -> float:
    """The speed-up of attention alone: the time that PyTorch's SDPA adds to a step, over the time that redblue adds."""
    sdpa, ours, none = (statistics.median(row["seconds"][name]) for name in (SDPA, REDBLUE, NONE))
    return (sdpa - none) / max(ours - none, 1e-9)


def attention_needed(row: Row, required: float) -> str:
    """The speed-up of attention over PyTorch's SDPA that makes a step `required` times as fast."""
    sdpa, none = (statistics.median(row["seconds"][name]) for name in (SDPA, NONE))
    left = sdpa / required - none
    return f"{(sdpa - none) / left:.1f}" if left > 0 else "impossible"


def tables(rows: list[Row]) -> list[Table]:
    results = [make(rows) for make in MAKERS]
    return [table for table in [*results, _not_run(rows)] if table.rows]


def _titled(rows: list[Row], part: str, title: str) -> str:
    sizes = {row["quick"] for row in rows if row["part"] == part}
    return f"{title} ({', '.join(SIZES[size] for size in sorted(sizes))})"


def _curves(rows: list[Row]) -> Table:
    lines = []
    for group in curve_groups(rows):
        base = group[SDPA]
        for name, row in group.items():
            lines.append(
                (
                    f"{row['n']:,}",
                    TYPES[row["dtype"]],
                    name,
                    str(row["steps"]),
                    f"{row['losses'][-1]:.4f}",
                    "" if row is base else f"{difference(row, base):.1e}",
                    f"{row['seconds']:.2f}",
                    "" if row is base else f"{base['seconds'] / row['seconds']:.2f}",
                    f"{row['peak_bytes'] / MIB:,.0f}",
                )
            )
    columns = ("n", "type", "attention", "steps", "last loss", "largest difference", "s/step", "speed-up", "peak MiB")
    return Table(_titled(rows, "curves", "Language model: loss curves"), columns, lines, 3)


def _steps(rows: list[Row]) -> Table:
    lines = []
    for row in of(rows, "steps"):
        required = required_speed(row)
        lines.append(
            (
                f"{row['n']:,}",
                TYPES[row["dtype"]],
                str(row["batch"]),
                *(f"{statistics.median(row['seconds'][name]):.3f}" for name in (SDPA, REDBLUE, NONE)),
                f"{median_speedup(row['seconds'], REDBLUE, SDPA):.2f}",
                f"{required:.1f}" if required else "",
                f"{attention_speedup(row):.1f}",
                attention_needed(row, required) if required else "",
                f"{row['flops_share']:.0%}",
                f"{max(0.0, 1 - 1 / limit(row)):.0%}",
                f"{limit(row):.2f}",
            )
        )
    columns = ("n", "type", "batch", f"{SDPA}, s", f"{REDBLUE}, s", f"{NONE}, s")
    columns += ("speed-up of the step", "required speed-up of the step")
    columns += ("speed-up of attention", "required speed-up of attention")
    columns += ("attention's share of FLOPs", "attention's share of time", "Amdahl's limit")
    return Table(_titled(rows, "steps", "A training step"), columns, lines, 2)


def _memory(rows: list[Row]) -> Table:
    lines = []
    for (n, dtype), group in grouped((row for row in rows if row["part"] == "memory"), "n", "dtype").items():
        by_name = {row["contenders"][0]: row for row in group}
        cells = (_mebibytes(by_name.get(name)) for name in (SDPA, UNFUSED, REDBLUE))
        lines.append((f"{n:,}", TYPES[dtype], *cells))
    columns = ("n", "type", SDPA, UNFUSED, REDBLUE)
    return Table(_titled(rows, "memory", "Peak memory of a training step's process, MiB"), columns, lines, 2)


def _mebibytes(row: Row | None) -> str:
    if row is None:
        return ""
    return "not run" if "skipped" in row else f"{row['peak_bytes'] / MIB:,.0f}"


def _bert(rows: list[Row]) -> Table:
    lines = [
        (
            TYPES[row["dtype"]],
            row["way"],
            row["contender"],
            f"{row['seconds']:.2f}",
            f"{group[0]['seconds'] / row['seconds']:.2f}",
            f"{difference(row, group[0]):.1e}",
            f"{row['peak_bytes'] / MIB:,.0f}",
        )
        for group in grouped(of(rows, "bert"), "dtype", "text").values()
        for row in group
    ]
    columns = ("type", "documents", "attention", "s/step", "speed-up", "largest difference of loss", "peak MiB")
    return Table(_titled(rows, "bert", "Masked language model, padded and packed"), columns, lines, 3)


def _tasks(rows: list[Row]) -> Table:
    lines = []
    for row in of(rows, "tasks"):
        error = standard_error(row)
        cells = (f"{row['n']:,}", f"{row['steps']:,}", f"{row['accuracy']:.1%}", f"{error:.1%}")
        lines.append((row["task"], *cells, f"{row['baseline']:.1%}", f"{row['seconds']:.2f}"))
    columns = ("task", "n", "steps", "accuracy", "standard error", "share of the most frequent answer", "s/step")
    return Table(_titled(rows, "tasks", "Long Range Arena: accuracy after training"), columns, lines)


def _sparse(rows: list[Row]) -> Table:
    lines = []
    for row in of(rows, "sparse"):
        if row["kind"] != "step":
            continue
        seconds, sparse = row["seconds"], f"{REDBLUE}, block-sparse"
        for name in seconds:
            kind = name.rpartition(", ")[2]
            over = [
                f"{median_speedup(seconds, name, f'{base}, dense'):.2f}" if name != f"{base}, dense" else ""
                for base in (SDPA, REDBLUE)
            ]
            needed = name == sparse and row["n"] == 16_384
            required = [str(REQUIRED_SPARSE[base]) if needed else "" for base in (SDPA, REDBLUE)]
            density = f"{row['density'][kind]:.1%}" if kind in row["density"] else ""
            lines.append((f"{row['n']:,}", name, density, f"{statistics.median(seconds[name]):.3f}", *over, *required))
    columns = ("n", "attention", "density", "s/step", "speed-up over PyTorch, dense", "speed-up over redblue, dense")
    columns += ("required speed-up over PyTorch, dense", "required speed-up over redblue, dense")
    return Table(_titled(rows, "sparse", "Long Range Arena: a training step"), columns, lines, 2)


def _flex(rows: list[Row]) -> Table:
    names = (f"{SDPA}, dense", FLEX, REDBLUE)
    lines = [
        (f"{row['n']:,}", *(f"{1000 * statistics.median(row['seconds'][name]):.1f}" for name in names))
        for row in of(rows, "sparse")
        if row["kind"] == "forward"
    ]
    title = _titled(rows, "sparse", "Forward pass of block-sparse attention alone, ms")
    return Table(title, ("n", *names), lines)


def _context(rows: list[Row]) -> Table:
    lines = []
    for row in of(rows, "context"):
        seconds, steps, perplexity = row["tests_made"][-1]
        cells = (f"{row['budget_seconds']:,}", f"{seconds:,.0f}", f"{steps:,}", f"{perplexity:.2f}")
        lines.append((f"{row['n']:,}", *cells))
    columns = ("n", "budget, s", "time, s", "steps", "perplexity per byte")
    return Table(
        _titled(rows, "context", "Perplexity of each context length for the same budget of time"), columns, lines, 1
    )


def _graph(rows: list[Row]) -> Table:
    lines = []
    for group in grouped(of(rows, "graph"), "kind", "n").values():
        base = next((row for row in group if row["contender"] == SDPA), None)
        for row in group:
            contents = f"{row['edges']:,} edges" if row["kind"] == "graph" else f"{row['documents']} documents"
            shown = ("", "") if row["kind"] != "graph" else (f"{row['accuracy']:.1%}", f"{row['baseline']:.1%}")
            speed = f"{base['seconds'] / row['seconds']:.2f}" if base and row is not base else ""
            memory = f"{row['peak_bytes'] / MIB:,.0f}"
            name = f"{SDPA}, dense mask" if row["contender"] == SDPA else row["contender"]
            lines.append((f"{row['n']:,}", contents, name, f"{row['seconds']:.2f}", speed, memory, *shown))
    columns = ("n", "mask", "attention", "s/step", "speed-up", "peak MiB", "accuracy")
    columns += ("share of the most frequent answer",)
    return Table(_titled(rows, "graph", "Debian's packages as a graph, and a row of many documents"), columns, lines, 3)


def _not_run(rows: list[Row]) -> Table:
    """The parts of which --full has not been run, whose figures are of --quick; and the points that could not run."""
    full = {part: sum(row["part"] == part and not row["quick"] for row in rows) for part in PARTS}
    quick = {part: sum(row["part"] == part and row["quick"] for row in rows) for part in PARTS}
    lines = [
        (
            f"`redblue experiment training --full --only {part}`",
            f"the page shows the {quick[part]} points of `--quick`",
        )
        for part, count in full.items()
        if not count
    ]
    for row in rows:
        if "skipped" in row:
            name = row.get("contender") or row.get("task") or row.get("kind") or ", ".join(row["contenders"])
            lines.append((f"{row['part']}, n {row.get('n', row.get('size')):,}, {name}", row["skipped"]))
    return Table("Not run", ("measurement", "reason, or the numbers shown instead"), lines, 2)


MAKERS: tuple[Callable[[list[Row]], Table], ...] = (
    *(_curves, _steps, _memory, _bert, _tasks, _sparse, _flex, _context, _graph),
)
