"""Other kernels for calls on CPU tensors: they hold in one thread, and in the backward passes of its calls."""

import threading

import pytest

torch = pytest.importorskip("torch")

import redblue as rb
from redblue.op.pytorch import ops
from support.textbook import normal

Q, K, V = normal(2, 5, 8), normal(2, 7, 8), normal(2, 7, 8)


class Counting:
    """Kernels that count calls, and compute with the kernels for CPUs."""

    def __init__(self):
        self.forwards = self.backwards = 0

    def forward(self, *arguments):
        self.forwards += 1
        with ops.substituted(by=None):
            return ops.forward(*arguments)

    def backward(self, *arguments):
        self.backwards += 1
        with ops.substituted(by=None):
            return ops.backward(*arguments)


def test_other_threads_use_the_kernels_for_cpus():
    kernels, results = Counting(), []
    thread = threading.Thread(target=lambda: results.append(rb.attention(Q, K, V)))
    with ops.substituted(by=kernels):
        thread.start()
        thread.join()
        assert kernels.forwards == 0
        torch.testing.assert_close(rb.attention(Q, K, V), results[0], rtol=0, atol=0)
    assert kernels.forwards == 1
    assert ops.substitute() is None


def test_contexts_of_several_threads_end_in_any_order():
    entered, left = threading.Event(), threading.Event()

    def hold():
        with ops.substituted(by=Counting()):
            entered.set()
            left.wait(10)

    thread = threading.Thread(target=hold)
    kernels = Counting()
    with ops.substituted(by=kernels):
        thread.start()
        assert entered.wait(10)
        assert ops.substitute() is kernels
    left.set()
    thread.join()
    assert ops.substitute() is None


def test_backward_uses_the_kernels_of_forward_in_any_thread():
    kernels = Counting()
    with ops.substituted(by=kernels):
        out = rb.attention(Q, K, V)
    thread = threading.Thread(target=lambda: torch.autograd.grad(out.sum(), (Q, K, V)))
    thread.start()
    thread.join()
    assert (kernels.forwards, kernels.backwards) == (1, 1)
