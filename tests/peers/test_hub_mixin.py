"""Every model goes through Hugging Face's mixin, save_pretrained to from_pretrained, bit by bit and offline.

tests/pretrained/test_hub.py asks what the library adds to the mixin: settings, refusals, cards.
"""

import json

import pytest
import torch

from torchcaps.models import MODELS, SENTENCE_MODELS
from torchcaps.papers import RECIPES
from torchcaps.pretrained import hub
from torchcaps.pretrained.loading import describe
from torchcaps.train.recipe import Run

EACH = {RECIPES[name].make().model: name for name in RECIPES if name.startswith("smoke/") and "pairs" not in name}

pytestmark = pytest.mark.usefixtures("offline_hub")


def described(recipe: str) -> tuple[torch.nn.Module, Run]:
    """As `torchcaps.load` returns it, with the weights of the beginning."""
    run = RECIPES[recipe].make()
    model = run.build().eval()
    describe(model, run, {"name": recipe, "seed": 0, "step": 20})
    return model, run


def inputs(name: str, run: Run) -> tuple[torch.Tensor, ...]:
    """Two images or sentences of the model's size."""
    *shape, _ = run.sizes()
    if name in SENTENCE_MODELS:
        return torch.randn(2, 3, *shape[-2:]), torch.ones(2, 3)
    return (torch.rand(2, *shape[0]),)


def tensors(said) -> list[torch.Tensor]:
    return [said] if isinstance(said, torch.Tensor) else [part for part in said if isinstance(part, torch.Tensor)]


def test_every_model_of_the_library_is_among_these():
    assert {*EACH} == {*MODELS, *SENTENCE_MODELS}
    assert len(hub.CLASSES) == len(EACH) == 17


@pytest.mark.parametrize("name", EACH)
def test_a_model_comes_back_as_it_was(name, tmp_path):
    model, run = described(EACH[name])
    hub.of(model).save_pretrained(tmp_path / "one")
    assert {path.name for path in (tmp_path / "one").iterdir()} == {"model.safetensors", "config.json", "README.md"}
    again = getattr(hub, type(model).__name__).from_pretrained(tmp_path / "one")
    assert isinstance(again, type(model)) and not again.training
    assert (again.labels, again.about) == (model.labels, model.about)
    wanted, got = model.state_dict(), again.state_dict()
    assert [*wanted] == [*got] and all(torch.equal(wanted[key], got[key]) for key in wanted)
    assert str(again) == str(model)  # built with the same settings
    shown = inputs(name, run)
    with torch.no_grad():
        said = [tensors(each(*shown)) for each in (model, again)]
    assert said[0] and all(torch.equal(one, other) for one, other in zip(*said, strict=True))
    again.save_pretrained(tmp_path / "two")  # a second trip changes nothing
    configs = [json.loads((tmp_path / folder / "config.json").read_text()) for folder in ("one", "two")]
    assert configs[0] == configs[1]
    weights = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in ("one", "two")]
    assert weights[0] == weights[1]
