"""Counters: the events of each boundary, perf's output, and a perf that may not or cannot count."""

import os
import signal
import sys

import pytest

import redblue as rb
from redblue.base.errors import RedblueError
from redblue.catalogue.detect import Cache, Cpu
from redblue.meter import counters
from redblue.meter.counters import Formula, formulas

# Output of perf stat -x, written by the documentation of perf 6.1 (columns: value, unit, event, time, share), not
# recorded.
REFUSED = """# started on Sun Nov 22 01:00:00 2026

<not supported>;;l1d.replacement;0;100.00;;
10485760;;L1-dcache-loads;2042132;100.00;;
"""
WRITTEN = """1000;;l1d.replacement;2042132;100.00;;
300;;l2_trans.l1d_wb;2042132;100.00;;
3.50;MiB;uncore_imc_0/cas_count_read/;2042132;100.00;;
1.25;MiB;uncore_imc_0/cas_count_write/;2042132;100.00;;
<not counted>;;l2_lines_in.all;0;0.00;;
7;Joules;l2_trans.l2_wb;2042132;100.00;;
"""
CORE = Formula("L1d/L2", ("l1d.replacement",), ("l2_trans.l1d_wb",))
CAS = frozenset({"cas_count_read", "cas_count_write"})


def test_what_each_vendor_counts():
    server = formulas("GenuineIntel", {"cpu": frozenset(), "uncore_imc_0": CAS, "uncore_imc_11": CAS})
    assert list(server) == ["L1d/L2", "L2/L3", "L3/DRAM"]
    assert server["L3/DRAM"].reads == ("uncore_imc_0/cas_count_read/", "uncore_imc_11/cas_count_read/")
    assert server["L3/DRAM"].system
    client = formulas("GenuineIntel", {"uncore_imc": frozenset({"data_reads", "data_writes"})})
    assert client["L3/DRAM"].writes == ("uncore_imc/data_writes/",)
    free = formulas("GenuineIntel", {"uncore_imc_free_running_1": frozenset({"data_read", "data_write"})})
    assert free["L3/DRAM"].reads == ("uncore_imc_free_running_1/data_read/",)
    assert "L3/DRAM" not in formulas("GenuineIntel", {"uncore_imc_0": frozenset()})
    zen = formulas("AuthenticAMD", {"cpu": frozenset(), "amd_umc_0": frozenset(), "amd_umc_3": frozenset()})
    assert list(zen) == ["L3/DRAM"]
    assert zen["L3/DRAM"].writes[1] == "amd_umc_3/event=0x0a,rdwrmask=0x2/"
    assert not formulas("AuthenticAMD", {"cpu": frozenset()})
    assert not formulas("ARM", {"cpu": frozenset()})


def test_perf_output():
    events = counters.read(WRITTEN)
    assert counters._bytes(events, "l1d.replacement") == 64_000
    assert counters._bytes(events, "uncore_imc_0/cas_count_read/") == 3.5 * 2**20
    for event, said in (
        ("l2_lines_in.all", "is not counted: perf had no free counter for it"),
        ("nowhere", "is not counted"),
        ("l2_trans.l2_wb", "is counted in 'Joules', which is not known: MiB, Bytes are"),
    ):
        with pytest.raises(RedblueError, match=said):
            counters._bytes(events, event)
    with pytest.raises(RedblueError, match=r"not supported: this \(virtual\) machine does not offer it; measure with"):
        counters._bytes(counters.read(REFUSED), "l1d.replacement")


def test_the_boundary_of_the_smallest_cache_that_holds_it(monkeypatch):
    caches = (Cache(1, 32 << 10, 2), Cache(2, 1 << 20, 2), Cache(3, 8 << 20, 1))
    monkeypatch.setattr(counters, "detect_cpu", lambda: Cpu("a CPU", 2, caches, None, "a test"))
    boundaries = {"L1d/L2": CORE, "L2/L3": CORE, "L3/DRAM": CORE}
    sizes = (1, 32 << 10, (32 << 10) + 1, 1 << 20, 9 << 20)
    names = [counters.boundary_for(size, boundaries) for size in sizes]
    assert names == ["L1d/L2", "L1d/L2", "L2/L3", "L2/L3", "L3/DRAM"]


