"""Serve a tiny language model over HTTP, in continuous batches on a paged cache.

    python examples/serve.py --port 8000
    curl -d '{"prompt": "To be, or", "max_tokens": 20, "stream": true}' http://127.0.0.1:8000/generate
    python examples/serve.py --demo

rb.append_paged writes the cache, and rb.attention_paged attends on it. Prompts that begin alike share pages. The model
has random weights, so its texts mean nothing.

POST /generate takes a JSON object: prompt (text), max_tokens (default 16) and stream (default false). GET /stats shows
the pages, the queue and the counts. Ctrl-C stops the server after it has finished the running requests.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.client import HTTPConnection
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's products are small here, and its idle threads would spin

from byte_model import Model
from measuring import at_least
from paged_engine import Engine, Refused, Request

MAX_HEAD_BYTES, MAX_BODY_BYTES = 16 * 1024, 1024 * 1024
PATIENCE_SECONDS = 30.0  # time in which a client must send its request
LINGER_SECONDS = 1.0  # a rejected client may still be sending; closing at once would lose the response
TYPES = {"prompt": str, "max_tokens": int, "stream": bool}


def generation(body: bytes) -> tuple[bytes, int, bool]:
    """Return the prompt, max_tokens and stream of a request's body. Raises Refused for any other body."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body must be JSON: {error}") from None
    if not isinstance(fields, dict):
        raise Refused(400, f"the body must be a JSON object, got {type(fields).__name__}")
    for name, value in fields.items():
        if name not in TYPES:
            raise Refused(400, f"unknown field {name!r}: the fields are {', '.join(TYPES)}")
        if type(value) is not TYPES[name]:  # isinstance would accept true as a number
            raise Refused(400, f"{name} must be of type {TYPES[name].__name__}, got {type(value).__name__}")
    most = fields.get("max_tokens", 16)
    if most < 1:
        raise Refused(400, f"max_tokens must be at least 1, got {most}")
    try:
        prompt = fields.get("prompt", "").encode()
    except UnicodeEncodeError:
        raise Refused(400, "prompt must be text: it holds half of a surrogate pair") from None
    if not prompt:
        raise Refused(400, "prompt is missing or empty: give at least one character")
    return prompt, most, fields.get("stream", False)


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, str, bytes]:
    """Return method, path and body. Raises Refused for a request that is not HTTP/1.1 or has too long a body."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.LimitOverrunError:
        raise Refused(431, f"request line and headers must be at most {MAX_HEAD_BYTES} bytes") from None
    line, *lines = head[:-4].split("\r\n")
    method, target, version = line.split(" ") if line.count(" ") == 2 else ("", "", "")
    if not version.startswith("HTTP/"):
        raise Refused(400, f"the request must begin with a line such as GET /stats HTTP/1.1, got {line[:80]!r}")
    if version != "HTTP/1.1":
        raise Refused(505, f"the version must be HTTP/1.1, got {version[:20]!r}")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "transfer-encoding" in headers:
        raise Refused(411, "a chunked body is not taken: give its Content-Length")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise Refused(400, f"Content-Length must be a whole number, got {length[:80]!r}")
    if len(length) > 9 or int(length) > MAX_BODY_BYTES:
        raise Refused(413, f"the body must be at most {MAX_BODY_BYTES} bytes, got {length[:80]}")
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    return method, target.partition("?")[0], await reader.readexactly(int(length))


def write_head(writer: asyncio.StreamWriter, status: int, **headers: object) -> None:
    """Begin a response.

    Each connection serves one request, so that the end of its input means that the client is gone.
    """
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())


def write_json(writer: asyncio.StreamWriter, status: int, value: Any, **headers: object) -> None:
    body = json.dumps(value).encode() + b"\n"
    write_head(writer, status, Content_Type="application/json", Content_Length=len(body), **headers)
    writer.write(body)


def write_chunk(writer: asyncio.StreamWriter, value: Any) -> None:
    line = json.dumps(value).encode() + b"\n"
    writer.write(b"%x\r\n%b\r\n" % (len(line), line))


async def gone(reader: asyncio.StreamReader) -> None:
    """Wait until the client has closed its end of the connection. Discards its input until then."""
    with contextlib.suppress(ConnectionError):
        while await reader.read(MAX_HEAD_BYTES):
            pass


class Server:
    """An HTTP/1.1 server for an engine: `async with Server(engine) as server` serves on server.port.

    On exit, it accepts no new requests and finishes the others.
    """

    def __init__(self, engine: Engine, host: str = "127.0.0.1", port: int = 0) -> None:
        self.engine, self.host, self.port = engine, host, port
        self.connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def __aenter__(self) -> Server:
        listen = asyncio.start_server(self._connected, self.host, self.port, limit=MAX_HEAD_BYTES, backlog=1024)
        try:
            self.listener = await listen
        except (OSError, OverflowError) as error:
            sys.exit(f"error: cannot listen on {self.host}, port {self.port}: {error}")
        self.port = self.listener.sockets[0].getsockname()[1]
        self.steps = asyncio.create_task(self.engine.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.listener.close()
        self.engine.stop()
        await self.steps
        if self.connections:
            late = (await asyncio.wait(self.connections, timeout=LINGER_SECONDS))[1]
            for connection in late:  # the client sends no request, or does not read its response
                self.connections[connection].transport.abort()
            await asyncio.gather(*late)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections[task] = writer
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):  # the client has disconnected
                await self._respond(reader, writer)
        finally:
            del self.connections[task]
            writer.close()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = asyncio.wait_for(read_request(reader, writer), PATIENCE_SECONDS)
            await self._answer(*await request, reader, writer)
        except (Refused, asyncio.TimeoutError) as error:
            late = f"the request must arrive within {PATIENCE_SECONDS:.0f} s"
            refused = error if isinstance(error, Refused) else Refused(408, late)
            write_json(writer, refused.status, {"error": str(refused)}, **refused.headers)
            with contextlib.suppress(OSError):  # the client has disconnected
                writer.write_eof()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(gone(reader), LINGER_SECONDS)

    async def _answer(self, method: str, path: str, body: bytes, reader: Any, writer: asyncio.StreamWriter) -> None:
        methods = {"/generate": "POST", "/stats": "GET"}
        if path not in methods:
            raise Refused(404, f"unknown path {path[:80]!r}: the paths are {', '.join(methods)}")
        if method != methods[path]:
            raise Refused(405, f"{path} takes {methods[path]}, got {method[:20]!r}", Allow=methods[path])
        if path == "/stats":
            write_json(writer, 200, self.engine.stats())
            await writer.drain()
            return
        prompt, most, stream = generation(body)
        request = self.engine.submit(prompt, most)
        watch = asyncio.create_task(gone(reader))
        watch.add_done_callback(lambda _: self.engine.end(request, "cancelled"))
        try:
            await (self._stream if stream else self._whole)(request, writer)
        finally:
            watch.cancel()  # its callback then ends the request, unless the request has ended already

    async def _whole(self, request: Request, writer: asyncio.StreamWriter) -> None:
        while isinstance(await request.events.get(), int):
            pass
        write_json(writer, 500 if request.ended == "failed" else 200, self._result(request))
        await writer.drain()

    async def _stream(self, request: Request, writer: asyncio.StreamWriter) -> None:
        write_head(writer, 200, Content_Type="application/x-ndjson", Transfer_Encoding="chunked")
        while isinstance(event := await request.events.get(), int):
            write_chunk(writer, {"token": event})
            await writer.drain()
        write_chunk(writer, self._result(request))
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    def _result(self, request: Request) -> dict[str, object]:
        text = bytes(request.generated).decode(errors="replace")
        return {"tokens": request.generated, "text": text, "ended": request.ended}


async def serve(engine: Engine, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM; a second one ends the process at once."""
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()

    def stop() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    async with Server(engine, host, port) as server:
        print(f"http://{host}:{server.port}", flush=True)
        await stopped.wait()
        print("finishing the running requests", flush=True)


