"""Tables on the terminal in one style, for 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table


def table(
    left: Sequence[str], right: Sequence[str] = (), title: str | None = None, caption: str | None = None
) -> Table:
    """Return an empty table: left-aligned columns, which may wrap, then right-aligned columns, which may not.

    left, right: the headings of the columns.
    """
    result = Table(box=box.SIMPLE_HEAD, title=title, caption=caption, title_justify="left", caption_justify="left")
    result.title_style, result.caption_style = "bold", "dim"
    for heading in left:
        result.add_column(heading, overflow="fold")
    for heading in right:
        result.add_column(heading, justify="right", no_wrap=True)
    return result
