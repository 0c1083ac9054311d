"""The playground's server: what it answers is what the networks say, and bad questions get clear answers while it stays
up.
"""

import asyncio
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from torchcaps.cli.play import load_all
from torchcaps.data import info, load
from torchcaps.papers import RECIPES
from torchcaps.play import server
from torchcaps.play.networks import N_PASSES, TITLES, bundled_networks
from torchcaps.play.sentences import SentenceReader
from torchcaps.play.server import LARGEST_BODY, PAGE, Answers, listen, make_app, serve

pytest.importorskip("starlette", reason="the extra `play` is not installed")
httpx = pytest.importorskip("httpx")


class Client:
    """Asks the application without a socket."""

    def __init__(self, app) -> None:
        self.transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)

    def get(self, path: str, **more):
        return asyncio.run(self._ask("GET", path, **more))

    def post(self, path: str, **more):
        return asyncio.run(self._ask("POST", path, **more))

    async def _ask(self, method: str, path: str, **more):
        async with httpx.AsyncClient(transport=self.transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, **more)


@pytest.fixture(scope="module")
def answers() -> Answers:
    run = RECIPES["smoke/em-sentences"].make()
    return Answers(bundled_networks(), SentenceReader(run.build(), run, "smoke"))


@pytest.fixture(scope="module")
def client(answers) -> Client:
    return Client(make_app(answers))


@pytest.fixture(scope="module")
def digit() -> dict:
    images, labels = load("digits", "test", seed=0)
    return {"pixels": images[0].flatten().tolist(), "label": int(labels[0])}


def test_the_page_comes_whole_and_asks_nobody_else(client):
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-security-policy"].startswith("default-src 'self';")
    named = set(re.findall(r'(?:src|href)="([\w.]+)"', page.text))
    texts = {path.name: path.read_text() for path in PAGE.iterdir()}
    named |= {name for text in texts.values() for name in re.findall(r'from "\./([\w.]+)"', text)} - {
        "ort.wasm.bundle.min.mjs"
    }
    assert len(named) >= 10
    for name in named:
        assert client.get(f"/{name}").status_code == 200, name
    addresses = {word for text in texts.values() for word in re.findall(r"https?://[\w./]+", text)}
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not an address
    for text in texts.values():
        assert not re.search(r"\sstyle=|\son\w+=\"", text)  # the policy would refuse it


def test_what_it_sees_is_what_the_network_says(client, answers, digit):
    network = answers.networks["capsnet-digits"]
    seen = client.post("/look", json={"network": "capsnet-digits", "pixels": digit["pixels"]}).json()
    lengths, couplings = torch.tensor(seen["lengths"]), torch.tensor(seen["couplings"])
    with torch.no_grad():
        found = network.model(torch.tensor(digit["pixels"]).view(1, 1, 16, 16) / 255)
    own = network.about()["own_passes"] - 1
    assert lengths.shape == (N_PASSES, 10)
    torch.testing.assert_close(lengths[own], found.activity[0], atol=1e-4, rtol=0)
    torch.testing.assert_close(torch.tensor(seen["poses"])[own], found.poses[0], atol=1e-4, rtol=0)
    assert int(lengths[own].argmax()) == digit["label"]
    torch.testing.assert_close(couplings.sum(-1), torch.ones(N_PASSES, 16))  # every place spends one vote
    torch.testing.assert_close(couplings[0], torch.full((16, 10), 0.1))  # the first pass favours nobody
    assert float(couplings[own].std()) > 1e-3


def test_what_it_draws_is_the_networks_reconstruction(client, answers, digit):
    network = answers.networks["capsnet-digits"]
    with torch.no_grad():
        poses = network.model(torch.tensor(digit["pixels"]).view(1, 1, 16, 16) / 255).poses
        wanted = network.model.reconstruct(poses, torch.tensor([digit["label"]]))[0, 0]
    pose = poses[0, digit["label"]].tolist()
    asked = {
        "network": "capsnet-digits",
        "capsules": [{"label": digit["label"], "pose": pose}, {"label": 0, "pose": [0.0] * 16}],
    }
    pictures = torch.tensor(client.post("/draw", json=asked).json()["pictures"])
    torch.testing.assert_close(pictures[0].view(16, 16), wanted, atol=1e-4, rtol=0)
    assert not torch.equal(pictures[0], pictures[1])


