"""Fixtures that several test files share."""

import gc
import logging
import os
import signal
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported: all tests use its interpreter
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's idle threads would spin and slow the other test process
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read once; for deterministic products on GPUs

import pytest

pytest.register_assert_rewrite("support")  # its helpers contain assertions

from support.examples import register_profiles

register_profiles()  # before a property test takes its settings

from redblue import schedules
from redblue.compiled import _core
from redblue.lab.registration import unregister_schedule
from support.attention import ROWS, running
from support.interpreter import fast_interpreter
from support.variants import leave_most_to_nightly, leave_most_to_thorough

# The number of parameters of which a run tries every combination of values: `make test`, and the same with
# `make test-thorough`. 0: one variant of each test, because Triton's interpreter is slow.
QUICK = {"kernels/cpu": 2, "kernels/gpu": 0}  # elsewhere 1: every value
THOROUGH = {"kernels/cpu": 3, "integrations": 1, "meter": 1, "op/pytorch/test_positions_on_gpu.py": 1, "peers": 1}


@pytest.hookimpl(tryfirst=True)
def pytest_collection():
    gc.disable()  # objects made during collection stay alive, so looking for garbage among them is useless


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(items):
    """Leave variants that only recombine values of others to `make test-thorough` and `make test-all`."""
    leave_most_to_thorough(items, _together(QUICK, elsewhere=1))
    leave_most_to_nightly(items, _together(THOROUGH, elsewhere=2))


def _together(table, elsewhere):
    """Return a function of a test that looks up its folder or file in a table of this folder."""
    numbers = {Path(__file__).parent / name: number for name, number in table.items()}

    def together(item):
        return next((numbers[path] for path in (item.path, *item.path.parents) if path in numbers), elsewhere)

    return together


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    gc.freeze()  # excludes a million objects of libraries and tests, which took a tenth of the tests' time
    gc.enable()


def pytest_unconfigure():
    gc.unfreeze()  # at exit, Python clears these objects, so that libraries report no leaks


@pytest.fixture(scope="session")
def expected():
    from redblue.studies import sweep  # imported here, because a machine with a GPU may lack the drawing libraries
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
    """Runs the test with every instruction set that this CPU can run; the others are skipped."""
    row = _core.choose_isa(request.param)
    with running(row):
        yield row


@pytest.fixture
def log_messages():
    """The messages of all loggers during the test, as a list. pytest's logging plugin would slow down every test."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    yield messages
    logging.getLogger().removeHandler(handler)


@pytest.fixture
def own_schedules():
    """Unregisters the schedules that the test registers."""
    before = set(schedules.SCHEDULES)
    yield
    for name in set(schedules.SCHEDULES) - before:
        unregister_schedule(name)


@pytest.fixture
def interruptible():
    """Makes Ctrl-C raise KeyboardInterrupt, as in a foreground program of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def fresh_compiler():
    """Use no cache on disk, because another version of this project may have written it."""
    import torch._functorch.config
    import torch._inductor.config

    torch._dynamo.reset()
    torch.manual_seed(0)
    on_disk = {"fx_graph_cache": False}
    with torch._inductor.config.patch(on_disk), torch._functorch.config.patch(enable_autograd_cache=False):
        yield
    torch._dynamo.reset()


@pytest.fixture(scope="session", autouse=True)
def interpreted_fast():
    """Speeds up Triton's interpreter, if some test uses it."""
    with fast_interpreter():
        yield


@pytest.fixture
def nan_in_new_memory(monkeypatch):
    """Fills PyTorch's new memory with NaN, which shows in every element that a kernel does not write; seeds PyTorch."""
    import torch

    monkeypatch.setenv("REDBLUE_TUNE", "0")
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def bfloat16_to_nearest():
    """Makes Triton's interpreter round float32 to bfloat16 to nearest even, as GPUs do. By default it truncates."""
    import ml_dtypes
    from triton import language
    from triton.runtime import interpreter

    convert = getattr(interpreter, "_convert_float", None)
    if convert is None:  # another version of Triton
        yield
        return

    def rounded(numbers, dtype, wanted, mode):
        if (dtype, wanted) != (language.float32, language.bfloat16):
            return convert(numbers, dtype, wanted, mode)
        return numbers.astype(ml_dtypes.bfloat16).view("uint16")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_convert_float", rounded)
        yield
