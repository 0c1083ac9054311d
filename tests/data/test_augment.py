"""Augmentations: what they do in training, what evaluation does instead, and which shape the model gets."""

from dataclasses import replace

import pytest
import torch

from torchcaps.data import Labelled, load
from torchcaps.data.augment import (
    Anywhere,
    Augmentation,
    Crop,
    Flip,
    Light,
    Shift,
    Standardise,
    StandardiseFirst,
    as_seen,
    shape_after,
)
from torchcaps.data.batches import Batches, in_order, in_order_as_trained
from torchcaps.papers import RECIPES
from torchcaps.probes.kinds import stored
from torchcaps.train import Options, train
from torchcaps.train.plain import to_plain

CPU = torch.device("cpu")


def ramp(n: int, h: int, w: int) -> torch.Tensor:
    """Every pixel of an image is another number, the same in two channels but for one."""
    image = torch.arange(h * w, dtype=torch.uint8).view(1, 1, h, w)
    return torch.cat([image, image + 1], dim=1).expand(n, 2, h, w).contiguous()


def test_a_crop_is_a_window_of_the_image():
    images = ramp(3, 6, 7)
    drawn = torch.tensor([[0, 0], [2, 3], [1, 4 + 5 * 100]])  # 3 x 4 windows fit; the last column is 504 % 4 = 0
    cropped = Crop(4).apply(images, drawn)
    assert cropped.equal(torch.stack([images[0, :, 0:4, 0:4], images[1, :, 2:6, 3:7], images[2, :, 1:5, 0:4]]))


def test_crops_are_uniform_over_all_windows(rng):
    n = 25_000
    images = torch.arange(36, dtype=torch.uint8).view(1, 1, 6, 6).expand(n, 1, 6, 6)
    corners = Crop(2).apply(images, Crop(2).draw(n, rng))[:, 0, 0, 0].long()
    counts = corners.bincount(minlength=36)[corners.unique()]
    assert len(counts) == 25 and counts.min() > 850 and counts.max() < 1150  # 1,000 each, five standard deviations


def test_a_border_repeats_the_edge():
    images = ramp(2, 3, 3)
    cropped = Crop(3, border=2).apply(images, torch.tensor([[0, 2], [4, 4]]))
    assert cropped[0, 0].tolist() == [[0, 1, 2], [0, 1, 2], [0, 1, 2]]
    assert cropped[1, 0].tolist() == [[8, 8, 8]] * 3
    assert Crop(3, border=2).fixed(images).equal(images)


@pytest.mark.parametrize("size, first", [(4, 1), (5, 0), (1, 2), (6, 0)])
def test_evaluation_takes_the_centre(size, first):
    images = ramp(2, 6, 6)
    assert Crop(size).fixed(images).equal(images[:, :, first : first + size, first : first + size])
    assert Crop(size).fixed(images[0]).equal(Crop(size).fixed(images)[0]), "one image as well as many"


def test_a_window_larger_than_the_image_is_refused():
    with pytest.raises(ValueError, match=r"Crop\(size=33, border=0\) does not fit into images of 48x32"):
        Crop(33).shape(2, 48, 32)
    assert Crop(33, border=1).shape(2, 48, 32) == (2, 33, 33)
    assert shape_after((Crop(32), Shift(2), Crop(24), Standardise()), (3, 48, 48)) == (3, 24, 24)


def test_standardised_images_have_mean_0_and_deviation_1(rng):
    images = torch.randint(50, 90, (5, 3, 8, 8), dtype=torch.uint8, generator=rng)
    images[4] = 7
    seen = as_seen(images, (Standardise(),))
    deviation, mean = torch.std_mean(seen, dim=(1, 2, 3), correction=0)
    assert mean.abs().max() < 1e-5 and (deviation[:4] - 1).abs().max() < 1e-5
    assert seen[4].abs().max() < 1e-3, "an image of one grey has no deviation"
    assert as_seen(images[0], (Standardise(),)).allclose(seen[0])
    brighter = as_seen(images + 100, (Standardise(),))
    assert brighter[:4].allclose(seen[:4], atol=1e-4)


def test_light_changes_contrast_about_the_mean_and_then_brightness():
    images = torch.tensor([[[[100, 120]], [[0, 0]]]], dtype=torch.uint8)
    assert Light(60, 0.5).apply(images, torch.tensor([[0.5, 1.0]])).tolist() == [[[[125, 155]], [[30, 30]]]]
    assert Light(60, 0.5).apply(images, torch.tensor([[-1.0, -1.0]])).tolist() == [[[[45, 55]], [[0, 0]]]]
    assert Light(200, 0).apply(images, torch.tensor([[1.0, 1.0]])).tolist() == [[[[255, 255]], [[200, 200]]]]
    assert Light().fixed(images) is images


