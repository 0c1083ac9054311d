"""Additions of the library to the hub's mixin: models of `torchcaps.load`, cards, refusals; nothing here needs the network."""

import json
import pickle
import sys

import pytest
import torch

import torchcaps
from torchcaps.pretrained import hub, prepare

pytestmark = pytest.mark.usefixtures("offline_hub")


def test_a_trained_model_answers_the_same_after_it(tmp_path):
    model = torchcaps.load("capsnet-digits")
    hub.of(model).save_pretrained(tmp_path)
    again = hub.CapsNet.from_pretrained(str(tmp_path))
    pixels = torch.randint(0, 256, (3, 1, 16, 16), dtype=torch.uint8)
    with torch.no_grad():
        assert torch.equal(again(prepare(again, pixels)).poses, model(prepare(model, pixels)).poses)
    card = (tmp_path / "README.md").read_text()
    assert "license: mit" in card and "library_name: torchcaps" in card
    assert (
        'hub.CapsNet.from_pretrained("' in card and "More Information" not in card
    )  # huggingface_hub's own leaves that to the user


def test_class_names_of_a_new_head_go_too(tmp_path):
    model = torchcaps.load("capsnet-digits", n_classes=3)
    model.labels = ("crow", "gull", "owl")
    hub.of(model).save_pretrained(tmp_path)
    again = hub.CapsNet.from_pretrained(tmp_path)
    assert hub.of(model).labels == again.labels == hub.of(again).labels == ("crow", "gull", "owl")


def test_a_model_whose_decoder_was_taken_out_goes_without(tmp_path):
    model = torchcaps.load("capsnet-digits", n_classes=2)
    model.decoder = None
    hub.of(model).save_pretrained(tmp_path)
    again = hub.CapsNet.from_pretrained(tmp_path)
    images = torch.rand(2, 1, 16, 16)
    assert again.decoder is None and torch.equal(again(images).poses, model(images).poses)


def test_one_built_by_hand_goes_too_and_is_an_ordinary_model(tmp_path):
    model = hub.CapsNet((1, 16, 16), 3, channels=4, kernel=5, n_types=2, primary_kernel=5, hidden=(8,))
    assert isinstance(model, torchcaps.CapsNet)
    model.save_pretrained(tmp_path)
    again = hub.CapsNet.from_pretrained(tmp_path)
    images = torch.rand(2, 1, 16, 16)
    assert torch.equal(again(images).poses, model.eval()(images).poses)
    assert again.image == (1, 16, 16)  # JSON's list is a tuple again
    assert torch.equal(pickle.loads(pickle.dumps(model))(images).poses, model(images).poses)
    with pytest.raises(ValueError, match="has no run that says how its images were prepared"):
        prepare(again, images)
    plain = torchcaps.CapsNet((1, 16, 16), 3, channels=4, kernel=5, n_types=2, primary_kernel=5, hidden=(8,))
    with pytest.raises(ValueError, match=r"takes a model of `torchcaps.load`.*got a CapsNet without"):
        hub.of(plain)


def test_weights_of_another_model_are_refused_and_none_is_left_out(tmp_path):
    model = hub.CapsNet((1, 16, 16), 3, channels=4, kernel=5, n_types=2, primary_kernel=5, hidden=(8,))
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"n_classes": 4}))
    with pytest.raises(ValueError, match=r"another model: classes.weight is .*, not"):
        hub.CapsNet.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden": [8, 8]}))
    with pytest.raises(ValueError, match="no decoder"):  # huggingface_hub would leave them as they are drawn
        hub.CapsNet.from_pretrained(tmp_path)


def test_a_folder_of_another_class_is_refused_by_name(tmp_path):
    hub.of(torchcaps.load("capsnet-digits")).save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=r"Baseline was asked for, and this is the config of a CapsNet; take hub\.CapsNet"
    ):
        hub.Baseline.from_pretrained(tmp_path)


def test_a_pickle_on_the_hub_is_refused(tmp_path, monkeypatch):
    """The mixin takes pytorch_model.bin where there is no model.safetensors."""
    from huggingface_hub.errors import EntryNotFoundError

    torch.save({}, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(
        '{"image": [1, 16, 16], "channels": 4, "kernel": 5, "n_types": 2, "primary_kernel": 5, "hidden": [8]}'
    )

    def download(repo_id: str, filename: str, **more) -> str:
        if filename == "model.safetensors":
            raise EntryNotFoundError("no such file")
        return str(tmp_path / filename)

    monkeypatch.setattr("huggingface_hub.hub_mixin.hf_hub_download", download)
    with pytest.raises(ValueError, match=r"pytorch_model.bin is a pickle.*no model.safetensors"):
        hub.CapsNet.from_pretrained("someone/something")


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    hub.on_hub.cache_clear()
    try:
        with pytest.raises(ImportError, match=r"pip install 'torchcaps\[hub\]'"):
            hub.CapsNet  # noqa: B018
    finally:
        hub.on_hub.cache_clear()
    with pytest.raises(AttributeError, match="has no Nothing; it has CapsNet"):
        hub.Nothing  # noqa: B018
