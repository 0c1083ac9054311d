"""The playground's server on a real socket: what crowds, liars and cut lines do to it."""

import http.client
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
pytest.importorskip("uvicorn", reason="the extra `play` is not installed")
HOME = Path(__file__).parents[2]
PICTURE = json.dumps({"network": "capsnet-digits", "pixels": [0] * 256}).encode()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    command = [sys.executable, "-m", "torchcaps", "play", "--port", "0"]
    with subprocess.Popen(
        command, cwd=HOME, env=os.environ | {"PYTHONPATH": str(HOME)}, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            yield int(re.search(r"http://127\.0\.0\.1:(\d+)", server.stdout.readline())[1])
            assert server.poll() is None  # whatever happened, it is still there
        finally:
            server.terminate()


def ask(port: int, body: bytes = PICTURE, path: str = "/look") -> tuple[int, dict]:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        line.request("POST", path, body, {"content-type": "application/json"})
        answer = line.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        line.close()


def said(port: int, raw: bytes) -> bytes:
    """Return the answer to a socket that sends these bytes and then nothing."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        line.sendall(raw)
        return line.recv(4096)


def head(*more: str) -> bytes:
    return "\r\n".join(
        ["POST /look HTTP/1.1", "host: 127.0.0.1", "content-type: application/json", *more, "", ""]
    ).encode()


def test_two_hundred_at_once_are_answered_or_told_to_wait(port):
    with ThreadPoolExecutor(200) as crowd:
        answers = list(crowd.map(lambda _: ask(port), range(200)))
    codes = [code for code, _ in answers]
    assert set(codes) <= {200, 503} and codes.count(200) >= 64
    assert all("ask again" in body["error"] for code, body in answers if code == 503)
    assert ask(port)[0] == 200


def test_an_oversized_body_is_refused_before_it_comes(port):
    assert b"413" in said(port, head("content-length: 10000000000")).splitlines()[0]
    chunk = b"400\r\n" + b" " * 1024 + b"\r\n"
    assert b"413" in said(port, head("transfer-encoding: chunked") + 70 * chunk).splitlines()[0]
    assert ask(port)[0] == 200


def test_what_is_no_http_and_lines_that_are_cut_harm_nobody(port):
    assert b"400" in said(port, b"\x16\x03\x01 no http at all\r\n\r\n")
    for raw in (head("content-length: 500") + b"{", b"GET / HT", head("transfer-encoding: chunked") + b"5\r\nab"):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
            line.sendall(raw)
    assert ask(port)[0] == 200


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere 127.0.0.1 is the only loopback address")
def test_it_listens_to_this_machine_alone(port):
    """The same port is free on every other address of this machine."""
    with socket.socket() as other:
        other.bind(("127.0.0.2", port))
