"""Which places a class capsule used: followed back through both layers, nothing lost, laid over the right pixels."""

import pytest
import torch
from einops import rearrange

from torchcaps.data import load
from torchcaps.figures import all_figures
from torchcaps.figures.places import places_used, used_places, window
from torchcaps.layers import Capsules
from torchcaps.models import CapsNet, EMCapsNet

SMALL = {"channels": 6, "strides": (2, 1), "n_types": 3, "n_parts": 4, "d_pose": 2}


@pytest.fixture
def model(rng):
    made = EMCapsNet((1, 16, 16), 10, **SMALL).eval()
    for layer in (made.parts, made.classes):
        for beta in (layer.beta_use, layer.beta_ignore):
            beta.data = torch.randn(beta.shape, generator=rng)
    return made


def test_the_way_back_is_the_product_of_what_was_used_in_both_layers(model, rng):
    images = torch.rand(2, 1, 11, 16, generator=rng)
    used, shares = places_used(model, images)
    primary = model.primary_capsules(images)
    parts = list(model.parts.steps(primary))[-1]
    classes = list(model.classes.steps(Capsules.scored(parts.poses, parts.scores)))[-1]
    rows, columns = model.places(11, 16)
    by_place = rearrange(parts.used, "b (n h w) p -> b n h w p", h=rows, w=columns)
    wanted = sum(by_place[:, n, 1, 2, p, None] * classes.used[:, p] for n in range(3) for p in range(4))
    torch.testing.assert_close(used[:, :, 1, 2], wanted)
    torch.testing.assert_close(shares, model(images).logit.softmax(-1))


def test_no_place_gives_more_than_it_has(model, rng):
    images = torch.rand(3, 1, 16, 16, generator=rng)
    used = places_used(model, images).places
    there = model.primary_capsules(images).activity
    given = rearrange(there, "b (n h w) -> b n h w", h=5, w=5).sum(1)
    assert (used >= 0).all() and (used.sum(1) <= given + 1e-5).all() and used.sum() > 0.01 * given.sum()


def test_a_place_sees_the_pixels_that_the_window_says(model):
    """Move one pixel: the places whose window holds it change, and no other."""
    looks = window(model)
    assert looks == (3, 2, 7)  # 3x3 with stride 2, then 3x3 on every second pixel
    assert window(EMCapsNet()) == (14, 8, 29)
    maps = model.maps[0][1], model.maps[1][1]  # the convolutions alone: batch normalisation sees one image here
    image = torch.zeros(1, 3, 16, 16)
    other = image.clone()
    other[..., 7, 12] = 1
    changed = (maps[1](maps[0](other)) != maps[1](maps[0](image))).any(1)[0]
    rows, columns = (
        (torch.arange(5) * looks.step + looks.first - pixel).abs() <= looks.reach // 2 for pixel in (7, 12)
    )
    assert torch.equal(changed, rows[: changed.shape[0], None] & columns[None, : changed.shape[1]])


def test_another_network_and_pictures_that_are_too_small_are_refused(model):
    with pytest.raises(ValueError, match="known for EM routing alone; got a CapsNet, give an EMCapsNet"):
        places_used(CapsNet((1, 16, 16), channels=2, kernel=3, primary_kernel=3, n_types=2), torch.zeros(1, 1, 16, 16))
    with pytest.raises(
        ValueError, match="2 convolutions of 3x3 with strides 2, 1 want images of at least 7x7, got 6x16"
    ):
        places_used(model, torch.zeros(1, 1, 6, 16))


def test_the_figure_has_a_map_for_every_class_over_every_picture(model, rng):
    pytest.importorskip("matplotlib")
    images = [
        torch.randint(0, 256, (1, 16, 16), dtype=torch.uint8, generator=rng),
        torch.rand(1, 20, 30, generator=rng),
    ]
    figure, words = used_places(model, images, [4, None])
    assert "blue is the true class" in words
    assert "orange is the prediction" in used_places(model, images, [None, None])[1]
    assert len(figure.axes) == 2 * 11 and "7x7 pixels, positions are 2 pixels apart" in words
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles[0] == "class 4" and titles[11] == "image"
    heat = figure.axes[1].images[1]
    assert heat.get_array().shape[:2] == (5, 5) and list(heat.get_extent()) == [2.0, 12.0, 12.0, 2.0]
    assert max(figure.axes[n].images[1].get_array()[..., 3].max() for n in range(1, 11)) == pytest.approx(0.85)


def test_it_is_one_of_the_figures_of_such_a_network(model):
    pytest.importorskip("matplotlib")
    data = load("generated-16", "test")
    assert set(all_figures(model, data, [])) == {"confusion_matrix", "places"}
