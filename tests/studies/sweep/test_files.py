"""The files of sweeps."""

import importlib.util
import json
import os

import pytest

from redblue.base.errors import RedblueError
from redblue.studies import sweep
from redblue.studies.sweep import runner
from support.sweeps import SMALL


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_files_give_back_the_rows(suffix, tmp_path):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow", reason="Parquet is NOT tested: pip install 'redblue[parquet]'")
    axes = {"n": [64, 333], "d": 8, "memory": "t4", "words": "5,500", "heads": [3, 4], "kv_heads": 2}
    path = tmp_path / f"r{suffix}"
    rows = sweep.run(axes | {"mask": "causal,window:8,2"}, output=path, jobs=1)
    assert {row["status"] for row in rows} == {"fits", "too few words", "invalid"}
    back = sweep.read(path)
    assert back == rows
    types = [{name: type(value) for name, value in row.items()} for row in rows]
    assert [{name: type(value) for name, value in row.items()} for row in back] == types
    assert os.listdir(tmp_path) == [path.name]  # neither a draft nor a journal is left


def test_a_byte_order_mark_is_ignored(tmp_path, expected):
    """Spreadsheets write it."""
    path = sweep.write(expected, tmp_path / "r.csv")
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert sweep.read(path) == expected


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch, tmp_path):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "pyarrow" else find_spec(name, *a)
    )
    with pytest.raises(RedblueError, match=r"pip install 'redblue\[parquet\]'"):
        sweep.run(SMALL, output=tmp_path / "r.parquet")


def test_numbers_too_large_for_parquet_are_refused(tmp_path, expected):
    pytest.importorskip("pyarrow", reason="Parquet is NOT tested: pip install 'redblue[parquet]'")
    with pytest.raises(RedblueError, match="exceeds Parquet's 64 bits"):
        sweep.write([expected[0] | {"flops": 2**63}], tmp_path / "r.parquet")
    assert os.listdir(tmp_path) == []


