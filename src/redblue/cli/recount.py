"""`redblue recount`: the figures that the FlashAttention paper prints, counted again."""

from __future__ import annotations

from dataclasses import asdict

from redblue.base.progress import working
from redblue.cli.options import Json
from redblue.cli.output import show
from redblue.cli.tables import recount_table
from redblue.lab.recount import recount

EPILOG = "Example: redblue recount"


def command(as_json: Json = False) -> None:
    """Recount the FlashAttention paper: the words of its algorithms, line by line, and the figures of its Figure 2."""
    with working("counting"):
        results = recount()
    show([asdict(result) | {"ratio": result.ratio} for result in results], recount_table(results), as_json)
