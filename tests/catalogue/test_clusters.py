import pytest

import redblue as rb
from redblue import RedblueError
from redblue.base.errors import UnknownName
from redblue.catalogue.clusters import Cluster, cluster, is_cluster, link, list_links


@pytest.mark.parametrize("name", list_links())
def test_every_link_has_figures_with_sources_and_dates(name):
    entry = link(name)
    assert 1e8 <= entry.bandwidth_bytes_per_second <= 1e12
    assert 1e-6 <= entry.latency_seconds <= 1e-3
    assert set(entry.sources) == {"bandwidth", "latency"}
    assert all(", 2026-" in source for source in entry.sources.values())


def test_rates_are_of_one_direction():
    assert link("nvlink-4").bandwidth_bytes_per_second == 450e9
    assert link("infiniband-ndr").bandwidth_bytes_per_second == 400e9 / 8
    assert link("ethernet-1g").bandwidth_bytes_per_second == 1e9 / 8
    assert link("infiniband-ndr").latency_seconds == pytest.approx(9.6e-6)


def test_a_cluster_is_processes_machine_and_link():
    parsed = cluster(" 8x h100-sxm  over infiniband-ndr")
    assert parsed == Cluster(8, rb.memory("h100-sxm"), link("infiniband-ndr"))
    assert parsed.name == "8x h100-sxm over infiniband-ndr"
    assert cluster(parsed.name) == parsed
    assert is_cluster("2x t4 over pcie-4-x16")
    assert not is_cluster("h100-sxm")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("h100-sxm over infiniband-ndr", "a cluster is written as"),
        ("8x h100-sxm over", "a cluster is written as"),
        ("-1x h100-sxm over nvlink-4", "a cluster is written as"),
        ("0x h100-sxm over nvlink-4", "processes must be a whole number of at least 1"),
        ("99999x h100-sxm over nvlink-4", "processes must be at most 4,096"),
        ("8x h100-sxm over infiniband-ndr " + "x" * 10**6, "a cluster is written as"),
    ],
)
def test_other_forms_are_refused(text, words):
    with pytest.raises(RedblueError, match=words):
        cluster(text)


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(UnknownName, match="unknown memory 'h100'; nearest: h100-sxm"):
        cluster("8x h100 over infiniband-ndr")
    with pytest.raises(UnknownName, match=r"unknown link 'infiniband'.*The links are .*infiniband-ndr.*thunderbolt-5"):
        cluster("8x h100-sxm over infiniband")
