"""Fixtures that several test files share."""

import gc
import logging
import os
import signal
import sys

os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton decides when it is imported: all tests see its interpreter
os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # idle threads of NumPy's products spin, beside the other test process
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read once: products on GPUs where tests are deterministic

import pytest

pytest.register_assert_rewrite("support")  # its helpers assert

from support.examples import register_profiles

register_profiles()  # before a property test takes its settings

from redblue import schedules
from redblue.compiled import _core
from redblue.lab.registration import unregister_schedule
from support.attention import ROWS, running
from support.interpreter import fast_interpreter


@pytest.hookimpl(tryfirst=True)
def pytest_collection():
    gc.disable()  # what collection makes stays: every look for garbage among it is in vain


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    gc.freeze()  # a million objects of libraries and tests: looking through them took a tenth of the tests' time
    gc.enable()


def pytest_unconfigure():
    gc.unfreeze()  # as the process ends, Python clears them, and libraries that look for leaks find none


@pytest.fixture(scope="session")
def expected():
    from redblue.studies import sweep  # here, because it draws: a machine with a GPU may lack what draws
    from support.sweeps import SMALL

    return sweep.run(SMALL, jobs=1)


@pytest.fixture
def interrupted(tmp_path):
    """An output whose sweep stopped after 5 points."""
    from redblue.studies import sweep
    from support.sweeps import SMALL, Stop, stop_after

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
def log_messages():
    """The messages of all loggers during the test, as a list. pytest's own plugin for logs slows every test."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    yield messages
    logging.getLogger().removeHandler(handler)


@pytest.fixture
def own_schedules():
    """Forget the schedules that the test registers."""
    before = set(schedules.SCHEDULES)
    yield
    for name in set(schedules.SCHEDULES) - before:
        unregister_schedule(name)


@pytest.fixture
def interruptible():
    """Ctrl-C raises KeyboardInterrupt, as it does in a program that a shell does not run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def interpreted_fast():
    """Triton's interpreter in less than half the time, where some test imports Triton."""
    if "triton" not in sys.modules:
        yield
        return
    with fast_interpreter():
        yield


@pytest.fixture(scope="module")
def bfloat16_to_nearest():
    """Triton's interpreter rounds float32 to bfloat16 as GPUs do: to nearest even. By itself it cuts bits off."""
    import ml_dtypes
    from triton import language
    from triton.runtime import interpreter

    convert = getattr(interpreter, "_convert_float", None)
    if convert is None:  # another Triton's
        yield
        return

    def rounded(numbers, dtype, wanted, mode):
        if (dtype, wanted) != (language.float32, language.bfloat16):
            return convert(numbers, dtype, wanted, mode)
        return numbers.astype(ml_dtypes.bfloat16).view("uint16")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_convert_float", rounded)
        yield
