"""The command line: one module of this package per command. Bad input exits with status 2, never with a traceback.

A command is added by a module NAME.py and by its name in COMMANDS. The module holds the function `command`, and
`EPILOG` with an example for its --help; or `app`, a typer.Typer with commands of its own. Every command has --json.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from redblue.base.errors import RedblueError
from redblue.base.version import VERSION

COMMANDS = (  # in the order of `redblue --help`
    *("report", "plan", "count", "bound", "sweep", "experiment", "mask", "sparse"),
    *("info", "measure", "recount", "memories", "models", "pebble"),
)

app = typer.Typer(
    help="The fewest words that attention must move, the schedule and tiles for it, and its cost on a machine.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        Console(emoji=False).print(f"redblue {VERSION}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """The options of `redblue` itself, before the name of a command. (`app` holds the help text.)"""


def _add(name: str) -> None:
    """Add the command that the module of this name holds."""
    module = import_module(f"redblue.cli.{name}")
    if hasattr(module, "app"):
        app.add_typer(module.app, name=name)
    else:
        app.command(name, epilog=module.EPILOG)(module.command)


for _name in COMMANDS:
    _add(_name)


def main() -> None:
    """Run the command line. A RedblueError becomes one line on standard error and exit status 2."""
    try:
        app()
    except RedblueError as error:
        errors = Console(stderr=True, emoji=False)
        errors.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
