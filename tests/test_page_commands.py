"""The commands of docs/own-data.md, typed as they stand there, one after another, on a folder of pictures."""

import os
import subprocess
import sys

import pytest
import torch
from test_pages import HOME, commands

from torchcaps.data.generated import generate
from torchcaps.play.web import RUNTIME

Image = pytest.importorskip("PIL.Image", reason="pip install 'torchcaps[experiments]'")
pytest.importorskip("onnxruntime", reason="pip install 'torchcaps[export]'")
pytest.importorskip("starlette", reason="pip install 'torchcaps[play]'")


@pytest.fixture
def place(tmp_path):
    """What a reader of the page has: two folders of birds, a new picture and more of them, onnxruntime-web or what stands for it."""
    images, labels = generate(200, 16, torch.Generator().manual_seed(0))
    for label, folder in ((0, "birds/flat"), (3, "birds/steep"), (7, "more-pictures")):
        (tmp_path / folder).mkdir(parents=True)
        for number, pixels in enumerate(images[labels == label][:12]):
            Image.fromarray(pixels[0].numpy()).save(tmp_path / folder / f"{number}.png")
    Image.fromarray(images[0, 0].numpy()).save(tmp_path / "new.jpg")
    runtime = tmp_path / "node_modules/onnxruntime-web/dist"
    runtime.mkdir(parents=True)
    for name in RUNTIME:
        (runtime / name).write_bytes(b"not run here")
    return tmp_path


def started(words, place):
    """With this checkout's package, in the reader's folder."""
    paths = os.pathsep.join([str(HOME), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "torchcaps", *words], cwd=place, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@pytest.mark.slow
def test_the_commands_for_own_pictures_do_what_the_page_says(place):
    checkpoint = "runs/own/birds-capsnet/0/checkpoint.safetensors"
    typed = [words for words, whole in commands((HOME / "docs/own-data.md").read_text()) if whole]
    assert [words[0] for words in typed] == ["train", "eval", "figures", "predict", "play", "export", "export"]
    for words in typed:
        process = started([checkpoint if word == "CHECKPOINT" else word for word in words], place)
        if words[0] == "play":  # it serves until it is stopped, and says where
            said = ""
            while "http://127.0.0.1" not in said:
                line = process.stdout.readline()
                assert line, f"torchcaps {' '.join(words)} ended: {said}"
                said += line
            process.terminate()
            process.communicate(timeout=60)
        else:
            said, _ = process.communicate(timeout=300)
            assert process.returncode == 0, f"torchcaps {' '.join(words)}: {said}"
        if words[0] == "predict":
            assert said.count(".png") == len(list((place / "more-pictures").iterdir())) and "new.jpg" in said
    for path in (checkpoint, "net.onnx", "net.pt2", "page/index.html"):
        assert (place / path).exists(), path
