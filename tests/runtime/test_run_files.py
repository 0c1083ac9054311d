"""Files are whole or not there, a folder has one writer, and what a kill leaves behind is cleared."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import refuses
from commands import run as command

from torchcaps.papers import RECIPES
from torchcaps.runtime.files import locked, read_hashed, remove_parts, write_hashed, write_whole
from torchcaps.runtime.metrics_log import MetricsLog
from torchcaps.train import Options, train

HOLDS = """
import sys, time
from pathlib import Path
from torchcaps.runtime.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the folder."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_run_in_a_folder_is_refused_and_a_killed_one_leaves_no_lock(holder, tmp_path, capsys, monkeypatch):
    words = "train", "smoke/capsnet-plain", "--out", str(tmp_path), "--device", "cpu"
    refuses(command(capsys, monkeypatch, *words), f"{tmp_path} is in use by process {holder.pid} on ", "--out")
    assert not (tmp_path / "metrics.jsonl").exists() and not (tmp_path / "result.json").exists()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert command(capsys, monkeypatch, *words)[0] == 0
    assert (tmp_path / "result.json").exists()


def test_a_lock_ends_with_its_block(tmp_path):
    with locked(tmp_path), pytest.raises(ValueError, match="is in use by process"), locked(tmp_path):
        pass
    with pytest.raises(OSError, match="of the block") as raised, locked(tmp_path):
        raise OSError(5, "of the block")
    assert raised.value.filename is None
    with locked(tmp_path):
        pass


def test_what_a_killed_run_left_is_removed_at_the_next_start(tmp_path):
    left = tmp_path / ".checkpoint.safetensors.0123abcd.part"
    left.write_bytes(b"half")
    (tmp_path / "notes.part").write_text("mine")
    run = RECIPES["smoke/capsnet-plain"].make()
    train(run, name="x", seed=0, options=Options(out=tmp_path, progress=False, max_steps=1))
    assert not left.exists() and (tmp_path / "notes.part").exists()


def test_an_old_orphan_goes_with_the_next_write_and_a_young_one_may_be_somebodys(tmp_path):
    old, young = (tmp_path / f".a.json.{number:08d}.part" for number in range(2))
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    write_whole(tmp_path / "a.json", b"whole")
    assert not old.exists() and young.exists()
    remove_parts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_what_a_killed_command_left_in_the_cache_is_removed_at_the_next_start(tmp_path, capsys, monkeypatch):
    """Files of the cache are written once: their next write, which would clear it, never comes."""
    monkeypatch.setenv("TORCHCAPS_CACHE", str(tmp_path))
    names = ["svhn/.train-0123.safetensors.0123abcd.part", "embeddings/x-0123/.00001-ab.bin.0123abcd.part"]
    old, young = ([tmp_path / name.replace("0123abcd", end) for name in names] for end in ("0000aaaa", "0000bbbb"))
    mine = tmp_path / "svhn" / "notes.part"
    for path in (*old, *young, mine):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    for path in (*old, mine):
        os.utime(path, (time.time() - 7200,) * 2)
    assert command(capsys, monkeypatch, "data", "ls", "svhn")[0] == 0
    assert not any(path.exists() for path in old) and all(path.exists() for path in (*young, mine))


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as raised:
        write_whole(tmp_path / "a.json", b"whole")
    assert raised.value.filename == str(tmp_path / "a.json") and list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_names_the_metrics_log(tmp_path):
    log = MetricsLog(tmp_path, 0)
    log.path = Path("/dev/full")
    with pytest.raises(OSError, match="No space left") as raised:
        log.write(1, loss=1.0)
    assert raised.value.filename == "/dev/full"


def test_a_damaged_cache_file_reads_as_none(tmp_path):
    path = write_hashed(tmp_path / "a", b"some\nbytes")
    assert read_hashed(path) == b"some\nbytes" and read_hashed(tmp_path / "b") is None
    for at in range(len(whole := path.read_bytes())):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert read_hashed(path) is None
