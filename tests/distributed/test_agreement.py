"""The records that processes exchange before a call."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from redblue.distributed import agreement
from support import distributed_calls as calls
from support.processes import Processes


@pytest.mark.parametrize("letter", ["a", "é", "\U0001f600", '"', "\ud800"])
def test_long_errors_fit_into_a_record(letter):
    text = agreement.encoded({"error": letter * 5000})
    assert 0.8 * agreement.RECORD_BYTES < len(text) <= agreement.RECORD_BYTES
    assert set(json.loads(text)["error"]) == {letter}
    assert agreement.encoded({"error": letter}) == json.dumps({"error": letter}).encode()
    assert "too long" in json.loads(agreement.encoded({"call": letter * 5000}))["error"]


@pytest.mark.thorough
def test_every_rank_gets_a_long_error():
    processes = Processes(2)
    try:
        processes.run(calls.long_error)
    finally:
        processes.close()
