"""Draws the figures of the documentation: `make docs`."""

from __future__ import annotations

from pathlib import Path

import vl_convert

import redblue as rb
from redblue.report.curves import curve
from redblue.report.figures import config, words_figure

HERE = Path(__file__).parent
MACHINES = ("t4", "rtx-4090", "h100-sxm")


def words_over_capacity(path: Path) -> None:
    """Words per pair over the cache's size: forward, d = 256, n = 16384, 16-bit."""
    problem = rb.Problem(n_q=16384, n_k=16384, d=256)
    drawn = curve(problem, [rb.memory(name) for name in MACHINES])
    style = config("light") | {"background": "white", "padding": 16}
    style["legend"]["columnPadding"] = 40  # a reader's font may be wider than the one this is laid out with
    path.write_text(
        vl_convert.vegalite_to_svg(words_figure(drawn, width=760, height=400).to_dict() | {"config": style})
    )
    print(f"written: {path.relative_to(HERE.parent)}")


if __name__ == "__main__":
    words_over_capacity(HERE / "words.svg")
