"""The catalogue of machines: its figures are consistent with each other, and each has a source."""

import re
from collections.abc import Callable
from itertools import groupby, pairwise

import pytest

import redblue as rb
from redblue.catalogue.memories import CATALOGUE, FACTS, LEVEL_FIGURES, Memory, tomllib
from redblue.catalogue.units import UNITS

TABLES = tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))
MACHINES = [rb.memory(name) for name in rb.list_memories()]
GPUS = [machine for machine in MACHINES if machine.kind == "gpu"]

# Sources that cannot be looked up: without a name, or quoted from another source that was not read.
VAGUE = re.compile(
    r"\b(public|lab|profiling|other) (code|issue|logs|notes|tables?|sizing)|as quoted|mailing list|a server"
    r"|a vendor|magazine|TODO|\?",
    re.IGNORECASE,
)

CHECKS: list[Callable[[Memory], None]] = []  # the checks of every machine
GPU_CHECKS: list[Callable[[Memory], None]] = []


def every(check):
    """Register a check of machines.

    `test_every_machine` runs all checks, because one test per machine is faster than ten.
    """
    CHECKS.append(check)
    return check


def every_gpu(check):
    GPU_CHECKS.append(check)
    return check


def bandwidth(machine: Memory) -> float:
    rate = machine.levels[-1].bandwidth_bytes_per_second
    assert rate is not None, f"{machine.name} has no bandwidth"
    return rate


def test_machines_of_every_family():
    assert len(MACHINES) >= 45
    kinds = {(machine.kind, machine.vendor, machine.architecture) for machine in MACHINES}
    families = {
        "gpu": {
            "NVIDIA": ["Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell"],
            "AMD": ["CDNA", "CDNA 2", "CDNA 3", "CDNA 4", "RDNA 2", "RDNA 3", "RDNA 4"],
            "Apple": ["Apple7"],
        },
        "accelerator": {
            "Google": [f"TPU v{version}" for version in ("2", "3", "4i", "4", "5e", "5p", "6e", "7x", "8i", "8t")],
            "AWS": ["NeuronCore-v2", "NeuronCore-v3", "NeuronCore-v4"],
            "Intel": ["Gaudi 2", "Gaudi 3"],
        },
        "cpu": {
            "Apple": ["Firestorm", "Avalanche"],
            "AMD": ["Zen 3", "Zen 4", "Zen 5"],
            "Intel": ["Ice Lake", "Sapphire Rapids", "Emerald Rapids", "Granite Rapids"],
            "AWS": ["Neoverse N1", "Neoverse V1"],
            "Raspberry Pi": ["Cortex-A72", "Cortex-A76"],
        },
        "microcontroller": {"STMicroelectronics": ["Cortex-M7"], "Espressif": ["ESP32-S3"]},
    }
    wanted = {
        (kind, who, part)
        for kind, makers in families.items()
        for who, kinds_of_maker in makers.items()
        for part in kinds_of_maker
    }
    assert wanted <= kinds


def test_names_and_titles():
    for machine in MACHINES:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", machine.name), machine.name
        assert machine.vendor, machine.name
        assert machine.architecture, machine.name
    titles = [machine.title for machine in MACHINES]
    assert len(set(titles)) == len(titles)


@every
def check_every_figure_has_unit_source_and_date(machine):
    table = TABLES[machine.name]
    figures = [(key, "peak", figure) for key, figure in table.get("peak", {}).items()]
    figures += [(key, key, figure) for key, figure in table.get("facts", {}).items()]
    figures += [(key, key, level[key]) for level in table["levels"] for key in LEVEL_FIGURES if key in level]
    assert figures
    for key, quantity, figure in figures:
        (unit,) = set(figure) - {"source", "date"}
        assert unit in UNITS[quantity], key
        assert figure["source"].strip(), key
        assert not VAGUE.search(figure["source"]), key
        assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?", figure["date"]), key


