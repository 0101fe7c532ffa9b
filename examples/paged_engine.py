"""The engine of serve.py: the pages of a model's cache, and the scheduler of its steps.

A request owns a list of pages. A step feeds each running request some of the tokens that are not in its cache yet: a
chunk of its prompt, or the token that it generated last. Prompts and generation thus share every call of the operator.
"""

from __future__ import annotations

import asyncio
import hashlib
import traceback
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from byte_model import Model

import redblue as rb


class Refused(Exception):
    """A rejected request, with the status and additional headers of the HTTP response."""

    def __init__(self, status: int, message: str, **headers: object) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


class Pages:
    """The pages of a cache, by their numbers: reference counts, free pages, and the names of full pages.

    A free page keeps its name and its content until it is taken again. The least recently used free page is taken
    first.
    """

    def __init__(self, count: int) -> None:
        self.references = [0] * count
        self.free = dict.fromkeys(range(count))  # an ordered set
        self.page_of: dict[bytes, int] = {}
        self.name_of: dict[int, bytes] = {}

    def take(self) -> int:
        """Take a page for new content. There must be a free page."""
        page = next(iter(self.free))
        if page in self.name_of:
            del self.page_of[self.name_of.pop(page)]
        self.share([page])
        return page

    def share(self, pages: Sequence[int]) -> None:
        """Add one reference to each page. Free pages are then no longer free."""
        for page in pages:
            self.free.pop(page, None)
            self.references[page] += 1

    def give_back(self, pages: Sequence[int]) -> None:
        """Remove one reference from each page. Pages without references are then free."""
        # The last page is freed, and later overwritten, first: a page is useful only together with all pages before it
        for page in reversed(pages):
            self.references[page] -= 1
            if not self.references[page]:
                self.free[page] = None

    def name(self, page: int, name: bytes) -> None:
        """Name a full page, so that later requests find it. If several pages have one name, only the first is found."""
        if self.page_of.setdefault(name, page) == page:
            self.name_of[page] = name

    def pages_named(self, names: Sequence[bytes]) -> list[int]:
        """Return the pages with these names, up to the first name that no page has."""
        pages: list[int] = []
        while len(pages) < len(names) and names[len(pages)] in self.page_of:
            pages.append(self.page_of[names[len(pages)]])
        return pages


