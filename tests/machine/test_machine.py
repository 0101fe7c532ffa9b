"""The rules of machines, and violations that a machine must refuse by name."""

import numpy as np
import pytest

from redblue.machine import (
    CapacityError,
    Counting,
    MachineError,
    NotKept,
    NotLoaded,
    NotStored,
    Numeric,
    TooLong,
    Tracing,
    UseAfterFree,
)

MACHINES = [Counting, Numeric, Tracing]


def arrays(machine, n=4):
    x = machine.input("x", (n, n), np.ones((n, n)))
    return x, machine.output("y", (n, n))


@pytest.fixture(params=MACHINES, ids=lambda kind: kind.__name__.lower())
def machine(request):
    return request.param(capacity=40)


def test_an_honest_program_is_counted(machine):
    x, y = arrays(machine)
    a = machine.load(x[range(4)])
    b = machine.new("b", a @ a.T)
    machine.free(a)
    machine.store(y[range(4)], b)
    machine.finish()
    assert (machine.reads, machine.writes, machine.peak, machine.held, machine.flops) == (16, 16, 32, 16, 128)


def test_read_without_load(machine):
    x, _ = arrays(machine)
    with pytest.raises(NotLoaded, match=r"x\[0:2\] lies in slow memory"):
        machine.new("b", x[range(2)] * 2)
    with pytest.raises(NotLoaded):
        machine.new("b", x[range(2)] @ x[range(4)])


def test_use_after_free(machine):
    x, y = arrays(machine)
    a = machine.load(x[range(4)])
    view = a[:2]
    machine.free(a)
    for cheat in (
        lambda: a + 1,
        lambda: view + 1,
        lambda: a.T,
        lambda: machine.store(y[range(4)], a),
        lambda: machine.free(a),
        lambda: a.__setitem__(..., 0.0),
    ):
        with pytest.raises(UseAfterFree, match=r"x\[0:4\]"):
            cheat()


def test_output_never_stored(machine):
    x, y = arrays(machine)
    a = machine.load(x[range(4)])
    machine.store(y[range(3)], a[:3])
    with pytest.raises(NotStored, match="'y': 4 of its 16 words"):
        machine.finish()


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("move", ["new", "store", "free", "put"])
def test_one_move_too_many(kind, move):
    machine = kind(max_moves=2)
    _, y = arrays(machine)
    a, b = machine.zeros("a", 4, 4), machine.zeros("b", 4, 4)
    moves = {
        "new": lambda: machine.new("c", a + 1),
        "store": lambda: machine.store(y[range(4)], b),
        "free": lambda: machine.free(a),
        "put": lambda: a.__setitem__(..., 1.0),
    }
    with pytest.raises(TooLong, match="more than 2 moves"):
        moves[move]()


def test_one_word_too_many(machine):
    x, _ = arrays(machine)
    machine.load(x[range(4)])
    machine.zeros("exactly", 24)
    with pytest.raises(
        CapacityError, match="'straw' needs 1 words, but 40 of the cache's 40 words are held: 1 too many"
    ):
        machine.zeros("straw", 1)


def test_a_value_that_is_not_kept_dies_with_the_next_move(machine):
    x, y = arrays(machine)
    a = machine.load(x[range(2)])
    value = a * 2
    machine.load(x[range(1)])
    with pytest.raises(NotKept, match=r"shape \(2, 4\)"):
        machine.new("kept", value)
    with pytest.raises(NotKept):
        machine.store(y[range(2)], a * 2)
    with pytest.raises(NotKept):
        (a * 2)[:1] = 0.0


def test_words_that_nothing_stored_cannot_be_loaded(machine):
    scratch = machine.scratch("s", (4,))
    machine.store(scratch[range(2)], machine.zeros("z", 2))
    assert machine.load(scratch[range(2)]).shape == (2,)
    with pytest.raises(NotStored, match=r"s\[1:3\] was loaded before"):
        machine.load(scratch[range(1, 3)])


def test_inputs_cannot_be_stored_to_and_shapes_must_agree(machine):
    x, y = arrays(machine)
    a = machine.load(x[range(4)])
    with pytest.raises(MachineError, match="is an input"):
        machine.store(x[range(4)], a)
    with pytest.raises(MachineError, match="cannot store shape"):
        machine.store(y[range(2)], a)
    with pytest.raises(MachineError, match="is no part of x, whose shape is"):
        x[range(5)]


CHEATS = {
    "a region with a step pays for less than it moves": lambda m, x, y, t: m.load(x[range(0, 4, 2)]),
    "a store with a step marks more than it writes": lambda m, x, y, t: m.store(y[range(0, 4, 4)], t[:1]),
    "a region backwards": lambda m, x, y, t: x[range(3, -1, -1)],
    "more ranges than axes": lambda m, x, y, t: x[range(1), range(1), range(1)],
    "a negative tile": lambda m, x, y, t: m.zeros("n", -8),
    "a tile that is negative twice": lambda m, x, y, t: m.zeros("n", -2, -2),
    "another machine's tile is freed here": lambda m, x, y, t: m.free(Counting().zeros("o", 3)),
    "another machine's tile is kept here": lambda m, x, y, t: m.new("n", Counting().zeros("o", 4, 4) * 1),
    "another machine's tile in arithmetic": lambda m, x, y, t: t + Counting().zeros("o", 4, 4),
    "another machine's array is stored to": lambda m, x, y, t: m.store(type(m)().output("z", (4, 4))[range(4)], t),
    "an input appears in the middle": lambda m, x, y, t: m.input("stash", (4, 4), np.ones((4, 4))),
    "words kept in an ordinary array": lambda m, x, y, t: t + np.ones((4, 4)),
    "words put from an ordinary array": lambda m, x, y, t: t.__setitem__(..., np.ones((4, 4))),
    "a view that is a copy": lambda m, x, y, t: t[[0, 1]],
    "an outer product that nobody knows": lambda m, x, y, t: np.multiply.outer(t, t),
    "a matrix product of what is not held": lambda m, x, y, t: (t * 2) @ t,
    "a sum over what is a sum itself": lambda m, x, y, t: (t @ t).sum(axis=1),
    "slow memory without end": lambda m, x, y, t: m.scratch("huge", (2**20, 2**20)),
}


@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS.keys())
def test_cheats_are_refused(machine, cheat):
    x, y = arrays(machine)
    tile = machine.load(x[range(4)])
    before = machine.held
    with pytest.raises((MachineError, TypeError)):  # TypeError: NumPy itself refuses
        cheat(machine, x, y, tile)
    assert machine.held == before


def test_views_count_no_words_and_transposed_regions_load_transposed():
    machine = Numeric()
    x = machine.input("x", (2, 3), np.arange(6.0).reshape(2, 3))
    tile = machine.load(x.T[range(1, 3), range(2)])
    assert tile.data.tolist() == [[1, 4], [2, 5]]
    tile[:, :1] += 10
    assert tile.data.tolist() == [[11, 4], [12, 5]]
    assert machine.held == 4


def test_the_counting_machine_refuses_wrong_shapes():
    machine = Counting()
    a, b = machine.zeros("a", 2, 3), machine.zeros("b", 2, 2)
    for wrong in (lambda: a @ a, lambda: a + b, lambda: a.__setitem__(..., b)):
        with pytest.raises(MachineError):
            wrong()


def test_fresh_tiles_and_unwritten_memory_are_nan_on_the_numeric_machine():
    machine = Numeric()
    assert np.isnan(machine.output("y", (2,)).data).all()
    assert np.isnan(machine.allocate((3,))).all()
