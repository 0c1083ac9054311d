"""Server of the playground: one page and three JSON endpoints. Bad requests get an explanation, none stops it."""

import asyncio
import json
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from torchcaps.play.connections import guarded_protocol
from torchcaps.play.networks import Network
from torchcaps.play.sentences import LONGEST, SentenceReader

PAGE = Path(__file__).parent / "page"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
LARGEST_BODY = 64 * 1024  # bytes, for small images
SLOWEST_BODY = 10.0  # seconds
AT_ONCE = 2  # requests computed in parallel
WAITING = 64  # requests in the queue
LOOPBACK = ("127.0.0.1", "localhost", "::1")
HEADERS = {
    # no external requests; the exported page needs WebAssembly
    "content-security-policy": "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class Refused(Exception):
    """A refused request: HTTP status and message for the user."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Answers:
    """Answers to the page's requests, as plain functions of their JSON."""

    def __init__(self, networks: Sequence[Network], sentences: SentenceReader | None = None) -> None:
        self.networks = {network.name: network for network in networks}
        self.looks = {name: network.look for name, network in self.networks.items()}
        self.draws = {name: network.draw for name, network in self.networks.items()}
        self.sentences = sentences

    def about(self) -> dict[str, Any]:
        return {
            "runtime": "server",
            "networks": [network.about() for network in self.networks.values()],
            "sentences": self.sentences.about() if self.sentences else None,
        }

    def largest_body(self) -> int:
        """Compute the body limit in bytes, from the largest image at four characters per pixel."""
        return max([LARGEST_BODY, *(4096 + 4 * network.data.shape[1] ** 2 for network in self.networks.values())])

    @torch.inference_mode()
    def look(self, asked: dict[str, Any]) -> dict[str, Any]:
        network = self._network(asked)
        side = network.data.shape[1]
        pixels = asked.get("pixels")
        if not isinstance(pixels, list) or not all(type(level) is int and 0 <= level <= 255 for level in pixels):
            raise Refused(
                400, "not an image: `pixels` must be a list of whole numbers from 0 (paper) to 255 (ink), row by row"
            )
        if len(pixels) != side * side:
            raise Refused(
                400, f"wrong size: {network.name} takes {side}x{side} = {side * side} pixels, got {len(pixels)}"
            )
        seen = self.looks[network.name](torch.tensor(pixels, dtype=torch.float32).view(1, 1, side, side))
        return {name: part.tolist() for name, part in seen._asdict().items()}

    @torch.inference_mode()
    def draw(self, asked: dict[str, Any]) -> dict[str, Any]:
        network = self._network(asked)
        about, capsules = network.about(), asked.get("capsules")
        if not about["draws"]:
            raise Refused(
                400, f"{network.name} has no decoder, so it draws nothing; take one trained with reconstruction"
            )
        if not isinstance(capsules, list) or not 1 <= len(capsules) <= about["n_classes"]:
            raise Refused(400, f"`capsules` must be a list of 1 to {about['n_classes']} of {{label, pose}}")
        poses = torch.zeros(len(capsules), about["n_classes"], about["d_class"])
        for number, capsule in enumerate(capsules):
            label, pose = (capsule.get("label"), capsule.get("pose")) if isinstance(capsule, dict) else (None, None)
            if type(label) is not int or not 0 <= label < about["n_classes"]:
                raise Refused(400, f"`label` must be a class from 0 to {about['n_classes'] - 1}, got {str(label)[:40]}")
            if (
                not isinstance(pose, list)
                or len(pose) != about["d_class"]
                or not all(_is_number(part) for part in pose)
            ):
                raise Refused(400, f"`pose` must be {about['d_class']} numbers between -100 and 100")
            poses[number, label] = torch.tensor(pose, dtype=torch.float32)
        return {"pictures": self.draws[network.name](poses).flatten(1).tolist()}

    def sentence(self, asked: dict[str, Any]) -> dict[str, Any]:
        if self.sentences is None:
            raise Refused(404, "no network of sentences is loaded; give `torchcaps play` a checkpoint of one")
        text = asked.get("text")
        if not isinstance(text, str) or len(text) > LONGEST or text.encode(errors="ignore").decode() != text:
            raise Refused(400, f"`text` must be a sentence of at most {LONGEST:,} characters that Unicode has")
        try:
            return self.sentences.read(text)
        except ValueError as error:
            raise Refused(400, str(error)) from error

    def _network(self, asked: dict[str, Any]) -> Network:
        name = asked.get("network")
        if not isinstance(name, str) or name not in self.networks:
            raise Refused(404, f"no network {str(name)[:80]!r}; there are {', '.join(self.networks)}")
        return self.networks[name]


def _is_number(part: Any) -> bool:
    # false for NaN, and safe for integers too large for a float
    return type(part) in (int, float) and abs(part) <= 100


def make_app(answers: Answers, loopback: bool = True) -> Any:
    """Build the ASGI application. On loopback it checks the Host header, which stops DNS rebinding by other sites."""
    try:
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Route
    except ImportError as error:
        raise ValueError("the playground needs starlette and uvicorn; run `pip install 'torchcaps[play]'`") from error
    room, line = asyncio.Semaphore(AT_ONCE), [0]
    pages = {path.name: path for path in PAGE.iterdir() if path.suffix in KINDS}
    largest = answers.largest_body()

    def asks(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Any], Awaitable[Any]]:
        async def endpoint(request: Any) -> Any:
            asked = await _asked(request, largest)
            if line[0] >= WAITING:
                raise Refused(503, f"{WAITING} questions are waiting already; ask again in a moment")
            line[0] += 1
            try:
                async with room:
                    return JSONResponse(await asyncio.to_thread(answer, asked))
            finally:
                line[0] -= 1

        return endpoint

    async def models(request: Any) -> Any:
        return JSONResponse(answers.about())

    async def page(request: Any) -> Any:
        name = request.path_params.get("name") or "index.html"
        if name not in pages:  # the requested name never becomes a path
            raise Refused(404, f"no such page: {name[:80]}")
        return Response(pages[name].read_bytes(), media_type=KINDS[pages[name].suffix])

    async def refused(request: Any, error: Exception) -> Any:
        assert isinstance(error, Refused)
        extra = {"retry-after": "1"} if error.status == 503 else {}
        # JSON may hold lone UTF-16 surrogates, which cannot be encoded
        return JSONResponse({"error": error.message.encode(errors="backslashreplace").decode()}, error.status, extra)

    async def unforeseen(request: Any, error: Exception) -> Any:
        return JSONResponse({"error": "the server failed at this; its terminal says why"}, 500)

    routes = [
        Route("/models.json", models),
        Route("/look", asks(answers.look), methods=["POST"]),
        Route("/draw", asks(answers.draw), methods=["POST"]),
        Route("/sentence", asks(answers.sentence), methods=["POST"]),
        Route("/", page),
        Route("/{name}", page),
    ]
    app = Starlette(routes=routes, exception_handlers={Refused: refused, Exception: unforeseen})
    return _guarded(app, loopback)


