"""The command line: one module of this package per command. Bad input exits with status 2, never with a traceback.

A command is added by a module NAME.py and by its name in COMMANDS. The module holds the function `command`, and
`EPILOG` with an example for its --help; or `app`, a typer.Typer with subcommands. Every command has --json.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from redblue.base.errors import RedblueError
from redblue.base.progress import INTERRUPTED
from redblue.base.terminal import PLAIN, console, terminal_width
from redblue.base.version import __version__
from redblue.cli import plugins

COMMANDS = (  # in the order of `redblue --help`
    *("report", "plan", "count", "bound", "sweep", "experiment", "mask", "sparse"),
    *("info", "measure", "recount", "memories", "models", "schedules", "pebble"),
)

UsageError: Any = typer.BadParameter.__mro__[1]  # click's; newer versions of Typer bring a copy, and none exports it
UNWRITABLE = (errno.ENOSPC, errno.EPIPE, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

app = typer.Typer(
    help="Compute the fewest words that attention must move, the best schedule and tiles for a machine, and its time.",
    epilog="Example: redblue plan llama-3-8b --memory h100-sxm. Each command has its own example: redblue plan --help",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        console().print(f"redblue {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    plugin: Annotated[
        list[Path] | None,
        typer.Option("--plugin", metavar="FILE.py", help="Run a file that registers your own schedules; repeatable."),
    ] = None,
) -> None:
    """The options of `redblue` itself, before the name of a command. (`app` holds the help text.)"""
    for path in plugin or ():
        plugins.load(path)


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
    """Run the command line, and exit with its status."""
    _prepare_streams()
    try:
        status = app(prog_name="redblue", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except RedblueError as error:
        status = _fail(str(error))
    except UsageError as error:
        status = _fail(error.format_message(), *_help_hint(error)) if error.format_message() else error.exit_code
    except MemoryError:
        status = _fail("the memory of this machine does not suffice: give smaller sizes")
    except KeyboardInterrupt:
        status = INTERRUPTED
    except OSError as error:
        if error.filename is not None:
            status = _fail(f"cannot use {error.filename}: {error.strerror}; name another file")
        elif error.errno in UNWRITABLE:
            status = _discard_output(error)
        else:
            raise
    sys.exit(status)


def _prepare_streams() -> None:
    """Make every text printable in every encoding, and put a usable width into COLUMNS, which Typer reads for help."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAIN)
    if "COLUMNS" in os.environ:
        os.environ["COLUMNS"] = str(terminal_width())


def _fail(text: str, *hints: str) -> int:
    """Print an error and hints on standard error; return the exit status."""
    line = Text.assemble(("error: ", "bold red"), text)
    console(stderr=True).print(line, *hints, sep="\n", highlight=False, soft_wrap=True)
    return 2


def _help_hint(error: Any) -> list[str]:
    """The line that names the help of the command whose arguments are wrong."""
    return [f"help: {error.ctx.command_path} --help"] if error.ctx else []


def _discard_output(error: OSError) -> int:
    """Discard further output after standard output failed; return the exit status.

    A reader that closes early, such as head, is no error. Without the last step, Python would try to write the rest of
    the output at its exit, and report a second error.
    """
    closed = error.errno == errno.EPIPE
    status = (
        1
        if closed
        else _fail(f"cannot write the result to standard output: {error.strerror}; make room or name a file")
    )
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


if __name__ == "__main__":
    main()
