"""`redblue schedules`: the algorithms that redblue counts, and the kernels that follow them."""

from __future__ import annotations

from typing import Annotated

import typer

from redblue.cli.options import Json, schedule_names
from redblue.cli.output import show
from redblue.cli.tables import schedules_table
from redblue.kernels.table import kernels
from redblue.schedules import SCHEDULES, get, is_users

EPILOG = "Example: redblue schedules. One schedule: redblue schedules small_cache"
DEVICES = ("cpu", "gpu")


def command(
    name: Annotated[
        str | None, typer.Argument(help="One schedule; all if left out.", autocompletion=schedule_names)
    ] = None,
    as_json: Json = False,
) -> None:
    """List the schedules: the algorithm of each, its directions, its kernels and its source."""
    chosen = list(SCHEDULES.values()) if name is None else [get(name)]
    with_kernel = {
        each.name: {
            device: [direction for direction in each.passes if each.name in kernels(device, direction)]
            for device in DEVICES
        }
        for each in chosen
    }
    data = [
        {"name": each.name, "title": each.title, "directions": list(each.passes), "kernels": with_kernel[each.name]}
        | {"planned": each.drop_in, "own": is_users(each.name), "source": each.source}
        for each in chosen
    ]
    show(data if name is None else data[0], schedules_table(chosen, with_kernel), as_json)
