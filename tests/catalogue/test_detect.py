"""Hardware detection, on recorded dumps (see data/machines/README.md) and on this machine."""

import ctypes
from pathlib import Path

import pytest

from redblue.catalogue import detect
from redblue.catalogue.detect import Cache, detect_cpu, detect_cuda, parse_linux, parse_macos, parse_size

MACHINES = Path(__file__).parents[1] / "data" / "machines"
KIB, MIB = 2**10, 2**20


def dump(name: str) -> dict[str, str]:
    """The files of a recorded Linux machine, by path."""
    files: dict[str, str] = {}
    for line in (MACHINES / f"{name}.txt").read_text().splitlines():
        path, _, content = line.partition(":")
        files[path] = f"{files[path]}\n{content}" if path in files else content
    assert files, f"the dump {name} is empty"
    return files


LINUX = {
    "epyc-zen5-2-cores": (
        "AMD EPYC",
        2,
        (Cache(1, 48 * KIB, 2, 64, 12), Cache(2, MIB, 2, 64, 16), Cache(3, 32 * MIB, 1, 64, 16)),
    ),
    "xeon-sapphire-rapids-2-sockets": (
        "Intel(R) Xeon(R) Gold 6434",
        16,
        (Cache(1, 48 * KIB, 16, 64, 12), Cache(2, 2 * MIB, 16, 64, 16), Cache(3, 23040 * KIB, 2, 64, 15)),
    ),
    "epyc-milan-8-ccx": (
        "AMD EPYC 72F3 8-Core Processor",
        8,
        (Cache(1, 32 * KIB, 8, 64, 8), Cache(2, 512 * KIB, 8, 64, 8), Cache(3, 32 * MIB, 8, 64, 16)),
    ),
    "raspberry-pi-5": (
        "Raspberry Pi 5 Model B Rev 1.0",
        4,
        (Cache(1, 64 * KIB, 4, 64, 4), Cache(2, 512 * KIB, 4, 64, 8), Cache(3, 2 * MIB, 1, 64, 16)),
    ),
    "rk3588-big-little": (  # only the four Cortex-A76
        "Arm CPU, implementer 0x41, part 0xd05",
        4,
        (Cache(1, 64 * KIB, 4, 64, 4), Cache(2, 512 * KIB, 4, 64, 8), Cache(3, 3 * MIB, 1, 64, 12)),
    ),
}


@pytest.mark.parametrize("name", LINUX)
def test_linux_dump(name):
    cpu = parse_linux(dump(name))
    assert (cpu.model, cpu.cores, cpu.caches) == LINUX[name]
    assert cpu.memory_bytes is not None
    assert cpu.memory_bytes > 4 * 2**30


def test_every_dump_is_tested():
    dumps = {path.stem for path in MACHINES.glob("*.txt")}
    assert dumps == {*LINUX, "apple-m2-sysctl", "intel-mac-sysctl"}


def test_a_process_confined_to_some_cpus_counts_only_those():
    # Threads 0 and 16 are one core; 8 is in the other socket.
    cpu = parse_linux(dump("xeon-sapphire-rapids-2-sockets"), allowed=[0, 16, 8])
    assert cpu.cores == 2
    assert [cache.count for cache in cpu.caches] == [2, 2, 2]


def test_apple_silicon_counts_the_performance_cores():
    cpu = parse_macos((MACHINES / "apple-m2-sysctl.txt").read_text())
    assert (cpu.model, cpu.cores, cpu.memory_bytes) == ("Apple M2", 4, 16 * 2**30)
    assert cpu.caches == (Cache(1, 128 * KIB, 4, 128), Cache(2, 16 * MIB, 1, 128))


def test_intel_mac():
    cpu = parse_macos((MACHINES / "intel-mac-sysctl.txt").read_text())
    assert cpu.model.startswith("Intel(R) Core(TM) i5")
    assert cpu.cores == 4
    assert cpu.caches == (Cache(1, 32 * KIB, 4, 64), Cache(2, 256 * KIB, 4, 64), Cache(3, 6 * MIB, 1, 64))


def test_a_system_that_tells_nothing_is_no_error():
    for cpu in (parse_linux({}), parse_linux({"cpu0/cache/index0/size": "unknown"}), parse_macos("")):
        assert cpu.cores == 1
        assert cpu.caches == ()
        assert cpu.memory_bytes is None
        assert cpu.model


@pytest.mark.parametrize(
    ("text", "size"), [("48K", 48 * KIB), ("32M", 32 * MIB), ("512", 512), ("", None), ("?", None)]
)
def test_sizes(text, size):
    assert parse_size(text) == size


def test_this_machine():
    cpu = detect_cpu()
    assert cpu.cores >= 1
    assert [cache.level for cache in cpu.caches] == sorted(cache.level for cache in cpu.caches)
    assert isinstance(detect_cuda(), tuple)


# Keys are attribute numbers of the CUDA driver API.
H100_ATTRIBUTES = {16: 132, 36: 2619000, 37: 5120, 38: 50 * MIB, 75: 9, 76: 0, 8: 48 * KIB, 97: 227 * KIB}


class Driver:
    """Imitates libcuda on a machine with one H100."""

    def __init__(self, init: int = 0) -> None:
        self.init = init

    def cuInit(self, flags):
        return self.init

    def cuDeviceGetCount(self, count):
        count._obj.value = 1
        return 0

    def cuDeviceGet(self, device, index):
        device._obj.value = index
        return 0

    def cuDeviceGetName(self, name, length, device):
        name.value = b"NVIDIA H100 80GB HBM3"
        return 0

    def cuDeviceTotalMem_v2(self, memory_bytes, device):
        memory_bytes._obj.value = 85_000_000_000
        return 0

    def cuDeviceGetAttribute(self, value, attribute, device):
        value._obj.value = H100_ATTRIBUTES[attribute]
        return 0


def test_cuda_device(monkeypatch):
    monkeypatch.setattr(detect.ctypes, "CDLL", lambda name: Driver())
    (gpu,) = detect_cuda()
    assert (gpu.name, gpu.compute_capability, gpu.multiprocessors) == ("NVIDIA H100 80GB HBM3", "9.0", 132)
    assert (gpu.shared_memory_bytes, gpu.l2_bytes) == (227 * KIB, 50 * MIB)
    assert gpu.memory_bandwidth_bytes_per_second == pytest.approx(3.35e12, rel=0.01)


def test_no_cuda_is_no_error(monkeypatch):
    monkeypatch.setattr(detect.ctypes, "CDLL", lambda name: Driver(init=100))
    assert detect_cuda() == ()

    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert detect_cuda() == ()