def ask(port: int, prompt: str, max_tokens: int) -> dict[str, Any]:
    """Send one request, and return the answer."""
    with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("POST", "/generate", json.dumps({"prompt": prompt, "max_tokens": max_tokens}))
        return json.load(connection.getresponse())


async def demonstrate(options: argparse.Namespace) -> None:
    """Send the same number of requests from increasing numbers of concurrent clients, and print a table."""
    print(" clients  requests/s  tokens/s  requests/step  prompt shared")
    shared = "You are a small model with random weights. Answer briefly. "
    prompts = [f"{shared}Question {i}: what is {i} times {i}?" for i in range(options.requests)]
    for clients in (1, 4, 16):
        engine, loop = new_engine(options), asyncio.get_running_loop()
        async with Server(engine) as server:
            start = time.perf_counter()
            with ThreadPoolExecutor(clients) as pool:
                calls = [loop.run_in_executor(pool, ask, server.port, prompt, 24) for prompt in prompts]
                answers = await asyncio.gather(*calls)
            seconds = time.perf_counter() - start
        tokens = sum(len(answer["tokens"]) for answer in answers)
        counts, fed = engine.stats(), sum(len(prompt) for prompt in prompts)
        rates = f"{len(answers) / seconds:>10.1f}  {tokens / seconds:>8.1f}"
        print(f"{clients:>8}  {rates}  {tokens / counts['steps']:>13.1f}  {counts['reused'] / fed:>13.0%}")


def new_engine(options: argparse.Namespace) -> Engine:
    return Engine(Model(options.seed), options.pages, options.page, options.batch, options.chunk)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=at_least(0), default=8000, help="port to listen on; 0 takes a free one")
    parser.add_argument("--pages", type=at_least(1), default=512, help="pages of the cache")
    parser.add_argument("--page", type=at_least(1), default=16, help="tokens (bytes) of a page")
    parser.add_argument("--batch", type=at_least(1), default=32, help="most requests that run together")
    parser.add_argument("--chunk", type=at_least(1), default=256, help="most tokens of a step")
    parser.add_argument("--seed", type=at_least(0), default=0, help="seed of the model's weights")
    parser.add_argument("--demo", action="store_true", help="serve a few clients, print a table and end")
    parser.add_argument("--requests", type=at_least(1), default=48, help="requests of each row of the demo")
    options = parser.parse_args()
    asyncio.run(demonstrate(options) if options.demo else serve(new_engine(options), options.host, options.port))


if __name__ == "__main__":
    main()
