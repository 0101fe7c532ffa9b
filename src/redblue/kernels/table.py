"""The table of kernels: the schedules that have one, by device and pass."""

from __future__ import annotations

# (device, pass): schedules. `gather` visits single pairs and has no tiles. On the CPU, backward `flash` takes two
# passes and `flash_onepass` one; on GPUs `flash_onepass` has a kernel for Hopper only. `paged` takes `flash`'s
# tiles.
KERNELS = {
    ("cpu", "forward"): ("flash", "hybrid", "small_cache", "gather"),
    ("cpu", "backward"): ("flash", "flash_onepass", "hybrid", "small_cache", "gather"),
    ("cpu", "paged"): ("paged",),
    ("gpu", "forward"): ("flash", "hybrid", "small_cache"),
    ("gpu", "backward"): ("flash", "flash_onepass", "hybrid", "small_cache"),
    ("gpu", "paged"): ("paged",),
}
REQUESTABLE = KERNELS["cpu", "forward"]  # the names that users of the operator may request


def kernels(device: str, direction: str) -> tuple[str, ...]:
    """The schedules with a kernel on "cpu" or "gpu"; none for a direction without kernels."""
    return KERNELS.get((device, direction), ())


def tiled_kernels(device: str, direction: str) -> tuple[str, ...]:
    """The schedules with a kernel that works on tiles of its own."""
    return tuple(name for name in kernels(device, direction) if name not in ("gather", "paged"))
