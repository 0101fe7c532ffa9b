"""Progress bars for long commands, and the message of a command that Ctrl-C stops."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

INTERRUPTED = 130  # the exit status that a shell reports for a command that Ctrl-C stopped

# move(done, total) or move(done, total, label): advance the bar, and rename it if a label is given.
Move = Callable[..., None]


@contextmanager
def progress_bar(
    label: str, unit: str = "points", total: int | None = None, kept: str = "nothing is kept", resumable: bool = False
) -> Iterator[Move]:
    """Show a progress bar on standard error while the block runs; yield the function that advances the bar.

    The bar appears on terminals only, and disappears when the block ends. On Ctrl-C, print how many steps are done and
    whether their results are kept, then exit with status INTERRUPTED.

    unit: the name of the steps, in the plural. total: the number of steps, if known before the first call of `move`.
    kept: the part of the message that says which results are kept. resumable: whether the same command line continues
    the work; if so, the message repeats the command line.
    """
    console = Console(stderr=True, emoji=False)  # an emoji would replace the ":100:" of a range in the command line
    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    done, size = 0, total or 0
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task(label, total=total)

            def move(count: int, total: int, label: str | None = None) -> None:
                nonlocal done, size
                done, size = count, total
                bar.update(task, completed=count, total=total, description=label)

            yield move
    except KeyboardInterrupt:
        console.print(f"stopped: {done:,} of {size:,} {unit} are done, {escape(kept)}", soft_wrap=True)
        if resumable:
            again = shlex.join(["redblue", *(word for word in sys.argv[1:] if word != "--restart")])
            console.print(f"to go on: {escape(again)}", highlight=False, soft_wrap=True)
        raise SystemExit(INTERRUPTED) from None
