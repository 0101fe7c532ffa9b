"""Gathering: its words, the masks for which it is best, and its equality with `flash` on single rows."""

import numpy as np
import pytest

from redblue import Mask, Problem, count, schedules
from redblue.lab import counts
from support.spaces import plane

MASK = Mask.sliding_window(3, 2) | Mask.global_tokens([4])


def test_words_are_those_of_the_pairs():
    """Forward moves q, o and lse once, and k_j and v_j per pair. Backward, each pass loads the other side per pair."""
    n_q, n_k, d, d_v = 20, 17, 5, 3
    pairs = MASK.nnz(n_q, n_k)
    forward = count("gather", Problem(n_q, n_k, d, d_v, mask=MASK), words=100)
    assert (forward.reads, forward.writes) == (n_q * d + pairs * (d + d_v), n_q * (d_v + 1))
    assert forward.flops == 2 * (d + d_v) * pairs  # attended pairs only
    backward = count("gather", Problem(n_q, n_k, d, d_v, mask=MASK, direction="backward"), words=100)
    rows = n_q * (d + 2 * d_v + 1) + pairs * (d + d_v)
    cols = n_k * (d + d_v) + pairs * (d + d_v + 2)
    assert backward.reads == rows + cols
    assert backward.writes == n_q * (d + 1) + n_k * (d + d_v)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_it_is_flash_with_one_row_at_a_time(direction):
    problem = Problem(12, 10, 4, mask=MASK, direction=direction)
    rows = {"rows": 1} if direction == "forward" else {"rows": 1, "dkv_cols": 1}
    gathered, tiled = count("gather", problem, words=60), count("flash", problem, tiles=rows)
    assert (gathered.reads, gathered.writes, gathered.flops) == (tiled.reads, tiled.writes, tiled.flops)


def test_pairs_that_lie_side_by_side_are_gathered_together_without_masking():
    problem = Problem(12, 10, 4, mask=MASK, direction="backward")
    for cols in (1, 2, 5):
        tiles = {"cols": cols, "dkv_rows": cols}
        assert counts.check("gather", problem, tiles=tiles, index="csr").error < 1e-10
        assert counts.run("gather", problem, tiles=tiles).words == count("gather", problem, tiles=tiles).words


def test_with_its_index_it_is_within_a_few_per_cent_of_the_best_on_scattered_masks():
    """Lines and points of a plane, where tiles share next to nothing."""
    problem = Problem(169, 169, 16, mask=plane(13))
    gathered, tiled = (count(name, problem, words=400, index="csr").words for name in ("gather", "flash"))
    assert gathered < 1.1 * tiled
    dense = Problem(169, 169, 16, mask=Mask.causal())
    gathered, tiled = (count(name, dense, words=400, index="csr").words for name in ("gather", "flash"))
    assert gathered > 3 * tiled


def test_fully_masked_rows_and_columns_give_zero():
    empty = Mask.from_dense(np.zeros((5, 4), bool))
    for direction in ("forward", "backward"):
        assert counts.check("gather", Problem(5, 4, 3, mask=empty, direction=direction), words=50).error == 0


def test_it_is_offered_for_masks_alone():
    assert "gather" in schedules.covering(Problem(8, 8, 2, mask=MASK))
    assert "gather" not in schedules.covering(Problem(8, 8, 2))
    assert count("gather", Problem(8, 8, 2), words=50).words == 8 * 2 + 64 * 4 + 8 * 3
