"""Cachegrind against loops with known lines and the exact simulator, and errors if valgrind is missing or broken."""

import itertools
import os
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from pathlib import Path

import pytest

import redblue as rb
from redblue.base.errors import RedblueError
from redblue.machine import CacheLevel, play
from redblue.machine.hierarchy import READ, WRITE, Trace
from redblue.meter import cachegrind, measure, valgrind
from redblue.meter.calls import Region
from support.examples import thorough

needs_valgrind = pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
A, B, C = Region(0), Region(1), Region(2)
LINE = 64


def cache(lines, ways=None, line=LINE):
    return CacheLevel("cache", lines * line, line, ways)


def loop(name, regions, count, step, outputs=(0,), level=None, inner=None):
    arguments = (name, A, B, C if len(regions) > 2 else 0, count, step)
    return cachegrind.run("meter_loop", None, regions, outputs, arguments, level or cache(64), inner)[0]


def near(measured, expected):
    """Equal within 2 %, plus a few lines of the stack."""
    return abs(measured - expected) <= 0.02 * expected + 12


@needs_valgrind
@pytest.mark.parametrize("line", [thorough(32), thorough(64), 128])
def test_a_copy_reads_its_lines_and_writes_them(line):
    count = 20_000
    lines_moved = loop("copy", (8 * count, 8 * count), count, 1, level=cache(64, line=line))
    lines = 8 * count // line
    assert near(lines_moved["read_miss_lines"], lines)
    assert near(lines_moved["write_allocate_lines"], lines)
    assert near(lines_moved["written_back_lines"] + lines_moved["outputs_left_lines"], lines)
    assert 12 <= lines_moved["outputs_left_lines"] <= 32  # every other line of 64; the check itself evicts some lines


