"""Damaged journals of sweeps and experiments never give wrong rows, and never count a lost point as finished."""

import itertools
import json
import os
import random
import zlib

import pytest

import redblue as rb
from redblue import RedblueError
from redblue.base.journal import Journal, journal_path
from redblue.studies import sweep
from support.sweeps import SMALL

ROWS = {0: [{"a": 1, "b": 0.25}], 2: [{"a": -7, "b": None}, {"a": 2**70, "b": "é"}], 1: [{"a": 3, "b": 1e-300}]}


def opened(path):
    return Journal(path, "sweep", {"axes": {"n": [1, 2]}}, 4, columns=["a", "b"])


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A journal with three of four points. Tests open thousands of journals, so writes do not wait for the disk."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    path = tmp_path / "r.csv.partial.jsonl"
    with opened(path) as file:
        for index, rows in ROWS.items():
            file.add(index, rows)
    return path


def outcome(path, content):
    """Open a journal of this content. Returns its points, or the error."""
    with path.open("r+b", buffering=0) as file:  # faster than a new file
        file.truncate(file.write(content))
    try:
        with opened(path) as file:
            return dict(file.done)
    except RedblueError as error:
        assert path.read_bytes() == content  # a refused file is not changed
        return str(error)


def test_every_single_bit_flip(path):
    """The error names the damaged line.

    If the last line break is damaged, the last point may instead be computed again.
    """
    content = path.read_bytes()
    lines, tried, refused = content.count(b"\n"), 0, 0
    for position, bit in itertools.product(range(len(content)), range(8)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << bit
        result = outcome(path, bytes(flipped))
        tried += 1
        if isinstance(result, dict):
            assert position == len(content) - 1
            assert result == {index: rows for index, rows in ROWS.items() if index != 1}
            continue
        refused += 1
        line = content[:position].count(b"\n") + 1
        if line > 1:
            assert f"is damaged in line {line}" in result or f"is damaged in line {line + 1}" in result
            assert "--restart" in result
    assert (lines, tried) == (4, 8 * len(content))
    assert refused == tried - 8


def test_every_cut_resumes(path):
    """A run that was cut off at any byte continues after the complete points."""
    content = path.read_bytes()
    ends = list(itertools.accumulate(map(len, content.splitlines(keepends=True))))
    for size in range(len(content) + 1):
        points = list(ROWS)[: max(0, sum(end <= size for end in ends) - 1)]
        assert outcome(path, content[:size]) == {index: ROWS[index] for index in points}, size
        with opened(path) as file:
            file.add(3, [])
            assert set(file.done) == {*points, 3}


def test_lines_of_others_are_refused(path):
    """Lines that look like points, but without or with a wrong checksum, out of range, or with other columns."""
    content, tried = path.read_bytes(), 0

    def signed(text):
        return text[:-1] + b',"crc32":%d}' % zlib.crc32(text)

    for line in (
        b'{"point":3,"rows":[]}',
        b'{"point":3,"rows":[],"crc32":5}',
        b"",
        b"[]",
        b"null",
        b"[" * 20_000,
        b"\xff\xfe",
        b'{"crc32":3523407757}',
        signed(b'{"point":4,"rows":[]}'),
        signed(b'{"point":-1,"rows":[]}'),
        signed(b'{"point":true,"rows":[]}'),
        signed(b'{"point":3,"rows":[[1]]}'),
        signed(b'{"point":3,"rows":{}}'),
        signed(b'{"point": 3,"rows":[]}'),  # not as redblue writes it
    ):
        assert "is damaged in line 5, whose checksum does not match" in outcome(path, content + line + b"\n"), line
        tried += 1
    assert tried == 14
    assert outcome(path, content + signed(b'{"point":3,"rows":[]}') + b"\n") == {**ROWS, 3: []}


def test_random_damage(path):
    """With bytes overwritten, removed or inserted and lines swapped or doubled: correct rows or an error."""
    content, draw, accepted = path.read_bytes(), random.Random(26), 0
    for _ in range(1500):
        damaged = bytearray(content)
        for _ in range(draw.randint(1, 3)):
            place, length = draw.randrange(len(damaged)), draw.randint(0, 8)
            damaged[place : place + draw.randint(0, 8)] = draw.randbytes(length)
        if draw.random() < 0.2:
            lines = content.splitlines(keepends=True)
            damaged = lines[0] + b"".join(draw.choices(lines[1:], k=draw.randint(0, 5)))
        result = outcome(path, bytes(damaged))
        if isinstance(result, dict):
            accepted += 1
            assert all(ROWS[index] == rows for index, rows in result.items())
    assert accepted > 100


def test_a_journal_without_checksums_is_refused(path):
    """Journals of format 1 had none: their rows cannot be trusted."""
    header = {"redblue_sweep": 1, "version": rb.__version__, "axes": {"n": [1, 2]}, "columns": ["a", "b"]}
    result = outcome(path, json.dumps(header).encode() + b'\n{"point":0,"rows":[[1,0.25]]}\n')
    assert "was written by an older redblue, without checksums: --restart" in result
    with Journal(path, "sweep", {"axes": {"n": [1, 2]}}, 4, restart=True, columns=["a", "b"]) as file:
        assert file.done == {}


def test_a_sweep_names_the_damaged_line(interrupted):
    content = bytearray(journal_path(interrupted).read_bytes())
    content[content.index(b'{"point":2') + 30] ^= 1
    journal_path(interrupted).write_bytes(content)
    with pytest.raises(RedblueError, match="is damaged in line 4, whose checksum does not match"):
        sweep.run(SMALL, output=interrupted, jobs=1)


def test_a_journal_is_closed_before_it_is_deleted(path, monkeypatch):
    """Windows does not delete open files."""
    file, unlink = opened(path), type(path).unlink

    def closed_first(self, **options):
        assert file._file.closed
        unlink(self, **options)

    monkeypatch.setattr(type(path), "unlink", closed_first)
    file.remove()
    file.close()
    assert os.listdir(path.parent) == []