def _guarded(app: Any, loopback: bool) -> Any:
    """Add headers to every response; on loopback refuse other Host headers."""
    from starlette.responses import JSONResponse

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    *((name.encode(), value.encode()) for name, value in HEADERS.items()),
                ]
            await send(message)

        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        if loopback and re.sub(r":\d*$", "", host).strip("[]") not in LOOPBACK:
            answer = JSONResponse(
                {"error": f"this server answers to {', '.join(LOOPBACK)} alone; --host opens it to others"}, 421
            )
            await answer(scope, receive, send_with_headers)
            return
        await app(scope, receive, send_with_headers)

    return guarded


async def _asked(request: Any, largest: int) -> dict[str, Any]:
    """Read the body as a JSON object; refuse anything else as early as possible."""
    from starlette.requests import ClientDisconnect

    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise Refused(415, "send JSON, with content-type: application/json")
    try:
        content = await asyncio.wait_for(_body(request, largest), SLOWEST_BODY)
    except TimeoutError as error:
        raise Refused(408, f"the body took longer than {SLOWEST_BODY:.0f} s") from error
    except ClientDisconnect as error:  # nobody reads the answer; without it the terminal would show a traceback
        raise Refused(400, "the connection ended within the body") from error
    try:
        asked = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "the body is not JSON; send an object") from error
    if not isinstance(asked, dict):
        raise Refused(400, f"the body must be a JSON object, got a {type(asked).__name__}")
    return asked


async def _body(request: Any, largest: int) -> bytes:
    declared = request.headers.get("content-length", "0")
    parts, n_bytes = [], 0
    if declared.isdigit() and int(declared) <= largest:
        async for part in request.stream():
            n_bytes += len(part)
            if n_bytes > largest:
                break
            parts.append(part)
        else:
            return b"".join(parts)
    raise Refused(413, f"the body may have {largest // 1024} KiB at most")


def listen(host: str, port: int) -> socket.socket:
    """Open the socket to serve from; port 0 takes a free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"cannot listen on {host}:{port} ({error}); choose another --host or --port, 0 for any that is free"
        ) from error


def serve(answers: Answers, host: str, port: int, say: Callable[[str], object]) -> None:
    """Serve until interrupted."""
    app = make_app(answers, host in LOOPBACK)
    try:
        import uvicorn
    except ImportError as error:
        raise ValueError("the playground needs uvicorn; run `pip install 'torchcaps[play]'`") from error
    with listen(host, port) as at:
        number = at.getsockname()[1]
        name = f"[{host}]" if ":" in host else host
        if host in LOOPBACK:
            say(f"playground: http://{name}:{number}  (for this machine alone; --host 0.0.0.0 opens it to the network)")
        else:
            say(
                f"playground: http://{name}:{number}  (OPEN TO THE NETWORK: anyone who reaches this address can use it)"
            )
        config = uvicorn.Config(app, log_level="warning", limit_concurrency=1000, http=guarded_protocol())
        uvicorn.Server(config).run(sockets=[at])
