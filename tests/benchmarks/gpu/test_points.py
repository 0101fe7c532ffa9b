"""Results of earlier runs: which are kept, and which are measured again."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from rich.console import Console

from benchmarks.common import kept
from benchmarks.gpu import calls, points


def test_measurements_of_other_kernels_and_versions_are_made_anew(tmp_path, capsys):
    facts = {"device": "a card", "torch": "2", "triton": "3", "kernels": "abc"}
    call, console = calls.Call(64), Console(width=200)
    old = points.Kept(facts, {"bfloat16": 900.0})
    for name in (calls.TUNED, calls.FLEX):
        old.add(points.Point(call, name, [1.0], date="2000-01-02T03:04:05+00:00"))
    path = tmp_path / "gpu.json"
    old.write(path)
    assert points.resumed([path], facts, console) == old
    assert points.resumed([tmp_path / "none"], facts, console) == points.Kept(facts)
    assert capsys.readouterr().out == ""

    theirs = points.resumed([tmp_path / "none", path], facts | {"kernels": "def"}, console)
    assert theirs == points.Kept(facts | {"kernels": "def"}, old.peaks, old.points[1:])
    assert capsys.readouterr().out == "measured again: 1 points, because kernels changed\n"
    theirs.add(points.Point(call, calls.TUNED, [1.0], date="2000-02-03T03:04:05+00:00"))
    assert theirs.days == "2000-01-02 to 2000-02-03"

    other = facts | {"torch": "2.1", "kernels": "def"}
    assert points.resumed([path], other, console) == points.Kept(other)
    assert capsys.readouterr().out == "measured again: 2 points, because torch, kernels changed\n"


@pytest.mark.parametrize("other", [{}, {"kernels": "def"}], ids=["", "kernels"])
def test_another_version_of_one_peer_leaves_the_other_peers(tmp_path, other):
    facts = {"device": "a card", "kernels": "abc", "versions": {"redblue": "1", "ffpa-attn": "2"}}
    old = points.Kept(facts, {"bfloat16": 900.0})
    for name in (calls.TUNED, calls.FFPA, calls.FLASH, calls.FLEX):
        old.add(points.Point(calls.Call(512), name, [1.0]))
    path = tmp_path / "gpu.json"
    old.write(path)
    for versions, names in (
        ({"redblue": "1", "ffpa-attn": "not installed"}, {calls.FLASH, calls.FLEX}),
        ({"redblue": "2", "ffpa-attn": "2"}, {calls.FFPA, calls.FLASH, calls.FLEX}),
        ({"redblue": "2", "ffpa-attn": "3"}, {calls.FLASH, calls.FLEX}),
    ):
        now = facts | other | {"versions": versions}
        kept = points.resumed([path], now, Console(quiet=True))
        assert (kept.about, kept.peaks) == (now, old.peaks)
        assert {point.contender for point in kept.points} == names


def test_a_fingerprint_is_of_versions_and_sources(tmp_path):
    import triton

    facts = kept.fingerprint("a card")
    assert facts | {"kernels": ""} == {
        "device": "a card",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "kernels": "",
    }
    assert facts["kernels"] == kept.hashed(kept.KERNELS)
    hashes = {kept.hashed(tmp_path)}
    for name, text in (("a.py", "x"), ("a.py", "y"), ("b.py", "y"), ("notes.txt", "z")):
        (tmp_path / name).write_text(text)
        hashes.add(kept.hashed(tmp_path))
    assert len(hashes) == 4
    assert kept.days([]) == ""
    assert kept.days(["2000-01-02T03", "2000-01-02T04", ""]) == "2000-01-02"
