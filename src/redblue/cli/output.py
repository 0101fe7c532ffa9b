"""Print the result of a command on standard output, and remarks on standard error."""

from __future__ import annotations

import json
import os
from typing import Any

from rich.console import RenderableType

from redblue.base.terminal import console, message


def show(data: Any, table: RenderableType, as_json: bool) -> None:
    """Print one result on standard output: `data` as JSON for a program, or `table` for a person."""
    if as_json:
        # json.dumps escapes all control characters except this one, DEL
        print(json.dumps(data, indent=2).replace("\x7f", "\\u007f"))
    else:
        console().print(table)


def written(path: str | os.PathLike[str]) -> None:
    """Report on standard error that a file was written."""
    message(f"written: {path}")