class Request:
    """A prompt and the tokens generated so far.

    `events` yields each new token, then the reason why the request ended.
    """

    def __init__(self, prompt: bytes, max_tokens: int) -> None:
        self.prompt, self.max_tokens = prompt, max_tokens
        self.tokens = list(prompt)
        self.pages: list[int] = []
        self.cached = 0  # tokens whose keys and values are in the pages
        self.names: list[bytes] = []
        self.events: asyncio.Queue[int | str] = asyncio.Queue()
        self.ended = ""

    @property
    def pending(self) -> int:
        """The number of tokens that are not in the cache yet."""
        return len(self.tokens) - self.cached

    @property
    def generated(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    def names_of(self, pages: int, page: int) -> list[bytes]:
        """Return the names of the first pages. A name is the hash of the name before it and the tokens of the page.

        pages: how many names. page: tokens of a page.
        """
        while len(self.names) < pages:
            i = len(self.names) * page
            before = self.names[-1] if self.names else b""
            self.names.append(hashlib.sha256(before + bytes(self.tokens[i : i + page])).digest())
        return self.names[:pages]


class Engine:
    """Runs requests in batches, the oldest first. The model computes in a thread; all else runs in the event loop.

    pages: pages of the cache. page: tokens of a page. batch: most requests that run together. chunk: most tokens of a
    step, those of prompts and generated ones together.
    """

    def __init__(self, model: Model, pages: int = 512, page: int = 16, batch: int = 32, chunk: int = 256) -> None:
        self.model, self.page, self.batch, self.chunk = model, page, batch, chunk
        shape = (2, len(model.layers), pages, page, model.kv_heads, model.d)
        self.k_pages, self.v_pages = np.zeros(shape, np.float32)
        self.pages = Pages(pages)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in order of arrival, like `waiting`
        self.counts: Counter[str] = Counter()
        self.stopping = False
        self._wake = asyncio.Event()

    def submit(self, prompt: bytes, max_tokens: int) -> Request:
        """Queue a request. Raises Refused if the request can never fit, or if the engine is stopping."""
        most = len(prompt) + max_tokens - 1  # the last token is never fed
        needed, pages = self._pages_for(most), len(self.pages.references)
        if needed > pages:
            raise Refused(
                413,
                f"a prompt of {len(prompt)} bytes with max_tokens {max_tokens} needs {needed} pages of {self.page} "
                f"tokens, but the server has {pages}: shorten the prompt or lower max_tokens",
            )
        if self.stopping:
            raise Refused(503, "the server is stopping: send the request again later", Retry_After=1)
        request = Request(prompt, max_tokens)
        self.waiting.append(request)
        self._wake.set()
        return request

    def end(self, request: Request, why: str) -> None:
        """End a request. Its pages are freed before the next step, because a running step may still write to them."""
        if not request.ended:
            request.ended = why
            request.events.put_nowait(why)
            self._wake.set()

    def stop(self) -> None:
        """Make `run` return once all requests have ended."""
        self.stopping = True
        self._wake.set()

    def stats(self) -> dict[str, int]:
        """Return the current state, and counts since the start: requests by outcome, steps, tokens."""
        now = {"pages": len(self.pages.references), "free_pages": len(self.pages.free)}
        now |= {"waiting": len(self.waiting), "running": len(self.running)}
        names = (
            "length",
            "end",
            "cancelled",
            "failed",
            "steps",
            "tokens",
            "fed",
            "reused",
            "preempted",
            "most_running",
        )
        return now | {name: self.counts[name] for name in names}

    async def run(self) -> None:
        """Run steps while there are requests, and wait while there are none. Returns after `stop`."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "step") as worker:
            while True:
                batch = self.schedule()
                if batch:
                    try:  # in a thread, so that the event loop keeps answering; the kernels release Python's lock
                        tokens = await loop.run_in_executor(worker, self.compute, batch)
                    except Exception:
                        traceback.print_exc()
                        for request, _ in batch:
                            self.end(request, "failed")
                    else:
                        self.deliver(batch, tokens)
                elif self.stopping:
                    return
                else:
                    self._wake.clear()
                    await self._wake.wait()

    def schedule(self) -> list[tuple[Request, int]]:
        """Return the requests of the next step, with the number of tokens to feed. Empty if there is nothing to do."""
        self._drop_ended()
        self._admit()
        return self._plan()

    def compute(self, batch: list[tuple[Request, int]]) -> np.ndarray:
        """Feed the tokens of a batch to the model, and return the most likely token after each request's last."""
        before = np.array([request.cached for request, _ in batch])
        counts = np.array([count for _, count in batch])
        starts = np.concatenate([[0], counts.cumsum()])
        tokens = np.concatenate([request.tokens[request.cached : request.cached + count] for request, count in batch])
        positions = np.concatenate(
            [np.arange(first, first + count) for first, count in zip(before, counts, strict=True)]
        )
        table = np.zeros((len(batch), max(len(request.pages) for request, _ in batch)), np.int32)
        for row, (request, _) in zip(table, batch, strict=True):
            row[: len(request.pages)] = request.pages

        def attend(layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
            cache = self.k_pages[layer], self.v_pages[layer], table
            after = rb.append_paged(k, v, *cache, before, starts)
            return rb.attention_paged(q, *cache, after, starts)

        hidden = self.model.forward(tokens, positions, attend)
        return (hidden[starts[1:] - 1] @ self.model.logits).argmax(1)

    def deliver(self, batch: list[tuple[Request, int]], tokens: np.ndarray) -> None:
        """Record which tokens a step has fed, and add the new token of each request whose tokens have all been fed."""
        self.counts["steps"] += 1
        for (request, count), token in zip(batch, tokens.tolist(), strict=True):
            self.counts["fed"] += count
            request.cached += count
            full = request.cached // self.page
            for page, name in zip(request.pages, request.names_of(full, self.page), strict=False):
                self.pages.name(page, name)
            if request.pending or request.ended:
                continue  # tokens are left to feed, or the request has ended
            self.counts["tokens"] += 1
            request.tokens.append(token)
            request.events.put_nowait(token)
            if token == self.model.end or len(request.generated) == request.max_tokens:
                self.end(request, "end" if token == self.model.end else "length")

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page)

    def _release(self, request: Request) -> None:
        self.pages.give_back(request.pages)
        request.pages, request.cached = [], 0

    def _drop_ended(self) -> None:
        for request in (*self.running, *self.waiting):
            if request.ended:
                self.counts[request.ended] += 1
                self._release(request)
        self.running = [request for request in self.running if not request.ended]
        self.waiting = deque(request for request in self.waiting if not request.ended)

    def _admit(self) -> None:
        """Start requests from the front of the queue while their tokens fit into free pages and shareable pages."""
        while self.waiting and len(self.running) < self.batch:
            request = self.waiting[0]
            full = (len(request.tokens) - 1) // self.page  # the last token is always fed, because its output is needed
            shared = self.pages.pages_named(request.names_of(full, self.page))
            own = self._pages_for(len(request.tokens)) - len(shared)
            if own > len(self.pages.free) - sum(page in self.pages.free for page in shared):
                return
            self.pages.share(shared)
            request.pages = shared + [self.pages.take() for _ in range(own)]
            request.cached = len(shared) * self.page
            self.counts["reused"] += request.cached
            self.running.append(self.waiting.popleft())
        self.counts["most_running"] = max(self.counts["most_running"], len(self.running))

    def _plan(self) -> list[tuple[Request, int]]:
        """Divide the tokens of a step among the running requests. Generation comes before prompts.

        The oldest request always gets a token. If it lacks pages, younger requests lose theirs. So every step makes
        progress.
        """
        budget = max(1, self.chunk - sum(request.pending == 1 for request in self.running))
        batch: list[tuple[Request, int]] = []
        i = 0
        while i < len(self.running):  # preemption shortens the list
            request = self.running[i]
            count = 1 if request.pending == 1 else min(request.pending, budget)
            if count and self._reserve(request, request.cached + count):
                budget -= count if request.pending > 1 else 0
                batch.append((request, count))
            i += 1
        return batch

    def _reserve(self, request: Request, tokens: int) -> bool:
        """Give a request pages for `tokens` tokens. While no page is free, the youngest request returns to the queue.

        Returns False if the request itself had to return to the queue. A request that is already planned for this step
        never has to, because requests are planned from the oldest to the youngest.
        """
        while len(request.pages) < self._pages_for(tokens):
            if self.pages.free:
                request.pages.append(self.pages.take())
                continue
            youngest = self.running.pop()
            self._release(youngest)
            self.waiting.appendleft(youngest)
            self.counts["preempted"] += 1
            if youngest is request:
                return False
        return True
