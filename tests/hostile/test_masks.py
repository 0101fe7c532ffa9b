"""Hostile masks: damaged texts of random masks, garbage as names, damaged files, and thousands of terms."""

import contextlib
import copy
import pickle
import string
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from redblue import Mask, RedblueError, attention
from redblue.base import estimates
from redblue.cli.main import app
from redblue.masks.names import FORMS, parse
from redblue.masks.serialised import mask_of, text_of
from redblue.studies.sparse.study import read_graph
from support.examples import examples, nightly
from support.mask_oracle import compositions

SIZES = st.integers(1, 12)
TERMS = 10_000


# Texts --------------------------------------------------------------------------------------------


def damaged(text, rng):
    """The text with a character replaced, left out, repeated, or with its end cut off."""
    i = int(rng.integers(len(text)))
    other = string.printable[int(rng.integers(95))]
    return [text[:i] + other + text[i + 1 :], text[:i] + text[i + 1 :], text[: i + 1] + text[i:], text[:i]]


def test_a_damaged_text_is_never_another_mask():
    tried, rng = 0, np.random.default_rng(0)

    @examples(60)
    @given(st.data(), SIZES, SIZES)
    def check(data, n_q, n_k):
        nonlocal tried
        mask, dense = data.draw(compositions(n_q, n_k))
        text = text_of(mask)
        assert np.array_equal(mask_of(text).to_dense(n_q, n_k), dense)
        for wrong in damaged(text, rng):
            tried += wrong != text
            if wrong != text:
                with pytest.raises(RedblueError, match="the text of a mask is damaged"):
                    mask_of(wrong)

    check()
    assert tried > 60  # of a third of the examples


# Names --------------------------------------------------------------------------------------------

WORDS = ["causal", "casual", "full", "window:3", "window:", "&", "|", "~", "(", ")", "prefix:2", ":", ",", "-1", "1e9",
         "random:0.5,2", "bigbird:99999999999999999999", "dense:/dev/null", "csr:x.npz", "blocks:x.npy,0", "\0", "[/b]",
         "ü", "", "9" * 30, "a" * 300, "dense:" + "a" * 300, *FORMS]  # fmt: skip


def test_names_made_of_garbage_are_masks_or_refused():
    tried = 0

    @examples(300)
    @given(st.lists(st.sampled_from(WORDS), max_size=7), st.sampled_from(["", " "]))
    def check(words, space):
        nonlocal tried
        tried += 1
        with contextlib.suppress(RedblueError):
            assert isinstance(parse(space.join(words)), Mask)

    check()
    assert tried > 30  # of a third of the examples


def test_near_misses_are_suggested():
    for wrong, right in (("casual", "causal"), ("widnow:3", "window"), ("causal & bigbrid:4", "bigbird")):
        with pytest.raises(RedblueError, match=f"unknown mask .* nearest: {right}.* A mask must be full, causal"):
            parse(wrong)


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("(" * TERMS + "causal" + ")" * TERMS, Mask.causal()),
        ("~" * (TERMS + 1) + "prefix:3", ~Mask.prefix(3)),
        ("(" * TERMS, None),
        ("causal" + ")" * TERMS, None),
        ("~" * TERMS, None),
    ],
    ids=["parentheses", "complements", "open", "closed", "nothing"],
)
def test_names_may_be_nested_as_deep_as_they_like(text, mask):
    if mask is not None:
        assert parse(text) == mask
    else:
        assert CliRunner().invoke(app, ["mask", text, "--n", "8"]).exception.__class__ is RedblueError


# Files --------------------------------------------------------------------------------------------


def test_damaged_array_files_are_refused(tmp_path):
    whole, path, rng, tried = tmp_path / "whole.npy", tmp_path / "damaged.npy", np.random.default_rng(0), 0
    np.save(whole, np.ones((4, 4), bool))
    good = whole.read_bytes()
    headers = [good.replace(b"(4, 4)", shape) for shape in (b"(9**9)", b"(4, -)", b"((((((", b"None  ", b"(-4,4)")]
    # The header fills 128 bytes; a claim of 10^24 entries must be refused before they are allocated.
    headers.append(good.replace(b"(4, 4), }             ", b"(10000000000, 10000000)}"[:22].ljust(22)))
    for _ in range(200):
        one = bytearray(good)
        one[int(rng.integers(128))] = int(rng.integers(256))
        headers.append(bytes(one))
    for data in (*headers, b"", good[:5], good[:127], good[:-1]):
        tried += 1
        path.write_bytes(data)
        with contextlib.suppress(RedblueError):
            assert parse(f"dense:{path}").to_dense(4, 4).shape == (4, 4)
    assert tried == 210


