"""Estimates before work: the memory that a process may take, and the refusal of work that needs more."""

import re

import pytest

from redblue import RedblueError
from redblue.base import estimates
from redblue.base.estimates import available_bytes, check_fits

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
