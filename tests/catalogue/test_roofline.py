"""The measured roofline: the compiled core's rates, and their storage."""

import json

import pytest

from redblue.base.errors import RedblueError
from redblue.catalogue import roofline
from redblue.catalogue.detect import Cache, Cpu, detect_cpu
from redblue.catalogue.roofline import ALL_CORES, MIN_CPU_SHARE, ONE_CORE, Roofline, buffer_bytes
from redblue.compiled import _core

RUNNABLE = [isa.name for isa in _core.list_isas() if isa.supported]
KIB, MIB = 2**10, 2**20


@pytest.mark.parametrize("isa", [isa.name for isa in _core.list_isas()])
def test_multiply_add_of_every_instruction_set(isa):
    if isa not in RUNNABLE:
        pytest.skip(f"this CPU has no {isa}: not tested here")
    assert _core.multiply_add(3, 5, 7, isa=isa) == 22
    # (1 + 2^-12)^2 - 1 = 2^-11 + 2^-24: only a fused multiply-add keeps the last term.
    fused = _core.multiply_add(1 + 2**-12, 1 + 2**-12, -1, isa=isa) == 2**-11 + 2**-24
    assert fused or isa == "portable"


@pytest.mark.parametrize("isa", [isa.name for isa in _core.list_isas() if isa.has_bfloat16])
def test_bfloat16_multiply_add(isa):
    if isa not in RUNNABLE:
        pytest.skip(f"this CPU has no {isa}: not tested here")
    assert _core.multiply_add(3, 5, 7, "bfloat16", isa) == 22
    # 257 has 9 bits and bfloat16 has 8: it becomes 256, while the sum stays in fp32.
    assert _core.multiply_add(257, 1, 257, "bfloat16", isa) == 513


@pytest.mark.parametrize("isa", RUNNABLE)
def test_rates_of_every_instruction_set(isa):
    assert _core.multiply_add_rate("float32", 1, 0.01, isa) > 1e8
    assert _core.read_rate(16 * KIB, 1, 0.01, isa) > 1e8


def test_the_widest_vectors_are_chosen(monkeypatch):
    monkeypatch.delenv("REDBLUE_ISA", raising=False)
    supported = [isa.vector_bytes for isa in _core.list_isas() if isa.supported]
    assert _core.choose_isa().vector_bytes == max(supported)
    assert supported == sorted(supported, reverse=True)


def test_bad_arguments():
    with pytest.raises(ValueError, match="threads must be 1 to 1024, got 0"):
        _core.multiply_add_rate("float32", 0)
    with pytest.raises(ValueError, match="got 1025"):
        _core.multiply_add_rate("float32", 1025)
    with pytest.raises(ValueError, match="threads must be 1 to 1024, got -1"):
        _core.read_rate(1024, -1)
    with pytest.raises(ValueError, match="seconds must be above 0"):
        _core.read_rate(1024, 1, 0.0)
    with pytest.raises(ValueError, match="seconds must be above 0 and at most 60"):
        _core.read_rate(1024, 1, float("inf"))
    with pytest.raises(ValueError, match="dtype must be 'float32' or 'bfloat16', got 'int8'"):
        _core.multiply_add_rate("int8")
    with pytest.raises(ValueError, match="got 'int8'"):
        _core.multiply_add(1, 2, 3, "int8")
    with pytest.raises(ValueError, match="portable has no bfloat16"):
        _core.multiply_add_rate("bfloat16", isa="portable")


def test_measure():
    cpu = detect_cpu()
    roof = roofline.measure(cpu, _core.choose_isa(), seconds_per_rate=0.02)
    peaks, reads = roof.peak_flops_per_second, roof.read_bandwidth_bytes_per_second
    assert set(reads) == {*(cache.name for cache in cpu.caches), "DRAM"}
    least = 1e8 if roof.cpu_share > MIN_CPU_SHARE else 0  # unless other work keeps this machine's cores busy
    assert all(rate > least for rates in (*peaks.values(), *reads.values()) for rate in rates.values())
    assert 0 < roof.cpu_share < 1.1


@pytest.mark.thorough
def test_rates_are_ordered():
    for _ in range(3):
        roof = roofline.measure(detect_cpu(), _core.choose_isa(), seconds_per_rate=0.06)
        if roof.cpu_share > MIN_CPU_SHARE:
            break
    else:
        pytest.skip("other work keeps this machine's cores busy: its rates mean little")
    peaks, reads = roof.peak_flops_per_second, roof.read_bandwidth_bytes_per_second
    for rates in (*peaks.values(), *reads.values()):
        assert rates[ALL_CORES] > 0.7 * rates[ONE_CORE]
    if "L1d" in reads:
        assert reads["L1d"][ONE_CORE] > reads["DRAM"][ONE_CORE]


