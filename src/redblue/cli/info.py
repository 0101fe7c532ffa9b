"""`redblue info`: the properties of this machine that the compiled kernels use."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Group
from rich.text import Text

from redblue.base.dtypes import COMPUTED, DTYPE_CODES
from redblue.base.terminal import table
from redblue.base.text import capacity
from redblue.base.version import __version__
from redblue.catalogue.detect import detect_cpu
from redblue.cli.options import Json
from redblue.cli.output import show
from redblue.compiled import _core
from redblue.kernels.cpu import call as cpu
from redblue.kernels.cpu import plan
from redblue.op.api import default_threads

EPILOG = "Example: redblue info. Another instruction set: REDBLUE_ISA=avx2 redblue info"


def command(as_json: Json = False) -> None:
    """Show the properties of this machine that the kernels use: instruction sets, the chosen one, caches, threads."""
    data = describe()
    show(data, _tables(data), as_json)


def describe() -> dict[str, Any]:
    """Describe this machine as plain data.

    Raises RedblueError if REDBLUE_ISA names no instruction set that this CPU can run.
    """
    chosen, machine = cpu.isa(), detect_cpu()
    first_bytes, last_share_bytes = plan.cache_bytes()
    return {
        "version": __version__,
        "cpu": machine.model,
        "cores": machine.cores,
        "caches": [
            {"name": cache.name, "capacity_bytes": cache.capacity_bytes, "count": cache.count}
            for cache in machine.caches
        ],
        "first_cache_bytes": first_bytes,
        "share_of_last_cache_bytes": last_share_bytes,
        "threads": default_threads(),
        "REDBLUE_ISA": os.environ.get("REDBLUE_ISA"),
        "instruction_sets": [
            {
                "name": row.name,
                "supported": row.supported,
                "chosen": row.name == chosen.name,
                "vector_bytes": row.vector_bytes,
                "vector_registers": row.vector_registers,
                "bfloat16_products": row.has_bfloat16,
                "queries_at_once": {name: row.lanes(DTYPE_CODES[name]) for name in COMPUTED},
            }
            for row in _core.list_isas()
        ],
    }


def _tables(data: dict[str, Any]) -> Group:
    """The description as text and a table of the instruction sets."""
    rows = table(("instruction set", "runs here"), ("vector bytes", "registers", "bfloat16 products"))
    for row in data["instruction_sets"]:
        runs_here = "chosen" if row["chosen"] else "yes" if row["supported"] else "no"
        products = "yes" if row["bfloat16_products"] else "through float32"
        style = "bold" if row["chosen"] else "" if row["supported"] else "dim"
        rows.add_row(
            row["name"], runs_here, str(row["vector_bytes"]), str(row["vector_registers"]), products, style=style
        )
    forced = data["REDBLUE_ISA"]
    caches = ", ".join(
        f"{cache['name']} {capacity(cache['capacity_bytes'])} x {cache['count']}" for cache in data["caches"]
    )
    share = capacity(data["share_of_last_cache_bytes"])
    choice = (
        f"forced by REDBLUE_ISA={forced}" if forced else "the best that this CPU runs; REDBLUE_ISA=name forces another"
    )
    return Group(
        Text(f"redblue {data['version']} on {data['cpu']}, {data['cores']} cores, {data['threads']} threads"),
        Text(f"caches: {caches or 'not known'}; a core's share of the last: {share}"),
        rows,
        Text(choice, style="dim"),
    )
