"""Estimates of memory before work starts: the memory that a process may use, and refusals of larger work."""

import re

import pytest

import redblue as rb
from redblue import RedblueError, pebble
from redblue.base import estimates
from redblue.base.estimates import available_bytes, check_fits
from redblue.pebble import constructors

GIB = 2**30


def system(root, files):
    """A folder that looks like the root of a Linux system with these files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = {"proc/meminfo": f"MemTotal: {99 * GIB // 1024} kB\nMemAvailable: {16 * GIB // 1024} kB\n"}


@pytest.mark.parametrize(
    ("files", "gib"),
    [
        ({}, 16),
        (
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "5\n"},
            16,
        ),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.max": f"{4 * GIB}\n",
                "sys/fs/cgroup/a/memory.current": f"{2 * GIB}\n",
                "sys/fs/cgroup/a/memory.stat": f"anon 5\ninactive_file {GIB}\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/docker/x\n1:cpu:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{8 * GIB}\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
            },
            7,
        ),
    ],
    ids=["machine", "no limit", "cgroup 2, the folder above", "cgroup 1, inside a container"],
)
def test_the_smallest_limit_counts(tmp_path, files, gib):
    assert available_bytes(system(tmp_path, MEMINFO | files)) == gib * GIB


def test_this_machine_has_memory():
    assert available_bytes() > 2**20


def test_work_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(estimates, "available_bytes", lambda: 10**9)
    check_fits("this graph", 10**9)
    with pytest.raises(
        RedblueError, match=r"this graph needs about 2 GB of memory, and this machine has about 1 GB avail"
    ):
        check_fits("this graph", 2 * 10**9)
    for huge in (10**400, float("inf")):
        with pytest.raises(RedblueError, match=re.escape("needs more than 1000 PB of memory")):
            check_fits("this graph", huge)


def test_an_unknown_memory_refuses_only_the_absurd(monkeypatch):
    monkeypatch.setattr(estimates, "available_bytes", lambda: None)
    check_fits("this graph", 10**15)
    with pytest.raises(RedblueError, match="of memory: take a smaller problem"):
        check_fits("this graph", 10**18)


def test_long_work_is_announced(monkeypatch, log_messages):
    monkeypatch.setattr(estimates, "available_bytes", lambda: 10**9)
    check_fits("this graph", 10**6, 4.9)
    assert not log_messages
    check_fits("this graph", 10**6, 12)
    assert log_messages == ["this graph takes about 12 s and about 1 MB of memory"]


GRAPHS = (
    lambda: pebble.attention_graph(6, 3, 2),
    lambda: pebble.attention_graph(6, 3, 2, accumulate="products"),
    lambda: pebble.attention_graph(9, 2, mask=rb.Mask.causal()),
    lambda: pebble.graph_named("attention-backward:5,3"),
    lambda: pebble.chain_graph(9),
    lambda: pebble.graph_named("diamond:5,7"),
    lambda: pebble.fft_graph(16),
    lambda: pebble.matmul_graph(3, 4, 5),
    lambda: pebble.matmul_graph(3, 4, 5, accumulate="products"),
    lambda: pebble.random_graph(7, nodes=30, sources=4, in_degree=3),
    lambda: pebble.graph_named("stencil:9,4,2"),
    lambda: pebble.tree_graph(3, 4),
)


def test_graphs_are_estimated_before_they_are_built(monkeypatch):
    """An estimate lies between the memory that is used and three times that memory."""
    estimated = []
    monkeypatch.setattr(constructors, "check_fits", lambda task, bytes, seconds: estimated.append(bytes))
    for make in GRAPHS:
        graph = make()
        real = constructors.NODE_BYTES * graph.n + constructors.EDGE_BYTES * len(graph.parents)
        assert real <= estimated.pop() <= 3 * real, graph


@pytest.mark.parametrize(
    "work",
    [
        lambda: pebble.graph_named("tree:9999999,9999999"),
        lambda: pebble.tree_graph(2, 10**18),
        lambda: pebble.tree_graph(1, 10**18),
        lambda: pebble.graph_named("attention:n=100000,d=1"),
        lambda: pebble.attention_graph(10**9, 2),
        lambda: pebble.attention_graph(10**9, 2, mask=rb.Mask.causal()),
        lambda: pebble.graph_named("attention-backward:9999999,9999999"),
        lambda: pebble.graph_named("stencil:9999999,9999999,9999999"),
        lambda: pebble.graph_named("matmul:9999999,9999999,9999999"),
        lambda: pebble.fft_graph(2**60),
        lambda: pebble.chain_graph(10**15),
        lambda: rb.measure(rb.Problem(10**12, 10**12, 64), words=8192, using="probe"),
    ],
)
def test_what_cannot_fit_is_refused_at_once(work):
    with pytest.raises(RedblueError, match=r"needs .* of memory, and this machine has about .* take a smaller problem"):
        work()
