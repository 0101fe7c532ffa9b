"""Checks of tables are reused by later calls only while the tables' bytes are unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import redblue as rb
from redblue.base.errors import RedblueError
from redblue.kernels.options import Options
from redblue.op.paged import known_tables, pages
from redblue.op.paged.call import PagedCall

torch = pytest.importorskip("torch")

H, H_KV, D, PAGE, PAGES = 4, 2, 8, 4, 12


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(known_tables, "_kept", ())


@pytest.fixture
def checks(monkeypatch) -> list[Any]:
    """A list with one entry for each checked table."""
    made: list[Any] = []
    table_of = pages.table_of

    def counted(*arguments: Any) -> np.ndarray:
        made.append(arguments)
        return table_of(*arguments)

    monkeypatch.setattr("redblue.op.paged.call.table_of", counted)
    return made


def arrays(rng: np.random.Generator, batch: int) -> tuple[Any, ...]:
    """q, pages of keys and of values, a table and lengths."""
    q = torch.from_numpy(rng.standard_normal((batch, 1, H, D), np.float32))
    k, v = (torch.from_numpy(rng.standard_normal((PAGES, PAGE, H_KV, D), np.float32)) for _ in range(2))
    table = torch.from_numpy(rng.integers(0, PAGES, (batch, 3)).astype(np.int32))
    lengths = torch.from_numpy(rng.integers(1, 3 * PAGE + 1, batch).astype(np.int32))
    return q, k, v, table, lengths


def afresh(*arguments: Any) -> Any:
    """The result of a call without reused checks."""
    known_tables._kept = ()
    call: Any = rb.attention_paged
    return call(*(x.clone() for x in arguments))


def test_equal_tables_are_checked_once_even_in_other_memory(checks):
    q, k, v, table, lengths = arrays(np.random.default_rng(0), 3)
    first = rb.attention_paged(q, k, v, table, lengths)
    assert torch.equal(rb.attention_paged(q, k, v, table, lengths), first)
    assert torch.equal(rb.attention_paged(q, k, v, table.clone(), lengths.clone()), first)
    assert len(checks) == 1


@given(st.integers(0, 2**32), st.lists(st.sampled_from(["table", "lengths", "none", "type", "numpy"]), max_size=12))
def test_changes_in_place_are_seen(seed, changes):
    rng = np.random.default_rng(seed)
    known_tables._kept = ()
    q, k, v, table, lengths = arrays(rng, 3)
    for change in changes:
        if change == "table":
            table[rng.integers(3), rng.integers(3)] = int(rng.integers(PAGES))
        elif change == "lengths":
            lengths[rng.integers(3)] = int(rng.integers(0, 3 * PAGE + 1))
        elif change == "type":
            table, lengths = table.long(), lengths.clone()
        given_table = table.numpy() if change == "numpy" else table
        out = rb.attention_paged(q, k, v, given_table, lengths)
        kept = known_tables._kept
        assert torch.equal(out, afresh(q, k, v, table, lengths))
        known_tables._kept = kept


def test_a_page_that_becomes_wrong_in_place_is_refused():
    q, k, v, table, lengths = arrays(np.random.default_rng(1), 2)
    lengths[:] = 3 * PAGE
    rb.attention_paged(q, k, v, table, lengths)
    table[1, 2] = PAGES
    with pytest.raises(RedblueError, match=rf"page_table\[1, 2\] must be a page, 0 to {PAGES - 1}, got {PAGES}"):
        rb.attention_paged(q, k, v, table, lengths)
    table[1, 2] = 0
    lengths[0] = 3 * PAGE + 1
    with pytest.raises(RedblueError, match=r"lengths_k\[0\] = 13 keys need 4 pages"):
        rb.attention_paged(q, k, v, table, lengths)


def test_a_table_is_not_kept_for_other_caches(checks):
    q, k, v, table, lengths = arrays(np.random.default_rng(2), 2)
    lengths[:], table[:] = 2 * PAGE, PAGES - 1
    rb.attention_paged(q, k, v, table, lengths)
    with pytest.raises(RedblueError, match="must be a page"):
        rb.attention_paged(q, k[:-1], v[:-1], table, lengths)
    k, v = (x.reshape(2 * PAGES, PAGE // 2, H_KV, D) for x in (k, v))
    with pytest.raises(RedblueError, match="need 4 pages of 2"):
        rb.attention_paged(q, k, v, table, lengths)
    assert len(checks) == 3


def test_the_same_table_with_other_queries():
    q, k, v, table, lengths = arrays(np.random.default_rng(3), 2)
    lengths[:] = 2 * PAGE
    rows = torch.cat([q, q, q], 1)
    starts = torch.tensor([0, 1, 6])
    once = rb.attention_paged(q, k, v, table, lengths)
    several = rb.attention_paged(rows, k, v, table, lengths)
    assert several.shape[1] == 3
    assert torch.equal(rb.attention_paged(q, k, v, table, lengths), once)
    packed = rows.reshape(6, H, D)
    out = rb.attention_paged(packed, k, v, table, lengths, starts)
    starts[1] = 5
    other = rb.attention_paged(packed, k, v, table, lengths, starts)
    assert not torch.equal(out, other)
    assert torch.equal(other, afresh(packed, k, v, table, lengths, starts))


def test_tables_that_are_strided_or_large_are_not_kept(monkeypatch, checks):
    q, k, v, table, lengths = arrays(np.random.default_rng(4), 2)
    wide = torch.zeros(2, 6, dtype=torch.int32)
    wide[:, ::2] = table
    for _ in range(2):
        rb.attention_paged(q, k, v, wide[:, ::2], lengths)
    assert len(checks) == 2
    assert not known_tables._kept
    monkeypatch.setattr(known_tables, "MAX_BYTES", 8)
    rb.attention_paged(q, k, v, table, lengths)
    assert not known_tables._kept


def test_few_tables_are_kept(checks):
    q, k, v, table, lengths = arrays(np.random.default_rng(5), 2)
    for page in range(PAGES):
        table[:] = page
        rb.attention_paged(q, k, v, table, lengths)
    assert len(known_tables._kept) == known_tables.MAX_TABLES
    rb.attention_paged(q, k, v, table, lengths)
    assert len(checks) == PAGES
    table[:] = 0  # the oldest table
    rb.attention_paged(q, k, v, table, lengths)
    assert len(checks) == PAGES + 1


@pytest.mark.parametrize("most", [known_tables.MAX_BYTES, 0])
def test_the_kernels_read_no_memory_that_the_caller_may_change(most, monkeypatch):
    monkeypatch.setattr(known_tables, "MAX_BYTES", most)
    q, k, v, table, lengths = (x.numpy() for x in arrays(np.random.default_rng(6), 2))
    tables = (table.astype(np.int64), lengths.astype(np.int64), np.array([0, 1, 2]))
    call = PagedCall.checked(q[:, 0], k, v, tables[0], tables[1], tables[2], None, Options())
    for own in call.sequences.arrays:
        assert not any(np.may_share_memory(own, x) for x in tables)


def test_a_table_that_changes_while_it_is_checked_is_not_kept():
    """Another thread may change a table in place; the result belongs to the table as it was before."""
    table = np.array([[1]])

    def make() -> int:
        before = int(table[0, 0])
        table[0, 0] = 2
        return before

    assert known_tables.known((table,), "facts", make) == 1
    assert known_tables.known((table,), "facts", lambda: int(table[0, 0])) == 2
    assert known_tables.known((np.array([[1]]),), "facts", lambda: 1) == 1


def test_results_may_be_cleared_by_another_thread():
    class Cleared(dict[Any, Any]):
        """Results that are gone when `known` reads them."""

        def __contains__(self, facts: object) -> bool:
            return True

    table = np.array([[1]])
    known_tables.known((table,), "facts", lambda: 1)
    known_tables._kept = (known_tables._kept[0]._replace(results=Cleared()),)
    assert known_tables.known((table,), "facts", lambda: 2) == 2


def test_tables_are_copied_only_if_nothing_is_known_of_them(monkeypatch):
    copied = []
    copy = known_tables._copied
    monkeypatch.setattr(known_tables, "_copied", lambda *arguments: copied.append(arguments) or copy(*arguments))
    table = np.array([[1]])
    assert [known_tables.known((table,), "facts", lambda: 1) for _ in range(3)] == [1] * 3
    assert len(copied) == 1
