"""Fixtures that several test files share."""

import os
import signal

os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton decides when it is imported: all tests see its interpreter
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read once: products on GPUs where tests are deterministic

import pytest

from attention import ROWS, running
from redblue import _core, sweep
from sweeps import SMALL, Stop, stop_after


@pytest.fixture(scope="session")
def expected():
    return sweep.run(SMALL, jobs=1)


@pytest.fixture
def interrupted(tmp_path):
    """An output whose sweep stopped after 5 points."""
    path = tmp_path / "r.csv"
    with pytest.raises(Stop):
        sweep.run(SMALL, output=path, jobs=1, progress=stop_after(5))
    assert not path.exists()
    return path


@pytest.fixture(params=ROWS)
def isa(request):
    """Every instruction set that this CPU can run, each in force for the test; the others show as skipped."""
    row = _core.choose_isa(request.param)
    with running(row):
        yield row


@pytest.fixture
def interruptible():
    """Ctrl-C raises KeyboardInterrupt, as it does in a program that a shell does not run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
