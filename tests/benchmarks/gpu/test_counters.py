"""Bytes that Nsight Compute counts."""

import json
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from benchmarks.gpu import counters
from redblue.base.errors import RedblueError
from redblue.kernels.gpu.planning.card import Card


def test_counted_bytes_stand_beside_the_closed_forms(monkeypatch, tmp_path):

    def bytes_of(places):
        ((direction, d, _, schedule),) = places
        assert schedule == "auto"
        if (direction, d) == ("backward", 128):
            raise RedblueError("no counters here")
        return [(300 << 20, 10 << 20)]

    monkeypatch.setattr(counters, "bytes_of", bytes_of)
    monkeypatch.setattr(counters, "card_of", lambda device: Card())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(sys, "argv", ["counters", "--json", str(tmp_path / "counters.json")])
    with pytest.raises(SystemExit) as ended:
        counters.main()
    assert ended.value.code
    rows = json.loads((tmp_path / "counters.json").read_text())
    assert [row["failure"] for row in rows] == ["", "no counters here", "", ""]
    assert [row["l1_l2_bytes"] for row in rows] == [300 << 20, None, 300 << 20, 300 << 20]
    assert all(row["closed_form_bytes"] > row["l2_bound_bytes"] > 0 for row in rows)
