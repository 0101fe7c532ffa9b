"""The report as one self-contained HTML page, which needs no network."""

from __future__ import annotations

import os
from functools import cache, partial
from pathlib import Path
from typing import Any

import jinja2
import vl_convert

from redblue.base import style
from redblue.base.files import Target, check_target
from redblue.base.parallel import run_all
from redblue.base.text import amount, byte_amount, capacity, limit_text, nesting_text, ratio, tile_text, time
from redblue.lab.text import STANDARD_REMARK, mask_text, shape_text
from redblue.studies.experiments.result import Result
from redblue.studies.experiments.terminal import plain
from redblue.studies.report import figures
from redblue.studies.report.checks import TOLERANCE
from redblue.studies.report.curves import GIVEN, Curve
from redblue.studies.report.data import Report
from redblue.studies.report.measured import RUN_SECONDS
from redblue.studies.report.terminal import measured_verdict, share, times, verdict

MARK = b"<!doctype html>\n<!-- redblue report -->"  # every page begins so


def render(report: Report) -> str:
    """Render the page as HTML."""
    curves = report.curves
    drawn = run_all([*(partial(_curve_chart, x) for x in curves), *(partial(_result_chart, x) for x in report.results)])
    charts = {
        "figures": drawn[: len(curves)],
        "results": dict(zip((result.experiment for result in report.results), drawn[len(curves) :], strict=True)),
        "themes": {scheme: style.config(scheme) for scheme in style.COLOURS},
    }
    return _template().render(
        report=report,
        curves=[(curve, [shape for shape in report.shapes if shape.curve == curve]) for curve in curves],
        charts=charts,
        colours=style.COLOURS,
        p_given=GIVEN if any(series.name == GIVEN for curve in curves for series in curve.series) else "",
        standard_remark=STANDARD_REMARK,
        tolerance=TOLERANCE,
        run_seconds=RUN_SECONDS,
        library=_library(),
    )


def _curve_chart(curve: Curve) -> dict[str, Any]:
    """The figure of a curve, without the configuration that the page sets by its colour scheme."""
    return figures.words_figure(curve).to_dict(validate=False) | {"config": {}}


def _result_chart(result: Result) -> dict[str, Any]:
    """The figure of an experiment's result, also without the configuration."""
    return result.about.figure(result.rows).to_dict(validate=False) | {"config": {}}


def check_output(path: str | os.PathLike[str], force: bool = False) -> Target:
    """Check, before the work, that a page can be written at `path`. Raises RedblueError, which says why not.

    force: replace an existing file that is not a report.
    """
    return check_target(path, (".html", ""), force, MARK)


def write(report: Report, path: str | os.PathLike[str], force: bool = False) -> Path:
    """Write the page atomically; return its path. force: replace an existing file that is not a report.

    Raises RedblueError if the file must not be replaced or cannot be written; an existing file is then unchanged.
    """
    target, text = check_output(path, force), render(report)
    return target.write(lambda draft: draft.write_text(text, encoding="utf-8")).resolve()


@cache
def _library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script."""
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "amount": amount,
        "bytes": byte_amount,
        "capacity": capacity,
        "mask": mask_text,
        "limit": limit_text,
        "nesting": nesting_text,
        "plain": plain,
        "measured_class": lambda report: (
            "fail" if any(measurement.failed for measurement in report.measured) else "pass"
        ),
        "measured_verdict": measured_verdict,
        "ratio": ratio,
        "share": share,
        "shape": shape_text,
        "tiles": tile_text,
        "time": time,
        "times": times,
        "verdict": verdict,
    }
    return environment.get_template("page.html.jinja")
