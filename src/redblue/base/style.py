"""The style of all figures: the colours of the light and dark schemes, and the colour and mark of each schedule."""

from __future__ import annotations

from typing import Any, NamedTuple

REGIMES = ("large-cache", "between", "small-cache")

# The colours are distinct in every kind of colour vision. A regime has the colour of the schedule that it favours.
COLOURS = {
    "light": {
        "paper": "#ffffff",
        "ink": "#1d2329",
        "muted": "#5b6570",
        "grid": "#e4e7ea",
        "large-cache": "#0068a8",
        "between": "#b0508a",
        "small-cache": "#cf5a00",
    },
    "dark": {
        "paper": "#14171a",
        "ink": "#e8eaed",
        "muted": "#a3abb4",
        "grid": "#2b3138",
        "large-cache": "#5bb0ea",
        "between": "#e08fc0",
        "small-cache": "#f0883e",
    },
}


class Look(NamedTuple):
    """The look of one schedule: its colours in both schemes, and its mark (a shape of Vega-Lite)."""

    light: str
    dark: str
    shape: str


# Vega-Lite has no name for a star, so the mark is an SVG path within a square of side 2.
STAR = "M0,-1L.29,-.4L.95,-.31L.48,.15L.59,.81L0,.5L-.59,.81L-.48,.15L-.95,-.31L-.29,-.4Z"

DEFAULT_LOOK = Look("#3f4a54", "#c3cbd3", "stroke")

# For schedules of users, in the order in which they are registered. A hexagon marks them beside the built-in ones.
HEXAGON = "M1,0L.5,.87L-.5,.87L-1,0L-.5,-.87L.5,-.87Z"
USERS = (
    Look("#8a5a2b", "#d0a273", HEXAGON),
    Look("#6b7f1a", "#b5c95c", HEXAGON),
    Look("#51606e", "#b4c0cc", HEXAGON),
)


class Looks(dict[str, Look]):
    """Looks by schedule name. A schedule without an entry gets DEFAULT_LOOK, so a new schedule needs no entry."""

    def __missing__(self, name: str) -> Look:
        return DEFAULT_LOOK

    def give(self, name: str) -> None:
        """Give a user's schedule a free look of USERS; if none is free, it keeps DEFAULT_LOOK."""
        free = [look for look in USERS if look not in self.values()]
        if name not in self and free:
            self[name] = free[0]

    def take_back(self, name: str) -> None:
        """Take back the look of a user's schedule."""
        self.pop(name, None)


LOOKS = Looks(
    {
        "standard": Look("#757d86", "#98a1ab", "diamond"),
        "flash1": Look("#2a8c5a", "#5fc792", "cross"),
        "flash": Look("#0068a8", "#5bb0ea", "circle"),
        "flash_onepass": Look("#5a4fb0", "#a79bf2", "triangle-down"),
        "flash_kept": Look("#3b8f9e", "#74c4d1", "wedge"),
        "gather": Look("#b3263a", "#ef7d8a", STAR),
        "spilled_ds": Look("#9a7b00", "#d3b13a", "triangle-right"),
        "hybrid": Look("#b0508a", "#e08fc0", "square"),
        "saha_ye": Look("#00808a", "#4fc3cc", "triangle-left"),
        "small_cache": Look("#cf5a00", "#f0883e", "triangle-up"),
        "gradient_x": Look("#0068a8", "#5bb0ea", "circle"),
        "gradient_x_dp": Look("#9a7b00", "#d3b13a", "triangle-right"),
        "gradient_x_hybrid": Look("#b0508a", "#e08fc0", "square"),
        "gradient_x_small": Look("#cf5a00", "#f0883e", "triangle-up"),
    }
)


def config(scheme: str = "light") -> dict[str, Any]:
    """Return the Vega-Lite configuration of a scheme, "light" or "dark": colours, fonts and sizes.

    The category range holds the colours of the schedules, in the order of LOOKS.
    """
    colour = COLOURS[scheme]
    text = {"labelColor": colour["muted"], "titleColor": colour["ink"], "titleFontWeight": "normal"}
    return {
        "background": "transparent",
        "font": "system-ui, sans-serif",
        "view": {"stroke": None},
        "range": {"category": [getattr(look, scheme) for look in LOOKS.values()]},
        "axis": {
            **text,
            "gridColor": colour["grid"],
            "domainColor": colour["muted"],
            "tickColor": colour["muted"],
            "labelFontSize": 11,
            "titleFontSize": 12,
        },
        "legend": {
            **text,
            "orient": "bottom",
            "labelColor": colour["ink"],
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleLimit": 300,
            "labelLimit": 220,
            "symbolBaseStrokeColor": colour["ink"],
            "layout": {"bottom": {"direction": "vertical", "anchor": "start", "margin": 8}},
        },
        "header": {**text, "labelColor": colour["ink"], "labelFontSize": 12, "titleFontSize": 12, "title": None},
        "style": {
            "ink": {"color": colour["ink"]},
            "faint": {"color": colour["muted"]},
            "words": {"color": colour["muted"], "fontSize": 11},
            "heading": {"color": colour["ink"], "fontSize": 11, "fontWeight": 600},
            "halo": {"color": colour["paper"], "stroke": colour["paper"], "strokeWidth": 4, "fontSize": 11},
            **{regime: {"color": colour[regime]} for regime in REGIMES},
        },
    }


def standalone_config() -> dict[str, Any]:
    """Return the configuration of a figure in a file of its own: the light scheme on white, with a margin."""
    style = config("light") | {"background": "white", "padding": 16}
    style["legend"]["columnPadding"] = 40  # room in case the reader's font is wider than the font of the layout
    return style