def test_images_standardised_first_are_cropped_and_lit_afterwards(rng):
    images = torch.randint(256, (4, 2, 12, 12), dtype=torch.uint8, generator=rng)
    seen = as_seen(images, (StandardiseFirst(), Crop(6)))
    assert seen.allclose(as_seen(images, (Standardise(),))[..., 3:9, 3:9], atol=1e-5)
    light = Light(brightness=255, contrast=0.5, saturates=False)  # one standard deviation of the whole image
    up = light.apply(StandardiseFirst().apply(images, torch.empty(4, 0)), torch.tensor([[1.0, 0.0]] * 4)) / 255
    assert up.allclose(as_seen(images, (StandardiseFirst(),)) + 1, atol=1e-5)


def test_light_that_does_not_saturate_leaves_a_standardised_channel_as_it_was(rng):
    """As in the authors' code: they are a linear map of each channel, which standardising undoes."""
    images = torch.randint(256, (6, 1, 9, 9), dtype=torch.uint8, generator=rng)
    drawn = Light().draw(6, rng)
    free = Light(saturates=False).apply(images, drawn)
    assert free.dtype == torch.float32 and free.min() < 0 and free.max() > 255
    finish = Standardise().finish
    assert finish(free / 255).allclose(finish(images / 255), atol=1e-4)
    assert not finish(Light().apply(images, drawn) / 255).allclose(finish(images / 255), atol=0.1)


def test_of_several_channels_contrast_that_does_not_saturate_changes_how_they_differ():
    """By hand: half the contrast turns channels [0, 20] and [100, 120] into [5, 15] and [105, 115]; then 10 more."""
    images = torch.tensor([[[[0, 20]], [[100, 120]]]], dtype=torch.uint8)
    light = Light(20, 0.5, saturates=False)
    assert light.apply(images, torch.tensor([[0.5, -1.0]])).tolist() == [[[[15.0, 25.0]], [[115.0, 125.0]]]]
    assert light.apply(images, torch.tensor([[-1.0, 0.0]])).tolist() == [[[[-20.0, 0.0]], [[80.0, 100.0]]]]


def test_what_light_leaves_unrounded_is_cropped_flipped_and_brought_to_scale(rng):
    data = Labelled(torch.full((8, 2, 12, 12), 250, dtype=torch.uint8), torch.zeros(8, dtype=torch.int64))
    batches = Batches(data, 8, (Light(63, 0.8, saturates=False), Crop(5), Flip()), CPU)
    batches.new_epoch(rng)
    images = batches.at(torch.tensor(0)).images
    assert images.shape == (8, 2, 5, 5) and images.max() > 1  # beyond white
    assert (images.amax((1, 2, 3)) - images.amin((1, 2, 3))).max() < 1e-6 and (
        images.mean((1, 2, 3)) - 250 / 255
    ).abs().max() < 63.01 / 255


def test_training_and_evaluation_show_images_of_one_kind(rng):
    """Constant images look alike wherever they are cropped, so the batch of training shows what evaluation shows."""
    images = ramp(8, 12, 12)
    data = Labelled(images, torch.arange(8))
    augment = (Crop(12, border=0), Standardise())
    batches = Batches(data, 8, augment, CPU)
    batches.new_epoch(rng)
    batch = batches.at(torch.tensor(0))
    (whole,) = in_order(data, 8, CPU, augment)
    assert batch.images[batch.labels.argsort()].equal(whole.images) and whole.labels.equal(data.labels)
    (plain,) = in_order(data, 8, CPU)
    assert plain.images.equal(images.float() / 255)


def test_an_own_augmentation_overrides_what_it_needs(rng):
    class Dark(Augmentation):
        def apply(self, images, drawn):
            return images // 2

    data = load("generated-16", "train")
    batches = Batches(data, 16, (Dark(),), CPU)
    batches.new_epoch(rng)
    assert batches.at(torch.tensor(0)).images.max() <= 0.5
    assert shape_after((Dark(),), (1, 16, 16)) == (1, 16, 16)


