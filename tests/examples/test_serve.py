"""examples/serve.py over real sockets: texts, streams, cancelled requests, full caches, refusals, load and shutdown."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import serve
from hypothesis import given
from hypothesis import strategies as st

from support.dense_text import check_greedy, greedy
from support.examples import examples, thorough
from support.http_server import SECONDS, serving, wait_until

SCRIPT = Path(__file__).parents[2] / "examples" / "serve.py"
SYSTEM = "You are a small model with random weights. "


def check_answer(server, prompt, max_tokens, answer):
    status, result = answer
    assert status == 200, result
    check_greedy(server.model, prompt.encode(), max_tokens, result["tokens"])
    assert result["text"] == bytes(result["tokens"]).decode(errors="replace")
    assert result["ended"] == ("end" if result["tokens"][-1] == server.model.end else "length")


def check_all(server, calls, clients):
    """Send all requests from `clients` threads, and check every answer."""
    with ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(lambda call: server.generate(*call), calls))
    assert len(answers) == len(calls)
    for call, answer in zip(calls, answers, strict=True):
        check_answer(server, *call, answer)


def test_concurrent_texts_are_those_of_the_model_alone():
    calls = [("a", 30), ("Grüße, 世界", 9), (SYSTEM * 9, 1), (SYSTEM + "Hi", 40), ("b" * 16, 17), (SYSTEM + "Ho", 12)]
    with serving(pages=128, page=16, chunk=64) as server:
        check_all(server, calls, clients=len(calls))
        stats = server.wait_until_free()
        assert server.generate("a", 30)[1]["tokens"] == greedy(server.model, b"a", 30)
    assert stats["length"] + stats["end"] == len(calls)
    assert stats["preempted"] == stats["failed"] == stats["cancelled"] == 0


def test_a_text_ends_at_the_models_last_byte():
    with serving() as server:
        tokens = greedy(server.model, b"tell me", 12)
        server.model.end = tokens[7]
        status, answer = server.generate("tell me", 12)
        assert (status, answer["ended"]) == (200, "end")
        assert answer["tokens"] == tokens[: tokens.index(tokens[7]) + 1]
        server.wait_until_free()


def test_a_stream_sends_each_token_and_then_the_result():
    with serving() as server:
        connection = server.connect()
        connection.request("POST", "/generate", json.dumps({"prompt": "stream", "max_tokens": 9, "stream": True}))
        response = connection.getresponse()
        assert (response.status, response.getheader("Transfer-Encoding")) == (200, "chunked")
        *parts, result = (json.loads(line) for line in response)
        connection.close()
    assert [part["token"] for part in parts] == result["tokens"]
    check_answer(server, "stream", 9, (200, result))


def test_a_stream_sends_a_token_before_the_next_step():
    with serving() as server:
        server.held = True
        with server.start("stream", 3, stream=True) as client, client.makefile("rb") as response:
            for number in range(3):
                server.wait_for_step()
                assert server.stats()["tokens"] == number  # answered during a step
                server.let_one_go()
                while b"token" not in response.readline():
                    pass


def test_prompts_that_begin_alike_share_pages():
    calls = [(SYSTEM + f"Question {i}", 8) for i in range(6)]
    with serving(pages=24, page=8) as server:
        check_answer(server, *calls[0], server.generate(*calls[0]))
        check_all(server, calls, clients=6)
        stats = server.wait_until_free()
    full = len(SYSTEM) // 8
    assert stats["reused"] >= 6 * full * 8
    assert stats["most_running"] >= 2
    assert stats["preempted"] == 0  # 6 requests of 8 pages fit into 24 pages, as they share 5


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_pages(stream):
    with serving(pages=64) as server:
        server.held = True
        with server.start("x" * 100, 900, stream=stream):
            server.wait_for_step()
            assert server.stats()["free_pages"] < 64
        wait_until(lambda: server.engine.running[0].ended)
        assert server.stats()["free_pages"] < 64  # the step still writes to its pages
        server.let_go()
        stats = server.wait_for(cancelled=1)
        assert server.wait_until_free()["tokens"] < 900
        assert stats["length"] + stats["end"] == 0
        check_answer(server, "next", 5, server.generate("next", 5))


def test_a_client_that_leaves_the_queue_is_never_run():
    with serving(pages=4, page=4, batch=1) as server:
        server.held = True
        with server.start("first", 8):
            server.wait_for_step()
            with server.start("second", 8):
                server.wait_for(waiting=1)
            server.let_go()
            server.wait_for(cancelled=1)
        stats = server.wait_until_free()
    assert stats["fed"] <= len("first") + 7


def test_requests_queue_while_pages_are_out():
    calls = [(f"request {i}" * (1 + i % 3), 20 + i) for i in range(12)]
    with serving(pages=16, page=4) as server:
        check_all(server, calls, clients=12)
        stats = server.wait_until_free()
    assert stats["preempted"] > 0
    assert stats["length"] + stats["end"] == 12


def test_a_step_that_fails_ends_its_requests_and_not_the_server(capsys):
    with serving() as server:
        server.fault = RuntimeError("a fault in the model")
        status, answer = server.generate("x", 3)
        assert (status, answer["ended"]) == (500, "failed")
        assert "a fault in the model" in capsys.readouterr().err
        server.fault = None
        assert server.wait_until_free()["failed"] == 1
        check_answer(server, "x", 3, server.generate("x", 3))


@pytest.mark.parametrize("page", [16, thorough(4)])
def test_a_load_of_200_requests_loses_none(page):
    calls = [((SYSTEM if i % 2 else "") + f"No. {i}" * (1 + i % 7), 1 + i * 7 % 23) for i in range(200)]
    with serving(pages=640 // page, page=page, chunk=128) as server:
        check_all(server, calls, clients=50)
        stats = server.wait_until_free()
    assert stats["length"] + stats["end"] == 200
    assert stats["most_running"] > 8


def test_200_clients_at_once_of_which_some_leave():
    with serving(pages=48, page=8) as server:
        server.held = True
        clients = [server.start(f"client {i}", 6) for i in range(200)]
        wait_until(lambda: len(server.engine.running) + len(server.engine.waiting) == 200)
        for client in clients[::3]:
            client.close()
        server.let_go()
        for i, client in enumerate(clients):
            if i % 3:
                with client, client.makefile("rb") as response:
                    head, body = response.read().split(b"\r\n\r\n")
                    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
                    check_answer(server, f"client {i}", 6, (200, json.loads(body)))
        stats = server.wait_until_free()
    assert (stats["cancelled"], stats["length"] + stats["end"]) == (67, 133)


def body(**fields):
    return json.dumps({"prompt": "x", **fields})


REFUSED = [
    ("POST", "/generate", "", 400, "the body must be JSON"),
    ("POST", "/generate", "{", 400, "the body must be JSON"),
    ("POST", "/generate", b"\xff\xfe\xfd", 400, "the body must be JSON"),
    ("POST", "/generate", "[" * 100_000, 400, "the body must be JSON"),
    ("POST", "/generate", "9" * 10_000, 400, "the body must be JSON"),
    ("POST", "/generate", "[]", 400, "the body must be a JSON object, got list"),
    ("POST", "/generate", "{}", 400, "prompt is missing or empty"),
    ("POST", "/generate", body(prompt=""), 400, "prompt is missing or empty"),
    ("POST", "/generate", body(prompt=7), 400, "prompt must be of type str, got int"),
    ("POST", "/generate", body(prompt="\ud800"), 400, "prompt must be text"),
    ("POST", "/generate", body(max_tokens="7"), 400, "max_tokens must be of type int, got str"),
    ("POST", "/generate", body(max_tokens=True), 400, "max_tokens must be of type int, got bool"),
    ("POST", "/generate", body(max_tokens=float("nan")), 400, "max_tokens must be of type int, got float"),
    ("POST", "/generate", body(max_tokens=0), 400, "max_tokens must be at least 1, got 0"),
    ("POST", "/generate", body(stream=1), 400, "stream must be of type bool, got int"),
    ("POST", "/generate", body(max_token=1), 400, "unknown field 'max_token': the fields are prompt, max_tokens"),
    ("POST", "/generate", body(max_tokens=33), 413, "1 bytes with max_tokens 33 needs 9 pages of 4 tokens, but the"),
    ("POST", "/generate", body(prompt="x" * 33), 413, "a prompt of 33 bytes"),
    ("POST", "/generate", body(max_tokens=10**400), 413, "shorten the prompt or lower max_tokens"),
    ("POST", "/generate", b"x" * (serve.MAX_BODY_BYTES + 1), 413, "the body must be at most 1048576 bytes"),
    ("GET", "/generate", None, 405, "/generate takes POST, got 'GET'"),
    ("POST", "/stats", None, 405, "/stats takes GET, got 'POST'"),
    ("GET", "/", None, 404, "unknown path '/': the paths are /generate, /stats"),
]


@pytest.fixture(scope="module")
def small():
    with serving(pages=8, page=4) as server:
        yield server


@pytest.mark.parametrize(("method", "path", "sent", "status", "message"), REFUSED)
def test_refused_requests(small, method, path, sent, status, message):
    got, answer = small.call(method, path, sent)
    assert got == status
    assert message in answer["error"]
    check_answer(small, "x", 32, small.generate("x", 32))  # all 8 pages: none was lost


BROKEN = [
    (b"hello\r\n\r\n", 400),
    (b"GET  HTTP/1.1\r\n\r\n", 404),
    (b"\r\n\r\n", 400),
    (b"GET /stats HTTP/1.0\r\n\r\n", 505),
    (b"GET /stats HTTP/1.1\r\nx: " + b"x" * 20_000 + b"\r\n\r\n", 431),
    (b"x" * 100_000, 431),
    (b"POST /generate HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
    (b"POST /generate HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n", 400),
    (b"POST /generate HTTP/1.1\r\nContent-Length: " + b"9" * 9000 + b"\r\n\r\n", 413),
    (b"POST /generate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
    (b"POST /generate HTTP/1.1\r\n\r\n", 400),
    (b"GET /stats?x HTTP/1.1\r\nno colon\r\n\r\n", 200),
]


@pytest.mark.parametrize(("sent", "status"), BROKEN)
def test_what_is_not_http(small, sent, status):
    with socket.create_connection(("127.0.0.1", small.port), timeout=SECONDS) as client:
        client.sendall(sent)
        with client.makefile("rb") as response:
            assert response.readline().startswith(f"HTTP/1.1 {status} ".encode())


def test_a_refused_client_that_is_still_sending_reads_why(small, monkeypatch):
    monkeypatch.setattr(serve, "LINGER_SECONDS", SECONDS)
    status, answer = small.call("POST", "/generate", b"x" * 2**24)  # more than sockets hold
    assert status == 413
    assert "got 16777216" in answer["error"]


LINES = [b"POST /generate HTTP/1.1", b"GET /stats HTTP/1.1", b"Content-Length: 15", b"Expect: 100-continue", b"x: y"]
PIECES = [*LINES, b"\r\n", b"\r\n\r\n", b'{"prompt": "x"}', b'{"prompt": "x", "stream": true}', b":", b" ", b"\0"]


@examples(60)
@given(pieces=st.lists(st.sampled_from(PIECES) | st.binary(max_size=6), max_size=8))
def test_random_bytes_are_answered_or_dropped(small, pieces):
    with socket.create_connection(("127.0.0.1", small.port), timeout=SECONDS) as client:
        client.sendall(b"".join(pieces))
        client.shutdown(socket.SHUT_WR)
        with client.makefile("rb") as response:
            assert re.match(rb"HTTP/1\.1 [1245]\d\d |$", response.read())
    assert small.wait_until_free()["failed"] == 0


def test_half_a_request_is_dropped_and_a_late_one_refused(small, monkeypatch):
    with socket.create_connection(("127.0.0.1", small.port), timeout=SECONDS) as client:
        client.sendall(b"POST /generate HTTP/1.1\r\nContent-Length: 10\r\n\r\n{")
    monkeypatch.setattr(serve, "PATIENCE_SECONDS", 0.01)
    with socket.create_connection(("127.0.0.1", small.port), timeout=SECONDS) as client:
        assert client.recv(100).startswith(b"HTTP/1.1 408 ")
    monkeypatch.undo()
    assert small.stats()["running"] == 0


def test_a_client_that_expects_100_continue_sends_its_body_then(small):
    text = body(max_tokens=1).encode()
    with socket.create_connection(("127.0.0.1", small.port), timeout=SECONDS) as client:
        head = b"POST /generate HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(text)
        client.sendall(head)
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(text)
        assert client.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_stopping_server_finishes_its_requests_and_takes_no_others():
    with serving() as server:
        server.held = True
        address = ("127.0.0.1", server.port)
        with (
            server.start("last", 6) as running,
            socket.create_connection(address, SECONDS) as late,
            socket.create_connection(address, SECONDS),  # a client that never sends anything
        ):
            server.wait_for_step()
            wait_until(lambda: len(server.server.connections) == 3)
            server.stop()
            wait_until(lambda: server.engine.stopping)
            text = body().encode()
            late.sendall(b"POST /generate HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))
            assert late.recv(100).startswith(b"HTTP/1.1 503 ")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address, SECONDS)
            server.let_go()
            with running.makefile("rb") as response:
                result = json.loads(response.read().split(b"\r\n\r\n")[1])
            check_answer(server, "last", 6, (200, result))
            server.thread.join(SECONDS)
            assert not server.thread.is_alive()  # the silent client does not keep it running


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_running_requests_finish(number):
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, str(SCRIPT), "--port", "0", "--pages", "64", "--seed", "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            port = int(process.stdout.readline().strip().rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as client:
                text = json.dumps({"prompt": "stop me", "max_tokens": 300, "stream": True}).encode()
                client.sendall(b"POST /generate HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))
                with client.makefile("rb") as response:
                    while b"token" not in response.readline():
                        pass
                    process.send_signal(number)
                    *_, result = (line for line in response if b"ended" in line)
            assert process.wait(SECONDS) == 0
            assert process.stdout.read() == "finishing the running requests\n"
        finally:
            process.kill()
    from byte_model import Model

    check_greedy(Model(seed=3), b"stop me", 300, json.loads(result)["tokens"])


def test_a_port_that_is_taken_is_named(small, monkeypatch, capsys):
    for port in (small.port, 65536):
        monkeypatch.setattr("sys.argv", ["serve.py", "--port", str(port)])
        with pytest.raises(SystemExit, match=f"error: cannot listen on 127.0.0.1, port {port}: "):
            serve.main()
