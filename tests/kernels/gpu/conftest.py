"""Mark variants of tests as thorough: the interpreter is slow, and most variants only recombine values of others.

On a GPU, replace a test process that an illegal access has cut off from the device.
"""

import os
import sys
import time
import zlib
from itertools import groupby
from pathlib import Path

import pytest

FEW = 4  # a test with no more variants runs all of them


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(items):
    """Mark the variants of each test that `spread` leaves out as thorough."""
    here = Path(__file__).parent
    parametrized = [item for item in items if here in item.path.parents and hasattr(item, "callspec")]
    for _, variants in groupby(parametrized, key=lambda item: (item.path, item.originalname)):
        variants = list(variants)
        if len(variants) > FEW:
            kept = spread(variants)
            for item in variants:
                if item not in kept:
                    item.add_marker(pytest.mark.thorough)


def spread(variants):
    """Choose a few variants that contain every value of every parameter; every run chooses the same."""
    values = {item: {(name, repr(x)) for name, x in item.callspec.params.items()} for item in variants}
    order = sorted(variants, key=lambda item: zlib.crc32(item.name.encode()))
    missing, kept = set().union(*values.values()), []
    while missing:
        best = max(order, key=lambda item: len(values[item] & missing))
        missing -= values[best]
        kept.append(best)
    return kept


def pytest_runtest_logfinish():
    """End this process of pytest-xdist, which starts another one, if the device refuses all its calls from now on."""
    if "PYTEST_XDIST_WORKER" in os.environ and _device_is_lost():
        time.sleep(1)  # the report of the test is on its way
        os._exit(1)


def _device_is_lost():
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
