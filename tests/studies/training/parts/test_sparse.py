"""The masks of the part `sparse`."""

import pytest

pytest.importorskip("torch")

from redblue.studies.training.parts import sparse


def test_sparse_masks_are_about_equally_dense():
    by_name = sparse.masks(512, 32)
    densities = {name: mask.density(512, 512) for name, mask in by_name.items()}
    assert densities["block-sparse"] < 0.6
    assert all(abs(each / densities["block-sparse"] - 1) < 0.2 for each in densities.values()), densities
