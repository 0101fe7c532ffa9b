"""Print the result of a command on standard output, and remarks on standard error."""

from __future__ import annotations

import json
import os
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape


def show(data: Any, table: RenderableType, as_json: bool) -> None:
    """Print one result on standard output: `data` as JSON for a program, or `table` for a person."""
    if as_json:
        print(json.dumps(data, indent=2))
    else:
        Console(emoji=False).print(table)


def remark(text: str) -> None:
    """Print one line on standard error, which leaves standard output to the result."""
    Console(stderr=True, emoji=False).print(escape(text), highlight=False, soft_wrap=True)


def written(path: str | os.PathLike[str]) -> None:
    """Say on standard error that a file was written."""
    remark(f"written: {path}")
