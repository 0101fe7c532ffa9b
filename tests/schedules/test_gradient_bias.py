"""The gradient of a bias as a schedule: its numbers against float64, its closed form against its run."""

import numpy as np
import pytest

from redblue import Mask, Problem
from redblue.lab import reference
from redblue.lab.counts import relative_error
from redblue.machine import Counting, Numeric
from redblue.schedules.gradient_bias import Tiles, gradient_bias, gradient_bias_cost

MASKS = {
    "full": Mask.full(),
    "causal": Mask.causal(),
    "window": Mask.sliding_window(4, 2, align="bottom-right"),
    "documents": Mask.documents([3, 8, 2], [10, 4, 5]),
    "n of m": Mask.n_of_m(1, 6),
}
N_Q, N_K, D, D_V = 13, 19, 5, 3


def run(machine, problem, tiles, arrays):
    shapes = {"q": (N_Q, D), "k": (N_K, D), "v": (N_K, D_V), "bias": (N_Q, N_K), "lse": (N_Q,), "dout": (N_Q, D_V)}
    shapes |= {"delta": (N_Q,), "before": (N_Q, N_K)}
    slow = {name: machine.input(name, shape, arrays.get(name)) for name, shape in shapes.items()}
    dbias = machine.output("dbias", (N_Q, N_K))
    gradient_bias(machine, problem, tiles, **slow, dbias=dbias)
    machine.finish()
    return dbias.data


@pytest.mark.parametrize("tiles", [Tiles(4, 6, 2), Tiles(1, 1, 1), Tiles(20, 5, 8)], ids=str)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_numbers_and_words(mask, tiles):
    problem = Problem(N_Q, N_K, D, D_V, mask=mask, direction="backward")
    rng = np.random.default_rng(0)
    arrays = {"q": (N_Q, D), "k": (N_K, D), "v": (N_K, D_V), "dout": (N_Q, D_V), "bias": (N_Q, N_K)}
    arrays = {name: rng.standard_normal(shape) for name, shape in arrays.items()}
    attends, qkv = mask.to_dense(N_Q, N_K), (arrays["q"], arrays["k"], arrays["v"])
    forward = reference.forward(*qkv, attends, bias=arrays["bias"])
    expected = reference.backward(*qkv, arrays["dout"], attends, bias=arrays["bias"]).dbias
    before = rng.standard_normal((N_Q, N_K))
    arrays |= {"lse": forward.lse, "delta": (forward.out * arrays["dout"]).sum(axis=1), "before": before}

    machine, counting = Numeric(), Counting()
    assert relative_error(run(machine, problem, tiles, arrays), expected + before) < 1e-12
    run(counting, problem, tiles, {})
    cost = gradient_bias_cost(problem, tiles)
    for x in (machine, counting):
        assert (x.reads, x.writes, x.flops) == (cost.reads, cost.writes, cost.flops)
        assert x.peak <= cost.peak
        assert x.peak == cost.peak or mask is not MASKS["full"]
