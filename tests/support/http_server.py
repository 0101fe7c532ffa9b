"""A server of examples/serve.py in a thread of this process, and HTTP clients for it."""

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time

from byte_model import Model
from paged_engine import Engine
from serve import Server

SECONDS = 60  # a limit against hanging, far longer than any request takes


class Running:
    """A server under test, whose steps can be held. `fault`: None, or an exception that steps raise."""

    def __init__(self, **options):
        self.model = Model(seed=3)
        self.options = options
        self.held, self.begun, self.permits = False, threading.Semaphore(0), threading.Semaphore(0)
        self.ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self.fault = None

    async def _main(self):
        self.loop, self.leave = asyncio.get_running_loop(), asyncio.Event()
        self.engine = Engine(self.model, **self.options)
        compute = self.engine.compute

        def gated(batch):
            if self.held:
                self.begun.release()
                assert self.permits.acquire(timeout=SECONDS)
            if self.fault is not None:
                raise self.fault
            return compute(batch)

        self.engine.compute = gated
        async with Server(self.engine) as self.server:
            self.port = self.server.port
            self.ready.set()
            await self.leave.wait()

    def stop(self):
        """Begin to stop; `thread` ends after all requests have ended."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self.leave.set)

    def wait_for_step(self):
        """Return once a step is being held."""
        assert self.begun.acquire(timeout=SECONDS)

    def let_one_go(self):
        """End the held step; the next step is held."""
        self.permits.release()

    def let_go(self):
        """End the held step, and hold no further steps."""
        self.held = False
        self.permits.release()

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)

    def call(self, method, path, body=None):
        """Send a request. Returns the status and the object of the response."""
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, json.load(response)

    def generate(self, prompt, max_tokens, **more):
        return self.call("POST", "/generate", json.dumps({"prompt": prompt, "max_tokens": max_tokens, **more}))

    def start(self, prompt, max_tokens, **more):
        """A socket that has sent a request and waits for the response."""
        body = json.dumps({"prompt": prompt, "max_tokens": max_tokens, **more}).encode()
        client = socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)
        client.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        return client

    def stats(self):
        status, stats = self.call("GET", "/stats")
        assert status == 200
        return stats

    def wait_for(self, **wanted):
        """Wait until the stats have these values, and return them."""
        wait_until(lambda: wanted.items() <= self.stats().items())
        return self.stats()

    def wait_until_free(self):
        """Wait until no request is left, and return the stats. All pages must then be free."""
        stats = self.wait_for(running=0, waiting=0)
        assert stats["free_pages"] == stats["pages"]
        assert not any(self.engine.pages.references)
        return stats


def wait_until(true):
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end, "this never became true"
        time.sleep(0.002)


@contextlib.contextmanager
def serving(**options):
    """A running server. At the end it stops, and every page must be free."""
    server = Running(**options)
    server.thread.start()
    assert server.ready.wait(SECONDS)
    try:
        yield server
    finally:
        server.let_go()
        server.stop()
        server.thread.join(SECONDS)
    assert not server.thread.is_alive()
    assert len(server.engine.pages.free) == len(server.engine.pages.references)
