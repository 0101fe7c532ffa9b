"""The machine of several processes: its counts and its refusals."""

from __future__ import annotations

import numpy as np
import pytest

from redblue.machine.errors import CapacityError, NotHeld, NotStored
from redblue.machine.network import CountingNetwork, Message, NumericNetwork, Shape, row_index

ROWS = np.arange(6)


def two(**options):
    net = CountingNetwork(2, **options)
    net.hold(0, "x", Shape(ROWS, 3))
    return net


def test_counts_words_bytes_messages_and_peaks():
    net = two(bytes_of=lambda name: {"x": 2, "y": 4}[name])
    net.exchange([Message(0, 1, "x", ROWS[1:3])])
    net.apply(1, "anything", ["x"], {"y": Shape(ROWS[:1], 5)})
    net.exchange([Message(1, 0, "y", ROWS[:1]), Message(1, 0, "x", ROWS[:0])])
    assert net.traffic.sent.tolist() == [6, 5]
    assert net.traffic.received.tolist() == [5, 6]
    assert net.traffic.messages.tolist() == [1, 1]  # a message without rows does not count
    assert net.bytes_sent.tolist() == [12, 20]
    assert net.traffic.peak.tolist() == [18 + 5, 6 + 5]
    assert (net.traffic.words, net.traffic.most_words) == (11, 6)
    net.drop(1, ["x", "y", "z"])
    assert net.held.tolist() == [23, 0]


@pytest.mark.parametrize("rows", [ROWS, np.array([0, 7])])
def test_refuses_rows_that_are_not_held(rows):
    net = CountingNetwork(2)
    net.hold(0, "x", Shape(ROWS[:4], 1))
    with pytest.raises(NotHeld, match="process 0 does not hold all"):
        net.exchange([Message(0, 1, "x", rows)])
    with pytest.raises(NotHeld, match="process 1 does not hold x"):
        net.apply(1, "anything", ["x"], {})


def test_messages_of_one_exchange_are_sent_at_once():
    """A process cannot pass on what arrives in the same exchange."""
    net = CountingNetwork(3)
    net.hold(0, "x", Shape(ROWS, 1))
    with pytest.raises(NotHeld):
        net.exchange([Message(0, 1, "x", ROWS), Message(1, 2, "x", ROWS)])


def test_refuses_more_than_the_capacity():
    with pytest.raises(CapacityError, match="process 0 would hold 18 words with x, of at most 17"):
        two(capacity=17)


def test_outputs_must_be_there():
    net = two()
    net.check_outputs([(0, "x", 6)])
    for missing in ((0, "y", 6), (1, "x", 6), (0, "x", 7)):
        with pytest.raises(NotStored, match="must hold all"):
            net.check_outputs([missing])


def test_numeric_network_computes():
    def double(shapes, arrays, writes):
        return dict.fromkeys(writes, 2 * arrays["x"])

    net = NumericNetwork(2, {"double": double})
    x = np.arange(12.0).reshape(6, 2)
    net.put(0, "x", Shape(ROWS, 2), x)
    net.exchange([Message(0, 1, "x", ROWS[[1, 4]])])
    net.apply(1, "double", ["x"], {"y": Shape(ROWS[:2], 2)})
    np.testing.assert_array_equal(net.arrays[1]["y"], 2 * x[[1, 4]])
    net.drop(1, ["x"])
    with pytest.raises(NotHeld):
        net.apply(1, "double", ["x"], {})


def test_row_index_is_a_slice_of_consecutive_rows():
    shape = Shape(np.array([2, 3, 5, 8]), 1)
    assert row_index(shape, shape.rows) == slice(None)
    assert row_index(shape, np.array([3, 5])) == slice(1, 3)
    assert row_index(shape, np.array([2, 8])).tolist() == [0, 3]
    assert row_index(shape, np.array([], np.int64)) == slice(0, 0)