@needs_valgrind
@pytest.mark.parametrize("ways", [thorough(None), 4])
@pytest.mark.parametrize(
    ("stride", "misses"), [thorough(1, 2 * 4096 // 8), thorough(8, 2 * 4096 // 8), thorough(64, 4096 // 64)]
)
def test_a_strided_walk_misses_each_line_once_a_time_unless_it_fits(ways, stride, misses):
    level = cache(128, ways)
    if ways and stride == 64:
        misses *= 2  # 64 lines, 8 apart, are in 4 of 32 sets
    lines_moved = loop("strided", (8, 8 * 4096), 4096, stride, outputs=(), level=level)
    assert near(lines_moved["read_miss_lines"], misses)


@pytest.mark.thorough
@needs_valgrind
@pytest.mark.parametrize(
    ("n", "tile", "lines", "ways"), [thorough(48, 16, 160, None), thorough(96, 24, 128, None), (96, 24, 256, 8)]
)
def test_a_tiled_product_moves_what_the_exact_simulator_says(n, tile, lines, ways):
    lines_moved = loop("product", (8 * n * n,) * 3, n, tile, level=cache(lines, ways))
    (exact,) = play(product_trace(n, tile), [cache(lines, ways)], fetch_on_write=True)
    assert exact.fills > 3 * n * n * 8 / LINE
    assert near(lines_moved["read_miss_lines"] + lines_moved["write_allocate_lines"], exact.fills)
    assert near(lines_moved["written_back_lines"] + lines_moved["outputs_left_lines"], exact.write_backs)


def product_trace(n, tile):
    """The lines that the loop touches, in order. c, a and b lie one after another."""
    lines, kinds, size = [], [], n * n * 8
    for i0, j0, k0 in itertools.product(range(0, n, tile), repeat=3):
        for i, k in itertools.product(range(i0, i0 + tile), range(k0, k0 + tile)):
            lines.append((size + 8 * (i * n + k)) // LINE)
            kinds.append(READ)
            for j in range(j0, j0 + tile, 8):
                c, b = 8 * (i * n + j) // LINE, (2 * size + 8 * (k * n + j)) // LINE
                lines += [c, b, c]
                kinds += [READ, READ, WRITE]
    return Trace.of(lines, kinds)


@pytest.mark.thorough
@needs_valgrind
def test_behind_a_nearer_cache_less_arrives():
    measured = loop("strided", (8, 8 * 2048), 2048, 8, outputs=(), level=cache(64), inner=cache(512, 8))
    assert near(measured["read_miss_lines"], 256)  # the nearer cache holds all of them
    assert near(measured["inner_miss_lines"], 256)
    smaller = loop("strided", (8, 8 * 2048), 2048, 8, outputs=(), level=cache(512), inner=cache(64, 8))
    assert near(smaller["inner_miss_lines"], 512)  # the misses of both passes
    assert near(smaller["read_miss_lines"], 256)
    assert "inner_miss_lines" not in loop("strided", (8, 8 * 64), 64, 8, outputs=())
    assert near(loop("strided", (8, 8 * 2048), 2048, 8, outputs=())["read_miss_lines"], 512)


@needs_valgrind
def test_attention_moves_its_arrays_once_where_they_fit():
    problem = rb.Problem(40, 70, 24, 8, heads=2, dtype="float32")
    measurement = measure(problem, words=1 << 15, using="cachegrind", tiles={"rows": 16, "cols": 6})
    arrays = 4 * 2 * (40 * 24 + 70 * 24 + 70 * 8 + 40 * 8 + 40)
    assert (
        0.98 * arrays <= measurement.bytes_read + measurement.bytes_written
    )  # out and lse are read before they are written
    # Except for a line or two, depending on the addresses of code and stack
    assert measurement.parts["outputs_left_lines"] >= 4 * 2 * (40 * 8 + 40) // 64 - 2
    assert measurement.parts["written_back_lines"] == 0
    assert measurement.bytes_read < 2.2 * arrays
    assert measurement.counted_words == rb.count("flash", problem, tiles={"rows": 16, "cols": 6}).words
    assert measurement.bound_words == rb.lower_bound(problem, 1 << 15).words
    assert measurement.kernel == f"flash forward, {cachegrind.isa().name}"
    assert measurement.tool.startswith("valgrind-3.")
    assert measurement == type(measurement).from_json(measurement.to_json())


@pytest.mark.thorough
@needs_valgrind
def test_outputs_whose_first_rows_are_written_last_are_found_in_the_cache():
    problem = rb.Problem(128, 32, 64, dtype="float32")
    measurement = measure(problem, words=8192, using="cachegrind", tiles={"rows": 16, "cols": 6})
    rows_lines = 4 * 64 // 64
    # The lines of the last block, except those that the end of the pass evicts, about one line
    assert 15 * rows_lines <= measurement.parts["outputs_left_lines"] < 128 * rows_lines


@needs_valgrind
@pytest.mark.thorough
def test_the_stack_lies_at_the_same_place_in_every_folder_and_environment(tmp_path, monkeypatch):
    def lines(length):
        folder = tmp_path / ("x" * length)
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        monkeypatch.setenv("LONG", "x" * length)
        return loop("product", (8 * 48 * 48,) * 3, 48, 16, level=cache(48))

    first = lines(1)
    assert lines(50) == first


@pytest.mark.thorough
@needs_valgrind
def test_the_same_twice():
    problem = rb.Problem(33, 65, 16, dtype="float32", mask=rb.Mask.causal())
    first, second = (measure(problem, words=4096, using="cachegrind", tiles={"rows": 16}) for _ in range(2))
    assert first.parts == second.parts


@pytest.mark.thorough
@needs_valgrind
@pytest.mark.parametrize(
    ("direction", "schedule"),
    [("backward", None), ("forward", "gather"), thorough("forward", None), thorough("backward", "gather")],
)
def test_masks_travel_with_the_call(direction, schedule):
    mask = rb.Mask.random_blocks(0.4, seed=1, block=8)
    problem = rb.Problem(40, 50, 8, heads=2, dtype="float32", mask=mask, direction=direction)
    simulated, own = (measure(problem, words=1 << 14, using=x, schedule=schedule) for x in ("cachegrind", "probe"))
    assert own.measured_words == own.counted_words
    assert simulated.schedule == own.schedule
    assert simulated.measured_words > 0.5 * (own.measured_words if schedule is None else problem.heads * 90 * 8 * 2)


def test_what_callgrind_writes():
    text = (
        "events: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw ILdmr DLdmr DLdmw\n"
        "desc: Trigger: Client Request: kernel\ntotals: 11 5 4 1 3 2 1 3 2 1 1\n"
    )
    (events,) = valgrind.read(text).values()
    assert events == valgrind.Events(3, 2, code_misses=1, write_backs=2, accesses=9, inner_misses=5)
    assert not valgrind.read("events: Ir\ndesc: Trigger: Program termination\ntotals: 3\n")


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Puts a script of that content on PATH as valgrind, without anything else."""

    def put(script):
        path = tmp_path / "valgrind"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        return tmp_path

    return put


VERSION = 'if [ "$1" = --version ]; then echo valgrind-3.19.0; exit 0; fi'


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo valgrind-3.9.0", "needs valgrind 3.10 or newer, .* is valgrind-3.9.0: install it"),
        ("echo hello", "prints 'hello', which is no version"),
        (f"{VERSION}; echo '==7== Killed' >&2; kill -SEGV $$", "was ended by signal 11. It said: Killed"),
        (f"{VERSION}; echo vex: unhandled instruction bytes: 0x62 >&2; exit 132", "set REDBLUE_ISA=avx2"),
        (f"{VERSION}; echo bad option >&2; exit 1", "failed with status 1. It said: bad option"),
        (f"{VERSION}; exit 0", "wrote no counts"),
    ],
)
def test_a_valgrind_that_does_not_do(fake, script, said):
    fake(script)
    with pytest.raises(RedblueError, match=said):
        measure(rb.Problem(8, 8, 4, dtype="float32"), words=4096, using="cachegrind")


def test_no_valgrind_and_one_that_does_not_start(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    problem = rb.Problem(8, 8, 4, dtype="float32")
    with pytest.raises(RedblueError, match=r"needs valgrind, which is not on PATH: install it \(apt install valgrind"):
        measure(problem, words=4096, using="cachegrind")
    assert measure(problem, words=4096).meter == "probe"
    (tmp_path / "valgrind").write_text("#!/no/such/program\n")
    (tmp_path / "valgrind").chmod(0o755)
    with pytest.raises(RedblueError, match="cannot be run"):
        measure(problem, words=4096, using="cachegrind")


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_the_child(fake):
    folder = fake(f"{VERSION}; echo $$ > $0.pid; while :; do :; done")
    pid = folder / "valgrind.pid"

    def interrupt():
        while not (pid.exists() and pid.read_text().strip() and waits()):
            pass
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def waits():
        """Whether this test's thread has started the child and waits for its output."""
        frame = sys._current_frames()[threading.main_thread().ident]
        return any(each.f_code.co_name == "communicate" for each, _ in traceback.walk_stack(frame))

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        measure(rb.Problem(8, 8, 4, dtype="float32"), words=4096, using="cachegrind")
    thread.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"words": 4 * 48, "ways": 4, "tiles": {"rows": 16}},
            "number of sets is a power of two; 768 bytes .* 4 ways, are 3",
        ),
        ({"words": 4096, "line_bytes": 16}, "lines of 32, 64, 128 ... bytes, got 16"),
        ({"words": 4096, "line_bytes": 96}, "no multiple of its lines"),
        ({"words": 0}, "words must be a whole number of at least 1, got 0"),
        ({"words": 16}, "needs a cache of at least"),
        ({"words": 4096, "schedule": "standard"}, "no compiled kernel follows 'standard' forward"),
        ({"words": 4096, "tiles": {"depth": 3}}, "has no tile edge 'depth'"),
        ({"words": 4096, "using": "ruler"}, "unknown meter 'ruler'"),
    ],
)
@needs_valgrind
def test_what_cannot_be_measured(options, said):
    with pytest.raises(RedblueError, match=said):
        measure(rb.Problem(8, 8, 4, dtype="float32"), **{"using": "cachegrind"} | options)


def test_avx512_is_refused_by_name(monkeypatch):
    monkeypatch.setenv("REDBLUE_ISA", "avx512")
    with pytest.raises(RedblueError, match="does not decode AVX-512: set REDBLUE_ISA=avx2"):
        cachegrind.isa()
    monkeypatch.setenv("REDBLUE_ISA", "portable")
    assert cachegrind.isa().name == "portable"


def test_the_child_script_is_there():
    assert Path(cachegrind.child.__file__).is_file()
