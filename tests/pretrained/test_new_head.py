"""Fine-tuning: a trained model with a new head for other classes, everything else as it was trained."""

import pytest
import torch

import torchcaps
from torchcaps.data import load as load_data
from torchcaps.ops import margin_loss
from torchcaps.papers import RECIPES
from torchcaps.pretrained import prepare
from torchcaps.train.checkpoint import save_checkpoint
from torchcaps.train.plain import to_plain

NORB = "em-capsnet-smallnorb"
HEADS = {  # tensors that know the number of classes
    "capsnet-digits": {"classes.weight", "classes.bias", "decoder.net.0.weight"},
    NORB: {"classes.weight", "classes.bias", "classes.beta_use", "classes.beta_ignore"},
}


@pytest.mark.parametrize(("name", "n_classes"), [("capsnet-digits", 7), ("capsnet-digits", 10), (NORB, 5)])
def test_the_head_is_new_and_the_rest_is_kept(name, n_classes):
    """Also where the number of classes stays, as in the last two."""
    trained, tuned = torchcaps.load(name), torchcaps.load(name, n_classes=n_classes)
    before, after = trained.state_dict(), tuned.state_dict()
    new = {key for key in before if before[key].shape != after[key].shape or not torch.equal(before[key], after[key])}
    assert new >= HEADS[name] - {key for key in HEADS[name] if "beta" in key}  # which may start as they ended
    assert new <= HEADS[name]
    assert tuned.labels == tuple(map(str, range(n_classes))) and tuned.about["n_classes"] == n_classes
    assert tuned(torch.rand(2, *tuned.image)).activity.shape == (2, n_classes)


def test_fine_tuning_learns_other_classes_and_draws_them():
    """Odd or even, from features that never change: 25 steps of the new head alone."""
    pytest.importorskip("sklearn")
    torch.manual_seed(0)
    model = torchcaps.load("capsnet-digits", n_classes=2)
    (pixels, labels), (test_pixels, test_labels) = (load_data("digits", part) for part in ("train", "test"))
    model.conv.requires_grad_(False)
    model.primary.requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    for step in range(25):
        some = slice(20 * step, 20 * step + 20)
        capsules = model(prepare(model, pixels[some]))
        loss = margin_loss(capsules.activity, torch.nn.functional.one_hot(labels[some] % 2, 2)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        capsules = model(prepare(model, test_pixels))
    assert (capsules.activity.argmax(-1) == test_labels % 2).float().mean() > 0.9  # half by chance
    assert model.reconstruct(capsules.poses, test_labels % 2).shape == (len(test_labels), 1, 16, 16)


def test_a_tuned_model_goes_to_the_hub_with_its_classes(tmp_path):
    pytest.importorskip("huggingface_hub")
    from torchcaps.pretrained import hub

    tuned = torchcaps.load("capsnet-digits", n_classes=3)
    hub.of(tuned).save_pretrained(tmp_path)
    again = hub.CapsNet.from_pretrained(tmp_path)
    assert again.labels == ("0", "1", "2")
    assert all(torch.equal(tensor, again.state_dict()[key]) for key, tensor in tuned.state_dict().items())


def test_a_model_without_classes_and_a_wrong_number_are_refused(tmp_path):
    run = RECIPES["smoke/sparsecaps"].make()
    path, about = tmp_path / "sparse.safetensors", {"name": "sparse", "seed": 0, "step": 0, "run": to_plain(run)}
    save_checkpoint(path, {f"model/{key}": tensor for key, tensor in run.build().state_dict().items()}, about)
    with pytest.raises(ValueError, match=r"sparsecaps learns without classes.*load it without n_classes"):
        torchcaps.load(path, n_classes=5)
    for wrong in (0, 2.5, True, "5"):
        with pytest.raises(ValueError, match="n_classes must be a whole number, 1 or more; got"):
            torchcaps.load("capsnet-digits", n_classes=wrong)


@pytest.mark.parametrize("name", ["smoke/baseline", "smoke/lcapsnet", "smoke/supcaps", "smoke/em-sentences"])
def test_every_model_with_classes_takes_a_new_head(name, tmp_path):
    run = RECIPES[name].make()
    path, about = tmp_path / "model.safetensors", {"name": name, "seed": 0, "step": 0, "run": to_plain(run)}
    model = run.build()
    save_checkpoint(path, {f"model/{key}": tensor for key, tensor in model.state_dict().items()}, about)
    tuned, before = torchcaps.load(path, n_classes=4), model.state_dict()
    same = [key for key, tensor in tuned.state_dict().items() if torch.equal(tensor, before[key])]
    assert 0 < len(same) < len(before)
