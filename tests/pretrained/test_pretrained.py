"""Trained models: what lies in the package is what its cards say, a damaged file is refused, and names go where
checkpoints go.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from commands import refuses, run

import torchcaps
from torchcaps.data import DATASETS, Labelled, class_names, info
from torchcaps.data import load as load_data
from torchcaps.data.augment import Crop, Standardise, as_seen
from torchcaps.papers import RECIPES
from torchcaps.pretrained import FOLDER, entries, entry, file_of, loading, locate, open_model, prepare
from torchcaps.pretrained.card import card
from torchcaps.pretrained.release import measure
from torchcaps.probes.kinds import stored
from torchcaps.results.store import read_result, unpack
from torchcaps.train import splits
from torchcaps.train.plain import unlike

NAMES = list(entries())


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *words: run(capsys, monkeypatch, *map(str, words))


@pytest.fixture
def copied(tmp_path, monkeypatch) -> Path:
    """The registry and its files, to be damaged."""
    folder = shutil.copytree(FOLDER, tmp_path / "weights")
    monkeypatch.setattr(loading, "file_of", lambda name: file_of(name, folder))
    return folder


def test_there_are_some():
    assert {"baseline-digits", "capsnet-digits", "capsnet-digits-pairs"} <= {*NAMES}
    assert {path.name for path in FOLDER.iterdir()} == {"registry.json"} | {
        f"{n}{end}" for n in NAMES for end in (".safetensors", ".json", ".md")
    }


@pytest.mark.parametrize("name", NAMES)
def test_files_registry_result_and_card_agree(name):
    one, result = entry(name), read_result(FOLDER / f"{name}.json")
    content = (FOLDER / one.file).read_bytes()
    assert (one.file, one.bytes, one.sha256) == (
        f"{name}.safetensors",
        len(content),
        hashlib.sha256(content).hexdigest(),
    )
    assert (one.recipe, one.seed, one.commit, one.metrics) == tuple(
        result[key] for key in ("recipe", "seed", "commit", "metrics")
    )
    assert (FOLDER / f"{name}.md").read_text() == card(name, one, result)  # nobody types a card
    assert one.sha256 in card(name, one, result) and one.licence == "MIT"
    assert unlike(result["run"], RECIPES[one.recipe].make()) == []
    assert not one.dirty
    model, _, about = open_model(name, torch.device("cpu"))
    assert one.n_parameters == sum(p.numel() for p in model.parameters())
    assert (about["name"], about["seed"], about["run"]) == (one.recipe, one.seed, result["run"])


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if "pairs" in name else []) for name in NAMES if "digits" in name],
)
def test_its_errors_recompute(name):
    pytest.importorskip("sklearn")
    cpu, one = torch.device("cpu"), entry(name)
    model, run, about = open_model(name, cpu)
    measured, changed, _ = measure(model, run, about["seed"], read_result(FOLDER / f"{name}.json"), None, cpu)
    # an image or two at the edge, on other machines
    assert {part: pytest.approx(numbers, abs=0.3) for part, numbers in one.measured.items()} == measured
    assert changed.keys() == one.changed.keys()


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.skipif("TORCHCAPS_DATA" not in os.environ, reason="TORCHCAPS_DATA names no folder")
@pytest.mark.parametrize(
    "name", [n for n in NAMES if "digits" not in n and info(RECIPES[entry(n).recipe].make().data).n_labels == 1]
)
def test_its_answers_are_those_of_its_result_file(name):
    """On some of the real test images, since a network of this size takes minutes for all on a CPU."""
    model, wanted, some = (
        torchcaps.load(name),
        unpack(read_result(FOLDER / f"{name}.json")["predictions"]["test"]),
        slice(None, None, 40),
    )
    data = splits.part(stored(model.about["run"]), "test", None, model.about["seed"])
    pictures = Labelled(data.images[some], data.labels[some])
    said = stored(model.about["run"]).stages[-1].task.evaluate(model, pictures, torch.device("cpu")).predictions
    assert len(said) >= 200 and (said != wanted[some]).float().mean() < 0.01
    assert (said != pictures.labels).float().mean() < 0.05


def test_a_loaded_model_answers_by_name():
    pytest.importorskip("sklearn")
    model = torchcaps.load("capsnet-digits")
    assert isinstance(model, torchcaps.CapsNet) and not model.training
    assert model.labels == tuple("0123456789")
    assert (model.about["name"], model.about["seed"]) == ("digits/warped", 0)
    pixels, labels = load_data("digits", "test", seed=0)
    with torch.no_grad():
        said = model(prepare(model, pixels[:50])).activity.argmax(-1)
    assert [model.labels[n] for n in said] == [str(n) for n in labels[:50].tolist()]


def test_preparing_is_what_evaluation_does():
    """The crop and the standardisation of the run, from bytes of the size of its data."""
    run = RECIPES["sabour2017/smallnorb"].make()
    assert {Crop, Standardise} <= {type(part) for part in run.augment}
    with torch.device("meta"):
        model = run.build()
    loading.describe(model, run, {"name": "x", "seed": 0, "step": 0})
    assert model.labels == ("animal", "human", "airplane", "truck", "car")
    pixels = torch.randint(0, 256, (2, 2, 48, 48), dtype=torch.uint8)
    seen = prepare(model.to_empty(device="cpu"), pixels)
    assert torch.equal(seen, as_seen(pixels, run.augment)) and tuple(seen.shape[1:]) == model.image


def test_other_pictures_are_refused_with_what_to_do():
    model = torchcaps.load("capsnet-digits")
    for wrong in (torch.rand(2, 1, 16, 16), torch.zeros(2, 1, 28, 28, dtype=torch.uint8)):
        with pytest.raises(ValueError, match=r"takes bytes .* of shape \[..., 1, 16, 16\], got .*\(255 \* x\)"):
            prepare(model, wrong)
    run = RECIPES["smoke/em-sentences"].make()
    sentences = run.build()
    loading.describe(sentences, run, {})
    with pytest.raises(ValueError, match="was trained on sentences"):
        prepare(sentences, torch.zeros(1, 1, 16, 16, dtype=torch.uint8))


def test_unknown_names_list_the_names_there_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match=rf"no trained model 'capsnet-mnit'; there are {', '.join(NAMES)} .*or give the path"
    ):
        torchcaps.load("capsnet-mnit")
    for path in ("runs/x/checkpoint.safetensors", "capsnet.safetensors", "https://example.com/model.pt"):
        with pytest.raises(ValueError, match="no checkpoint at"):
            torchcaps.load(path)
    torch.save({"weights": torch.zeros(3)}, tmp_path / "model.pt")
    with pytest.raises(ValueError, match="not a whole checkpoint"):  # a pickle is not opened
        torchcaps.load("model.pt")
    assert locate(Path("capsnet-digits")) == FOLDER / "capsnet-digits.safetensors"


@pytest.mark.parametrize("at", [0, 9, 1500, -1])
def test_a_changed_byte_is_refused_by_name_and_by_path(copied, at):
    path = copied / "capsnet-digits.safetensors"
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    wanted = entry("capsnet-digits").sha256
    with pytest.raises(
        ValueError,
        match=rf"not those that were released: wanted 725,120 bytes of sha256 {wanted}.*install torchcaps again",
    ):
        torchcaps.load("capsnet-digits")
    with pytest.raises(ValueError, match=r"is damaged|not a whole checkpoint|no torchcaps header"):
        torchcaps.load(path)


def test_what_is_no_name_is_refused():
    with pytest.raises(ValueError, match="give the name of a pretrained model or the path of a checkpoint; got 3"):
        torchcaps.load(3)


def test_a_file_that_is_gone_is_named(copied):
    (copied / "capsnet-digits.safetensors").unlink()
    with pytest.raises(
        ValueError, match=r"the weights of capsnet-digits cannot be read \(No such file.*install torchcaps again"
    ):
        torchcaps.load("capsnet-digits")


def test_classes_have_names():
    assert class_names("cifar10")[0] == "airplane"
    assert class_names(next(name for name in DATASETS if name.startswith("sst2"))) == ("negative", "positive")
    for name in DATASETS:
        assert len(class_names(name)) == info(name).n_classes


def test_commands_take_names(command, tmp_path):
    pytest.importorskip("sklearn")
    Image = pytest.importorskip("PIL.Image")
    code, said, err = command("pretrained")
    assert code == 0, err
    assert all(name in said for name in NAMES) and "0.56 % error" in said
    refuses(command("pretrained", "nothing"), "no trained model 'nothing'; there are baseline-digits")
    code, said, err = command("eval", "baseline-digits", "--device", "cpu", "--json", tmp_path / "said.json")
    assert code == 0 and "digits/plain seed 0" in said, err
    assert json.loads((tmp_path / "said.json").read_text())["test"] == pytest.approx(
        entry("baseline-digits").measured["test"], abs=0.3
    )
    pixels, labels = load_data("digits", "test", seed=0)
    Image.fromarray(pixels[0, 0].numpy()).save(tmp_path / "digit.png")
    code, said, err = command("predict", "capsnet-digits", tmp_path / "digit.png", "--device", "cpu", "--best", "1")
    assert code == 0 and f"digit.png: {labels[0]} 0." in said, err
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "loss": 1.0}\n'
    )  # of another run, in the folder where one stands
    code, said, err = command("figures", "baseline-digits", "--device", "cpu", "--out", tmp_path / "figures")
    assert code == 0 and "curve" not in said, err
    code, said, err = command("export", "baseline-digits", "--program", tmp_path / "net.pt2")
    assert code == 0 and "allowed" in said, err


def test_a_run_stored_in_a_file_says_everything():
    """The model can be built again from `about`."""
    model = torchcaps.load("capsnet-digits-pairs")
    assert str(stored(model.about["run"]).build().eval()) == str(model)