# Follows the commands of `perf stat --control`, and writes the given text when it is interrupted.
FAKE = """#!{python}
import os, re, signal, sys, time
if sys.argv[1:] == ["--version"]:
    print("perf version 6.1.0"); sys.exit()
said = {said!r}
if said:
    sys.stderr.write(said); sys.exit(129)
output = sys.argv[sys.argv.index("-o") + 1]
orders, answers = sys.argv[sys.argv.index("--control") + 1].removeprefix("fifo:").split(",")
log = []
def end(*_):
    text = {written!r}
    if os.environ.get("LC_ALL") != "C":  # a perf in the user's language
        text = re.sub(r"(?m)^(\\d+)\\.", r"\\1,", text)
    open(output, "w").write(text); open({log!r}, "w").write(" ".join(log)); os._exit(0)
signal.signal(signal.SIGINT, end)
with open(orders) as asked, open(answers, "w") as answer:
    for line in asked:
        log.append(line.strip()); answer.write("ack\\n"); answer.flush()
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A perf on PATH that writes `written`, or prints `said` and fails; and a machine with Intel's counters."""

    def put(written=WRITTEN, said=""):
        path = tmp_path / "perf"
        path.write_text(FAKE.format(python=sys.executable, said=said, written=written, log=str(tmp_path / "log")))
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        devices, cpuinfo = tmp_path / "devices", tmp_path / "cpuinfo"
        (devices / "cpu").mkdir(parents=True)
        cpuinfo.write_text("vendor_id\t: GenuineIntel\n")
        monkeypatch.setattr(counters, "DEVICES", devices)
        monkeypatch.setattr(counters, "CPUINFO", cpuinfo)
        return tmp_path

    return put


def test_a_problem_and_a_callable_are_counted(fake):
    folder = fake()
    problem = rb.Problem(64, 64, 32, dtype="float32")
    measurement = rb.measure(problem, using="counters", boundary="L1d/L2", tiles={"rows": 32, "cols": 6})
    assert (measurement.bytes_read, measurement.bytes_written) == (round(64_000 / 3), round(300 * 64 / 3))
    assert (measurement.boundary, measurement.meter, measurement.tool) == ("L1d/L2", "counters", "perf 6.1.0")
    assert (folder / "log").read_text() == "enable disable"
    assert (
        measurement.capacity_bytes is None
        or measurement.bound_words == rb.lower_bound(problem, measurement.capacity_bytes // 4).words
    )
    calls = []
    of_callable = rb.measure_callable(calls.append, 3, using="counters", boundary="L1d/L2", bytes_per_word=8)
    assert calls == [3] * (1 + counters.REPEATS)
    assert of_callable.bytes_read == measurement.bytes_read
    assert of_callable.measured_words == (of_callable.bytes_read + of_callable.bytes_written) / 8
    with pytest.raises(RedblueError, match="on this CPU L1d/L2, L2/L3 can be measured, got boundary 'L9'"):
        rb.measure(problem, using="counters", boundary="L9")


def test_numbers_do_not_depend_on_the_users_language(fake, monkeypatch):
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    fake()
    formula = Formula("L3/DRAM", ("uncore_imc_0/cas_count_read/",), ("uncore_imc_0/cas_count_write/",))
    assert counters.count(lambda: None, formula) == (3.5 * 2**20, 1.25 * 2**20)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Error: Access to performance monitoring ... is limited.", r"perf_event_paranoid is \d.*sysctl -w"),
        ("event syntax error: 'l1d.replacement'\n  parser error", "does not know these events on this CPU: install a"),
    ],
)
def test_a_perf_that_refuses(fake, said, expected):
    fake(said=said)
    with pytest.raises(RedblueError, match=expected):
        rb.measure(rb.Problem(8, 8, 4, dtype="float32"), using="counters", boundary="L1d/L2")


def test_what_is_missing(fake, tmp_path, monkeypatch):
    fake()
    (counters.DEVICES / "cpu").rmdir()
    counters.CPUINFO.write_text("vendor_id : GenuineIntel\nflags : fpu hypervisor\n")
    with pytest.raises(RedblueError, match=r"no hardware counters .* virtual machine without them. Measure"):
        counters.available()
    (counters.DEVICES / "cpu").mkdir()
    counters.CPUINFO.write_text("vendor_id : AuthenticAMD\n")
    with pytest.raises(RedblueError, match="no counters are known that measure traffic on this CPU"):
        counters.available()
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(RedblueError, match="counters need perf, which is not on PATH: install linux-perf"):
        rb.measure_callable(print, using="counters")


@pytest.mark.usefixtures("interruptible")
def test_a_call_that_fails_ends_perf(fake):
    fake()

    def call():
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        counters.count(call, CORE)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
