"""`redblue info`: what the kernels find here."""

from __future__ import annotations

import json
import os
from typing import Any

from rich.console import Console, Group
from rich.text import Text

from redblue.base.terminal import table
from redblue.base.text import capacity
from redblue.base.version import VERSION
from redblue.catalogue.detect import detect_cpu
from redblue.cli.options import Json
from redblue.compiled import _core
from redblue.kernels.cpu import call as cpu
from redblue.kernels.cpu import plan
from redblue.op.api import default_threads

EPILOG = "Example: redblue info. Another instruction set: REDBLUE_ISA=avx2 redblue info"


def info(as_json: Json = False) -> None:
    """This machine as the kernels see it: instruction sets, the one chosen, caches, threads."""
    found = describe()
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        Console(emoji=False).print(_tables(found))


def describe() -> dict[str, Any]:
    """Plain data. Raises RedblueError if REDBLUE_ISA names no instruction set that this CPU can run."""
    chosen, machine = cpu.isa(), detect_cpu()
    first, last = plan.cache_bytes()
    return {
        "version": VERSION,
        "cpu": machine.model,
        "cores": machine.cores,
        "caches": [
            {"name": each.name, "capacity_bytes": each.capacity_bytes, "count": each.count} for each in machine.caches
        ],
        "first_cache_bytes": first,
        "share_of_last_cache_bytes": last,
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
                "queries_at_once": {name: row.lanes(number) for name, number in list(cpu.NUMBERS.items())[:4]},
            }
            for row in _core.list_isas()
        ],
    }


def _tables(found: dict[str, Any]) -> Group:
    rows = table(("instruction set", "runs here"), ("vector bytes", "registers", "bfloat16 products"))
    for row in found["instruction_sets"]:
        here = "chosen" if row["chosen"] else "yes" if row["supported"] else "no"
        products = "yes" if row["bfloat16_products"] else "through float32"
        style = "bold" if row["chosen"] else "" if row["supported"] else "dim"
        rows.add_row(row["name"], here, str(row["vector_bytes"]), str(row["vector_registers"]), products, style=style)
    forced = found["REDBLUE_ISA"]
    caches = ", ".join(
        f"{each['name']} {capacity(each['capacity_bytes'])} x {each['count']}" for each in found["caches"]
    )
    share = capacity(found["share_of_last_cache_bytes"])
    return Group(
        Text(f"redblue {found['version']} on {found['cpu']}, {found['cores']} cores, {found['threads']} threads"),
        Text(f"caches: {caches or 'not known'}; a core's share of the last: {share}"),
        rows,
        Text(
            f"forced by REDBLUE_ISA={forced}"
            if forced
            else "the best that this CPU runs; REDBLUE_ISA=name forces another",
            style="dim",
        ),
    )
