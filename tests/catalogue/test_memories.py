"""The catalogue of machines, users' own files, and this machine."""

import math
from pathlib import Path

import pytest

from redblue.base.errors import RedblueError, UnknownName
from redblue.catalogue import memories
from redblue.catalogue.detect import CudaDevice
from redblue.catalogue.memories import Level, Memory, cuda_memory, list_memories, memory, this_machine

NAMES = list_memories()


# The head dimension up to which a d x d matrix of float16 fits in fast memory: floor(sqrt(words)).
LARGEST_D = {
    "gtx-1060": 156,
    "v100-sxm2": 221,
    "t4": 181,
    "rtx-3090": 225,
    "rtx-4090": 225,
    "rtx-5090": 225,
    "a100-sxm": 288,
    "h100-sxm": 340,
    "h200-sxm": 340,
    "b200": 340,
    "mi300x": 181,
    "cortex-m7": 90,
}


@pytest.mark.parametrize(("name", "d"), LARGEST_D.items())
def test_largest_square_in_fast_memory(name, d):
    capacity_bytes = memory(name).boundaries[0].capacity_bytes
    assert capacity_bytes is not None
    assert math.isqrt(capacity_bytes // 2) == d


def test_units_are_converted():
    h100 = memory("h100-sxm")
    assert h100.boundaries[0].name == "shared memory/L2"
    assert h100.boundaries[0].capacity_bytes == 232448
    assert h100.boundaries[1].bandwidth_bytes_per_second == 3.35e12
    assert h100.peak_flops_per_second["float16"] == 989.4e12


def test_unknown_name_gives_the_nearest():
    with pytest.raises(UnknownName, match=r"unknown memory 'h100'; nearest: .*h100-sxm"):
        memory("h100")


def test_a_memory_is_its_own_name():
    assert memory(memory("t4")) is memory("t4")


BOARD = """
[my-board]
kind = "microcontroller"
peak.float32 = { mflop_per_second = 480 }
[[my-board.levels]]
name = "D-cache"
capacity = { kib = 16 }
[[my-board.levels]]
name = "SRAM"
bandwidth = { mb_per_second = 800, source = "data sheet", date = "2026-01" }
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "boards.toml"
    path.write_text(text)
    return path


def test_a_users_own_file(tmp_path):
    board = memory(write(tmp_path, BOARD))
    assert (board.name, board.title, board.kind) == ("my-board", "my-board", "microcontroller")
    assert board.levels == (
        Level("D-cache", 16384),
        Level("SRAM", None, bandwidth_bytes_per_second=8e8, sources={"bandwidth": "data sheet, 2026-01"}),
    )
    assert board.peak_flops_per_second == {"float32": 480e6}
    assert memory(f"{tmp_path / 'boards.toml'}:my-board") == board
    (tmp_path / "marked.toml").write_text(BOARD, encoding="utf-8-sig")  # with a byte-order mark
    assert memory(tmp_path / "marked.toml") == board


def test_facts_are_converted(tmp_path):
    facts = 'vendor = "Me"\nfacts.clock = { mhz = 480, source = "data sheet" }\nfacts.registers = { kib = 2 }\n'
    board = memory(write(tmp_path, BOARD.replace("peak.float32", facts + "peak.float32")))
    assert (board.vendor, board.architecture) == ("Me", "")
    assert board.facts == {"clock_hertz": 480e6, "registers_bytes": 2048}
    assert board.sources == {"facts.clock": "data sheet"}


def test_a_file_with_several_machines_needs_a_name(tmp_path):
    path = write(tmp_path, BOARD + BOARD.replace("my-board", "other"))
    assert memory(f"{path}:other").name == "other"
    with pytest.raises(RedblueError, match=r"holds 2 machines \(my-board, other\); choose one: .*boards.toml:my-board"):
        memory(path)
    with pytest.raises(UnknownName, match="nearest: other"):
        memory(f"{path}:othr")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{ kib = 16 }", "16", r"capacity of level 'D-cache' is 16 and needs a unit: write capacity = \{ kib = "),
        (
            "{ kib = 16 }",
            '{ source = "me" }',
            "capacity of level 'D-cache' needs exactly one unit, got none.*units: bytes, kib",
        ),
        ("{ kib = 16 }", "{ kib = 16, mib = 1 }", "needs exactly one unit, got kib, mib"),
        ("{ kib = 16 }", "{ acres = 16 }", "got acres"),
        ("{ kib = 16 }", "{ kib = -16 }", "capacity of level 'D-cache' must be a number above 0, got -16"),
        ("{ kib = 16 }", "{ kib = true }", "must be a number above 0, got True"),
        ("{ kib = 16 }", "{ kib = inf }", "must be a number above 0, got inf"),
        ("{ kib = 16 }", "{ kib = 16 }\nclock = 3", "unknown key 'clock' in level 'D-cache'; known: name, capacity"),
        ("capacity = { kib = 16 }", "", "level 'D-cache' needs a capacity"),
        ('name = "D-cache"', "", "every level needs a name"),
        ("mflop_per_second", "mhz", r"float32 of peak needs exactly one unit.*units: flop_per_second"),
        ("peak.float32", "peak.float7", "unknown key 'float7' in peak; known: float64, float32"),
        (
            'kind = "microcontroller"',
            'kind = "toaster"',
            "kind must be one of gpu, accelerator, cpu, microcontroller, got 'toaster'",
        ),
        ('kind = "microcontroller"', "", "kind must be one of gpu, accelerator, cpu, microcontroller, got None"),
        ('kind = "microcontroller"', 'kind = "gpu"\ntile_multiple = 0', "tile_multiple must be .* at least 1, got 0"),
        ('kind = "microcontroller"', 'kind = "cpu"\nvendor = 3', "title, vendor, architecture must be texts"),
        ("peak.float32", "facts.size = 3\npeak.float32", "unknown key 'size' in facts; known: shaders, lanes, clock"),
        (
            "peak.float32",
            "facts.clock = { kib = 3 }\npeak.float32",
            "clock of facts needs exactly one unit.*units: hz, mhz, ghz",
        ),
        ("[[my-board.levels]]", "[[my-board.layers]]", "unknown key 'layers' in the machine"),
        ("bandwidth =", "capacity = { kib = 8 }\nbandwidth =", r"one 'D-cache' \(16384 bytes\) is no smaller than one"),
        ("bandwidth =", "count = { instances = 2 }\nbandwidth =", r"not be more 'SRAM' \(2\) than 'D-cache' \(1\)"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_by_name(tmp_path, old, new, message):
    assert old in BOARD
    with pytest.raises(RedblueError, match=message) as caught:
        memory(write(tmp_path, BOARD.replace(old, new)))
    assert "(table 'my-board' of boards.toml)" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not toml at all", "boards.toml is not TOML"),
        ("", "holds no machine; write one table per machine"),
        ("number = 3", "the machine must be a table, got 3"),
        ('[a]\nkind = "cpu"', r"levels must hold at least a fast and a slow memory: write one \[\[a.levels\]\]"),
    ],
)
def test_files_without_a_machine(tmp_path, text, message):
    with pytest.raises(RedblueError, match=message):
        memory(write(tmp_path, text))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(RedblueError, match=r"cannot read .*nowhere.toml: No such file or directory"):
        memory(tmp_path / "nowhere.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RedblueError, match="is not TOML"):
        memory(tmp_path / "binary.toml")


def test_this_machine(tmp_path, monkeypatch):
    monkeypatch.setattr("redblue.catalogue.roofline.platformdirs.user_cache_path", lambda name: tmp_path)
    machine = this_machine()
    assert isinstance(machine, Memory)
    assert machine.kind == "cpu"
    assert (machine.levels[0].name, machine.levels[-1].name) == ("registers", "DRAM")
    assert machine.peak_flops_per_second["float32"] > 1e8
    for boundary in machine.boundaries:
        assert (boundary.bandwidth_bytes_per_second or 0) > 1e8
        assert boundary.slow.capacity_bytes is None or (boundary.capacity_bytes or 0) < boundary.slow.capacity_bytes


GPU = CudaDevice("NVIDIA H100 80GB HBM3", "9.0", 132, 227 * 1024, 50 * 2**20, 85 * 10**9, None)


def test_a_cuda_device_in_the_catalogue_has_its_peaks():
    detected, listed = cuda_memory(GPU), memory("h100-sxm")
    assert detected.name == "nvidia-h100-80gb-hbm3"
    assert detected.peak_flops_per_second == listed.peak_flops_per_second
    assert (detected.architecture, detected.facts) == (listed.architecture, listed.facts)
    assert detected.levels[-1].bandwidth_bytes_per_second == listed.levels[-1].bandwidth_bytes_per_second
    assert [level.capacity_bytes for level in detected.levels] == [227 * 1024, 50 * 2**20, 85 * 10**9]


def test_an_unlisted_cuda_device_is_described_as_far_as_the_driver_goes():
    detected = cuda_memory(CudaDevice("Some GPU", "6.1", 10, 48 * 1024, 2**20, 2**32, 1e11))
    assert detected.peak_flops_per_second == {}
    assert detected.tile_multiple == 1
    assert detected.levels[-1].bandwidth_bytes_per_second == 1e11


def test_device_names_are_listed_once():
    names = [name for known in NAMES for name in memories.memory(known).device_names]
    assert len(names) == len(set(names)) > 0
