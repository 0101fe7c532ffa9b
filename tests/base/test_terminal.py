"""Texts and tables for terminals."""

import io

import pytest

from redblue.base import terminal
from redblue.base.terminal import console, table, terminal_width, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb [/b] :100:", "a\nb [/b] :100:"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\a\t\r\x7f\x9b", "\\x07\\t\\r\\x7f\\x9b"),
        ("\udcff\u202e\u2028", "\\udcff\\u202e\\u2028"),
        ("é日本", "é日本"),
    ],
)
def test_control_characters_are_shown(text, shown):
    assert visible(text) == shown


@pytest.mark.parametrize(
    ("columns", "width"), [("60", 60), ("0", 80), ("-3", 80), ("x", 80), ("", 80), ("5", 20), ("9" * 30, 1000)]
)
def test_widths(monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal_width() == width


def test_streams_take_characters_that_their_encoding_lacks():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", errors=terminal.PLAIN)
    stream.write("é × d² ≥ 1 █ 日 \udcff")
    stream.flush()
    assert stream.buffer.getvalue().decode("latin-1") == "é × d² >= 1 # \\u65e5 \\udcff"


def printed(renderable, width):
    file = io.StringIO()
    console(file=file, width=width).print(renderable)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def example():
    rows = table(("name\nkind", "note"), ("words\nbytes", "wide\nheading"), title="A [title]", caption="a caption")
    rows.add_row("flash\n", "a note of several words", "1,000\n2,000", "3")
    rows.add_row("[/b]\x1b\nsmall", "", "5\n6", "7")
    return rows


def test_a_wide_table():
    assert printed(example(), 80) == [
        "A [title]",
        "",
        "  name                                 words      wide",
        "  kind       note                      bytes   heading",
        " ──────────────────────────────────────────────────────",
        "  flash      a note of several words   1,000         3",
        "                                       2,000",
        "  [/b]\\x1b                                 5         7",
        "  small                                    6",
        "",
        "a caption",
    ]


def test_a_narrow_table_stacks_its_rows():
    """A heading of two lines labels two lines; above cells of one line it is a single label.

    Empty cells take no line.
    """
    assert printed(example(), 32) == [
        "A [title]",
        "",
        "name          flash",
        "note          a note of several",
        "              words",
        "words         1,000",
        "bytes         2,000",
        "wide heading  3",
        "",
        "name          [/b]\\x1b",
        "kind          small",
        "words         5",
        "bytes         6",
        "wide heading  7",
        "",
        "a caption",
    ]


def test_a_table_of_no_rows():
    assert printed(table(("name",), ("words",)), 20)