def test_comments_name_their_sources():
    lines = [line for line in CATALOGUE.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    assert len(lines) > 50
    assert not [line for line in lines if VAGUE.search(line)]


@every
def check_sources_reach_the_user(machine):
    facts = {key for key, name in FACTS.items() if name in machine.facts}
    wanted = {f"peak.{dtype}" for dtype in machine.peak_flops_per_second} | {f"facts.{key}" for key in facts}
    assert set(machine.sources) == wanted
    for level in machine.levels:
        known = {"capacity": level.capacity_bytes, "bandwidth": level.bandwidth_bytes_per_second}
        assert {key for key, value in known.items() if value is not None} <= set(level.sources)
        assert level.count == 1 or "count" in level.sources


@every
def check_levels_grow_and_thin_out(machine):
    """From level to level, instances grow, do not become more, and are shared by equal numbers of cores."""
    for fast, slow in pairwise(machine.levels):
        assert fast.capacity_bytes is not None
        assert slow.capacity_bytes is None or fast.capacity_bytes < slow.capacity_bytes, (fast.name, slow.name)
        assert fast.count % slow.count == 0, (fast.name, slow.name)


@every
def check_caches_have_whole_sets(machine):
    for level in machine.levels:
        if level.line_bytes and level.ways and level.capacity_bytes:
            sets, rest = divmod(level.capacity_bytes, level.line_bytes * level.ways)
            assert rest == 0, level.name
            assert sets & (sets - 1) == 0, f"{sets} sets of {level.name} are no power of 2"


@every
def check_every_machine_can_be_planned(machine):
    plan = rb.plan(rb.Problem(256, 256, 32, dtype="float16"), memory=machine.name)
    assert len(plan.levels) == len(machine.boundaries)
    for level, boundary in zip(plan.levels, machine.boundaries, strict=True):
        assert level.schedule, f"nothing fits {boundary.name}: {level.why}"
        assert level.words is not None
        assert level.words >= level.bound.words
        assert (level.seconds is None) == (boundary.bandwidth_bytes_per_second is None)


@every_gpu
def check_shared_memory_is_cut_from_the_unified_l1(machine):
    """Shared memory of a block <= shared memory of an SM <= L1 cache and shared memory together."""
    known = (
        machine.levels[0].capacity_bytes,
        *(machine.facts.get(f"{x}_bytes") for x in ("shared_memory", "unified_l1")),
    )
    sizes = [size for size in known if size is not None]
    assert sizes == sorted(sizes)
    if machine.vendor == "NVIDIA":
        assert len(sizes) == (2 if machine.architecture == "Pascal" else 3)


@every_gpu
def check_cores_times_lanes_are_shaders(machine):
    if {"lanes_per_core", "shaders"} <= set(machine.facts):
        assert machine.levels[0].count * machine.facts["lanes_per_core"] == machine.facts["shaders"]
    else:
        # No source: shaders of the MI300A and of Apple's GPUs, lanes of RDNA 4.
        assert machine.name in ("mi300a", "rx-9070-xt", "apple-m1-gpu", "apple-m1-max-gpu")


# float32 multiply-adds per clock and lane, if not 1: matrix cores (CDNA), dual issue (RDNA 3 and 4).
PER_LANE = {"CDNA": 2, "CDNA 2": 2, "CDNA 3": 2, "RDNA 3": 2, "RDNA 4": 2}


@every_gpu
def check_float32_is_lanes_times_clock(machine):
    shaders, clock, peak = (
        machine.facts.get("shaders"),
        machine.facts.get("clock_hertz"),
        machine.peak_flops_per_second,
    )
    if shaders and clock and "float32" in peak:
        rate = 2 * shaders * clock * PER_LANE.get(machine.architecture, 1)
        assert peak["float32"] == pytest.approx(rate, rel=0.01)


# Dense float16 multiply-adds with sums in fp32, per clock and core. AMD: half the FLOP of ROCm's gpu-arch pages and of
# gpuopen.com on RDNA 4. NVIDIA: the powers of two that follow from the data sheets of V100, T4, A10, A100, L4, H100 and
# B200; a GeForce has half. With sparsity it would be twice that.
RATE = {
    **{"Volta": 512, "Turing": 512, "Ampere": 512, "GA100": 1024, "Ada": 512, "Hopper": 2048, "Blackwell": 4096},
    **{"CDNA": 512, "CDNA 2": 512, "CDNA 3": 1024, "CDNA 4": 2048, "RDNA 3": 256, "RDNA 4": 512},
}
GEFORCE_RATE = {"Ampere": 256, "Ada": 256, "Blackwell": 256}


@every_gpu
def check_float16_is_the_dense_rate(machine):
    """Peak / (cores x clock) is the dense rate, not twice that (sparse).

    It is a bit less if the data sheet's clock is lower.
    """
    if "float16" not in machine.peak_flops_per_second:
        return
    chip = "GA100" if machine.name.startswith("a100") else machine.architecture
    rate = (GEFORCE_RATE if "GeForce" in machine.title else RATE)[chip]
    dense = 2 * rate * machine.levels[0].count * machine.facts["clock_hertz"]
    assert 0.92 <= machine.peak_flops_per_second["float16"] / dense <= 1.01


# Advertised rates with structured sparsity, in TFLOP/s: twice the dense rate, except for Trainium, which skips more.
SPARSE = {
    **{"a100-sxm": {"float16": 624}, "a100-pcie": {"float16": 624}, "a10": {"float16": 250}, "l4": {"float16": 242}},
    **{"l40s": {"float16": 733, "float8": 1466}, "rtx-4090": {"float16": 330.3}, "rtx-3090": {"float16": 142}},
    **{"h100-sxm": {"float16": 1979, "float8": 3958}, "h100-pcie": {"float16": 1513, "float8": 3026}},
    **{"h200-sxm": {"float16": 1979}, "b200": {"float16": 4500, "float8": 9000}, "rtx-5090": {"float16": 419}},
    **{"mi300x": {"float16": 2614.9, "float8": 5229.8}, "mi300a": {"float16": 1961.2, "float8": 3922.3}},
}
SPARSE_TRAINIUM = {"trainium2": 2563, "trainium3": 2517}


@pytest.mark.parametrize(("name", "advertised"), SPARSE.items())
def test_peaks_are_half_of_the_sparse_ones(name, advertised):
    peaks = rb.memory(name).peak_flops_per_second
    for dtype, sparse in advertised.items():
        assert peaks[dtype] == pytest.approx(sparse * 1e12 / 2, rel=0.015), dtype


def test_trainium_is_not_sparse():
    for name, sparse in SPARSE_TRAINIUM.items():
        assert rb.memory(name).peak_flops_per_second["bfloat16"] < 0.3 * sparse * 1e12


@every
def check_peaks_of_narrow_types(machine):
    """bfloat16 has the rate of float16, half of it on CDNA, and none before Ampere. float8 on a GPU: twice. float32:
    less."""
    peaks = machine.peak_flops_per_second
    if "float16" in peaks and "bfloat16" in peaks:
        assert peaks["bfloat16"] / peaks["float16"] == pytest.approx(
            0.5 if machine.architecture == "CDNA" else 1, rel=1e-3
        )
    if machine.kind == "gpu" and "float8" in peaks:
        assert peaks["float8"] / peaks["float16"] == pytest.approx(2, rel=0.03)
    for narrow in {"float16", "bfloat16", "float8"} & set(peaks):
        assert peaks.get("float32", 0) < peaks[narrow]
    if machine.architecture in ("Pascal", "Volta", "Turing"):
        assert "bfloat16" not in peaks
    if machine.architecture in ("Volta", "Turing", "Ampere", "CDNA", "CDNA 2"):
        assert "float8" not in peaks


def segment(machine: Memory) -> tuple[str, str, bool]:
    """The group of comparable machines: a maker's design, with cards for games and for servers apart."""
    return machine.vendor, machine.architecture, "GeForce" in machine.title or "Radeon" in machine.title


def size(machine: Memory) -> tuple[int, int]:
    total = (machine.levels[-1].capacity_bytes or 0) * machine.levels[-1].count
    return machine.levels[0].count, total


BY_GENERATION = [list(group) for _, group in groupby(sorted(GPUS, key=segment), key=segment)]


@pytest.mark.parametrize(
    "machines", [group for group in BY_GENERATION if len(group) > 1], ids=lambda group: group[0].name
)
def test_bandwidth_is_monotone_within_a_generation(machines):
    """A part with more cores, or with more memory and as many cores, reads memory at least as fast."""
    assert len({size(machine) for machine in machines}) > 1
    for small, large in pairwise(sorted(machines, key=lambda machine: (*size(machine), bandwidth(machine)))):
        assert bandwidth(small) <= bandwidth(large), (small.name, large.name)


@pytest.mark.parametrize(
    "names",
    [
        ("gtx-1080-ti", "rtx-2080-ti", "rtx-3090", "rtx-4090", "rtx-5090"),
        ("p100-sxm2", "v100-sxm2", "a100-sxm-40gb", "a100-sxm", "h100-sxm", "h200-sxm", "b200"),
        ("mi100-pcie", "mi250x", "mi300x", "mi325x", "mi355x"),
        ("tpu-v2", "tpu-v3", "tpu-v4", "tpu-v5p", "tpu-v7x", "tpu-v8i"),
        ("tpu-v4i", "tpu-v5e", "tpu-v6e"),
        ("trainium", "trainium2", "trainium3"),
        ("gaudi2", "gaudi3"),
        ("apple-m1", "apple-m2", "apple-m4"),
        ("zen3-server", "zen4-server", "zen5-server"),
        ("ice-lake-server", "sapphire-rapids-server", "emerald-rapids-server", "granite-rapids-server"),
    ],
)
def test_bandwidth_grows_from_one_generation_to_the_next(names):
    for old, new in pairwise(rb.memory(name) for name in names):
        assert bandwidth(old) < bandwidth(new), (old.name, new.name)


@every_gpu
def check_gpus_are_plausible(machine):
    first = machine.levels[0]
    assert 32 * 1024 <= (first.capacity_bytes or 0) <= 227 * 1024
    assert 8 <= first.count <= 304
    assert 50e9 < bandwidth(machine) < 10e12
    # A GPU has at least 10 operations per byte from slow memory.
    assert max(machine.peak_flops_per_second.values()) > 10 * bandwidth(machine)
    assert machine.tile_multiple in (1, 16)
    assert machine.tile_multiple == 16 or "float16" not in machine.peak_flops_per_second


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_machine(machine):
    for check in [*CHECKS, *(GPU_CHECKS if machine in GPUS else [])]:
        check(machine)
