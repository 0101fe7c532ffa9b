"""Output on the terminal: consoles of a bounded width, texts without control characters, tables that fit every width.

Every command prints through `console` and builds its tables with `table`. Neither reads Rich's markup, so a user's text
such as "[/b]" is printed unchanged.
"""

from __future__ import annotations

import codecs
import re
import shutil
from collections.abc import Sequence
from itertools import zip_longest
from typing import IO, Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, Group, RenderableType, RenderHook, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

MIN_WIDTH, MAX_WIDTH = 20, 1000  # columns; COLUMNS may hold any number
READABLE, LONG_WORD = 12, 20  # columns: the least width of a cell that wraps, and the longest word that is kept whole
# Characters that could move a terminal's cursor, change its state or reorder its text, and unpaired surrogates
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
PLAIN_FORMS = {
    **{"×": "x", "²": "^2", "≥": ">=", "≤": "<=", "≠": "!=", "√": "sqrt ", "Θ": "Theta", "·": "*"},
    **{"–": "-", "—": "-", "…": "...", "’": "'", "\N{NO-BREAK SPACE}": " "},
    **dict(zip("░▒▓█", ".:+#", strict=True)),  # the picture of a mask
}
PLAIN = "redblue-plain"  # the name of an error handler for streams


def visible(text: str) -> str:
    """Escape control characters, so that a terminal shows them instead of obeying them: ESC becomes \\x1b."""
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that a stream's encoding lacks by ASCII: known ones by a similar text, others by an escape."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(PLAIN_FORMS.get(c) or c.encode("ascii", "backslashreplace").decode() for c in lacking), error.end


codecs.register_error(PLAIN, _plain)


class _Visible(RenderHook):
    """Escape all control characters that a console prints, except the control characters of its own styles."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Escaped(renderable) for renderable in renderables]


class _Escaped:
    """A renderable whose texts are escaped when they are rendered."""

    def __init__(self, renderable: ConsoleRenderable) -> None:
        self.renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def terminal_width() -> int:
    """Return the width of standard output in columns, as COLUMNS or the terminal says; 80 if it is no terminal."""
    return min(max(shutil.get_terminal_size((80, 24)).columns or 80, MIN_WIDTH), MAX_WIDTH)


def console(stderr: bool = False, file: IO[str] | None = None, width: int | None = None) -> Console:
    """Make a console that prints texts literally: no markup, no emoji, and control characters are escaped."""
    made = Console(stderr=stderr, file=file, width=width or terminal_width(), markup=False, emoji=False)
    made.push_render_hook(_Visible())
    return made


def message(text: str) -> None:
    """Print one line on standard error, which leaves standard output to the result."""
    console(stderr=True).print(text, highlight=False, soft_wrap=True)


def table(
    left: Sequence[str], right: Sequence[str] = (), title: str | None = None, caption: str | None = None
) -> StackingTable:
    """Return an empty table: left-aligned columns, which may wrap, then right-aligned columns, which may not.

    left, right: the headings of the columns. A heading may have several lines: line i then names line i of each cell.
    """
    result = StackingTable(box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left")
    result.title = None if title is None else Text(visible(title), style="bold")
    result.caption = None if caption is None else Text(visible(caption), style="dim")
    for heading in left:
        result.add_column(_text(heading), overflow="fold")
    for heading in right:
        result.add_column(_text(heading), justify="right", no_wrap=True)
    return result


class StackingTable(Table):
    """A table for terminals of any width: where columns do not fit side by side, each cell gets a line of its own.

    No cell is cut at any width.
    """

    def add_row(self, *cells: RenderableType | None, style: Any = None, end_section: bool = False) -> None:
        """Add a row of texts. Unlike Rich's own method, it reads no markup."""
        texts = [_text(cell) if isinstance(cell, str) else cell for cell in cells]
        texts += [Text()] * (len(self.columns) - len(texts))
        super().add_row(*texts, style=style, end_section=end_section)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = self._widths(options.max_width)
        if widths is None:
            yield self._stacked(options.max_width)
            return
        for column, width in zip(self.columns, widths, strict=True):
            column.width = width
        yield from super().__rich_console__(console, options)

    def _cells(self) -> list[list[Text]]:
        """The heading and the cells of each column."""
        return [[_as_text(column.header), *map(_as_text, column.cells)] for column in self.columns]

    def _widths(self, width: int) -> list[int] | None:
        """The width of each column in a table of `width` columns; None if the table is too narrow."""
        lines = [[line.plain for cell in cells for line in _lines(cell)] for cells in self._cells()]
        longest = [max(map(cell_len, cell_lines)) for cell_lines in lines]
        words = [
            max((cell_len(word) for line in cell_lines for word in line.split(" ")), default=0) for cell_lines in lines
        ]
        widths = [
            most if column.no_wrap else min(most, max(READABLE, min(word, LONG_WORD)))
            for most, word, column in zip(longest, words, self.columns, strict=True)
        ]
        padding = self._extra_width + sum(map(self._get_padding_width, range(len(widths))))
        rest = width - padding - sum(widths)
        if rest < 0:
            return None
        for i, most in enumerate(longest):
            more = min(rest, most - widths[i])
            widths[i], rest = widths[i] + more, rest - more
        return widths

    def _stacked(self, width: int) -> Group:
        """The rows one below the other, with the headings as labels."""
        columns = [(_labels(heading, cells), cells) for heading, *cells in self._cells()]
        blocks: list[RenderableType] = [] if self.title is None else [self.title, ""]
        for i, row in enumerate(self.rows):
            block = Table.grid(padding=(0, 2))
            block.add_column(overflow="fold", max_width=width // 2)
            block.add_column(overflow="fold")
            for labels, cells in columns:
                for label, line in zip_longest(labels, _lines(cells[i]), fillvalue=Text()):
                    if line.plain.strip():
                        block.add_row(label, line, style=row.style)
            blocks += [block, ""]
        return Group(*blocks, *([] if self.caption is None else [self.caption]))


def _text(text: str) -> Text:
    return Text(visible(text))


def _as_text(cell: RenderableType) -> Text:
    assert isinstance(cell, Text), "the cells of a StackingTable are texts"
    return cell


def _lines(cell: Text) -> Sequence[Text]:
    return list(cell.split("\n", allow_blank=True)) or [Text()]


def _labels(heading: Text, cells: Sequence[Text]) -> list[Text]:
    """Return a label for each line of a cell: the lines of the heading, or one label if no cell has that many lines."""
    lines = _lines(heading)
    if len(lines) > max((len(_lines(cell)) for cell in cells), default=0):
        lines = [Text(" ".join(line.plain for line in lines))]
    return [Text(line.plain, style="dim") for line in lines]
