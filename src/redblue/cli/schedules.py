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
        schedule.name: {
            device: [direction for direction in schedule.passes if schedule.name in kernels(device, direction)]
            for device in DEVICES
        }
        for schedule in chosen
    }
    data = [
        {
            "name": schedule.name,
            "title": schedule.title,
            "directions": list(schedule.passes),
            "kernels": with_kernel[schedule.name],
        }
        | {"planned": schedule.drop_in, "own": is_users(schedule.name), "source": schedule.source}
        for schedule in chosen
    ]
    show(data if name is None else data[0], schedules_table(chosen, with_kernel), as_json)
