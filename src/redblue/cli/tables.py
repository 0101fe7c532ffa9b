"""Tables of counts, bounds, measurements, machines and models, for terminals of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Group
from rich.text import Text

from redblue.base.terminal import StackingTable, table
from redblue.base.text import amount, byte_amount, capacity, ratio, tile_text
from redblue.bounds import Bound
from redblue.catalogue.memories import Memory
from redblue.catalogue.models import Model
from redblue.lab.counts import Count
from redblue.lab.recount import Recount
from redblue.lab.text import mask_text
from redblue.meter import Measurement
from redblue.schedules import Schedule, is_users


def counts_table(counts: Iterable[Count], remarks: Sequence[str]) -> StackingTable:
    """Counts, a row for each schedule. remarks: lines below the table."""
    lines = table(
        ("schedule\ntiles",), ("words", "reads\nwrites", "peak held", "flops"), caption="\n".join(remarks) or None
    )
    for c in counts:
        moved = (f"{c.words:,}", f"{c.reads:,}\n{c.writes:,}", f"{c.peak:,}", amount(c.flops))
        index = f"\nindex: {c.index_words:,} of the reads" if c.index != "rule" else ""
        lines.add_row(f"{c.schedule}\n{tile_text(c.tiles)}{index}", *moved)
    return lines


def measurement_table(measurements: Iterable[Measurement]) -> StackingTable:
    """Measurements beside counts and bounds."""
    lines = table(
        ("kernel\ntiles\nboundary\nhow",),
        ("measured\nwords", "read\nwritten", "counted\nwords", "measured /\ncounted", "proved\nbound"),
        caption="read and written: words towards the fast side, and back",
    )
    for m in measurements:
        read, written = (f"{moved // m.bytes_per_word:,}" for moved in (m.bytes_read, m.bytes_written))
        parts = "".join(f"\n{name.replace('_', ' ')}: {value:,}" for name, value in m.parts.items())
        lines.add_row(
            f"{m.kernel}\n{tile_text(m.tiles)}\n{m.boundary}\n{m.meter} ({m.tool}): {m.how}{parts}",
            f"{m.measured_words:,.0f}",
            f"{read}\n{written}",
            f"{m.counted_words:,}" if m.counted_words is not None else "-",
            ratio(m.over_counted),
            f"{m.bound_words:,}" if m.bound_words is not None else "-",
        )
    return lines


def bounds_table(bounds: Iterable[Bound]) -> StackingTable:
    """Lower bounds, with formula, conditions and source."""
    lines = table(
        ("bound\nconditions",),
        ("words",),
        caption="Z: attended pairs. order only: a paper's form without its unknown constant, so no bound.",
    )
    for bound in bounds:
        kind = "" if bound.proved else " (order only)"
        lines.add_row(f"{bound.name}{kind}: {bound.formula}\n{bound.conditions}\n{bound.source}\n", f"{bound.words:,}")
    return lines


def recount_table(recounts: Iterable[Recount]) -> StackingTable:
    """Printed figures and their recounts."""
    lines = table(
        ("case\nschedule, tiles\nformula\nsource",),
        ("expected", "counted", "ratio"),
        caption="expected: the sum of the algorithm's lines (words), or the printed figure (GB)",
    )
    for recount in recounts:
        expected, counted = (
            f"{x:,.0f}" if recount.unit == "words" else f"{x:.2f}" for x in (recount.expected, recount.counted)
        )
        tiles = tile_text(dict(recount.tiles))
        lines.add_row(
            f"{recount.case}\n{recount.schedule}{', ' if tiles else ''}{tiles}\n{recount.formula}\n{recount.source}\n",
            f"{expected} {recount.unit}",
            f"{counted} {recount.unit}",
            f"{recount.ratio:.3f}",
        )
    return lines


def memories_table(machines: Iterable[Memory], largest_d: Sequence[Sequence[int | None]]) -> StackingTable:
    """The levels of each machine. largest_d: d* of each level (lab.planner.largest_head_dimension)."""
    lines = table(("machine", "level"), ("one\nholds", "count", "read\nbandwidth", "d*\n16-bit"))
    lines.columns[0].no_wrap = True
    lines.pad_edge, lines.collapse_padding = False, True  # names of machines are long
    for machine, stars in zip(machines, largest_d, strict=True):
        for i, (level, star) in enumerate(zip(machine.levels, stars, strict=True)):
            speed = level.bandwidth_bytes_per_second
            lines.add_row(
                machine.name if i == 0 else "",
                level.name,
                capacity(level.capacity_bytes),
                str(level.count),
                f"{byte_amount(speed)}/s" if speed else "not known",
                str(star) if star else "-",
            )
    return lines


def memory_details(machine: Memory, largest_d: Sequence[int | None]) -> Group:
    """One machine: its levels, its peak rates, further facts, and the source of each figure."""
    peaks, facts = table(("type",), ("peak",)), table(("fact",), ("value",))
    for dtype, rate in machine.peak_flops_per_second.items():
        peaks.add_row(dtype, f"{amount(rate)}FLOP/s")
    for key, value in machine.facts.items():
        name, _, unit = key.rpartition("_")
        known = {"bytes": capacity(round(value)), "hertz": f"{amount(value)}Hz"}
        facts.add_row((name if unit in known else key).replace("_", " "), known.get(unit, f"{value:,.0f}"))
    lines = [f"{level.name} {key}: {source}" for level in machine.levels for key, source in level.sources.items()]
    lines += [f"{key}: {source}" for key, source in machine.sources.items()]
    sources = Text("\n".join(lines), style="dim")
    tables = (memories_table([machine], [largest_d]), *(details for details in (peaks, facts) if details.row_count))
    return Group(Text(machine.title, style="bold"), *tables, sources)


def models_table(models: Iterable[Model]) -> StackingTable:
    """The attention shapes of each model."""
    lines = table(("model and attention\nmask",), ("layers", "n_q x n_k", "d / d_v", "heads / kv"))
    for model in models:
        for layers in model:
            p = layers.problem
            sizes = (f"{p.n_q} x {p.n_k}", f"{p.d} / {p.d_v}", f"{p.heads} / {p.kv_heads}")
            lines.add_row(f"{model.name}, {layers.name}\n{mask_text(p.mask)}", str(layers.layers), *sizes)
    return lines


def model_details(model: Model) -> Group:
    """One model: its shapes, their source, and notes on them."""
    lines = [model.source, *model.notes, *(f"{layers.name}: {layers.note}" for layers in model if layers.note)]
    return Group(Text(model.title, style="bold"), models_table([model]), Text("\n".join(lines), style="dim"))


def schedules_table(schedules: Iterable[Schedule], kernels: Mapping[str, Mapping[str, Sequence[str]]]) -> StackingTable:
    """A row for each schedule, with its directions and kernels. kernels: directions by schedule and device."""
    lines = table(("schedule", "title\ndirections\nkernels\nsource"))
    lines.columns[0].no_wrap = True
    for schedule in schedules:
        items = kernels[schedule.name].items()
        devices = "; ".join(f"{device}: {', '.join(directions)}" for device, directions in items if directions)
        owner = " (your own)" if is_users(schedule.name) else ""
        lines.add_row(
            schedule.name,
            f"{schedule.title}{owner}\n{', '.join(schedule.passes)}\n{devices or 'no kernel'}\n{schedule.source}\n",
        )
    return lines
