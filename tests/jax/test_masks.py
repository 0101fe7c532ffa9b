"""Masks in compiled and in exported functions of JAX: texts of small masks, names of large ones."""

import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("jax.numpy")

from jax import export, jit

from redblue import Mask, RedblueError
from redblue.jax import dot_product_attention, masks
from redblue.masks.serialised import PREFIX
from support.jax_calls import arrays, check

LARGE = np.random.default_rng(0).random((700, 700)) < 0.5  # more bits than a text may have


def test_a_small_mask_goes_by_its_text():
    mask = Mask.documents([2, 3])
    name = masks.name_of(mask)
    assert name.startswith(PREFIX)
    assert masks.mask_named(name) == mask
    assert masks.mask_named("") is None


def test_a_large_mask_goes_by_a_name_that_depends_on_its_content():
    mask = Mask.from_dense(LARGE)
    name = masks.name_of(mask)
    assert len(name) < 50
    assert masks.name_of(Mask.from_dense(LARGE)) == name
    assert masks.name_of(Mask.from_dense(~LARGE)) != name
    del mask
    assert masks.mask_named(name) == Mask.from_dense(LARGE)
    with pytest.raises(RedblueError, match=r"does not know the mask of this call \(mask-x\)"):
        masks.mask_named("mask-x")


@pytest.mark.thorough
def test_a_large_mask():
    inputs = arrays(batch=1, n_q=700, n_k=700, heads=1, kv_heads=1, d=4, d_v=4)
    check(inputs, {"mask": Mask.from_dense(LARGE)}, LARGE)


def test_a_mask_that_has_no_text_goes_by_a_name(monkeypatch):
    def too_large(mask):
        raise RedblueError("too large")

    monkeypatch.setattr(masks, "text_of", too_large)
    mask = Mask.documents([1, 2, 1])
    name = masks.name_of(mask)
    assert masks.mask_named(name) == mask
    assert masks.name_of(mask) == name


@pytest.mark.thorough
def test_an_exported_function_runs_in_another_process(tmp_path):
    pytest.importorskip("flatbuffers", reason="NOT CHECKED, jax.export saves nothing without flatbuffers")
    q, k, v, _ = arrays()
    mask = Mask.documents([2, 3], [3, 4])
    allowed = [export.DisabledSafetyCheck.custom_call("redblue_attention")]
    exported = export.export(jit(lambda q, k, v: dot_product_attention(q, k, v, mask=mask)), disabled_checks=allowed)
    saved = exported(q, k, v).serialize()
    (tmp_path / "saved").write_bytes(saved)
    np.savez(tmp_path / "arrays.npz", q=q, k=k, v=v, out=dot_product_attention(q, k, v, mask=mask))
    code = """
import numpy as np
from jax import export
from redblue.jax import register_kernels
register_kernels()
x = np.load("arrays.npz")
out = export.deserialize(open("saved", "rb").read()).call(x["q"], x["k"], x["v"])
print(np.array_equal(out, x["out"]))
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.stdout == "True\n", result.stderr
