"""Choice of the fastest launch, with a simulated clock: stored on disk, reused, and turned off."""

import json
import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from redblue.kernels.cpu.call import Sizes
from redblue.kernels.gpu.launch import PlanOptions
from redblue.kernels.gpu.planning import tune
from redblue.kernels.gpu.planning.plan import Card, Launch

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
def nothing_kept(tmp_path, monkeypatch):
    monkeypatch.delenv(tune.VARIABLE, raising=False)
    monkeypatch.setattr(tune.platformdirs, "user_cache_path", lambda name: tmp_path / name)
    tune.forget()
    yield tmp_path
    tune.forget()


@pytest.fixture
def clock(monkeypatch):
    """A simulated clock: settable milliseconds by launch, the launches in order, and the number of timings."""

    class Clock:
        def __init__(self):
            self.milliseconds = {launch: 3.0 - i for i, launch in enumerate(CANDIDATES)}  # the last is the fastest
            self.ran, self.timed = [], 0

        def run(self, launch):
            self.ran.append(launch)
            if isinstance(self.milliseconds[launch], Exception):
                raise self.milliseconds[launch]

        def measure(self, call, best):
            self.timed += 1
            call()
            return self.milliseconds[self.ran[-1]]

    stand_in = Clock()
    monkeypatch.setattr(tune, "milliseconds", stand_in.measure)
    return stand_in


def files(folder):
    return sorted(folder.rglob("*.json"))


def test_the_fastest_is_chosen_timed_once_and_kept(clock, nothing_kept):
    for _ in range(3):
        assert tune.chosen(kind(), CANDIDATES, clock.run) == CANDIDATES[2]
    assert clock.timed == 3
    (file,) = files(nothing_kept)
    kept = json.loads(file.read_text())
    assert kept["launch"] == repr(CANDIDATES[2])
    assert list(kept["milliseconds"].values()) == [3.0, 2.0, 1.0]
    tune.forget()  # another process
    assert tune.chosen(kind(), CANDIDATES, clock.run) == CANDIDATES[2]
    assert clock.timed == 3


def test_kinds_are_apart_and_lengths_of_one_magnitude_are_not(clock):
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


def test_candidates_that_fail_are_left_out_and_reported(clock, nothing_kept):
    clock.milliseconds[CANDIDATES[2]] = RuntimeError("out of resource: shared memory")
    assert tune.chosen(kind(), CANDIDATES, clock.run) == CANDIDATES[1]
    kept = json.loads(files(nothing_kept)[0].read_text())
    assert kept["milliseconds"][repr(CANDIDATES[2])] == "out of resource: shared memory"
    for launch in CANDIDATES:
        clock.milliseconds[launch] = RuntimeError(launch.kernel)
    with pytest.raises(RuntimeError, match="flash"):
        tune.chosen(kind(mask="band"), CANDIDATES, clock.run)
    assert len(files(nothing_kept)) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"launch": 3}', '{"launch": "rm -rf"}', "\0\0", "\udcff"])
def test_a_damaged_file_is_as_good_as_none(clock, nothing_kept, text):
    tune.chosen(kind(), CANDIDATES, clock.run)
    (file,) = files(nothing_kept)
    whole = file.read_bytes()
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    tune.forget()
    assert tune.chosen(kind(), CANDIDATES, clock.run) == CANDIDATES[2]
    assert clock.timed == 6
    assert file.read_bytes() == whole


def test_a_choice_that_the_plan_no_longer_offers_is_made_again(clock):
    tune.chosen(kind(), CANDIDATES, clock.run)
    tune.forget()
    assert tune.chosen(kind(), CANDIDATES[:2], clock.run) == CANDIDATES[1]
    assert tune.chosen(kind(), CANDIDATES[:1] * 2, clock.run) == CANDIDATES[0]


def test_a_folder_that_cannot_be_written_costs_no_result(clock, nothing_kept):
    (nothing_kept / "redblue").write_text("a file where the folder should be")
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
    with monkeypatch.context() as patch:  # a known choice is used
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert tune.chosen(kind(), CANDIDATES, clock.run) == CANDIDATES[2]


def test_threads_that_come_at_once_time_it_once(clock):
    threads = [threading.Thread(target=tune.chosen, args=(kind(), CANDIDATES, clock.run)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.timed == 3


def test_writers_at_once_leave_a_whole_file(nothing_kept):
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
    calls = []
    assert tune.milliseconds(lambda: calls.append(1), best=1.0) == 7
    assert len(calls) == 1
    assert tune.milliseconds(lambda: calls.append(1), best=6.0) == 7
    assert len(calls) == 1 + tune.REPETITIONS
