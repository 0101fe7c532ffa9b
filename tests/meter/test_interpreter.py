"""The words of small kernels whose loads and stores can be counted by hand."""

import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest

triton = pytest.importorskip("triton")
torch = pytest.importorskip("torch")
tl = pytest.importorskip("triton.language")

from redblue import RedblueError
from redblue.meter.interpreter import ELSEWHERE, Traffic, counting
from support.gather_rows import gather, gather_rows, rows_case


@triton.jit
def sums(x, total, best, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    value = tl.load(x + i)  # unmasked
    tl.atomic_add(total + i % 2, value, mask=i < n)
    tl.atomic_cas(best, 0, 1)


@triton.jit
def copy_block(x, out, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [rows, cols], [cols, 1], [ROWS, COLS])
    target = tl.make_tensor_descriptor(out, [rows, cols], [cols, 1], [ROWS, COLS])
    target.store([0, 0], source.load([0, 0]))


@triton.jit
def through_an_integer(x, address, BLOCK: tl.constexpr):
    p = address.to(tl.pointer_type(tl.float32))
    tl.store(x + tl.arange(0, BLOCK), tl.load(p + tl.arange(0, BLOCK)))


class Array(NamedTuple):
    at: Any
    stride: int


@triton.jit
def double(x, pair, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x.at + i * x.stride, 2 * tl.load(x.at + i * x.stride) + tl.load(pair[1] + i))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("n_rows", "n_cols"), [(1, 1), (7, 5), (8, 8)])
def test_lanes_that_the_mask_leaves_off_are_not_counted(n_rows, n_cols, dtype):
    x, rows, out = rows_case(n_rows, n_cols, dtype)
    with counting() as tally:
        gather(x, rows, out)
    assert torch.equal(out, x[rows.long()])
    words, size = n_rows * n_cols, x.element_size()
    assert tally.tensors == {
        "x": Traffic(words, 0, size * words, 0),
        "rows": Traffic(n_rows, 0, 4 * n_rows, 0),
        "out": Traffic(0, words, 0, size * words),
    }
    assert tally.launches == {"gather_rows": 1}
    assert tally.total().words == 2 * words + n_rows
    assert tally.total(without={"rows"}).words == 2 * words


def test_launches_add_up_and_nothing_is_counted_outside():
    case = rows_case(7, 5)
    with counting() as outer:
        gather(*case)
        with counting() as inner:
            gather(*case)
    gather(*case)
    assert outer.launches == {"gather_rows": 2}
    assert outer.tensors["x"].reads == 2 * inner.tensors["x"].reads == 2 * 35


def test_views_of_one_array_are_told_apart():
    both = torch.randn(4, 8)
    x, out = both[:, :3], both[:, 3:]
    with counting() as tally:
        gather_rows[(1,)](x, torch.arange(4, dtype=torch.int32), out, 4, 3, 8, ROWS=4, COLS=4)
    # `out` is written as if its rows were dense: 12 words from column 3 of row 0 on, some of which belong to x
    strays = np.count_nonzero(np.arange(3, 15) % 8 < 3)
    assert strays == 3
    assert tally.tensors["x"] == Traffic(12, strays, 4 * 12, 4 * strays)
    assert tally.tensors["out"] == Traffic(0, 12 - strays, 0, 4 * (12 - strays))


def test_an_atomic_operation_reads_and_writes_each_lane():
    x, total, best = torch.ones(8), torch.zeros(2), torch.zeros(1, dtype=torch.int32)
    with counting() as tally:
        sums[(1,)](x, total, best, 5, BLOCK=8)
    assert total.tolist() == [3, 2]
    assert tally.tensors == {"x": Traffic(8, 0, 32), "total": Traffic(5, 5, 20, 20), "best": Traffic(1, 1, 4, 4)}


def test_descriptors_count_what_lies_inside_their_shape():
    x, out = torch.randn(3, 12), torch.zeros(3, 12)
    with counting() as tally:
        copy_block[(1,)](x, out, 3, 12, ROWS=4, COLS=16)
    assert torch.equal(out, x)
    assert tally.tensors == {"x": Traffic(36, 0, 144), "out": Traffic(0, 36, 0, 144)}


def test_arguments_that_are_tuples():
    x, other = torch.ones(8), torch.ones(4)
    with counting() as tally:
        double[(1,)](Array(x[::2], 2), (0, other), BLOCK=4)
    assert x.tolist() == [3, 1] * 4
    assert tally.tensors == {"x.at": Traffic(4, 4, 16, 16), "pair.1": Traffic(4, 0, 16)}


def test_what_lies_in_no_argument():
    x, hidden = torch.zeros(4), torch.ones(4)
    with counting() as tally:
        through_an_integer[(1,)](x, hidden.data_ptr(), BLOCK=4)
    assert torch.equal(x, hidden)
    assert tally.tensors == {ELSEWHERE: Traffic(4, 0, 16), "x": Traffic(0, 4, 0, 16)}


def test_kernels_that_are_compiled_are_refused(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(RedblueError, match="TRITON_INTERPRET=1"), counting():
        pass


def test_importing_it_does_not_import_triton():
    code = "import sys, redblue, redblue.meter.interpreter; assert not {'triton', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
