"""Measurements of arbitrary functions, and the command."""

import json
import shutil

import pytest
from typer.testing import CliRunner

import redblue as rb
from redblue.base.errors import RedblueError
from redblue.cli.main import app
from redblue.meter import registry
from redblue.schedules import TooFewWords

needs_valgrind = pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
SCRIPT = """
import ctypes
size = 1 << 20
a, b = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)

def copy(times, offset=0):
    for _ in range(times):
        ctypes.memmove(b, a, size - offset)

def nothing():
    pass

def fails():
    raise OSError("not today")
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


@needs_valgrind
@pytest.mark.thorough
def test_a_copy_by_somebody_else(script):
    measurement = rb.measure_callable(f"{script}:copy", 2, offset=64, using="cachegrind", words=2048, bytes_per_word=8)
    moved = 2 * ((1 << 20) - 64)
    assert moved <= measurement.bytes_read / 2 <= 1.02 * moved  # read, and read before being written
    assert 0.99 * moved <= measurement.bytes_written <= 1.02 * moved
    assert measurement.unit == "words of 8 bytes"
    assert measurement.kernel.endswith("script.py:copy")
    assert measurement.over_counted is None
    idle = rb.measure_callable(f"{script}:nothing", using="cachegrind", words=2048)
    assert idle.bytes_read + idle.bytes_written < 64 * 100
    with pytest.raises(RedblueError, match=r"failed with status 1.*OSError: not today"):
        rb.measure_callable(f"{script}:fails", using="cachegrind", words=2048)


@pytest.mark.parametrize(
    ("fn", "arguments", "options", "said"),
    [
        (
            lambda: 0,
            (),
            {"using": "cachegrind", "words": 64},
            "cannot be found by a child process: give a function of a module",
        ),
        ("print", (), {"using": "cachegrind", "words": 64}, "by 'module:function' or 'path/to/script.py:function'"),
        (json.dumps, ({1, 2},), {"using": "cachegrind", "words": 64}, "arguments reach the child process as JSON"),
        (json.dumps, (), {"using": "cachegrind"}, "give its words"),
        (json.dumps, (), {"using": "probe"}, "unknown meter of callables 'probe'"),
        (
            "math:nope",
            (4.0,),
            {"using": "cachegrind", "words": 1024},
            r"It said: .*cannot find the function 'math:nope' \(KeyError: 'nope'\): name one that can be imported$",
        ),
    ],
)
@needs_valgrind
def test_what_cannot_be_measured(fn, arguments, options, said):
    with pytest.raises(RedblueError, match=said):
        rb.measure_callable(fn, *arguments, **options)


@pytest.mark.parametrize("name", ["no_such_module:f", "missing.py:f", "json:JSONDecoder.nope", "json:nope"])
def test_a_function_that_does_not_exist(name):
    pytest.importorskip("triton")
    with pytest.raises(RedblueError, match=f"^cannot find the function '{name}'"):
        rb.measure_callable(name, using="interpreter")


def test_the_interpreter_as_a_meter():
    triton = pytest.importorskip("triton")
    torch = pytest.importorskip("torch")
    from support.gather_rows import gather, rows_case

    x, rows, out = rows_case(7, 5)
    measurement = rb.measure_callable(gather, x, rows, out, using="interpreter")
    assert (measurement.bytes_read, measurement.bytes_written) == (4 * (35 + 7), 4 * 35)
    assert measurement.parts == {"launches": 1, "words_read": 42, "words_written": 35}
    assert measurement.tool == f"triton {triton.__version__}"
    with pytest.raises(RedblueError, match="launched no Triton kernel"):
        rb.measure_callable(torch.zeros, 3, using="interpreter")


@pytest.mark.parametrize(
    ("d", "options"),
    [
        (16, {"plan_words": 8192}),
        (16, {"tiles": {"rows": 64, "cols": 64}}),
        (64, {"schedule": "gather"}),
    ],
)
@pytest.mark.parametrize("meter", ["probe", "interpreter"])
def test_a_meter_without_a_cache_refuses_tiles_that_need_more_words(meter, d, options):
    if meter == "interpreter":
        pytest.importorskip("triton")
        pytest.importorskip("torch")
    if (meter, *options) == ("interpreter", "schedule"):
        pytest.skip("no GPU kernel follows gather")
    problem = rb.Problem(64, 64, d, dtype="float32")
    with pytest.raises(TooFewWords, match=r"with tiles \{.*\} holds \d+ words, got 64$"):
        rb.measure(problem, words=64, using=meter, **options)
    fits = rb.measure(problem, words=8192, using=meter, **options)
    assert fits.measured_words == fits.counted_words >= fits.bound_words


@pytest.mark.parametrize("meter", ["probe", "interpreter"])
def test_a_meter_without_a_cache_measures_capacities_that_hold_no_whole_number_of_lines(meter):
    if meter == "interpreter":
        pytest.importorskip("triton")
        pytest.importorskip("torch")
    measurement = rb.measure(rb.Problem(64, 64, 16, dtype="float32"), words=1001, using=meter)
    assert measurement.boundary == "fast memory of 4,004 bytes/slow memory"
    assert measurement.capacity_bytes == 4004
    assert measurement.bound_words == rb.lower_bound(rb.Problem(64, 64, 16), 1001).words


@needs_valgrind
def test_cachegrind_needs_a_whole_number_of_lines():
    with pytest.raises(RedblueError, match="holds 4004 bytes, which is no multiple of its lines of 64 bytes"):
        rb.measure(rb.Problem(64, 64, 16, dtype="float32"), words=1001, using="cachegrind")


@pytest.mark.parametrize("mask", [rb.Mask.full(), rb.Mask.causal(), rb.Mask.random_blocks(0.4, block=16, seed=1)])
def test_triton_kernels_move_what_is_counted(mask):
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    problem = rb.Problem(48, 40, 16, heads=2, kv_heads=1, dtype="float32", mask=mask)
    measurement = rb.measure(problem, words=8192, using="interpreter")
    assert measurement.measured_words == measurement.counted_words
    assert measurement.bound_words == rb.lower_bound(problem, 8192).words
    assert (measurement.parts["index_bytes"] > 0) == (mask == rb.Mask.random_blocks(0.4, block=16, seed=1))


def run(*arguments):
    return CliRunner().invoke(app, ["measure", *arguments])


SMALL = ("--n", "64", "--d", "32", "--words", "8192")


@needs_valgrind
def test_the_command():
    result = run(*SMALL, "--with", "cachegrind", "--ways", "8", "--line", "128", "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["measured_words"] > data["counted_words"] > 0
    assert data["schedule"] == "flash"
    assert data["problem"]["dtype"] == "float32"
    assert data["boundary"] == "fast memory of 32,768 bytes/slow memory"
    assert "8 ways" in data["how"]
    assert {"bound_words", "tiles", "parts"} <= data.keys()
    assert rb.Measurement.from_dict(data).to_dict() == data


def test_auto_says_what_it_did_not_take(monkeypatch):
    def missing():
        raise RedblueError("no valgrind: install it")

    monkeypatch.setitem(registry.METERS, "cachegrind", registry.Meter("cachegrind", "", missing, None, True, 1e9))
    result = run(*SMALL, "--json")
    data = json.loads(result.stdout)
    assert data["meter"] == "probe"
    assert data["measured_words"] == data["counted_words"]
    assert data["others"]["cachegrind"] == "no valgrind: install it"
    assert set(data["others"]) == {"cachegrind", "interpreter", "counters", "ncu"}
    text = " ".join(run(*SMALL).output.split())
    assert "flash forward" in text
    assert "not cachegrind: no valgrind: install it" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--n", "64", "--d", "32"), "give its words"),
        ((*SMALL, "--ways", "some"), "--ways must be a number of lines per set, or full"),
        ((*SMALL, "--with", "probe", "--boundary", "L2/L3"), "leave boundary out, or measure with ncu or counters"),
        ((*SMALL, "--with", "probe", "--direction", "gradient_x"), "measured forward and backward"),
        ((*SMALL, "--with", "probe", "--dtype", "float8"), "no compiled kernel computes in float8"),
        ((*SMALL, "--plan-words", "0"), "plan_words must be a whole number of at least 1, got 0"),
    ],
)
def test_refusals(arguments, said):
    result = run(*arguments)
    assert isinstance(result.exception, RedblueError)
    assert said in str(result.exception)
