"""The network of Heinsen 2019, figure 3."""

import pytest
import torch
from torch import nn

from torchcaps.data.batches import Batch
from torchcaps.models import EMCapsNet
from torchcaps.train.tasks.logits import ClassifyScores

SMALL = {"channels": 8, "strides": (1, 2), "n_types": 4, "n_parts": 6, "d_pose": 2}


def n_parameters(*args, **options) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in EMCapsNet(*args, **options).parameters())


def test_parameter_count_is_the_papers():
    assert n_parameters() == 271_688  # "approximately 272,000"


def test_parameters_by_hand():
    first, others = (2 * 4) + (4 * 64 * 9 + 64), (2 * 64) + (64 * 64 * 9 + 64)  # batch normalization, then convolution
    scores, poses = (2 * 64) + (64 * 64 + 64), (2 * 64) + (64 * 1024 + 1024)
    parts = 64 * 4 * 4 + 64 * 4 * 4 + 2 * 64  # any number of inputs
    classes = 64 * 5 * 4 * 4 + 64 * 5 * 4 * 4 + 2 * 64 * 5
    assert n_parameters() == first + 5 * others + scores + poses + parts + classes


def test_ablations_cost_what_they_should():
    assert n_parameters(coordinates=False) == 271_688 - 2 * 64 * 9 - 2 * 2
    assert n_parameters(cost="tied") == n_parameters(cost="none") == 271_688 - 64 - 64 * 5
    assert n_parameters(density="k-means") == n_parameters(n_iters=5) == 271_688


def test_sizes_are_the_papers():
    with torch.device("meta"):
        model = EMCapsNet()
        primary = model.primary_capsules(torch.empty(1, 2, 96, 96))
    assert model.grid == (9, 9)
    assert primary.poses.shape == (1, 9 * 9 * 64, 4, 4) and primary.activity.shape == (1, 5184)


@pytest.mark.parametrize("size", [(12, 12), (9, 20), (5, 5)])
def test_one_model_takes_images_of_any_size(size):
    model = EMCapsNet((2, 12, 12), 3, **SMALL)
    images = torch.rand(2, 2, *size)
    capsules = model(images)
    assert capsules.poses.shape == (2, 3, 2, 2) and capsules.activity.shape == (2, 3)
    rows, columns = model.places(*size)
    assert model.primary_capsules(images).activity.shape == (2, 4 * rows * columns)


@pytest.mark.parametrize(("size", "grid"), [((29, 29), (1, 1)), ((96, 96), (9, 9)), ((48, 30), (3, 1))])
def test_places_are_those_of_the_convolutions(size, grid):
    with torch.device("meta"):
        model = EMCapsNet()
        maps = model.maps(torch.empty(1, 4, *size))
    assert model.places(*size) == tuple(maps.shape[2:]) == grid


def test_too_small_images_are_refused_when_building_and_when_used():
    message = "6 convolutions of 3x3 with strides 1, 2, 1, 2, 1, 2 want images of at least 29x29, got 28x96; give larger images"
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        EMCapsNet((2, 28, 96))
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        EMCapsNet()(torch.empty(1, 2, 28, 96))


@pytest.mark.parametrize("shape", [(2, 1, 12, 12), (2, 12, 12), (1, 3, 12, 12)])
def test_other_channels_are_refused(shape):
    with pytest.raises(ValueError, match=r"EMCapsNet expects images \[b, 2, height, width\], got"):
        EMCapsNet((2, 12, 12), 3, **SMALL)(torch.rand(shape))


def test_a_primary_capsule_is_all_channels_of_a_type_at_one_place(rng):
    model, images = EMCapsNet((2, 12, 12), 3, **SMALL).eval(), torch.rand(1, 2, 12, 12, generator=rng)
    seen = []
    model.maps.register_forward_hook(lambda module, inputs, output: seen.append((inputs[0], output)))
    capsules = model.primary_capsules(images)
    (given, maps), (rows, columns) = seen[0], model.places(12, 12)
    scores, poses = model.scores(maps)[0], model.poses(maps)[0]
    index = 2 * rows * columns + 1 * columns + 3  # type 2, row 1, column 3
    torch.testing.assert_close(capsules.score[0, index], scores[2, 1, 3])
    torch.testing.assert_close(capsules.poses[0, index].flatten(), poses[2 * 4 : 3 * 4, 1, 3])
    assert torch.equal(given[:, :2], images)


def test_coordinates_run_from_minus_one_to_one(rng):
    model, images = EMCapsNet((2, 12, 12), 3, **SMALL), torch.rand(2, 2, 5, 9, generator=rng)
    seen = []
    model.maps.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    model(images)
    across, down = seen[0][1, 2], seen[0][1, 3]
    torch.testing.assert_close(across, torch.linspace(-1, 1, 9).expand(5, 9))
    torch.testing.assert_close(down, torch.linspace(-1, 1, 5)[:, None].expand(5, 9))