def test_the_points_of_a_parquet_file_that_cannot_be_written_are_kept_for_another_format(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow", reason="Parquet is NOT tested: pip install 'redblue[parquet]'")
    axes = {"n": [8, 10**7], "d": 16, "words": 64, "heads": 10**6, "schedule": "standard"}
    expected = sweep.run(axes, jobs=1)
    assert max(row["flops"] for row in expected) > 2**63
    with pytest.raises(RedblueError) as refused:
        sweep.run(axes, output=tmp_path / "big.parquet", jobs=1)
    kept = tmp_path / "big.parquet.partial.jsonl"
    assert f"The finished points are in {kept}. To keep them, rename this file to big.csv.partial.jsonl," in str(
        refused.value
    )
    kept.rename(tmp_path / "big.csv.partial.jsonl")

    def computed_again(point):
        raise AssertionError(point)

    monkeypatch.setattr(runner, "evaluate", computed_again)
    assert sweep.run(axes, output=tmp_path / "big.csv", jobs=1) == expected
    assert sweep.read(tmp_path / "big.csv") == expected
    assert os.listdir(tmp_path) == ["big.csv"]


def test_an_existing_file_is_kept(tmp_path, expected):
    path = tmp_path / "r.csv"
    path.write_text("mine")
    with pytest.raises(RedblueError, match="exists: name another file, or replace it with --force"):
        sweep.run(SMALL, output=path)
    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == ["r.csv"]
    sweep.run(SMALL, output=path, force=True, jobs=1)
    assert sweep.read(path) == expected


def test_a_file_that_came_in_the_meantime_is_kept(interrupted, expected):
    def progress(done, total):
        if done == total:
            interrupted.write_text("mine")

    with pytest.raises(RedblueError, match="exists"):
        sweep.run(SMALL, output=interrupted, jobs=1, progress=progress)
    assert interrupted.read_text() == "mine"
    assert sweep.run(SMALL, output=interrupted, jobs=1, force=True) == expected


@pytest.mark.parametrize("name", ["r.xlsx", "r", "no/r.csv", "folder.csv"])
def test_unwritable_outputs_are_refused_before_any_work(name, tmp_path, monkeypatch):
    (tmp_path / "folder.csv").mkdir()
    monkeypatch.setattr(runner, "evaluate", lambda point: pytest.fail("worked"))
    with pytest.raises(RedblueError, match=r"must end in|it is a folder|there is no folder"):
        sweep.run(SMALL, output=tmp_path / name)


def test_a_name_that_no_file_can_have_is_refused(expected):
    for path, says in ((42, "by its name, got 42"), ("a" * 300 + ".csv", "cannot write aaa"), ("a\0.csv", "null")):
        with pytest.raises(RedblueError, match=says):
            sweep.write(expected, path)
    with pytest.raises(RedblueError, match="by its name, got 42"):
        sweep.read(42)


def changed(rows, name, value):
    return "".join(json.dumps(row | {name: value}) + "\n" for row in rows)


HEAD = ",".join(sweep.COLUMNS)


@pytest.mark.parametrize(
    ("name", "make", "says"),
    [
        ("r.csv", None, "cannot read .*r.csv: No such file"),
        ("r.jsonl", None, "cannot read"),
        ("r.parquet", None, "cannot read"),
        ("r.csv", lambda rows: "", "it lacks the columns n_q, n_k, d, d_v, batch, ..."),
        ("r.csv", lambda rows: "a,b\n1,2\n", "should not have the columns a, b"),
        ("r.csv", lambda rows: HEAD + ",n_q\n", "should not have the columns n_q"),
        ("r.csv", lambda rows: HEAD + "\n1,2\n", "line 2 has 2 values, not"),
        (
            "r.csv",
            lambda rows: HEAD + "\nmany" + "," * (len(sweep.COLUMNS) - 1) + "\n",
            "line 2: invalid literal for int.*'many'",
        ),
        ("r.csv", lambda rows: HEAD + '\n"1' + "," * 26 + "\n", "does not hold the rows of a sweep"),
        ("r.csv", lambda rows: b"\xff\xfe", "does not hold the rows of a sweep"),
        ("r.jsonl", lambda rows: "my notes", "line 1: Expecting value"),
        ("r.jsonl", lambda rows: changed(rows, "n_q", 1) + "{", "line [0-9]+: Expecting property name"),
        ("r.jsonl", lambda rows: "[" * 100_000, "does not hold the rows of a sweep"),
        ("r.jsonl", lambda rows: "42", "an object with the columns of a sweep is expected"),
        ("r.jsonl", lambda rows: '{"n": 64}', "lacks the columns n_q.* and it should not have the columns n"),
        ("r.jsonl", lambda rows: changed(rows, "n_q", "64"), "line 1: n_q must be a whole number, got '64'"),
        ("r.jsonl", lambda rows: changed(rows, "gap", True), "gap must be a number, got True"),
        ("r.parquet", lambda rows: b"PAR1 my notes", "does not hold the rows of a sweep"),
        ("r.parquet", lambda rows: b"", "does not hold the rows of a sweep"),
    ],
)
def test_files_that_hold_no_rows_are_refused(name, make, says, tmp_path, expected):
    if name == "r.parquet":
        pytest.importorskip("pyarrow", reason="Parquet is NOT tested: pip install 'redblue[parquet]'")
    path = tmp_path / name
    if make is not None:
        content = make(expected)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RedblueError, match=f"{says}.*; give a file that redblue sweep -o"):
        sweep.read(path)


@pytest.mark.parametrize(
    ("columns", "says"), [({"n": [64]}, "lacks the columns n_q"), ({"n_q": ["64"]}, "n_q must be a whole")]
)
def test_parquet_of_something_else_is_refused(columns, says, tmp_path):
    pytest.importorskip("pyarrow", reason="Parquet is NOT tested: pip install 'redblue[parquet]'")
    import pyarrow
    import pyarrow.parquet

    other_columns = {} if "n" in columns else {name: [None] for name in sweep.COLUMNS}
    pyarrow.parquet.write_table(pyarrow.table(other_columns | columns), tmp_path / "r.parquet")
    with pytest.raises(RedblueError, match=says):
        sweep.read(tmp_path / "r.parquet")


def test_columns_in_another_order_are_taken(tmp_path, expected):
    sweep.write([dict(reversed(row.items())) for row in expected], tmp_path / "r.jsonl")
    back = sweep.read(tmp_path / "r.jsonl")
    assert back == expected
    assert list(back[0]) == list(sweep.COLUMNS)
