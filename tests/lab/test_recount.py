"""The paper's figures: every line count exactly, and Figure 2 as far as its algorithms explain it."""

import pytest

from redblue.lab.recount import recount


def test_every_line_count_is_what_the_algorithms_move():
    words = [(r.schedule, r.tiles.get("cols" if r.schedule == "flash1" else "rows"), r.counted)
             for r in recount() if r.unit == "words"]  # fmt: skip
    assert words == [
        ("standard", None, 4608),
        *(("flash1", b, w) for b, w in ((4, 4544), (8, 2496), (16, 1472))),
        *(("flash", b, w) for b, w in ((4, 2336), (8, 1312), (16, 800))),
    ]
    assert all(r.ratio == 1 for r in recount() if r.unit == "words")


def test_the_traffic_of_figure_2():
    """Standard: 25.2 GB (42.4 with separate mask and dropout); flash: 4.61 GB. Printed: 40.3 (or 35.3) and 4.4."""
    rows = [(r.schedule, r.expected, round(r.counted, 2)) for r in recount() if r.unit == "GB"]
    assert rows == [
        ("standard", 40.3, 25.23),
        ("standard", 35.3, 25.23),
        ("standard", 40.3, 42.41),
        ("flash1", 4.4, 4.61),
    ]
    assert [r.ratio for r in recount()][-1] == pytest.approx(4.605 / 4.4, rel=1e-3)
