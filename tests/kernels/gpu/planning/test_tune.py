"""The choice of the fastest launch, with a simulated clock: it is stored on disk, reused, and can be turned off."""

import json
import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton import OutOfResources
from triton.compiler.errors import CompilationError
from triton.runtime.errors import PTXASError

from redblue.kernels.gpu.launch import PlanOptions
from redblue.kernels.gpu.planning import tune
from redblue.kernels.gpu.planning.plan import Card, Launch
from redblue.kernels.sizes import Sizes

CANDIDATES = [
    Launch("flash", (64, 64)),
    Launch("flash", (128, 64), warps=8),
    Launch("small_cache", (32, 32), chunk=256),
]
SIZES = Sizes((2,), 4, 2, 1000, 1000, 64, 64)
CPU = torch.device("cpu")


def kind(sizes=SIZES, mask="full", direction="forward", dtype="float16", card=None, schedule="auto", **options):
    return tune.Kind.of(direction, sizes, dtype, mask, PlanOptions(**options), schedule, CPU, card or Card())


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.delenv(tune.VARIABLE, raising=False)
    monkeypatch.setattr(tune.platformdirs, "user_cache_path", lambda name: tmp_path / name)
    tune.forget()
    yield tmp_path
    tune.forget()


@pytest.fixture
def clock(monkeypatch):
    """A simulated clock: the milliseconds of each launch, the launches that ran, and the number of timings."""

    class Clock:
        def __init__(self):
            self.milliseconds = {launch: 3.0 - i for i, launch in enumerate(CANDIDATES)}  # the last is fastest
            self.ran, self.timed = [], 0

        def run(self, launch):
            self.ran.append(launch)
            if isinstance(self.milliseconds[launch], Exception):
                raise self.milliseconds[launch]

        def measure(self, call, best):
            self.timed += 1
            call()
            return self.milliseconds[self.ran[-1]]

    simulated = Clock()
    monkeypatch.setattr(tune, "milliseconds", simulated.measure)
    return simulated


def files(folder):
    return sorted(folder.rglob("*.json"))


def test_the_fastest_is_chosen_timed_once_and_stored(clock, cache_folder):
    for _ in range(3):
        assert tune.chosen(kind(), CANDIDATES, clock.run) == CANDIDATES[2]
    assert clock.timed == 3
    (file,) = files(cache_folder)
    stored = json.loads(file.read_text())
    assert stored["launch"] == repr(CANDIDATES[2])
    assert list(stored["milliseconds"].values()) == [3.0, 2.0, 1.0]
    tune.forget()  # simulates a new process
    assert tune.chosen(kind(), CANDIDATES, clock.run) == CANDIDATES[2]
    assert clock.timed == 3


def test_each_kind_of_call_is_tuned_once(clock):
    tune.chosen(kind(), CANDIDATES, clock.run)
    tune.chosen(kind(SIZES._replace(n_q=1024, n_k=600)), CANDIDATES, clock.run)
    assert clock.timed == 3
    others = [
        kind(SIZES._replace(n_k=1025)),
        kind(SIZES._replace(d=65)),
        kind(mask="lists"),
        kind(direction="backward"),
        kind(dtype="bfloat16"),
        kind(schedule="flash"),
        kind(card=Card(arch=80)),
        kind(bias=True),
        kind(dropout=True),
    ]
    for i, other in enumerate(others, 2):
        tune.chosen(other, CANDIDATES, clock.run)
        assert clock.timed == 3 * i


def test_one_candidate_is_not_timed(clock):
    assert tune.chosen(kind(), CANDIDATES[:1], clock.run) == CANDIDATES[0]
    assert not clock.ran


def test_candidates_that_fail_are_left_out_and_reported(clock, cache_folder):
    clock.milliseconds[CANDIDATES[2]] = OutOfResources(300_000, 232_448, "shared memory")
    assert tune.chosen(kind(), CANDIDATES, clock.run) == CANDIDATES[1]
    stored = json.loads(files(cache_folder)[0].read_text())
    assert stored["milliseconds"][repr(CANDIDATES[2])].startswith("out of resource: shared memory")
    for launch in CANDIDATES:
        clock.milliseconds[launch] = torch.OutOfMemoryError(launch.kernel)
    with pytest.raises(torch.OutOfMemoryError, match="flash"):
        tune.chosen(kind(mask="band"), CANDIDATES, clock.run)
    assert len(files(cache_folder)) == 1