def test_it_starts_like_the_authors_code():
    model = EMCapsNet((2, 30, 30))
    std = (2 / (64 * 9)) ** 0.5  # Kaiming's, for a rectifier
    assert model.maps[3][1].weight.std().item() == pytest.approx(std, rel=0.02)
    bound = 1 / 64**0.5  # nn.Conv2d's own
    assert 0.9 * bound < model.poses[1].weight.abs().max() <= bound
    assert not any(layer.beta_use.any() for layer in (model.parts, model.classes))
    assert [type(part) for part in model.maps[0]] == [nn.BatchNorm2d, nn.Conv2d, nn.SiLU]


def test_a_gradient_reaches_every_parameter(rng):
    model = EMCapsNet((2, 12, 12), 3, **SMALL)
    for layer in (model.parts, model.classes):  # scores that start at zero hide everything below them
        nn.init.normal_(layer.beta_use)
    losses = ClassifyScores().losses(model, Batch(torch.rand(6, 2, 12, 12, generator=rng), torch.arange(6) % 3))
    losses["loss"].backward()
    assert {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()} == set()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_steps_end_where_the_model_does(rng):
    model, images = EMCapsNet((2, 12, 12), 3, n_iters=4, **SMALL).eval(), torch.rand(2, 2, 12, 12, generator=rng)
    steps = list(model.steps(images))
    assert len(steps) == 4 and steps[0].used.shape == (2, 6, 3)
    torch.testing.assert_close(steps[-1].poses, model(images).poses)


# The task


def test_the_loss_is_the_cross_entropy_of_the_scores(rng):
    model = EMCapsNet((2, 12, 12), 3, **SMALL).eval()
    nn.init.normal_(model.classes.beta_use)
    batch = Batch(torch.rand(4, 2, 12, 12, generator=rng), torch.tensor([0, 1, 2, 0]))
    scores = model(batch.images).logit
    losses = ClassifyScores().losses(model, batch)
    picked = scores.softmax(-1)[torch.arange(4), batch.labels]
    torch.testing.assert_close(losses["loss"], -picked.log().mean())
    torch.testing.assert_close(losses["error_percent"], 100 * (scores.argmax(-1) != batch.labels).float().mean())


def test_at_the_start_every_class_is_as_likely():
    """The betas are zero, so are the scores: the loss is log n."""
    model = EMCapsNet((2, 12, 12), 3, **SMALL)
    loss = ClassifyScores().losses(model, Batch(torch.rand(3, 2, 12, 12), torch.arange(3)))["loss"]
    torch.testing.assert_close(loss, torch.tensor(3.0).log())


def learnt(rng, first_betas: float = 0.0, **options) -> tuple[EMCapsNet, Batch, list[float]]:
    """Six images of three classes, forty steps. `first_betas`: how far apart the parts' betas start."""
    model, task = EMCapsNet((2, 12, 12), 3, **SMALL, **options), ClassifyScores()
    nn.init.normal_(model.parts.beta_use, std=first_betas, generator=rng)
    batch = Batch(torch.rand(6, 2, 12, 12, generator=rng), torch.arange(6) % 3)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(40):
        loss = task.losses(model, batch)["loss"]
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return model, batch, losses


def test_it_learns_a_few_pictures_by_heart(rng):
    _, _, losses = learnt(rng)
    assert losses[-1] < 0.3 * losses[0], losses


@pytest.mark.parametrize(("n_iters", "first_betas", "alike"), [(1, 0.0, True), (1, 0.1, False), (2, 0.0, False)])
def test_with_one_pass_and_equal_betas_all_parts_stay_alike_and_all_pictures_get_one_answer(
    rng, n_iters, first_betas, alike
):
    """No score depends on a vote then, and equal betas get equal gradients: a class's score is one number times its own
    constant.
    """
    model, batch, losses = learnt(rng, first_betas, n_iters=n_iters)
    parts = model.parts(model.primary_capsules(batch.images))
    assert (parts.score.std(-1).max() < 1e-4 * parts.score.abs().max()) == alike
    answers = model.classes(parts).confidence.argmax(-1)
    assert len(answers.unique()) == 1 or not alike
    assert losses[-1] < losses[0], "it learns all the same"


def test_with_two_passes_the_answers_differ(rng):
    model, batch, _ = learnt(rng, n_iters=2)
    assert len(model(batch.images).confidence.argmax(-1).unique()) == 3


def test_a_network_of_torch_1_1_starts_with_scales_and_convolutions_of_its_defaults():
    torch.manual_seed(0)
    then, now = EMCapsNet(preset="torch-1.1"), EMCapsNet()
    scales, ones = (
        torch.cat([m.weight.detach() for m in model.modules() if isinstance(m, nn.BatchNorm2d)])
        for model in (then, now)
    )
    assert (
        scales.min() >= 0 and scales.max() <= 1 and scales.mean() == pytest.approx(0.5, abs=0.05) and (ones == 1).all()
    )
    stds = [model.maps[3][1].weight.detach().std().item() for model in (then, now)]  # 64 · 9 inputs
    assert stds == pytest.approx([(3 * 576) ** -0.5, (2 / 576) ** 0.5], rel=0.05)
    assert then.maps[3][1].bias.any() and not now.maps[3][1].bias.any()
    assert sum(p.numel() for p in then.parameters()) == 271_688
    with pytest.raises(ValueError, match=r"preset must be one of official, torch-1\.1; got 'kaiming'"):
        EMCapsNet(preset="kaiming")