def test_networks_without_capsules_only_answer(client, digit):
    seen = client.post("/look", json={"network": "baseline-digits", "pixels": digit["pixels"]}).json()
    assert [len(row) for row in seen["lengths"]] == [10]
    assert abs(sum(seen["lengths"][0]) - 1) < 1e-5
    refused = client.post("/draw", json={"network": "baseline-digits", "capsules": []})
    assert refused.status_code == 400
    assert "no decoder" in refused.json()["error"]


POSE = [0.0] * 16
DRAW = b'{"network": "capsnet-digits", "capsules": [{"label": 1, "pose": [%s 0]}]}'
BAD = {
    "not json": ("/look", b"\x89PNG\r\n\x1a\n", 400, "not JSON"),
    "nested": ("/look", b"[" * 60_000, 400, "not JSON"),
    "a list": ("/look", [1, 2], 400, "JSON object"),
    "no such network": ("/look", {"network": "../etc", "pixels": []}, 404, "there are capsnet-mnist-small"),
    "a network that is no name": ("/look", {"network": ["capsnet-digits"]}, 404, "there are capsnet-mnist-small"),
    "no picture": ("/look", {"network": "capsnet-digits", "pixels": "data:image/png;base64,AAAA"}, 400, "not an image"),
    "levels too high": ("/look", {"network": "capsnet-digits", "pixels": [256] * 256}, 400, "not an image"),
    "levels with fractions": ("/look", {"network": "capsnet-digits", "pixels": [0.5] * 256}, 400, "not an image"),
    "wrong size": ("/look", {"network": "capsnet-digits", "pixels": [0] * 784}, 400, "16x16 = 256 pixels, got 784"),
    "no capsules": ("/draw", {"network": "capsnet-digits"}, 400, "`capsules`"),
    "a class that is not there": ("/draw", {"network": "capsnet-digits", "capsules": [{"label": 10, "pose": POSE}]}, 400, "0 to 9, got 10"),
    "a short pose": ("/draw", {"network": "capsnet-digits", "capsules": [{"label": 1, "pose": [0.0]}]}, 400, "16 numbers"),
    "a pose without end": ("/draw", DRAW % (b"1e999, " * 15), 400, "16 numbers"),
    "no number": ("/draw", DRAW % (b"NaN, " * 15), 400, "16 numbers"),
    "a pose of endless digits": ("/draw", DRAW % ((b"1" + b"0" * 400 + b", ") * 15), 400, "16 numbers"),
    "half a character as a class": ("/draw", b'{"network": "capsnet-digits", "capsules": [{"label": "\\ud800"}]}', 400, "got \\ud800"),
    "half a character as a sentence": ("/sentence", b'{"text": "\\ud800"}', 400, "that Unicode has"),
    "no sentence": ("/sentence", {"text": 5}, 400, "`text`"),
    "an empty sentence": ("/sentence", {"text": " "}, 400, "is empty"),
    "unknown words": ("/sentence", {"text": "xyzzy"}, 400, "does not know xyzzy"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_questions_get_clear_answers(client, digit, name):
    path, body, status, words = BAD[name]
    headers = {"content-type": "application/json"}
    answer = (
        client.post(path, content=body, headers=headers) if isinstance(body, bytes) else client.post(path, json=body)
    )
    assert answer.status_code == status
    assert words in answer.json()["error"]
    assert (
        client.post("/look", json={"network": "capsnet-digits", "pixels": digit["pixels"]}).status_code == 200
    )  # it is still there


def test_a_body_too_large_is_refused_by_what_it_says_and_by_what_it_is(client):
    headers = {"content-type": "application/json"}
    said = client.post("/look", content=b" " * (LARGEST_BODY + 1), headers=headers)

    async def unsaid():
        for _ in range(100):
            yield b" " * 1024

    streamed = client.post("/look", content=unsaid(), headers=headers)
    for answer in (said, streamed):
        assert answer.status_code == 413
        assert "64 KiB" in answer.json()["error"]


def test_only_json_only_this_machine_and_only_the_pages_files(client):
    assert client.post("/look", content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    foreign = client.get("/", headers={"host": "evil.example:8017"})
    assert foreign.status_code == 421
    for host in ("localhost:8017", "127.0.0.1", "[::1]:8017", "[::1]"):
        assert client.get("/", headers={"host": host}).status_code == 200
    for path in (
        "/..%2fserver.py",
        "/server.py",
        "/%2e%2e%2fnetworks.py",
        "/nothing.js",
        f"/{'a' * 300}.js",
        "/a%00.js",
    ):
        assert client.get(path).status_code == 404
    assert client.get("/look").status_code in (404, 405)


def test_a_network_of_large_pictures_may_be_sent_large_bodies(answers):
    assert answers.largest_body() == LARGEST_BODY
    wide = Answers(list(answers.networks.values()))
    wide.networks["large"] = type("Network", (), {"data": replace(info("generated-96"), shape=(1, 200, 200))})()
    assert wide.largest_body() > len(
        json.dumps({"network": "large", "pixels": [255] * 200 * 200}, separators=(",", ":"))
    )


def test_two_hundred_at_once_are_answered_or_told_to_wait(answers, digit):
    asked = {"network": "capsnet-digits", "pixels": digit["pixels"]}

    async def all_at_once() -> tuple[list, int]:
        transport = httpx.ASGITransport(app=make_app(answers), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as many:
            found = await asyncio.gather(*(many.post("/look", json=asked) for _ in range(200)))
            return found, (await many.post("/look", json=asked)).status_code

    found, after = asyncio.run(all_at_once())
    codes = [answer.status_code for answer in found]
    assert set(codes) == {200, 503}
    assert codes.count(200) >= server.WAITING
    busy = next(answer for answer in found if answer.status_code == 503)
    assert "ask again" in busy.json()["error"]
    assert busy.headers["retry-after"] == "1"
    assert after == 200


def test_a_failure_of_ours_is_an_answer_too(answers, digit, monkeypatch):
    monkeypatch.setattr(answers, "look", lambda asked: 1 / 0)
    client = Client(make_app(answers))
    assert client.post("/look", json={"network": "capsnet-digits", "pixels": digit["pixels"]}).status_code == 500
    assert client.get("/models.json").status_code == 200


def test_sentences_are_read_where_a_network_of_them_is_loaded(client, answers):
    about = client.get("/models.json").json()["sentences"]
    seen = client.post("/sentence", json={"text": about["example"]}).json()
    assert len(seen["words"]) == len(about["example"].split()) + 1
    assert len(seen["shares"]) == len(about["classes"])
    assert torch.tensor(seen["used"]).shape[:2] == (len(about["classes"]), len(seen["words"]))
    without = Client(make_app(Answers(list(answers.networks.values()))))
    assert without.get("/models.json").json()["sentences"] is None
    assert without.post("/sentence", json={"text": "good"}).status_code == 404


@pytest.mark.slow
def test_a_trained_model_keeps_the_name_that_was_typed():
    networks, _ = load_all([Path("capsnet-digits-pairs")], None)
    assert [network.name for network in networks] == [
        "capsnet-digits-pairs",
        *(name for name in TITLES if name != "capsnet-digits-pairs"),
    ]


def test_no_pickle_is_ever_loaded(tmp_path):
    torch.save({"weights": torch.zeros(3)}, tmp_path / "model.pt")
    with pytest.raises(ValueError, match="not a whole checkpoint"):
        load_all([tmp_path / "model.pt"], None)
    with pytest.raises(ValueError, match="no checkpoint at"):
        load_all([Path("https://example.com/model.pt")], None)
    for path in Path(server.__file__).parent.glob("*.py"):
        assert not re.search(r"pickle|torch\.load|np\.load", path.read_text().replace("No pickle", "")), path


def test_it_says_where_it_listens_and_whether_others_can_reach_it(answers, monkeypatch):
    uvicorn = pytest.importorskip("uvicorn")
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: None)
    said = []
    serve(answers, "127.0.0.1", 0, said.append)
    serve(answers, "0.0.0.0", 0, said.append)
    assert re.match(r"playground: http://127\.0\.0\.1:\d+ .*this machine alone", said[0])
    assert "OPEN TO THE NETWORK" in said[1]
    with listen("127.0.0.1", 0) as taken, pytest.raises(ValueError, match="choose another --host or --port"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_without_the_extra_it_says_what_to_install(answers, monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    with pytest.raises(ValueError, match=r"torchcaps\[play\]"):
        make_app(answers)