def test_buffers_miss_the_faster_level_and_fit_their_own():
    caches = (Cache(1, 48 * KIB, 16), Cache(2, 2 * MIB, 16), Cache(3, 30 * MIB, 2))
    cpu = Cpu("two sockets", 16, caches, 64 * 2**30, "")
    for threads in (1, 16):
        size = buffer_bytes(cpu, threads)
        sharers = max(1, threads // 2)
        assert size["L1d"] == 24 * KIB
        assert 48 * KIB < size["L2"] < 2 * MIB
        assert 2 * MIB < size["L3"] <= 2 * MIB + 30 * MIB // sharers // 2
        assert size["DRAM"] * sharers >= 4 * (30 * MIB - sharers)


def test_buffers_stay_within_a_small_memory():
    size = buffer_bytes(Cpu("a small board", 4, (Cache(1, 32 * KIB, 4),), 128 * MIB, ""), 4)
    assert 4 * size["DRAM"] <= 16 * MIB


KEPT = Roofline(
    cpu="some CPU",
    cores=2,
    isa="portable",
    peak_flops_per_second={"float32": {ONE_CORE: 1e9, ALL_CORES: 2e9}},
    read_bandwidth_bytes_per_second={"DRAM": {ONE_CORE: 3e9, ALL_CORES: 4e9}},
    date="2026-01-01",
    cpu_share=1.0,
)


class Measurement:
    """Replaces `measure`: takes no time, and counts its calls."""

    def __init__(self, result: Roofline) -> None:
        self.calls, self.result = 0, result

    def __call__(self, cpu, isa):
        self.calls += 1
        return self.result


@pytest.fixture
def measurement(tmp_path, monkeypatch):
    measurement = Measurement(KEPT)
    monkeypatch.setattr("redblue.catalogue.roofline.platformdirs.user_cache_path", lambda name: tmp_path / name)
    monkeypatch.setattr(roofline, "measure", measurement)
    monkeypatch.delenv("REDBLUE_ISA", raising=False)
    return measurement


def the_file(tmp_path):
    (path,) = (tmp_path / "redblue").iterdir()
    return path


def test_measured_once_and_again_on_demand(measurement, tmp_path):
    assert roofline.roofline() == roofline.roofline() == KEPT
    assert measurement.calls == 1
    roofline.roofline(remeasure=True)
    assert measurement.calls == 2
    assert json.loads(the_file(tmp_path).read_text())["cpu"] == "some CPU"


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "null",
        "[1, 2]",
        "{}",
        '{"cpu": 1}',
        json.dumps({**vars(KEPT), "peak_flops_per_second": {}}),
        json.dumps({**vars(KEPT), "peak_flops_per_second": {"float32": 3}}),
        json.dumps({**vars(KEPT), "read_bandwidth_bytes_per_second": {"DRAM": {ONE_CORE: 0, ALL_CORES: 1}}}),
        json.dumps({**vars(KEPT), "read_bandwidth_bytes_per_second": {"DRAM": {ONE_CORE: "fast", ALL_CORES: 1}}}),
    ],
)
def test_a_damaged_file_is_replaced(measurement, tmp_path, damage):
    roofline.roofline()
    the_file(tmp_path).write_text(damage)
    assert roofline.roofline() == KEPT
    assert measurement.calls == 2
    assert json.loads(the_file(tmp_path).read_text())["cpu"] == "some CPU"


def test_a_folder_that_cannot_be_written_is_no_error(measurement, tmp_path):
    (tmp_path / "redblue").write_text("a file where the folder should be")
    assert roofline.roofline() == KEPT


def test_a_disturbed_measurement_is_not_kept(measurement, tmp_path):
    measurement.result = Roofline(**{**vars(KEPT), "cpu_share": 0.5})
    assert roofline.roofline().cpu_share == 0.5
    assert not (tmp_path / "redblue").exists()


def test_the_environment_forces_an_instruction_set(measurement, monkeypatch):
    monkeypatch.setenv("REDBLUE_ISA", "portable")
    assert _core.choose_isa().name == "portable"
    monkeypatch.setenv("REDBLUE_ISA", "sse9")
    with pytest.raises(
        RedblueError, match=r"REDBLUE_ISA names an unknown instruction set, 'sse9'.*can run: .*portable"
    ):
        roofline.roofline()
    assert measurement.calls == 0


def test_an_instruction_set_that_this_cpu_lacks():
    lacking = [isa.name for isa in _core.list_isas() if not isa.supported]
    if not lacking:
        pytest.skip("this CPU can run every instruction set of this build")
    with pytest.raises(ValueError, match="an instruction set that this CPU lacks"):
        _core.choose_isa(lacking[0])
