"""`redblue memories`: the machines of the catalogue, and this one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from redblue.catalogue.memories import list_memories, memory, this_machine
from redblue.cli.options import Json, memory_names
from redblue.cli.output import show
from redblue.cli.tables import memories_table, memory_details
from redblue.lab.planner import largest_head_dimension

EPILOG = "Example: redblue memories. One machine, with its sources: redblue memories h100-sxm"


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A catalogue name, this-machine or a TOML file; all machines if left out.", autocompletion=memory_names
        ),
    ] = None,
    remeasure: Annotated[bool, typer.Option("--remeasure", help="Measure this machine again (about 2 s).")] = False,
    as_json: Json = False,
) -> None:
    """List the machines of the catalogue and this machine, or show one of them with its sources."""
    if remeasure:
        this_machine(remeasure=True)
    machines = [
        memory(machine_name) for machine_name in ([*list_memories(), "this-machine"] if name is None else [name])
    ]
    largest_d = [  # d* of each level; the outermost level has no boundary of its own
        [*(largest_head_dimension(level, bytes_per_word=2) for level in machine.levels[:-1]), None]
        for machine in machines
    ]
    data = [asdict(machine) for machine in machines]
    table = memory_details(machines[0], largest_d[0]) if name else memories_table(machines, largest_d)
    show(data[0] if name else data, table, as_json)
