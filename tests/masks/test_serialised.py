"""Masks as text: every kind of rule survives the round trip, and texts that are not of masks are refused."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue import Mask, RedblueError
from redblue.masks import serialised
from redblue.masks.rules.algebra import Combined, Not
from redblue.masks.rules.rule import Rule
from redblue.masks.rules.selected import Selected
from redblue.masks.rules.stack import Stack
from redblue.masks.serialised import mask_of, text_of
from support.examples import examples
from support.mask_oracle import compositions

SIZES = st.integers(1, 14)


@examples(100)
@given(st.data(), SIZES, SIZES, st.booleans())
def test_every_mask_comes_back_from_its_text(data, n_q, n_k, is_stack):
    mask, _ = data.draw(compositions(n_q, n_k))
    if is_stack:
        mask = Mask.per_head([mask, ~mask, mask])
    text = text_of(mask)
    again = mask_of(text)
    assert again == mask
    assert (hash(again), repr(again), text_of(again)) == (hash(mask), repr(mask), text)
    assert mask_of(text_of(mask.for_group(2))) == mask.for_group(2)


def test_every_kind_of_rule_has_a_name():
    def kinds(rule):
        return {rule}.union(*map(kinds, rule.__subclasses__()))

    composed = kinds(Combined) | {Not, Stack, Selected}  # a Selected mask exists only within a call
    assert {rule for rule, _ in serialised.SIMPLE.values()} == kinds(Rule) - {Rule} - composed


def signed(listed):
    """A text with the right digest, so that only the checks of its content can refuse it."""
    body = json.dumps(listed, separators=(",", ":"), default=serialised._compressed)
    return f"{serialised.PREFIX}{serialised._digest(body)}:{body}"


@pytest.mark.parametrize(
    "listed",
    [
        None, 3, [], [1], [1, []], [1, [["prefix"]]], [1, [["prefix", {"length": -1}]]], [1, [["nosuch", {}]]],
        [0, [["prefix", {"length": 1}]]], [1, [["prefix", {"length": 1, "more": 2}]]], [1, [["and", [0, 1]]]],
        [1, [["prefix", {"length": 1}], ["not", [0]], ["not", [1]]]], [1, [["prefix", {"length": 1}], ["or", [0, 0]]]],
        [1, [["csr", {"indptr": [0, 1], "indices": [5], "n_k": 3}]]], [1, [["global_tokens", {"indices": [2, 1]}]]],
        [1, [["blocks", {"bits": {"bytes": b""}, "shape": [2, 2], "block": [1, 1]}]]],
        [1, [["blocks", {"bits": {"bytes": b"\xff"}, "shape": [2, 2], "block": [1, 1]}]]],  # bits beyond the array
        [1, [["dense", {"bits": {"bytes": b"\x80"}, "shape": [1, 1], "block": [1, 1]}]]],
        [1, [["prefix", {"length": {"numbers": b"123"}}]]],
        [1, [["prefix", {"length": 1}], ["stack", [0], {"numbers": b"\0" * 8}, [2]]]],
    ],
    ids=str,
)  # fmt: skip
def test_a_text_that_no_mask_has_is_refused(listed):
    with pytest.raises(RedblueError, match="the text of a mask is damaged, or another version"):
        mask_of(signed(listed))


def test_masks_too_large_for_a_text_are_refused(monkeypatch):
    for mask in Mask.sliding_window(10**5000), Mask.causal() & Mask.sliding_window(10**5000, None):
        with pytest.raises(RedblueError, match="cannot be written into a graph as text"):
            text_of(mask)
    monkeypatch.setattr(serialised, "MAX_ARRAY_BYTES", 1000)
    with pytest.raises(RedblueError, match="its arrays take 16,000 bytes, at most 1,000 are allowed"):
        text_of(Mask.documents([1] * 1000))
    assert mask_of(text_of(Mask.from_dense(np.ones((80, 80), bool)))).nnz() == 6400
