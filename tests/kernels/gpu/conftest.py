"""Mark variants of tests as thorough: the interpreter is slow, and most variants only recombine values of others.

On a GPU, replace a test process that an illegal access has cut off from the device.
"""

import os
import sys
import time
from pathlib import Path

import pytest

from support.variants import leave_most_to_thorough


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(items):
    """Leave most combinations of values to `make test-thorough`."""
    leave_most_to_thorough(items, Path(__file__).parent, together=1)


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
