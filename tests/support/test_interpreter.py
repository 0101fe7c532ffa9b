"""The faster interpreter gives the results and errors of Triton's own, and restores the language."""

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from triton import language as tl
from triton.language.semantic import TritonSemantic

from support.gpu import interpreted_only
from support.interpreter import PatchOnce, fast_interpreter

pytestmark = interpreted_only


@triton.jit
def double(x):
    return x + x


@triton.jit
def doubled_plus_sum(out, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(out + i, double(double(i)) + tl.sum(i, 0))


def test_nested_calls_are_correct_and_the_language_is_restored():
    for _ in range(2):
        out = torch.zeros(16, dtype=torch.int32)
        doubled_plus_sum[(1,)](out, 16)
        assert out.tolist() == (4 * np.arange(16) + 120).tolist()
        assert tl.core.is_builtin(tl.load)


def test_compiled_kernels_meet_tritons_own_functions(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    check = TritonSemantic.binary_op_type_checking_impl
    with fast_interpreter() as patch:
        assert patch is None
        assert TritonSemantic.binary_op_type_checking_impl is check


def test_a_launch_patches_each_module_once():
    module, patched, restored = pytest, [], []

    def patch(function):
        patched.append(function)
        return SimpleNamespace(restore=lambda: restored.append(function))

    once = PatchOnce(patch, (module,), SimpleNamespace)
    kernel, nested = SimpleNamespace(__globals__={"x": module}), SimpleNamespace(__globals__={"y": module, "z": 1})
    other = SimpleNamespace(__globals__={})
    for launches in (1, 2):
        scope = once(kernel)
        for function in (nested, other, nested, other):
            once(function)
        scope.restore()
        assert patched == [kernel, other] * launches
        assert restored == [kernel] * launches
