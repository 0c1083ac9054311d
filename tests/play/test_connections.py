"""Connections that say nothing, too many of them, and clients that leave: the server stays quiet and answers others."""

import contextlib
import socket
import threading
import time

import pytest

pytest.importorskip("uvicorn", reason="the extra `play` is not installed")
import uvicorn

from torchcaps.play import connections
from torchcaps.play.server import Answers, listen, make_app

LIMIT = 0.3  # seconds for headers
MOST = 4
ASK = b"GET /models.json HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


@pytest.fixture
def port(monkeypatch):
    """A server without networks, with short limits, in a thread."""
    monkeypatch.setattr(connections, "SLOWEST_HEADERS", LIMIT)
    monkeypatch.setattr(connections, "PER_ADDRESS", MOST)
    config = uvicorn.Config(make_app(Answers([])), log_level="warning", http=connections.guarded_protocol())
    server = uvicorn.Server(config)
    with listen("127.0.0.1", 0) as at:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [at]})
        thread.start()
        yield at.getsockname()[1]
        server.should_exit = True
        thread.join(10)


def opened(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=5)


@pytest.mark.parametrize("begun", [b"", b"GET /models.json HT", ASK[:-2]], ids=["nothing", "half a line", "no end"])
def test_headers_that_do_not_come_end_the_connection(port, begun):
    with opened(port) as line:
        line.sendall(begun)
        start = time.monotonic()
        assert line.recv(100) == b""
        assert time.monotonic() - start < 10 * LIMIT


def test_headers_that_drip_end_the_connection_and_a_second_request_has_its_own_time(port):
    with opened(port) as line, contextlib.suppress(ConnectionError):
        line.sendall(ASK)
        assert line.recv(4096).startswith(b"HTTP/1.1 200")
        start = time.monotonic()
        for letter in 200 * b"x":
            line.sendall(bytes([letter]))
            time.sleep(LIMIT / 10)
    assert LIMIT / 2 < time.monotonic() - start < 10 * LIMIT


def test_an_address_has_so_many_connections_and_gets_them_back(port):
    with contextlib.ExitStack() as held:
        lines = [held.enter_context(opened(port)) for _ in range(MOST)]
        time.sleep(LIMIT / 3)
        with opened(port) as one_more:
            assert one_more.recv(4096).startswith(b"HTTP/1.1 503")
        lines[0].sendall(ASK)
        assert lines[0].recv(4096).startswith(b"HTTP/1.1 200")
    time.sleep(LIMIT / 3)
    with opened(port) as again:
        again.sendall(ASK)
        assert again.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_client_that_leaves_in_the_middle_leaves_no_traceback(capfd, port):
    head = b"POST /look HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n"
    for _ in range(3):
        with opened(port) as line:
            line.sendall(head + b'{"net')
            time.sleep(0.05)
    time.sleep(0.3)
    with opened(port) as line:
        line.sendall(ASK)
        assert line.recv(4096).startswith(b"HTTP/1.1 200")
    assert "Traceback" not in capfd.readouterr().err
