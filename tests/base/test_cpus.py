"""The number of usable CPUs, from affinity and from the quotas of control groups."""

import os

import pytest

from redblue.base import cpus


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu.max": "1600000 100000\n"}, 8),
        ({"cpu.max": "odd"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        ({"cpu.max": "100000 0\n"}, 8),
    ],
)
def test_a_quota_below_the_affinity_counts(tmp_path, monkeypatch, files, expected):
    write(tmp_path, files)
    monkeypatch.setattr(cpus, "CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert cpus.usable_cpus() == expected


def test_without_affinity(tmp_path, monkeypatch):
    monkeypatch.setattr(cpus, "CGROUPS", tmp_path)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cpus.usable_cpus() == 1
