"""The colours and marks of contenders in figures, with their legend."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt

from redblue.base.style import Look


def legend(field: str, looks: Mapping[str, Look], columns: int) -> tuple[alt.Color, alt.Shape]:
    """The colour and the shape of each contender, by the name in a field of the data."""
    below = alt.Legend(title=None, orient="bottom", direction="horizontal", columns=columns)
    names = list(looks)
    colours, shapes = [look.light for look in looks.values()], [look.shape for look in looks.values()]
    return (
        alt.Color(f"{field}:N", scale=alt.Scale(domain=names, range=colours), legend=below),
        alt.Shape(f"{field}:N", scale=alt.Scale(domain=names, range=shapes), legend=below),
    )
