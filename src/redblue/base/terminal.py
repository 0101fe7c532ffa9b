"""Tables on the terminal, in the house style, within 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table


def table(
    left: Sequence[str], right: Sequence[str] = (), title: str | None = None, caption: str | None = None
) -> Table:
    """An empty table in the house style: left-aligned columns that may wrap, then right-aligned ones that may not."""
    made = Table(box=box.SIMPLE_HEAD, title=title, caption=caption, title_justify="left", caption_justify="left")
    made.title_style, made.caption_style = "bold", "dim"
    for heading in left:
        made.add_column(heading, overflow="fold")
    for heading in right:
        made.add_column(heading, justify="right", no_wrap=True)
    return made
