"""Held-out images are never trained on, and what is chosen by them never sees the test set."""

from dataclasses import replace

import pytest
import torch

from torchcaps.data import fingerprint, hold_out, load
from torchcaps.papers import RECIPES
from torchcaps.train import Options, splits, train

HELD = 64


def rows(images: torch.Tensor) -> set[bytes]:
    """Images as bytes, to look them up."""
    return {image.numpy().tobytes() for image in images}


@pytest.mark.parametrize("seed", [0, 1])
def test_no_held_out_image_is_among_the_training_images(seed):
    run = replace(RECIPES["smoke/capsnet"].make(), hold_out=HELD)
    whole = load(run.data, "train", seed=seed)
    kept, held = splits.part(run, "train", None, seed), splits.part(run, "validation", None, seed)
    assert len(held.labels) == HELD and len(kept.labels) == len(whole.labels) - HELD
    assert not rows(kept.images) & rows(held.images)
    assert rows(kept.images) | rows(held.images) == rows(whole.images)
    assert not rows(held.images) & rows(load(run.data, "test", seed=seed).images)


def test_no_held_out_digit_is_in_a_training_pair():
    run = replace(RECIPES["smoke/capsnet-pairs"].make(), hold_out=HELD)
    kept, held = splits.part(run, "train", None, 0), splits.part(run, "validation", None, 0)
    assert len(kept.labels) == len(load(run.data, "train", seed=0).labels) - HELD
    assert len(held.digits) == HELD and not rows(kept.images) & rows(held.digits)


def test_a_run_trains_on_what_is_left_and_says_so(tmp_path):
    """The hash in a result file is that of the images the loop trained on."""
    run = replace(RECIPES["smoke/capsnet"].make(), hold_out=HELD)
    run = replace(run, stages=(replace(run.stages[0], steps=1),))
    trained = train(run, name="x", seed=0, options=Options(out=tmp_path, progress=False))
    rest, held = hold_out(load(run.data, "train", seed=0), HELD, 0)
    assert trained.data == {"train": fingerprint(rest), "validation": fingerprint(held)}
