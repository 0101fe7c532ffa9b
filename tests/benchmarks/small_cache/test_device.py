"""Launches with less and less shared memory: their times and their bytes."""

import json
import math
import warnings
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from rich.console import Console

import redblue as rb
from benchmarks.small_cache import bytes as small_cache_bytes
from benchmarks.small_cache import crossing as small_cache
from benchmarks.small_cache import device as small_cache_device
from redblue.kernels.gpu.planning.card import Card
from redblue.meter.interpreter import counting


def test_bytes_of_each_launch_are_kept_beside_their_bounds(monkeypatch, capsys):
    rows = [small_cache.Row("backward", 512, kb, "flash", launch="one", seconds=1.0) for kb in (99, 227)]
    rows += [small_cache.Row("forward", 64, 24, "hybrid", launch="two", seconds=1.0)]
    rows += [small_cache.Row("forward", 64, 24, "flash", launch="none")]
    asked = []

    def bytes_of(places):
        asked.append(places)
        return [(100 * len(asked) + i, i) for i in range(len(places))]

    console = Console(width=200)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(L2_cache_size=50 << 20))
    monkeypatch.setattr(small_cache_device, "bytes_of", bytes_of)
    small_cache_device._count_bytes(rows, math.inf, lambda: None, console)
    assert asked == [[("backward", 512, 99, "flash")], [("forward", 64, 24, "hybrid")]] or asked == [
        [("backward", 512, 227, "flash")],
        [("forward", 64, 24, "hybrid")],
    ]
    assert [row.l1_l2_bytes for row in rows] == [100, 100, 200, None]
    words = rb.lower_bound(small_cache.problem("forward", 64), words=25 << 20).words
    assert rows[2].l2_dram_bound_bytes == 2 * words
    small_cache_device._count_bytes(rows, math.inf, lambda: None, console)
    assert len(asked) == 2

    def refused(places):
        raise rb.RedblueError("no counters here")

    rows[0].l1_l2_bytes = None
    monkeypatch.setattr(small_cache_device, "bytes_of", refused)
    small_cache_device._count_bytes(rows, math.inf, lambda: None, console)
    assert "no bytes: no counters here" in capsys.readouterr().out


def test_a_launch_that_the_card_refuses_is_not_timed_as_another(monkeypatch):

    from redblue.kernels.gpu.planning.card import Card

    class Device:
        def seconds(self, run):
            return [2.0]

    def replaced(row, options):
        def run():
            if row.d == 512:
                warnings.warn("flash does not fit; hybrid runs instead", stacklevel=1)

        return run

    gate = SimpleNamespace(check=lambda name, results: [])
    monkeypatch.setattr(small_cache_device, "_call", replaced)
    for d, seconds in ((512, None), (64, 2.0)):
        row = small_cache.Row("forward", d, 227, "flash")
        card = Card(arch=90, shared_bytes=227 << 10)
        small_cache_device._time_one(row, None, [], gate, card, Device(), {})
        assert row.seconds == seconds
        assert ("hybrid runs instead" in row.why) == (seconds is None)
        assert row.launch == "none" if seconds is None else row.launch
        assert row.date


def test_a_launch_that_fails_in_passing_is_left_to_the_next_run(monkeypatch):

    def full(row, options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(small_cache_device, "_call", full)
    row = small_cache.Row("forward", 64, 227, "flash")
    small_cache_device._time_one(row, None, [], None, Card(arch=90, shared_bytes=227 << 10), None, {})
    assert (row.launch, row.seconds, row.why) == ("", None, "OutOfMemoryError: CUDA out of memory")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_only_the_kernels_of_the_second_run_are_counted(monkeypatch, tmp_path):

    for module in (small_cache, small_cache_device):
        monkeypatch.setattr(module, "N", 40)
    monkeypatch.setattr(small_cache_device, "HEADS", 1)
    monkeypatch.setattr(small_cache_device, "card_with", lambda kb: Card(arch=80, shared_bytes=kb << 10))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    said = []
    with counting() as tally:
        profiler = SimpleNamespace(
            start=lambda: said.append(tally.launches.total()), stop=lambda: said.append(tally.launches.total())
        )
        places = [("forward", 24, 48, "flash"), ("backward", 24, 48, "small_cache")]
        small_cache_bytes.main(places, tmp_path / "kernels", profiler, "cpu")
    kernels = json.loads((tmp_path / "kernels").read_text())
    assert [said[1] - said[0], said[3] - said[2]] == kernels
    assert said[0] == kernels[0]
    assert kernels[1] >= 5