@pytest.mark.parametrize(
    "refusal",
    [
        OutOfResources(1, 0, "shared memory"),
        torch.OutOfMemoryError("CUDA out of memory"),
        CompilationError("", None, "unsupported"),
        PTXASError("Insufficient registers"),
        RuntimeError("PassManager::run failed"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_candidates_that_do_not_compile_or_fit_are_left_out(clock, refusal):
    clock.milliseconds[CANDIDATES[2]] = refusal
    assert tune.chosen(kind(), CANDIDATES, clock.run) == CANDIDATES[1]


@pytest.mark.parametrize(
    "error",
    [RuntimeError("CUDA error: an illegal memory access was encountered"), TypeError("x"), KeyError("x")],
    ids=repr,
)
def test_other_errors_are_raised_at_once(clock, cache_folder, error):
    clock.milliseconds[CANDIDATES[0]] = error
    with pytest.raises(type(error), match=str(error)):
        tune.chosen(kind(), CANDIDATES, clock.run)
    assert clock.ran == CANDIDATES[:1]
    assert not files(cache_folder)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"launch": 3}', '{"launch": "rm -rf"}', "\0\0", "\udcff"])
def test_a_damaged_file_is_replaced(clock, cache_folder, text):
    tune.chosen(kind(), CANDIDATES, clock.run)
    (file,) = files(cache_folder)
    intact = file.read_bytes()
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    tune.forget()
    assert tune.chosen(kind(), CANDIDATES, clock.run) == CANDIDATES[2]
    assert clock.timed == 6
    assert file.read_bytes() == intact


def test_a_choice_that_the_plan_no_longer_offers_is_made_again(clock):
    tune.chosen(kind(), CANDIDATES, clock.run)
    tune.forget()
    assert tune.chosen(kind(), CANDIDATES[:2], clock.run) == CANDIDATES[1]
    assert tune.chosen(kind(), CANDIDATES[:1] * 2, clock.run) == CANDIDATES[0]


def test_an_unwritable_folder_does_not_fail_the_call(clock, cache_folder):
    (cache_folder / "redblue").write_text("a file where the folder should be")
    assert tune.chosen(kind(), CANDIDATES, clock.run) == CANDIDATES[2]
    assert tune.chosen(kind(), CANDIDATES, clock.run) == CANDIDATES[2]
    assert clock.timed == 3


def test_settings_that_turn_tuning_off(clock, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv(tune.VARIABLE, "0")
        assert tune.chosen(kind(), CANDIDATES, clock.run) == CANDIDATES[0]
    torch.use_deterministic_algorithms(True)
    try:
        assert tune.chosen(kind(), CANDIDATES, clock.run) == CANDIDATES[0]
    finally:
        torch.use_deterministic_algorithms(False)
    assert not clock.ran


@pytest.mark.parametrize("watcher", ["capture", "trace"])
def test_nothing_is_timed_while_a_graph_is_captured_or_traced(clock, monkeypatch, watcher):
    with monkeypatch.context() as patch:
        if watcher == "capture":
            patch.setattr(torch.cuda, "is_initialized", lambda: True)
            patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        else:
            patch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert tune.chosen(kind(), CANDIDATES, clock.run) == CANDIDATES[0]
        assert not clock.ran
    assert tune.chosen(kind(), CANDIDATES, clock.run) == CANDIDATES[2]
    with monkeypatch.context() as patch:  # uses the earlier choice
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert tune.chosen(kind(), CANDIDATES, clock.run) == CANDIDATES[2]


def test_concurrent_threads_tune_once(clock):
    threads = [threading.Thread(target=tune.chosen, args=(kind(), CANDIDATES, clock.run)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.timed == 3


def test_concurrent_writers_never_leave_a_partial_file(cache_folder):
    def write(launch):
        for _ in range(50):
            tune._write(kind(), launch, {repr(launch): 1.0})

    writers = [threading.Thread(target=write, args=(launch,)) for launch in CANDIDATES]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        if tune._path(kind()).exists():
            assert tune._read(kind(), CANDIDATES) in CANDIDATES
    assert [file.suffix for file in tune.folder().iterdir()] == [".json"]


def test_a_slow_candidate_is_timed_only_briefly(monkeypatch):
    clock = iter(range(0, 10000, 7))

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = next(clock)

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return end.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(tune, "_work_ahead_of", lambda call: lambda: None)
    calls = []
    assert tune.milliseconds(lambda: calls.append(1), best=1.0) == 7
    assert len(calls) == 1
    assert tune.milliseconds(lambda: calls.append(1), best=6.0) == 7
    assert len(calls) == 1 + tune.REPETITIONS


@pytest.mark.parametrize(("milliseconds_to_queue", "clearings"), [(0.0, 2), (1.0, 12), (1e9, tune.MAX_CLEARED)])
def test_the_device_clears_memory_for_as_long_as_python_queues_a_call(monkeypatch, milliseconds_to_queue, clearings):
    clock = iter((0.0, milliseconds_to_queue / 1e3))
    cleared = []

    class Memory:
        def zero_(self):
            cleared.append(1)

    class Event:
        def __init__(self, enable_timing):
            pass

        def record(self):
            pass

        synchronize = record

        def elapsed_time(self, end):
            return 0.1  # milliseconds to clear memory once

    monkeypatch.setattr(torch, "empty", lambda *size, **options: Memory())
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(tune.time, "perf_counter", lambda: next(clock))
    queue_work = tune._work_ahead_of(lambda: None)
    del cleared[:]
    queue_work()
    assert len(cleared) == clearings


def test_without_memory_to_clear_calls_are_timed_as_they_are(monkeypatch):
    asked, called = [], []

    def full(*size, **options):
        asked.append(size)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "empty", full)
    tune._work_ahead_of(lambda: called.append(1))()
    assert len(asked) == 1
    assert not called