@pytest.mark.parametrize("data, augment, side", [
    ("smallnorb-48", (Light(), Crop(32), Standardise()), 32),
    ("smallnorb", (Crop(96, border=16),), 96),
    ("cifar10", (Crop(24), Standardise()), 24),
])  # fmt: skip
def test_the_model_is_built_for_what_it_sees(data, augment, side):
    run = replace(RECIPES["smoke/capsnet"].make(), data=data, augment=augment)
    assert stored(to_plain(run)) == run
    with torch.device("meta"):
        model = run.build()
        run.quick().build()
    channels = 2 if "norb" in data else 3
    assert model.conv.in_channels == channels and tuple(model.image) == (channels, side, side)


def test_a_run_with_crops_trains_and_is_evaluated_on_the_centre(tmp_path):
    run = replace(RECIPES["smoke/capsnet"].make(), data="generated", augment=(Crop(16), Standardise()))
    run = replace(run, stages=tuple(replace(stage, steps=2) for stage in run.stages))
    trained = train(run, name="x", seed=0, options=Options(out=tmp_path, progress=False))
    test = load("generated", "test")
    with torch.no_grad():
        said = trained.model.eval()(Standardise().finish(test.images[..., 6:22, 6:22].float() / 255)).activity.argmax(
            -1
        )
    assert trained.evaluations["test"].predictions.long().equal(said)


def test_a_flip_mirrors_those_that_are_drawn(rng):
    images = torch.arange(12, dtype=torch.uint8).view(2, 1, 2, 3)
    flipped = Flip().apply(images, torch.tensor([0, 1]))
    assert torch.equal(flipped[0], images[0])
    assert flipped[1, 0].tolist() == [[8, 7, 6], [11, 10, 9]]
    assert 450 < int(Flip().draw(1000, rng).sum()) < 550
    assert torch.equal(as_seen(images, (Flip(),)), images / 255)  # never in evaluation


def test_in_a_mirror_the_eyes_of_a_pair_change_places():
    pairs = torch.arange(12, dtype=torch.uint8).view(2, 2, 1, 3)
    mirrored = Flip(eyes=True).apply(pairs, torch.tensor([1, 0]))
    assert mirrored[0].tolist() == [[[5, 4, 3]], [[2, 1, 0]]] and torch.equal(mirrored[1], pairs[1])


def test_in_order_as_trained_every_image_comes_once_moved_by_the_seed():
    images = torch.zeros(7, 1, 9, 9, dtype=torch.uint8)
    images[:, 0, 4, 4] = torch.arange(1, 8)  # one point each, which tells who is who
    data, before = Labelled(images, torch.arange(7)), images.clone()

    def shown(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        batches = list(in_order_as_trained(data, 3, CPU, (Shift(2),), seed))
        assert [len(batch.labels) for batch in batches] == [3, 3, 1]
        return torch.cat([batch.images for batch in batches]), torch.cat([batch.labels for batch in batches])

    moved, labels = shown(0)
    assert torch.equal(labels, data.labels) and torch.equal(moved.amax((1, 2, 3)) * 255, torch.arange(1.0, 8))
    assert not torch.equal(moved, images / 255) and not torch.equal(moved, shown(1)[0])
    assert torch.equal(moved, shown(0)[0]) and torch.equal(images, before)


def test_anywhere_keeps_all_ink_and_takes_every_place(rng):
    """Ink of 2x3 in a frame of 5x6: 4 places down, 4 across, each as likely."""
    image = torch.zeros(1, 1, 5, 6, dtype=torch.uint8)
    image[0, 0, 1:3, 2:5] = torch.tensor([[1, 2, 3], [4, 5, 6]])
    n = 3200
    moved = Anywhere().apply(image.expand(n, -1, -1, -1), Anywhere().draw(n, rng))
    assert (moved.sum((1, 2, 3)) == 21).all()
    corners = (moved == 1).nonzero()[:, 2:]
    assert torch.equal(corners, (moved == 6).nonzero()[:, 2:] - torch.tensor([1, 2]))  # in one piece
    counts = torch.bincount(corners[:, 0] * 4 + corners[:, 1], minlength=16)
    assert len(counts) == 16 and counts.min() > 140 and counts.max() < 260


def test_anywhere_leaves_what_fills_the_frame_and_what_is_empty(rng):
    full, empty = torch.full((1, 2, 3, 3), 7, dtype=torch.uint8), torch.zeros(1, 2, 3, 3, dtype=torch.uint8)
    for chance in (torch.zeros(1, 2), torch.full((1, 2), 1 - 2**-24)):
        assert torch.equal(Anywhere().apply(full, chance), full)
        assert torch.equal(Anywhere().apply(empty, chance), empty)
    assert torch.equal(as_seen(full, (Anywhere(),)), full / 255)  # never in evaluation