def test_a_huge_sparse_matrix_is_refused_before_it_is_allocated(tmp_path):
    pytest.importorskip("scipy")
    path = tmp_path / "graph.mtx"
    for sizes, says in (
        ("1000000000000 5 1", "with 1,000,000,000,000 rows needs .* of memory"),
        ("5 5 1000000000000", "with 1,000,000,000,000 entries needs .* of memory"),
        ("10000000 1000000000000 1", "too many to list"),
    ):
        path.write_text(f"%%MatrixMarket matrix coordinate pattern general\n{sizes}\n1 1\n")
        with pytest.raises(RedblueError, match=says):
            read_graph(str(path))


def test_a_study_of_too_many_blocks_is_refused_before_its_tables_are_made(monkeypatch):
    monkeypatch.setattr(estimates, "available_bytes", lambda: 10**7)
    result = CliRunner().invoke(app, ["sparse", "random:0.01,1", "--n", "1000"])
    assert isinstance(result.exception, RedblueError)
    assert "a layout of 1,000 x 1,000 blocks needs about" in str(result.exception)


# Truth values, memory, and thousands of terms ------------------------------------------------------


def test_a_mask_has_no_truth_value():
    for ask in (
        lambda: Mask.causal() and Mask.sliding_window(3),
        lambda: Mask.causal() or Mask.prefix(3),
        lambda: not Mask.causal(),
        lambda: bool(Mask.full()),
    ):
        with pytest.raises(RedblueError, match=r"combine masks with & \(and\), \| \(or\) and ~ \(not\)"):
            ask()


@pytest.mark.parametrize(
    "mask",
    [
        Mask.causal(),
        Mask.strided(64) | Mask.global_tokens([3]),
        ~Mask.dilated(20, 3) & Mask.n_of_m(2, 4),
        Mask.per_head([Mask.prefix(5), Mask.bigbird(16), Mask.prefix(5)]),
        Mask.from_dense(np.random.default_rng(0).random((4096, 4096)) < 0.5),
    ],
    ids=repr,
)
def test_a_dense_array_is_made_in_hardly_more_than_its_own_memory(mask):
    tracemalloc.start()
    try:
        dense = mask.to_dense(4096, 4096)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.2 * dense.nbytes + 2**20


def terms(count):
    return [Mask.dilated(i % 100, i // 100 + 1) for i in range(count)]


def flat(leaves):
    mask = leaves[0]
    for leaf in leaves[1:]:
        mask = mask | leaf
    return mask


def chain(leaves):
    mask = leaves[0]
    for i, leaf in enumerate(leaves[1:]):
        mask = (mask & ~leaf) if i % 2 else (leaf | mask)
    return mask


@pytest.mark.parametrize("build", [flat, chain])
@pytest.mark.parametrize("count", [2000, nightly(TERMS)])
def test_thousands_of_terms(build, count):
    """A former algebra took cubic time, and failed by recursion at 100 to 200 levels."""
    leaves = terms(count)
    mask, same = build(leaves), build(terms(count))
    assert mask == same
    assert hash(mask) == hash(same)
    assert mask != build(leaves[:-1])
    assert repr(mask).count("dilated") == count
    assert copy.deepcopy(mask) is not None
    assert pickle.loads(pickle.dumps(mask)) == mask == mask_of(text_of(mask))
    dense = leaves[0].to_dense(64, 64)
    dense_leaves = {leaf: leaf.to_dense(64, 64) for leaf in leaves[1:]}
    for i, leaf in enumerate(leaves[1:]):
        dense = dense & ~dense_leaves[leaf] if build is chain and i % 2 else dense | dense_leaves[leaf]
    assert np.array_equal(mask.to_dense(64, 64), dense)
    assert mask.nnz(64, 64) == dense.sum()
    assert (~~mask) == mask
    assert mask.resized((64, 64), (8, 8)).to_dense(8, 8).shape == (8, 8)
    x = np.random.default_rng(0).random((1, 64, 8))
    assert np.allclose(attention(x, x, x, mask=mask), attention(x, x, x, mask=Mask.from_dense(dense)))


def test_terms_at_sizes_that_are_evaluated_by_runs(monkeypatch):
    """Masks of many parts on few pairs are evaluated pair by pair; evaluation by runs must agree."""
    from redblue.masks.rules import composed

    mask = chain(terms(250)[:150]) | ~flat(terms(250)[150:])
    expected = mask.to_dense(64, 64)
    monkeypatch.setattr(composed, "FEW_PAIRS", 0)
    copied = mask & Mask.prefix(64)  # equals the mask, but is not in any cache
    assert np.array_equal(copied.to_dense(64, 64), expected)
    assert copied.nnz(64, 64) == expected.sum()
