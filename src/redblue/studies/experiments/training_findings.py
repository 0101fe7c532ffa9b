"""The findings of the experiment `training`, part by part: sentences that follow from its rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from redblue.studies.experiments.experiment import Row
from redblue.studies.experiments.training_tables import (
    TYPES,
    curve_groups,
    difference,
    grouped,
    median_speedup,
    of,
    required_speed,
    standard_error,
)
from redblue.studies.training.names import PARTS, REDBLUE, SDPA

CRITERION = "more than two standard errors above the share of the most frequent answer"
UNEVEN = 1.5  # times of rounds that differ by a larger factor are not usable


def findings(rows: list[Row]) -> list[str]:
    makers = (
        *(_load_findings, _unusable_findings, _curve_findings, _step_findings, _memory_findings, _task_findings),
        *(_sparse_findings, _graph_findings),
    )
    return [line for make in makers for line in make(rows)]


def _load_findings(rows: list[Row]) -> list[str]:
    """A warning if other programs ran while times were measured.

    The load average before a measurement still contains the previous measurement, which adds at most `cores`.
    """
    busy = {row["part"] for row in rows if row.get("load", 0) > 1.5 * row.get("cores", 0)}
    unknown = {row["part"] for row in rows if "load" not in row and "skipped" not in row} - busy
    sentences = []
    if busy:
        most = max(row["load"] for row in rows if "load" in row)
        sentences.append(
            f"Other programs ran beside the part{'s' * (len(busy) > 1)} {_named(busy)} of this experiment (load "
            f"average up to {most:.0f}). So the times and the ratios of times there are not reliable. Other programs "
            f"do not change losses and memory."
        )
    if unknown:
        sentences.append(
            f"The load of the machine was not recorded for the parts {_named(unknown)}. Other programs may have "
            f"disturbed the times of these parts."
        )
    return sentences


def _unusable_findings(rows: list[Row]) -> list[str]:
    """The times that other times prove wrong: of steps that one thread speeds up, and of rounds that differ much."""
    sentences, slower, uneven = [], [], []
    for group in curve_groups(rows):
        all_cores, alone = group[SDPA], group.get(f"{SDPA}, one thread")
        if alone and alone["seconds"] < all_cores["seconds"]:
            where = f"n {alone['n']:,}, {TYPES[alone['dtype']]}"
            slower.append(f"{alone['seconds']:.2f} s instead of {all_cores['seconds']:.2f} s ({where})")
    if slower:
        sentences.append(
            f"The times of the part `curves` are not usable, because a step with {SDPA} takes less time on one thread "
            f"than on all cores: {', '.join(slower)}."
        )
    for row in rows:
        rounds = row.get("seconds")
        if not isinstance(rounds, dict):
            continue
        name, times = max(rounds.items(), key=lambda item: max(item[1]) / min(item[1]))
        if max(times) > UNEVEN * min(times):
            where = f"`{row['part']}`, {row.get('kind', 'step')}, n {row['n']:,}"
            where += f", {TYPES[row['dtype']]}" if "dtype" in row else ""
            uneven.append(f"{where} (contender `{name}`: {min(times):.2f} to {max(times):.2f} s)")
    if uneven:
        sentences.append(
            f"These times are not usable, because two rounds of the same contender differ by more than a factor of "
            f"{UNEVEN}: {'; '.join(uneven)}."
        )
    return sentences


def _named(parts: Iterable[str]) -> str:
    return ", ".join(f"`{part}`" for part in sorted(parts, key=PARTS.index))


def _curve_findings(rows: list[Row]) -> list[str]:
    sentences = []
    for dtype, short in TYPES.items():
        most = defaultdict[str, float](float)
        for group in curve_groups(rows):
            if group[SDPA]["dtype"] == dtype:
                for name, row in group.items():
                    most[name] = max(most[name], difference(row, group[SDPA]))
        if REDBLUE in most:
            noise = {name: most[name] for name in most if name not in (REDBLUE, SDPA)}
            line = f"{short}: the losses with `redblue` differ from those with {SDPA} by at most {most[REDBLUE]:.1e}."
            if noise:
                differences = " and ".join(f"{size:.1e} ({name})" for name, size in noise.items())
                line += f" Another order of summation alone causes differences of up to {differences}."
                above = most[REDBLUE] > max(noise.values())
                line += " The difference with `redblue` is larger." if above else ""
            sentences.append(line)
    return sentences


def _step_findings(rows: list[Row]) -> list[str]:
    measured = [(row, required_speed(row)) for row in of(rows, "steps")]
    if not measured:
        return []
    speeds = [median_speedup(row["seconds"], REDBLUE, SDPA) for row, _ in measured]
    sentences = [
        f"A training step is {min(speeds):.2f} to {max(speeds):.2f} times as fast with `redblue` as with {SDPA}."
    ]
    required = [(speed, needed) for (_, needed), speed in zip(measured, speeds, strict=True) if needed]
    missed = sum(speed < needed for speed, needed in required)
    if not missed:
        return sentences
    return [
        *sentences,
        f"In {missed} of {len(required)} cases, the speed-up is below this project's requirement. The table of "
        f"training steps shows the speed-up, the required speed-up, and the speed-up of a step without attention "
        f"(Amdahl's limit).",
    ]


def _memory_findings(rows: list[Row]) -> list[str]:
    """The largest ratio of redblue's peak memory to that of PyTorch's SDPA, over all comparisons of the page."""
    compared = (row for row in rows if "peak_bytes" in row and "dtype" in row and row.get("threads") != 1)
    over = []
    for group in grouped(({"way": ""} | row for row in compared), "part", "quick", "n", "dtype", "way").values():
        by_name = {row.get("contender") or row["contenders"][0]: row for row in group if row["part"] != "steps"}
        if SDPA in by_name and REDBLUE in by_name:
            over.append((by_name[REDBLUE]["peak_bytes"] / by_name[SDPA]["peak_bytes"], by_name[REDBLUE]))
    if not over:
        return []
    most, row = max(over, key=lambda pair: pair[0])
    if most <= 1:
        return [f"The peak memory with `redblue` is never higher than with {SDPA}."]
    where = f"`{row['part']}`, n {row['n']:,}, {TYPES[row['dtype']]}"
    return [
        f"The peak memory with `redblue` is up to {most:.3f} times the peak memory with {SDPA} ({where}). This project "
        f"requires a ratio of at most 1."
    ]


def _task_findings(rows: list[Row]) -> list[str]:
    tested = of(rows, "tasks")
    if not tested:
        return []
    learned = [row["task"] for row in tested if row["accuracy"] > row["baseline"] + 2 * standard_error(row)]
    if not learned:
        return [f"No task of the part `tasks` was learned: no accuracy is {CRITERION}."]
    return [f"The accuracy of these tasks is {CRITERION}: {', '.join(learned)}."]


def _sparse_findings(rows: list[Row]) -> list[str]:
    steps = [row for row in of(rows, "sparse") if row["kind"] == "step"]
    if not steps:
        return []
    row, sparse = max(steps, key=lambda step: step["n"]), f"{REDBLUE}, block-sparse"
    over = {base: median_speedup(row["seconds"], sparse, f"{base}, dense") for base in (REDBLUE, SDPA)}
    rounds = len(row["seconds"][sparse])
    return [
        f"At n {row['n']:,} ({rounds} round{'s' * (rounds > 1)}), a block-sparse step "
        f"({row['density']['block-sparse']:.1%} of the pairs) is {over[REDBLUE]:.1f} times as fast as `redblue`'s "
        f"dense step, and {over[SDPA]:.1f} times as fast as PyTorch's dense step."
    ]


def _graph_findings(rows: list[Row]) -> list[str]:
    """Memory alone. Each contender ran in its own process, one after the other, so times are not compared here."""
    sentences = []
    for group in grouped(of(rows, "graph"), "kind", "n").values():
        by_name = {row["contender"]: row for row in group}
        mine = by_name.pop(REDBLUE, None)
        if mine and by_name:
            ratios = (
                f"the peak memory of {name} is {row['peak_bytes'] / mine['peak_bytes']:.1f} times that of `redblue`"
                for name, row in by_name.items()
            )
            data = {"graph": "graph", "documents": "row of documents"}[mine["kind"]]
            sentences.append(f"For the {data} with n = {mine['n']:,}, {', and '.join(ratios)}.")
    return sentences
