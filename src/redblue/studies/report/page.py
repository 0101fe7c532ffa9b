"""The report as one self-contained HTML page, which needs no network."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import vl_convert

from redblue.base import style
from redblue.base.errors import RedblueError
from redblue.base.text import amount, capacity, limit_text, nesting_text, ratio, tile_text, time
from redblue.lab.text import mask_text, shape_text
from redblue.studies.experiments.result import Result
from redblue.studies.experiments.terminal import plain
from redblue.studies.report import figures
from redblue.studies.report.checks import TOLERANCE
from redblue.studies.report.data import Report
from redblue.studies.report.measured import RUN_SECONDS
from redblue.studies.report.terminal import measured_verdict, share, times, verdict


def render(report: Report) -> str:
    """Render the page as HTML."""
    curves = report.curves
    charts = {
        "figures": [figures.words_figure(curve).to_dict(validate=False) | {"config": {}} for curve in curves],
        "results": {each.experiment: _responsive(each) for each in report.results},
        "themes": {scheme: style.config(scheme) for scheme in style.COLOURS},
    }
    return _template().render(
        report=report,
        curves=[(curve, [shape for shape in report.shapes if shape.curve == curve]) for curve in curves],
        charts=charts,
        colours=style.COLOURS,
        tolerance=TOLERANCE,
        run_seconds=RUN_SECONDS,
        library=_library(),
    )


def _responsive(result: Result) -> dict[str, Any]:
    """The figure of an experiment's result, without the configuration that the page sets by its colour scheme."""
    return result.about.figure(result.rows).to_dict(validate=False) | {"config": {}}


def check_output(path: str | os.PathLike[str]) -> Path:
    """Return `path` as an absolute Path if a page can be written there. Raises RedblueError, which says why not."""
    target = Path(path).resolve()
    if target.is_dir():
        raise _unwritable(path, "it is a folder")
    if target.exists() and not (target.is_file() and os.access(target, os.W_OK)):
        raise _unwritable(path, "it is no file that you may write")
    if not target.parent.is_dir():
        raise _unwritable(path, f"there is no folder {target.parent}")
    if not os.access(target.parent, os.W_OK):
        raise _unwritable(path, f"you may not write in {target.parent}")
    return target


def write(report: Report, path: str | os.PathLike[str]) -> Path:
    """Write the page, whole or not at all; return its path.

    Raises RedblueError if the page cannot be written; an existing file is then unchanged.
    """
    target, text = check_output(path), render(report)
    try:
        with tempfile.TemporaryDirectory(prefix=".redblue-", dir=target.parent) as folder:
            draft = Path(folder, "page")
            draft.write_text(text, encoding="utf-8")
            os.replace(draft, target)
    except OSError as error:
        raise _unwritable(path, str(error.strerror or error)) from error
    return target


def _unwritable(path: str | os.PathLike[str], reason: str) -> RedblueError:
    return RedblueError(f"cannot write the report to {path}: {reason}; name a file in a folder that you may write in")


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
        "capacity": capacity,
        "mask": mask_text,
        "limit": limit_text,
        "nesting": nesting_text,
        "plain": plain,
        "measured_class": lambda report: "fail" if any(each.failed for each in report.measured) else "pass",
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
