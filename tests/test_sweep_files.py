"""The files of sweeps."""

import importlib.util
import os

import pytest

from redblue import sweep
from redblue.errors import RedblueError
from redblue.sweep import runner
from sweeps import SMALL


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
    assert os.listdir(tmp_path) == [path.name]  # neither a draft nor the kept points are left


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch, tmp_path):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "pyarrow" else found(name, *a))
    with pytest.raises(RedblueError, match=r"pip install 'redblue\[parquet\]'"):
        sweep.run(SMALL, output=tmp_path / "r.parquet")


def test_too_large_for_parquet_is_said(tmp_path, expected):
    pytest.importorskip("pyarrow", reason="Parquet is NOT tested: pip install 'redblue[parquet]'")
    with pytest.raises(RedblueError, match="exceeds Parquet's 64 bits"):
        sweep.write([expected[0] | {"flops": 2**63}], tmp_path / "r.parquet")
    assert os.listdir(tmp_path) == []


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
def test_where_nothing_can_be_written_is_said_before_any_work(name, tmp_path, monkeypatch):
    (tmp_path / "folder.csv").mkdir()
    monkeypatch.setattr(runner, "evaluate", lambda point: pytest.fail("worked"))
    with pytest.raises(RedblueError, match=r"must end in|it is a folder|there is no folder"):
        sweep.run(SMALL, output=tmp_path / name)
