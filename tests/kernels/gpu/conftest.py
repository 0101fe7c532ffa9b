"""Fixtures of the tests of GPU kernels; on a GPU, a test process that lost the device is replaced."""

import os
import sys
import time

import pytest


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
