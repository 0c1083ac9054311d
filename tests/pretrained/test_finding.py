"""Large weights are found in the checkout, the user's folder or the cache, or are fetched whole; never half, never another file."""

import functools
import gzip
import http.server
import shutil
import threading
from pathlib import Path

import pytest

from torchcaps.play.networks import TITLES, bundled_networks
from torchcaps.pretrained import FOLDER, at_hand, card_of, entries, finding
from torchcaps.pretrained.finding import file_of
from torchcaps.runtime import project

LARGE = "capsnet-mnist"
FILE = f"{LARGE}.safetensors"
CONTENT = (FOLDER / FILE).read_bytes()


@pytest.fixture
def cache(no_files_at_hand) -> Path:
    return no_files_at_hand / "weights"


@pytest.fixture
def package(tmp_path, cache) -> Path:
    """The weights folder as the wheel has it."""
    left_out = [one.file for one in entries().values() if not one.ships]
    return shutil.copytree(FOLDER, tmp_path / "package", ignore=shutil.ignore_patterns(*left_out))


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A folder whose files lie at the address that a release filled in; `cut` sends half of each."""
    folder = tmp_path / "www"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def copyfile(self, source, outputfile):
            content = source.read()
            outputfile.write(content[: len(content) // 2] if (folder / "cut").exists() else content)

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder))
    threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    monkeypatch.setattr(finding, "address", lambda label: {"Weights": f"http://127.0.0.1:{httpd.server_port}"}[label])
    yield folder
    httpd.shutdown()
    httpd.server_close()


def test_files_of_at_most_three_megabytes_ship():
    assert {name for name, one in entries().items() if not one.ships} == {"capsnet-mnist", "capsnet-multimnist"}
    assert {"capsnet-digits", "capsnet-mnist-small", "em-capsnet-smallnorb"} < {
        n for n, one in entries().items() if one.ships
    }


def test_a_checkout_has_all_of_them(cache):
    assert all(at_hand(name) and file_of(name).parent == FOLDER for name in entries())


def test_a_release_that_filled_in_nothing_says_where_to_put_the_file(package, cache, monkeypatch):
    monkeypatch.setattr(finding, "address", lambda _: None)
    assert not at_hand(LARGE, package) and at_hand("capsnet-digits", package)
    with pytest.raises(ValueError, match=r"14 MB.*names no address") as caught:
        file_of(LARGE, package)
    assert f"put the missing by hand, plain or .gz, into {cache}" in str(caught.value)
    assert f"a checkout of torchcaps has {FILE} in torchcaps/pretrained/weights" in str(caught.value)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_file_put_there_by_hand_will_do(package, cache, ending):
    cache.mkdir(parents=True)
    (cache / f"{FILE}{ending}").write_bytes(gzip.compress(CONTENT, 0) if ending else CONTENT)
    assert at_hand(LARGE, package)
    assert file_of(LARGE, package) == cache / FILE and (cache / FILE).read_bytes() == CONTENT


def test_the_users_own_folder_comes_first(package, tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / FILE).write_bytes(CONTENT)
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path / "own"))
    assert file_of(LARGE, package) == tmp_path / "own" / FILE


@pytest.mark.parametrize("place", ["cache", "own"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_packed_file_is_unpacked_into_the_cache_once(package, cache, tmp_path, monkeypatch, place, ending):
    """Whatever its name is: a browser stores a .gz under the plain one."""
    folder = cache if place == "cache" else tmp_path / "own"
    folder.mkdir(parents=True)
    (folder / f"{FILE}{ending}").write_bytes(gzip.compress(CONTENT, 0))
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path / "own"))
    path = file_of(LARGE, package)
    assert path == cache / FILE and path.read_bytes() == CONTENT
    written = path.stat().st_mtime_ns, path.stat().st_ino
    assert file_of(LARGE, package) == path
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == written


def test_what_is_nowhere_is_fetched_once(package, cache, served, capsys):
    (served / FILE).write_bytes(CONTENT)
    assert file_of(LARGE, package) == cache / FILE and (cache / FILE).read_bytes() == CONTENT
    said = capsys.readouterr()
    assert said.out == "" and "trying http://127.0.0.1" in said.err
    (served / FILE).unlink()
    assert file_of(LARGE, package) == cache / FILE
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("wrong", ["another file", "half a file", "no file"])
def test_another_file_or_half_of_it_never_lands_in_the_cache(package, cache, served, wrong):
    if wrong != "no file":
        (served / FILE).write_bytes(CONTENT if wrong == "half a file" else CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))
    if wrong == "half a file":
        (served / "cut").touch()
    told = {"another file": "expected", "half a file": "IncompleteRead", "no file": "File not found"}[wrong]
    with pytest.raises(ValueError, match=told):
        file_of(LARGE, package)
    assert not cache.exists() or not list(cache.iterdir())


def test_the_playground_opens_with_what_is_at_hand(package, monkeypatch):
    monkeypatch.setattr("torchcaps.play.networks.at_hand", lambda name: at_hand(name, package))
    assert [network.name for network in bundled_networks()] == [name for name in TITLES if name != LARGE]


def test_cards_come_with_every_model(package):
    assert all(entries()[name].sha256 in card_of(name, package) for name in entries())


@pytest.mark.parametrize("given", [None, "https://example.org/torchcaps/weights", "https://files.example.com/w/"])
def test_a_placeholder_is_no_address(monkeypatch, given):
    lines = ["Homepage, https://example.com"] + ([f"Weights, {given}"] if given else [])
    monkeypatch.setattr(project, "metadata", lambda name: type("M", (), {"get_all": lambda self, key: lines})())
    assert project.address("Weights") == ("https://files.example.com/w" if given and "files" in given else None)
