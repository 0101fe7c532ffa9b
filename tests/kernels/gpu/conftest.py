"""Mark variants of tests as thorough, because the interpreter is slow: `make test` runs one variant of each test.

On a GPU, replace a test process that has lost the device after an illegal access.
"""

import os
import sys
import time
from pathlib import Path

import pytest

from support.variants import leave_most_to_thorough


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(items):
    """Leave all variants of a test but one to `make test-thorough`."""
    leave_most_to_thorough(items, Path(__file__).parent, together=0)


def pytest_runtest_logfinish():
    """If the device refuses all further calls of this process, end it; pytest-xdist then starts another one."""
    if "PYTEST_XDIST_WORKER" in os.environ and _device_is_lost():
        time.sleep(1)  # so that the report of the test is sent
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


@pytest.fixture(autouse=True)
def new_launches():
    """Forget replayed launches, because tests replace the plan of a call."""
    yield
    for name in ("redblue.kernels.gpu.replay", "redblue.op.pytorch.paged.gpu"):
        if name in sys.modules:
            sys.modules[name].forget()
