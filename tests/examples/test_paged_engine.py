"""The engine of examples/serve.py, step by step: pages are never lost, and every text equals the model's."""

from collections import Counter

import pytest
from byte_model import Model
from hypothesis import given
from hypothesis import strategies as st
from paged_engine import Engine, Pages, Refused

from support.dense_text import check_greedy
from support.examples import examples

MODEL = Model(seed=5, width=32)


def check_pages(engine):
    """Assert that requests hold exactly the pages that are not free, with one reference per holder."""
    held = Counter(page for request in engine.running for page in request.pages)
    assert engine.pages.references == [held[page] for page in range(len(engine.pages.references))]
    assert set(engine.pages.free) == set(range(len(engine.pages.references))) - set(held)
    assert not any(request.pages for request in engine.waiting)
    assert {page: name for name, page in engine.pages.page_of.items()} == engine.pages.name_of


def run(engine, arrivals=(), leaving=()):
    """Step until nothing is left. arrivals: (step, request's arguments). leaving: (step, number of the request)."""
    requests, step = [], 0
    while True:
        requests += [engine.submit(*arguments) for when, arguments in arrivals if when == step]
        batch = engine.schedule()
        check_pages(engine)
        assert batch or not (engine.running or engine.waiting), "the engine would sleep"
        if not batch and all(when <= step for when, _ in arrivals):
            return requests
        assert len(batch) <= engine.batch
        assert sum(count for _, count in batch) <= max(engine.chunk, len(batch))
        for when, number in leaving:
            if when == step and number < len(requests):
                engine.end(requests[number], "cancelled")
        if batch:
            engine.deliver(batch, engine.compute(batch))
        step += 1
        assert step < 2000, "the engine makes no progress"


REQUEST = st.tuples(st.text("ab", min_size=1, max_size=14).map(str.encode), st.integers(1, 9))


@examples(25)
@given(
    arrivals=st.lists(st.tuples(st.integers(0, 6), REQUEST), min_size=1, max_size=8),
    leaving=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 7)), max_size=3),
    page=st.integers(1, 5),
    spare=st.integers(0, 6),
    batch=st.integers(1, 5),
    chunk=st.integers(1, 12),
)
def test_every_request_ends_with_its_own_text_and_no_page_is_lost(arrivals, leaving, page, spare, batch, chunk):
    arrivals.sort(key=lambda arrival: arrival[0])
    largest = max(len(prompt) + most - 1 for _, (prompt, most) in arrivals)
    engine = Engine(MODEL, pages=-(-largest // page) + spare, page=page, batch=batch, chunk=chunk)
    requests = run(engine, arrivals, leaving)
    assert len(requests) == len(arrivals)
    for request in requests:
        assert request.ended in ("length", "end", "cancelled")
        if request.ended != "cancelled":
            check_greedy(MODEL, request.prompt, request.max_tokens, request.generated)
    assert len(engine.pages.free) == engine.stats()["pages"]
    assert sum(engine.stats()[why] for why in ("length", "end", "cancelled")) == len(requests)


def test_a_prompt_is_fed_in_chunks_while_others_generate():
    engine = Engine(MODEL, pages=64, page=4, chunk=10)
    first = engine.submit(b"short", 12)
    engine.deliver(batch := engine.schedule(), engine.compute(batch))
    long = engine.submit(b"a long prompt of forty-two bytes, in chunks", 3)
    fed = []
    while long.pending > 1:
        batch = engine.schedule()
        fed.append(dict(batch))
        engine.deliver(batch, engine.compute(batch))
    assert [counts.get(first) for counts in fed] == [1] * 5
    assert [counts[long] for counts in fed] == [9, 9, 9, 9, 7]
    run(engine)
    for request in (first, long):
        check_greedy(MODEL, request.prompt, request.max_tokens, request.generated)


def test_a_prompt_is_fed_although_generation_fills_the_steps():
    engine = Engine(MODEL, pages=3, page=1, chunk=1)
    old, young = run(engine, [(0, (b"aa", 1)), (0, (b"a", 2))])  # the young one also runs out of pages
    assert (len(old.generated), len(young.generated)) == (1, 2)


def test_the_youngest_request_makes_room_and_starts_again_from_its_kept_pages():
    engine = Engine(MODEL, pages=5, page=4)
    old, young = engine.submit(b"eight by", 9), engine.submit(b"eight bY", 5)
    run(engine)
    assert engine.stats()["preempted"] > 0
    assert engine.stats()["reused"] >= 4  # pages that were not taken in the meantime
    for request in (old, young):
        check_greedy(MODEL, request.prompt, request.max_tokens, request.generated)


def test_a_repeated_prompt_feeds_its_last_tokens_only():
    engine = Engine(MODEL, pages=16, page=4)
    prompt = b"sixteen bytes ok"
    engine.submit(prompt, 2)
    run(engine)
    before = engine.stats()
    engine.submit(prompt, 2)
    run(engine)
    after = engine.stats()
    assert after["reused"] - before["reused"] == 12  # the last page is fed again, because its output is needed
    assert after["fed"] - before["fed"] == 4 + 1


def test_a_prompt_fed_in_uneven_chunks_is_reused_whole():
    engine = Engine(MODEL, pages=16, page=4, chunk=3)
    run(engine, [(0, (b"sixteen bytes ok", 2)), (20, (b"sixteen bytes ok, and more", 2))])
    assert engine.stats()["reused"] == 16


def test_a_request_ends_once():
    engine = Engine(MODEL)
    request = engine.submit(b"x", 3)
    run(engine)
    engine.end(request, "cancelled")
    events = [request.events.get_nowait() for _ in range(request.events.qsize())]
    assert events == [*request.generated, request.ended]
    assert request.ended != "cancelled"


def test_equal_pages_after_different_ones_are_not_shared():
    engine = Engine(MODEL, pages=32, page=4)
    run(engine, [(0, (b"aaaabbbbc", 4)), (8, (b"ccccbbbbc", 4))])
    assert engine.stats()["reused"] == 0


def test_requests_that_can_never_fit_are_refused():
    engine = Engine(MODEL, pages=3, page=4)
    engine.submit(b"12345678", 5)  # the last token is never fed: 12 tokens
    with pytest.raises(
        Refused, match=r"needs 4 pages of 4 tokens, but the server has 3: shorten the prompt"
    ) as refused:
        engine.submit(b"12345678", 6)
    assert refused.value.status == 413
    run(engine)
    engine.stop()
    with pytest.raises(Refused, match="the server is stopping") as refused:
        engine.submit(b"x", 1)
    assert (refused.value.status, refused.value.headers) == (503, {"Retry_After": 1})


def test_free_pages_keep_their_content_until_the_oldest_is_taken():
    pages = Pages(3)
    held = [pages.take() for _ in range(3)]
    for page in held:
        pages.name(page, b"%d" % page)
    pages.give_back(held)  # the last page of a prefix is taken first
    assert pages.pages_named([b"0", b"1", b"2"]) == [0, 1, 2]
    assert pages.take() == 2
    assert pages.pages_named([b"0", b"1", b"2"]) == [0, 1]
    pages.share([0])
    assert pages.take() == 1
    assert (list(pages.free), pages.references) == ([], [1, 1, 1])
