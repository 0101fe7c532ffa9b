"""The figures of the network benchmarks, computed from measurements, and the cases that they measure."""

import os

import pytest

from benchmarks.network import peers, wire


def test_bytes_on_the_wire_are_compared_with_the_counted_bytes():
    case = wire.BYTES[0] | {"grid": [2, 1, 1], "words": 50}
    result = case | {"bytes_counted": [100, 300], "bytes_on_wire": [110, 310]}
    figures = wire.about_bytes(result, processes=2, gbit=1.0)
    assert (figures["bytes_counted"], figures["bytes_on_wire"], figures["headers_share"]) == (400, 420, 0.05)
    assert (figures["schedule"], figures["processes"], figures["words"]) == (case["schedule"], 2, 50)
    nothing = result | {"bytes_counted": [0, 0]}
    assert wire.about_bytes(nothing, processes=2, gbit=1.0)["headers_share"] is None


@pytest.mark.parametrize(("gbit", "link"), [(1.0, 1.0), (0.1, 10.0)])
def test_times_are_compared_with_the_longest_of_their_parts(gbit, link):
    result = wire.TIMES[0] | {
        "grid": [4, 1, 1],
        "most_bytes": 125_000_000,
        "seconds": {"computing": [3.0, 2.0, 4.0], "transfer": [1.5, 1.5, 1.5], "call": [6.0, 5.0, 9.0]},
        "busy_core_seconds": {"computing": 12.0 * (os.cpu_count() or 1), "transfer": 0.0, "call": 0.0},
    }
    figures = wire.about_times(result, processes=4, gbit=gbit)
    assert (figures["call_s"], figures["computing_s"], figures["link_s"]) == (6.0, 3.0, link)
    assert figures["over_longer"] == pytest.approx(6.0 / max(3.0, link))
    assert figures["least_over_longer"] == pytest.approx(5.0 / max(2.0, link))
    assert (figures["cores_s"], figures["over_longest"]) == (12.0, 0.5)


def test_peers_are_compared_within_each_round():
    redblue = {"forward": [1.0, 2.0, 4.0], "both": [2.0, 4.0, 8.0]}
    peer = {"forward": [3.0, 4.0, 4.0], "both": [2.0, 4.0, 8.0]}
    figures = peers.compared({"redblue auto": redblue, "peer": peer})
    assert figures["redblue auto"]["forward"] == {"seconds": 2.0, "over_redblue": 1.0}
    assert figures["peer"]["forward"] == {"seconds": 4.0, "over_redblue": 2.0}
    assert figures["peer"]["both"] == {"seconds": 4.0, "over_redblue": 1.0}
