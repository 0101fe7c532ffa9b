"""Options of the command lines, and the console that shows tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from typing import TypeVar

from rich.console import Console

PAGE_WIDTH = 132  # columns of output that does not go to a terminal
QUICK = {"rounds": 3, "seconds": 0.03}
Case = TypeVar("Case")


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help shows the command and the docstring of the program."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    command = f"python -m {spec.name.removesuffix('.__main__')}" if spec else None
    return argparse.ArgumentParser(command, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def at_least(least: int) -> Callable[[str], int]:
    """A type of options: whole numbers from `least` on."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or value < least:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {text}")
        return value

    return number


def positive(text: str) -> float:
    """A type of options: numbers above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text}")
    return value


def add_rounds(parser: argparse.ArgumentParser, rounds: int, seconds: float | None = None) -> None:
    """Add --rounds with its default and, if `seconds` is given, --seconds with that default."""
    parser.add_argument("--rounds", type=at_least(1), default=rounds, help="turns of each contender (%(default)s)")
    if seconds is not None:
        duration = "seconds of each contender in each round (%(default)s)"
        parser.add_argument("--seconds", type=positive, default=seconds, help=duration)


def chosen(
    parser: argparse.ArgumentParser, text: str, cases: Iterable[Case], name: Callable[[Case], str] = str
) -> list[Case]:
    """The cases whose name contains the text of --only. Ends the program with an error if there are none."""
    cases = list(cases)
    kept = [case for case in cases if text in name(case)]
    if not kept:
        names = dict.fromkeys(map(name, cases))
        parser.error(f"--only: no name contains {text!r}: {'; '.join(names)}")
    return kept


def console() -> Console:
    return Console(width=None if sys.stdout.isatty() else PAGE_WIDTH)
