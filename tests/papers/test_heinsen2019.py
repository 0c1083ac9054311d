"""The rows of Heinsen 2019 are what their names say."""

import re
import time

import pytest
import torch

from torchcaps.data import Labelled, info
from torchcaps.data.augment import Crop, Mixup
from torchcaps.data.batches import Batch, Batches
from torchcaps.layers import EMCapsules
from torchcaps.papers import RECIPES
from torchcaps.train.plain import differences, to_plain
from torchcaps.train.recipe import Run
from torchcaps.train.step import TrainingStep

ROWS = {
    name.removeprefix("heinsen2019/"): recipe
    for name, recipe in RECIPES.items()
    if name.startswith("heinsen2019/") and recipe.claim
}
TABLE_2 = ["smallnorb", "smallnorb-capsnet", "smallnorb-cnn"]
BESIDE = re.compile(r"(stages\[0\]\.)?(watch|ema|unmixed):")  # measured beside it, no part of the training


def n_parameters(run: Run) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in run.build().parameters())


def changes(name: str, other: str) -> list[str]:
    """Differences in training."""
    found = differences(*(to_plain(ROWS[row].make()) for row in (name, other)))
    return [line for line in found if not BESIDE.match(line)]


@pytest.mark.parametrize(
    ("name", "n"),
    [
        ("smallnorb", 271_688),
        ("smallnorb-cnn", 271_545),
        ("smallnorb-capsnet", 10_593_360),
        ("smallnorb-mixup-half", 270_532),
        ("smallnorb-cnn-mixup-half", 271_545),
    ],
)
def test_the_networks_have_the_sizes_that_the_page_tells(name, n):
    run = ROWS[name].make()
    assert n_parameters(run) == n and run.stages[0].epochs == 50 and run.stages[0].steps is None


def test_the_networks_beside_it_are_trained_alike():
    """Everything of a stage but the task, and every image at its own scale: 16 of 96 pixels are 8 of 48."""
    ours, capsnet, cnn = (ROWS[name].make() for name in TABLE_2)
    for run in (capsnet, cnn):
        other = [
            line for line in differences(to_plain(ours.stages[0]), to_plain(run.stages[0])) if not BESIDE.match(line)
        ]
        assert other and all(line.startswith("task") for line in other)
        assert [type(part) for part in run.augment] == [type(part) for part in ours.augment]
        crop, whole = run.augment[0], info(run.data).shape[-1]
        assert crop.size == whole and crop.border / whole == ours.augment[0].border / ours.augment[0].size


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
    ("name", "base", "changed"),
    [
        ("smallnorb-mixup-half", "smallnorb", {"augment[1].alpha", "model_args.coordinates", "model_args.n_iters"}),
        ("smallnorb-cnn-mixup-half", "smallnorb-cnn", {"augment[1].alpha"}),
        ("smallnorb-float32", "smallnorb", {"stages[0].precision"}),
        ("sst2-wide", "sst2", {"model_args.d_pose"}),
        ("sst5-no-depth", "sst5", {"model_args.depth"}),
        ("sst2-no-depth", "sst2", {"model_args.depth"}),
        ("sst2-linear", "sst5-linear", {"data"}),
    ],
)
def test_a_variant_changes_what_it_says(name, base, changed):
    assert {line.split(": ")[0] for line in changes(base, name)} == changed


def test_more_mixup_is_for_routing_and_cnn_alike():
    runs = [ROWS[name].make() for name in ("smallnorb-mixup-half", "smallnorb-cnn-mixup-half")]
    assert all(run.augment == (Crop(96, border=16), Mixup(0.5)) for run in runs)


def test_rows_of_viewpoints_say_on_what_they_were_trained():
    views = {name: recipe for name, recipe in ROWS.items() if recipe.claim.table == "viewpoints"}
    assert len(views) == 4
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
    """Relative difference of every parameter's gradient."""
    return {
        name: ((grad - other[name]).norm() / other[name].norm().clamp(min=1e-12)).item() for name, grad in one.items()
    }


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
    assert max(different(found, found).values()) == 0 and different(wrong, found)["parts.weight"] == pytest.approx(
        0.1, rel=1e-3
    )


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
