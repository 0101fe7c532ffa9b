"""The required speeds, and the figure."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from benchmarks.gpu import calls, figure
from benchmarks.gpu.limits import requirements
from benchmarks.gpu.report import shown


@pytest.mark.thorough
def test_limits_and_figure_of_made_up_times(tmp_path):
    times = {call: dict.fromkeys(names, 1.0) for call, names in calls.plan()}
    for call in times:
        seconds = call.least_bytes / 2e12 if call.decodes else call.flops / 1e15
        times[call] = dict.fromkeys((*calls.OURS, *calls.PEERS), 2.0) | {calls.TUNED: seconds}
    values = {required.what: required.value(times, 2.5e12) for required in requirements()}
    assert len(values) == len(requirements())
    assert None not in values.values()
    assert values["d 128 forward, causal"] == pytest.approx(1000)
    assert values["d 512 forward, over FFPA"] == pytest.approx(2e15 / calls.Call(512).flops)
    sparse = calls.Call(128, density=calls.DENSITY)
    assert sparse.flops / calls.Call(128).flops == pytest.approx(0.1, rel=0.1)
    assert values["blocks 10%, d 128 forward, over dense"] == pytest.approx(10, rel=0.1)
    assert values["d 1024 forward + backward, over the best that runs"] == pytest.approx(
        4e15 / (calls.Call(1024).flops + calls.Call(1024, "backward").flops)
    )
    assert values["decode, B 64, n_k 32768, contiguous: of the copy's bandwidth"] == pytest.approx(80)
    figure.draw({"device": "a card", "days": "2000-01-01"}, {"bfloat16": 1500.0}, times, tmp_path / "gpu.svg")
    assert "a card" in (tmp_path / "gpu.svg").read_text()
    assert shown(None, requirements()[0]) == ("", "not measured")
    assert shown(1.0, requirements()[0])[1] == "FAIL"


def test_what_must_be_reached_needs_nothing_but_the_first_calls():
    """The requirements have their values before other lengths are timed."""
    times = {}
    for call, names in list(calls.plan())[: len(calls.MUST)]:
        times.setdefault(call, {}).update(dict.fromkeys(names, 1.0))
    assert all(required.value(times, 1.0) is not None for required in requirements())
