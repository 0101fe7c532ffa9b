"""The journal of a run: which rows of an earlier run it keeps, and in which order it writes them."""

from benchmarks.common.journal import Journal
from benchmarks.common.results import Figure, Limit, Row, read
from benchmarks.common.timing import Spread

ORDER = ["fp32, a", "fp32, b", "bf16, a"]
FACTS = {"cpu": "a CPU", "versions": {"torch": "1"}, "date": "2026-11-26"}


def row(measure, case, value=1.0):
    figure = Figure("over a peer", Spread(value, value, value), Limit(1.0))
    return Row(measure, case, [figure], {"redblue": [value]}, "calls/s")


def journal(path, facts=FACTS, resume=True):
    return Journal(path, dict(facts), ORDER, ("cpu", "versions"), resume)


def test_a_later_run_keeps_the_rows_and_writes_them_in_order(tmp_path):
    path = tmp_path / "rows.json"
    journal(path).keep(row("bf16", "a"))
    later = journal(path, FACTS | {"date": "2026-11-27"})
    assert list(later.kept) == ["bf16, a"]
    later.keep(row("fp32", "a", 2.0))
    about, rows = read(path)
    assert rows == [row("fp32", "a", 2.0), row("bf16", "a")]
    assert (about["date"], about["complete"]) == ("2026-11-27", False)
    later.keep(row("fp32", "b"))
    assert read(path)[0]["complete"]
    assert journal(path).facts["complete"]


def test_rows_of_other_versions_are_measured_again(tmp_path, capsys):
    path = tmp_path / "rows.json"
    journal(path).keep(row("fp32", "a"))
    assert not journal(path, FACTS | {"versions": {"torch": "2"}}).kept
    assert "measured again: 1 rows, because versions changed" in capsys.readouterr().err
    assert not journal(path, resume=False).kept


def test_a_run_without_a_file_keeps_its_rows():
    kept = journal(None)
    kept.keep(row("fp32", "b"))
    assert kept.rows == [row("fp32", "b")]
