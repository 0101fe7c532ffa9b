"""Progress of long commands: a bar on terminals, lines elsewhere; and the message of a command that Ctrl-C stops."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from redblue.base.terminal import console, message, visible

INTERRUPTED = 130  # the exit status that a shell reports for a command that Ctrl-C stopped
THREAD = "redblue progress"
FIRST_SECONDS, MAX_SECONDS = 5.0, 60.0  # the first interval between lines, which then doubles, and the longest one

# move(done, total) or move(done, total, label): advance the bar, and rename it if a label is given.
Move = Callable[..., None]


@contextmanager
def progress_bar(
    label: str, unit: str = "points", total: int | None = None, kept: str = "nothing is kept", resumable: bool = False
) -> Iterator[Move]:
    """Show progress on standard error while the block runs; yield the function that reports it.

    A terminal shows a bar, which disappears when the block ends. Anything else, such as a file, gets a line now and
    then. On Ctrl-C, print how many steps are done and whether their results are kept, then exit with status
    INTERRUPTED.

    unit: the name of the steps, in the plural. total: the number of steps, if known before the first call of `move`.
    kept: the part of the message that says which results are kept. resumable: whether the same command line continues
    the work; if so, the message repeats the command line.
    """
    errors = console(stderr=True)
    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    done, size, step = 0, total or 0, ""

    def line() -> str:
        return label + (f": {_steps(done, size, unit)}" if size else "") + (f"; now {step}" if step else "")

    try:
        with (
            Progress(*columns, console=errors, transient=True, disable=not errors.is_interactive) as bar,
            _lines(line, wanted=not errors.is_interactive),
        ):
            task = bar.add_task(label, total=total)

            def move(count: int, total: int, label: str | None = None) -> None:
                nonlocal done, size, step
                done, size, step = count, total, label or ""
                bar.update(task, completed=count, total=total, description=None if label is None else visible(label))

            yield move
    except KeyboardInterrupt:
        message(f"stopped: {_steps(done, size, unit)} {'is' if size == 1 else 'are'} done, {kept}")
        if resumable:
            again = shlex.join(["redblue", *(word for word in sys.argv[1:] if word != "--restart")])
            message(f"to go on: {again}")
        raise SystemExit(INTERRUPTED) from None


@contextmanager
def working(label: str) -> Iterator[Callable[[str], None]]:
    """Say on standard error that work without countable steps goes on; yield a function that says how far it is.

    A terminal shows a spinner. Anything else gets a line now and then, as from `progress_bar`.
    """
    errors = console(stderr=True)
    current = label
    with errors.status(Text(label)) as status, _lines(lambda: current, wanted=not errors.is_interactive):

        def say(text: str) -> None:
            nonlocal current
            current = f"{label}: {text}"
            status.update(Text(visible(text)))

        yield say


def _steps(done: int, size: int, unit: str) -> str:
    """Say how many steps are done. unit: the name of the steps, in the plural."""
    singular = f"{unit[:-3]}y" if unit.endswith("ies") else unit.removesuffix("s")
    return f"{done:,} of {size:,} {singular if size == 1 else unit}"


@contextmanager
def _lines(text: Callable[[], str], wanted: bool) -> Iterator[None]:
    """Print a line on standard error now and then while the block runs, if `wanted`."""
    over = Event()
    thread = Thread(name=THREAD, target=_print_lines, args=(text, over.wait), daemon=True)
    if wanted:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if wanted:
            thread.join()


def _print_lines(text: Callable[[], str], over: Callable[[float], bool]) -> None:
    """Print text() after FIRST_SECONDS, and then at intervals that double up to MAX_SECONDS.

    over(seconds): wait, and return whether the work ended in the meantime.
    """
    start, pause = monotonic(), FIRST_SECONDS
    while not over(pause):
        message(f"{text()} ({monotonic() - start:.0f} s)")
        pause = min(2 * pause, MAX_SECONDS)
