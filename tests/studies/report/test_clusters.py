"""Clusters in the report: the page and the summary show the network, its bound and the figures of the link."""

import pytest
from rich.console import Console

import redblue as rb
from redblue.catalogue.clusters import cluster
from redblue.studies.report import collect, summary
from redblue.studies.report.page import render


@pytest.mark.thorough
def test_the_page_and_the_summary_show_the_network():
    model = rb.model("llama-3-8b", n=256)
    report = collect([model], [cluster("2x t4 over pcie-4-x16"), rb.memory("t4")])
    (shape,) = report.shapes
    on_cluster, alone = shape.plans
    assert alone.network is None
    page = render(report)
    assert page.count('<th scope="row">network</th>') == 1
    assert f"{on_cluster.network.bound.most_words:,} words: {on_cluster.network.bound.name}" in page
    assert "PCI Express 4.0 x16" in page
    assert "PCI-SIG: 16 GT/s" in page
    console = Console(width=160, record=True)
    console.print(summary(report))
    text = console.export_text()
    assert text.count("network") == 1
    assert on_cluster.network.schedule in text
