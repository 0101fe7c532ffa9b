"""The calls of the benchmark: their order, their bytes and their arithmetic."""

import itertools

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from benchmarks.gpu import calls

LENGTHS = (1024, 2048, 4096, 8192, 16384)


def test_bytes_of_decoding_are_those_of_its_arrays():
    call = calls.Call(16, n=100, heads=4, dtype="float16", batch=2, queries=1, kv_heads=2)
    q, k, v, dout = calls.inputs(call, "cpu")
    assert call.least_bytes == sum(x.nbytes for x in (q, k, v, q))
    assert dout.numel() == 0
    assert call.flops == 4 * 2 * 4 * 100 * 16


def test_the_most_important_calls_come_first_and_none_twice():
    planned = list(calls.plan())
    pairs = [(call, name) for call, names in planned for name in names]
    assert len(pairs) == len(set(pairs))
    assert planned[0][0] == calls.Call(128)
    assert tuple(call for call, _ in planned[: len(calls.MUST)]) == calls.MUST
    for call, names in planned[: len(calls.MUST)]:  # planned and tuned redblue, and the peers
        assert calls.PLANNED in names
        assert calls.TUNED in names or call.page
        assert (calls.FFPA in names) == (256 < call.d < 1024 and call.density == 1)
    wanted = itertools.product((64, 128, 256, 512, 576, 1024), ("forward", "backward"), (False, True), LENGTHS)
    every = {calls.Call(d, way, causal, n, 512 if d == 576 else 0) for d, way, causal, n in wanted}
    names = {*calls.OURS, calls.FLASH, calls.CUDNN, calls.FLEX, calls.UNFUSED}
    assert {(call, name) for call in every for name in names} <= set(pairs)
    rest = {call for call, _ in pairs} - every
    assert {call for call in rest if not call.decodes} == {
        calls.Call(d, way, density=0.1) for d in (128, 512) for way in ("forward", "backward")
    }
    assert {(call.batch, call.page) for call in rest if call.decodes} == {(64, 0), (16, 0), (64, 64), (16, 64)}
