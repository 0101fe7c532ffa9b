"""Options of the command lines, and the console that shows tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from typing import TypeVar

from rich.console import Console

PAGE_WIDTH = 132  # columns of output that does not go to a terminal
QUICK_ROUNDS, QUICK_SECONDS = 3, 0.03
Case = TypeVar("Case")


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help begins with the docstring of the program."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


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


def add_rounds(parser: argparse.ArgumentParser, rounds: int, of: str = "turns of each contender") -> None:
    parser.add_argument("--rounds", type=at_least(1), default=rounds, help=f"{of} (%(default)s)")


def add_seconds(parser: argparse.ArgumentParser, seconds: float) -> None:
    what = "time of each contender in each round (%(default)s)"
    parser.add_argument("--seconds", type=float, default=seconds, help=what)


def chosen(
    parser: argparse.ArgumentParser, option: str, text: str, cases: Iterable[Case], name: Callable[[Case], str] = str
) -> list[Case]:
    """The cases whose name contains the text that the option gives. Ends with an error if there are none."""
    cases = list(cases)
    kept = [case for case in cases if text in name(case)]
    if not kept:
        names = dict.fromkeys(map(name, cases))
        parser.error(f"{option}: {text!r} is in none of these names: {'; '.join(names)}")
    return kept


def console() -> Console:
    return Console(width=None if sys.stdout.isatty() else PAGE_WIDTH)
