"""The table of kernels names exactly the kernels that the devices have."""

import pytest

from redblue.kernels.cpu.cache_fit import tiles_for
from redblue.kernels.cpu.call import row_of
from redblue.kernels.table import KERNELS, kernels, tiled_kernels
from redblue.problem import Problem
from redblue.schedules import list_schedules


def test_gpu_kernels_and_their_footprints_are_those_of_the_table():
    pytest.importorskip("triton")
    from redblue.kernels.gpu import table
    from redblue.kernels.gpu.planning import footprints

    existing = {(name, way) for name, passes in table.KERNELS.items() for way in passes._fields if getattr(passes, way)}
    assert existing == {(name, way) for way in ("forward", "backward") for name in kernels("gpu", way)}
    planned = {(name, direction) for name, direction in footprints.KERNELS if direction not in footprints.COUNTED_AS}
    by_shape = {("flash_onepass", "backward")}  # planned by its own module, one_pass
    assert planned | by_shape == existing
    assert ("flash", "paged") in footprints.KERNELS


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_tiled_cpu_kernel_has_tiles(direction):
    from redblue.kernels.cpu.call import isa

    row = row_of(isa(), "float32")
    for name in tiled_kernels("cpu", direction):
        assert tiles_for(name, Problem(64, 64, 16, direction=direction, dtype="float32"), 1 << 14, row)


def test_every_kernel_follows_a_schedule():
    for (_, direction), names in KERNELS.items():
        assert set(names) <= set(list_schedules(direction))


def test_both_devices_have_the_paged_kernel_without_tiles_of_its_own():
    for device in ("cpu", "gpu"):
        assert kernels(device, "paged") == ("paged",)
        assert tiled_kernels(device, "paged") == ()


def test_a_direction_without_kernels_has_none():
    assert kernels("cpu", "gradient_x") == ()
