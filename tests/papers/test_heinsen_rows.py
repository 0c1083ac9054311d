"""The rows of Heinsen 2019 on smallNORB are what their names say."""

import re
import time
from dataclasses import replace

import pytest
import torch
from heinsen_results import CHOSEN, n_parameters

from torchcaps.data import Labelled, info
from torchcaps.data.augment import Crop, Mixup
from torchcaps.data.batches import Batch, Batches
from torchcaps.layers import EMCapsules
from torchcaps.papers import RECIPES
from torchcaps.papers.changes import with_mixup
from torchcaps.train.plain import differences, to_plain
from torchcaps.train.step import TrainingStep

ROWS = {name.removeprefix("heinsen2019/"): recipe for name, recipe in RECIPES.items() if name.startswith("heinsen2019/") and recipe.claim}
TRIED = {"long": "stages[0].epochs: 3, 6", "float32": "stages[0].precision: bfloat16, float32", "no-mixup": "augment: "}
TABLE_2 = ["smallnorb", "smallnorb-capsnet", "smallnorb-cnn"]
BESIDE = re.compile(r"(stages\[0\]\.)?(watch|ema|unmixed):")  # a curve and further numbers, which change nothing in the training


def changes(name: str, other: str) -> list[str]:
    """Of the training."""
    found = differences(*(to_plain(ROWS[row].make()) for row in (name, other)))
    return [line for line in found if not BESIDE.match(line)]


@pytest.mark.parametrize("name", [*TABLE_2, "smallnorb-mixup-half", "smallnorb-cnn-mixup-half"])
def test_table_2_tells_parameters_and_epochs_as_they_are(name):
    claim, run = ROWS[name].claim, ROWS[name].make()
    size, unit = re.search(r"([\d.]+)([KM]) parameters", claim.row).groups()
    assert claim.table == "2" and n_parameters(run) == pytest.approx(float(size) * {"K": 1e3, "M": 1e6}[unit], rel=0.005)
    assert f"{run.stages[0].epochs} epochs" in claim.row and run.stages[0].steps is None


def test_the_networks_beside_it_are_trained_alike():
    """Everything of a stage but the task, and every picture at its own scale: 16 of 96 pixels are 8 of 48."""
    ours, capsnet, cnn = (ROWS[name].make() for name in TABLE_2)
    for run in (capsnet, cnn):
        other = [line for line in differences(to_plain(ours.stages[0]), to_plain(run.stages[0])) if not BESIDE.match(line)]
        assert other and all(line.startswith("task") for line in other)
        assert [type(part) for part in run.augment] == [type(part) for part in ours.augment]
        crop, whole = run.augment[0], info(run.data).shape[-1]
        assert crop.size == whole and crop.border / whole == ours.augment[0].border / ours.augment[0].size
    assert n_parameters(cnn) == 271_545 and n_parameters(ours) == 271_688


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("no-cost", "model_args.cost: separate, none"),
        ("tied", "model_args.cost: separate, tied"),
        *[(f"r{n}", f"model_args.n_iters: 3, {n}") for n in (1, 2, 4, 5)],
        ("no-coordinates", "model_args.coordinates: True, False"),
        ("no-mixup", "augment: "),
    ],
)
def test_an_ablation_changes_one_thing(name, changed):
    (other,) = changes("smallnorb", f"smallnorb-{name}")
    assert other.startswith(changed)


@pytest.mark.parametrize(
    ("name", "as_it_is", "alpha"),
    [
        ("smallnorb-mixup-half", "smallnorb-no-coordinates-r2", 0.5),
        ("smallnorb-cnn-mixup-half", "smallnorb-cnn", 0.5),
        ("choose-folds-mixup-half", "choose-folds-no-coordinates-r2", 0.5),
        ("choose-folds-mixup-one", "choose-folds-no-coordinates-r2", 1),
    ],
)
def test_more_mixup_changes_the_shares_alone(name, as_it_is, alpha):
    more, usual = (RECIPES[f"heinsen2019/{row}"].make() for row in (name, as_it_is))
    assert more.augment == (Crop(96, border=16), Mixup(alpha)) and replace(more, augment=usual.augment) == usual
    with pytest.raises(ValueError, match="mixes nothing"):
        with_mixup(replace(usual, augment=(Crop(96, border=16),)), alpha)


@pytest.mark.parametrize(("chosen", "row"), [*CHOSEN.values(), ("choose-sst2-mlp-wider-slow", "sst2-mlp-wider")])
def test_rows_by_the_best_of_the_validation_part_are_trained_as_what_was_chosen(chosen, row):
    other = differences(*(to_plain(RECIPES[f"heinsen2019/{name}"].make()) for name in (chosen, row)))
    assert [line.split(": ")[0] for line in other] == ["data", "stages[0].watch"]


