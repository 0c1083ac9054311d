"""The moving picture: digits circle inside their frame, the answer is drawn, and the file loops."""

import io

import pytest
import torch
from torch import nn

from torchcaps.data import load
from torchcaps.figures.moving import frames, gif, orbit, scenes
from torchcaps.layers import Capsules

Image = pytest.importorskip("PIL.Image", reason="pip install 'torchcaps[experiments]'")
N_FRAMES = 12


class Says(nn.Module):
    """Gives every image the same two classes, and draws class k as an image full of k / 10."""

    def __init__(self, *classes):
        super().__init__()
        self.classes, self.weight = list(classes), nn.Parameter(torch.zeros(1))

    def forward(self, images):
        lengths = torch.full((len(images), 10), 0.1)
        lengths[:, self.classes] = torch.tensor([0.9, 0.8])
        return Capsules(lengths.unsqueeze(-1), lengths)

    def reconstruct(self, poses, labels):
        return (labels.float() / 10).view(-1, 1, 1, 1).expand(-1, 1, 24, 24)


@pytest.fixture(scope="module")
def pairs():
    return load("generated-pairs", "test")


@pytest.fixture(scope="module")
def scene(pairs):
    second, first = pairs.labels[0].tolist()  # the longer capsule is the partner's
    (found,) = scenes(Says(first, second), pairs, n_pairs=1, n_frames=N_FRAMES)
    return found


def test_two_digits_move_on_opposite_sides_and_no_farther_than_the_shift():
    moves = orbit(24, shift=4)
    assert torch.equal(moves[:, 0], -moves[:, 1])
    assert moves.abs().max() == 4
    assert len({tuple(move) for move in moves[:, 0].tolist()}) > 12


def test_each_frame_has_an_image_and_both_answers_in_the_order_of_the_labels(pairs, scene):
    first, second = pairs.labels[0].tolist()
    assert scene.answers == [(first, second)] * N_FRAMES
    assert scene.images.shape == (N_FRAMES, 1, 24, 24) and len(scene.images.unique(dim=0)) > 4
    assert scene.digits[0].amax((1, 2, 3)).tolist() == pytest.approx([first / 10, second / 10])


def test_pairs_that_are_not_recognised_are_refused(pairs):
    absent = [k for k in range(10) if k not in pairs.labels[:1].flatten().tolist()][:2]
    with pytest.raises(ValueError, match="none of the first 1 pairs is recognised"):
        scenes(Says(*absent), pairs, most=1)


def test_the_file_loops_for_ever_through_frames_of_one_size(scene):
    pictures = frames([scene])
    written = gif(pictures, milliseconds=90)
    assert len(written) < 600_000
    with Image.open(io.BytesIO(written)) as picture:
        assert picture.size == pictures[0].size and picture.info["loop"] == 0
        lasting = 0
        for n in range(picture.n_frames):  # equal neighbours are one longer frame
            picture.seek(n)
            lasting += picture.info["duration"]
        assert 4 < picture.n_frames <= N_FRAMES and lasting == 90 * N_FRAMES
        assert picture.convert("RGB").getpixel((2, 2)) == (255, 255, 255)
