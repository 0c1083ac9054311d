"""Figure 5: which pairs stand where, whose capsules are drawn, and in which colour."""

import pytest
import torch
from torch import nn

from torchcaps import CapsNet
from torchcaps.data import load
from torchcaps.data.batches import pairs_in_order
from torchcaps.figures.overlap import GREEN, RED, answered, in_colours, overlapping_digits, overlaps
from torchcaps.layers import Capsules

matplotlib = pytest.importorskip("matplotlib")
N = 60
WRONG = (1, 5, 30, 31)


class Told(nn.Module):
    """Says to each pair, in turn, what it is told; draws class k as an image full of k / 10."""

    def __init__(self, lengths):
        super().__init__()
        self.lengths, self.at, self.weight = lengths, 0, nn.Parameter(torch.zeros(1))

    def forward(self, images):
        said = self.lengths[self.at : self.at + len(images)]
        self.at += len(images)
        return Capsules(said.unsqueeze(-1), said)

    def reconstruct(self, poses, labels):
        return (labels.float() / 10).view(-1, 1, 1, 1).expand(-1, 1, 24, 24)


@pytest.fixture(scope="module")
def pairs():
    found = load("generated-pairs", "test")
    return found._replace(picks=found.picks[:N], moves=found.moves[:N])


def told(pairs, wrong):
    """Right but for the second digit of the pairs in `wrong`; of the other classes the highest is the longest."""
    lengths = torch.arange(10).expand(N, 10) / 100
    lengths = lengths.scatter(1, pairs.labels, 0.9)
    for index in wrong:
        second = int(pairs.labels[index, 1])
        absent = next(k for k in range(10) if k not in pairs.labels[index].tolist())
        lengths[index, second], lengths[index, absent] = 0.0, 0.8
    return Told(lengths)


def words_of(figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text)]


def test_the_first_pairs_of_each_kind_are_shown_in_order(pairs):
    found = overlaps(told(pairs, WRONG), pairs)
    good = [index for index in range(N) if index not in WRONG]
    images = next(pairs_in_order(pairs, N, torch.device("cpu"))).images
    for columns, indices in (
        (found.recognised, good[:10]),
        (found.mistaken, [1, 1, 5, 5, 30, 30]),
        (found.absent, good[10:14]),
    ):
        assert [column.labels for column in columns] == [tuple(pairs.labels[index].tolist()) for index in indices]
        assert all(torch.equal(column.image, images[index]) for column, index in zip(columns, indices, strict=True))
    assert (found.n_right, found.n_seen) == (N - 4, N)


def test_a_mistake_is_drawn_from_its_labels_and_from_the_answer(pairs):
    by_labels, by_answer = overlaps(told(pairs, WRONG), pairs).mistaken[:2]
    first, second = by_labels.labels
    assert by_labels.targets == (first, second) and by_labels.mark == ""
    assert by_answer.targets[0] == first, "the right one keeps its place"
    assert by_answer.targets[1] not in (first, second) and by_answer.mark == "P"


def test_a_digit_that_is_not_there_is_the_longest_of_the_rest(pairs):
    for column in overlaps(told(pairs, WRONG), pairs).absent:
        rest = max(k for k in range(10) if k not in column.labels)
        assert column.targets == (column.labels[0], rest) and column.mark == "*"


def test_each_digit_is_drawn_from_its_own_capsule(pairs):
    found = overlaps(told(pairs, WRONG), pairs)
    for column in (*found.recognised, *found.mistaken, *found.absent):
        assert column.digits.amax((1, 2, 3)).tolist() == pytest.approx([target / 10 for target in column.targets])


@pytest.mark.parametrize(
    ("said", "labels", "shown"),
    [
        ((2, 7), (2, 8), (2, 7)),
        ((7, 2), (2, 8), (2, 7)),
        ((8, 7), (2, 8), (7, 8)),
        ((7, 8), (2, 8), (7, 8)),
        ((3, 4), (2, 8), (3, 4)),
    ],
)
def test_a_right_digit_keeps_its_place(said, labels, shown):
    assert answered(said, labels) == shown


def test_the_first_is_red_the_second_green_and_both_are_yellow():
    digits = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 0.5, 1.0, 0.0]]).view(2, 1, 1, 4)
    red, green, both, nothing = in_colours(digits)[:, 0].T
    torch.testing.assert_close(red, torch.tensor(RED))
    torch.testing.assert_close(green, 0.5 * torch.tensor(GREEN))
    assert both[0] == 1 and both[1] == 1 and both[2] < 0.8
    assert nothing.tolist() == [0, 0, 0]


def test_every_column_has_two_pictures_and_its_captions(pairs):
    figure, caption = overlapping_digits(told(pairs, WRONG), pairs)
    assert len(figure.axes) == 2 * (10 + 6 + 4) and all(len(axes.images) == 1 for axes in figure.axes)
    words = words_of(figure)
    assert sum(text.startswith("L: (") for text in words) == 20
    assert sum(text.startswith("R: (") for text in words) == 13
    assert (
        sum(text.startswith("R: P: (") for text in words) == 3 and sum(text.startswith("*R: (") for text in words) == 4
    )
    assert "56 of the first 60 pairs are classified correctly" in caption and "figure 5" in caption


def test_where_all_are_right_none_is_mistaken(pairs):
    figure, _ = overlapping_digits(told(pairs, ()), pairs, most=12)
    assert "Misclassified: none of 12" in words_of(figure)
    assert len(figure.axes) == 2 * (10 + 2), "ten recognised, and the two that are left with a digit that is not there"


def test_a_real_model_is_drawn_and_left_as_it_was(pairs):
    model = CapsNet((1, 24, 24), 10, channels=4, kernel=5, n_types=2, primary_kernel=5, hidden=(16,))
    figure, _ = overlapping_digits(model, pairs, most=20)
    assert model.training and len(figure.axes) >= 2 * 6
    assert "Misclassified: from the labels, then from the prediction (P)" in words_of(figure)


def test_a_model_without_decoder_is_refused(pairs):
    model = CapsNet((1, 24, 24), 10, channels=4, kernel=5, n_types=2, primary_kernel=5, reconstruction=False)
    with pytest.raises(ValueError, match=r"has no decoder: .*take one built and trained with reconstruction=True"):
        overlapping_digits(model, pairs, most=20)