def test_no_coordinates_and_two_passes_are_those_two_changes():
    both = [*changes("smallnorb", "smallnorb-no-coordinates"), *changes("smallnorb", "smallnorb-r2")]
    assert sorted(changes("smallnorb", "smallnorb-no-coordinates-r2")) == sorted(both)


@pytest.mark.parametrize(
    ("name", "as_it_is", "changed"),
    [
        ("choose-smallnorb-float32", "choose-smallnorb", ["stages[0].precision: bfloat16, float32"]),
        ("choose-folds-light", "choose-folds", ["augment: "]),
        *[(f"choose-sst2{kind}-{name}", f"choose-sst2{kind}", [line]) for kind in ("", "-mlp", "-linear") for name, line in TRIED.items()],
    ],
)
def test_a_choice_changes_one_thing(name, as_it_is, changed):
    """And the baselines have the choices of the routing."""
    runs = [to_plain(RECIPES[f"heinsen2019/{each}"].make()) for each in (as_it_is, name)]
    other = differences(*runs)
    assert len(other) == len(changed) and all(line.startswith(start) for line, start in zip(other, changed, strict=True))


def test_rows_of_viewpoints_say_on_what_they_were_trained():
    views = {name: recipe for name, recipe in ROWS.items() if recipe.claim.table == "viewpoints"}
    assert len(views) == 6
    for name, recipe in views.items():
        run = recipe.make()
        assert "-viewpoint-" in run.data and "trained on official test toys" in recipe.claim.row
        assert run.tests == (f"{run.data}-familiar",) and recipe.claim.beside == (f"{run.tests[0]}.error_percent",)
        assert name.split("-")[0] in run.data
    assert not any("-viewpoint-" in recipe.make().data for name, recipe in ROWS.items() if name not in views)


def gradients(model, backend, batch, task):
    for layer in model.modules():
        if isinstance(layer, EMCapsules):
            layer.backend = backend
    model.zero_grad()
    task.losses(model, batch)["loss"].backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def different(one, other) -> dict[str, float]:
    """Of every parameter's gradient, how far apart they are, as a share."""
    return {name: ((grad - other[name]).norm() / other[name].norm().clamp(min=1e-12)).item() for name, grad in one.items()}


def whole_network(device: str, n: int):
    """Images mixed as in training, and betas that are not zero: with those no gradient would pass the routing."""
    run, rng = ROWS["smallnorb"].make(), torch.Generator().manual_seed(0)
    model = run.build().to(device)
    for layer in (model.parts, model.classes):
        for beta in (layer.beta_use, layer.beta_ignore):
            beta.data = torch.randn(beta.shape, generator=rng).to(device) / layer.beta_use.shape[0]
    images, labels = torch.rand(n, 2, 96, 96, generator=rng), torch.arange(n) % 5
    batch = Mixup().mix(Batch(images.to(device), labels.to(device)), torch.rand(n, generator=rng).to(device))
    return model, batch, run.stages[0].task


@pytest.mark.slow
def test_the_whole_network_has_gradients_and_the_comparison_sees_a_wrong_one():
    model, batch, task = whole_network("cpu", 2)
    found = gradients(model, "reference", batch, task)
    assert all(grad.isfinite().all() and grad.any() for grad in found.values())
    wrong = found | {"parts.weight": found["parts.weight"] * 1.1}
    assert max(different(found, found).values()) == 0 and different(wrong, found)["parts.weight"] == pytest.approx(0.1, rel=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_cuda_the_kernels_give_the_whole_network_the_gradients_of_the_reference(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    model, batch, task = whole_network("cuda", 4)
    found = different(gradients(model, "triton", batch, task), gradients(model, "reference", batch, task))
    assert max(found.values()) < 0.01, found


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_cuda_a_step_is_one_graph_with_the_kernels_and_keeps_to_its_bars():
    """At most 5 ms and 1.5 GB for a batch of 20, all training images on the device; measured alone on one H200."""
    run, device, rng = ROWS["smallnorb"].make(), torch.device("cuda"), torch.Generator().manual_seed(0)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    n = info("smallnorb").n_train
    images = torch.randint(0, 256, (n, 2, 96, 96), dtype=torch.uint8, generator=rng)
    batches = Batches(Labelled(images, torch.arange(n) % 5), 20, run.augment, device)
    batches.new_epoch(rng)
    model = run.build().to(device, memory_format=torch.channels_last)
    step = TrainingStep(run.stages[0], model, batches, 1000, device)
    for _ in range(50):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(200):
        step()
    torch.cuda.synchronize()
    ms = 5 * (time.perf_counter() - start)
    gigabytes = (torch.cuda.max_memory_allocated() - before) / 1e9
    assert step.graph is not None and step.routing == "triton inside the compiled step, one CUDA graph"
    assert int(step.first_bad) == -1
    assert ms <= 5 and gigabytes <= 1.5, f"{ms:.2f} ms, {gigabytes:.2f} GB"
