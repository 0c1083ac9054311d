"""Figure 5 of Sabour 2017: two overlapping digits, each reconstructed from its capsule, one red and one green."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.analysis.routing import evaluating
from torchcaps.data.batches.pairs import pairs_in_order
from torchcaps.data.sets.pairs import Pairs
from torchcaps.figures.canvas import BLUE, INK, MUTED, ORANGE, canvas, place, show, write
from torchcaps.train.tasks.classify_pairs import reconstruct_both

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when something is drawn

# the paper's red and green; some blue in the green keeps them distinct with any colour vision
RED, GREEN = (1.0, 0.22, 0.16), (0.0, 0.85, 0.55)
N_RECOGNISED, N_MISTAKEN, N_ABSENT = 10, 3, 4  # pairs; a misclassified pair has two columns
ROWS = {"input": 0.63, "output": 1.34, "labels": 1.8, "drawn": 1.98}  # inches below the heading
WORDS = (
    "Top: input image of two digits. Bottom: reconstructions from two class capsules, the first of R in red, "
    "the second "
    "in green; overlap is yellow. L: labels. R: classes whose capsules are decoded. "
    "A misclassified pair is shown twice: "
    "from its labels and from the prediction (P). *: more correct pairs, where the second class of R is absent; "
    "it has the "
    "longest capsule of the absent classes. Pairs are taken in the order of the data set, none is chosen for its looks"
)


class Drawn(NamedTuple):
    """One column: an image and reconstructions from two of its class capsules."""

    image: Float[Tensor, "c h w"]
    labels: tuple[int, int]
    targets: tuple[int, int]  # classes whose capsules are decoded
    mark: str  # "" decoded from the labels, "P" from the prediction, "*" with an absent digit
    digits: Float[Tensor, "2 c h w"]  # in the order of the targets


class Overlaps(NamedTuple):
    """Columns of the figure, and how many of the first pairs are classified correctly."""

    recognised: list[Drawn]
    mistaken: list[Drawn]  # two columns for each pair
    absent: list[Drawn]
    n_right: int
    n_seen: int


class _Answers(NamedTuple):
    """Predictions of the model for the first pairs of a data set."""

    images: Float[Tensor, "b c h w"]
    poses: Float[Tensor, "b j e"]
    labels: Int64[Tensor, "b 2"]
    ranked: Int64[Tensor, "b j"]  # classes, the longest capsule first


def overlapping_digits(model: nn.Module, pairs: Pairs, most: int = 1000) -> tuple[Figure, str]:
    """Draw correct pairs, misclassified pairs and absent digits among the first `most` pairs; return it with a caption.

    The model must be trained on pairs and have a decoder.
    """
    found = overlaps(model, pairs, most)
    right = 0.05, "Correct", "each digit is reconstructed from the capsule of its class", found.recognised
    wrong = 2.45, "Misclassified", "from the labels, then from the prediction (P)", found.mistaken
    with canvas(8.1, 4.65, layout="none") as figure:
        for top, name, words, columns in (right, wrong):
            write(figure, 0.05, top, f"{name}: {words}" if columns else f"{name}: none of {found.n_seen:,}")
            _columns(figure, 0.62, top, columns)
            for row, down in ROWS.items() if columns else ():
                write(figure, 0.05, top + down, row, color=MUTED, fontsize=8, va="center")
        if found.absent:
            write(figure, 5.15, 2.45, "The second digit is absent (*)")
            _columns(figure, 5.15, 2.45, found.absent)
    seen = f"{found.n_right:,} of the first {found.n_seen:,} pairs are classified correctly"
    return figure, f"{WORDS}; {seen}. After figure 5 of Sabour, Frosst and Hinton (2017)."


def overlaps(model: nn.Module, pairs: Pairs, most: int = 1000) -> Overlaps:
    """Select the first pairs of each kind; absent digits use the correct pairs that follow those shown first."""
    with evaluating(model):
        answers = _answer(model, pairs._replace(picks=pairs.picks[:most], moves=pairs.moves[:most]))
        right = (answers.ranked[:, :2].sort(-1).values == answers.labels.sort(-1).values).all(-1)
        good, bad = right.nonzero().flatten().tolist(), (~right).nonzero().flatten().tolist()
        recognised = [(index, _pair(answers.labels[index]), "") for index in good[:N_RECOGNISED]]
        mistaken = []
        for index in bad[:N_MISTAKEN]:
            labels = _pair(answers.labels[index])
            mistaken += [(index, labels, ""), (index, answered(_pair(answers.ranked[index, :2]), labels), "P")]
        absent = [
            (index, (int(answers.labels[index, 0]), int(answers.ranked[index, 2])), "*")
            for index in good[N_RECOGNISED : N_RECOGNISED + N_ABSENT]
        ]
        columns = [_draw(model, answers, group) for group in (recognised, mistaken, absent)]
    return Overlaps(*columns, n_right=len(good), n_seen=len(right))


def answered(said: tuple[int, int], labels: tuple[int, int]) -> tuple[int, int]:
    """Order a prediction like the labels, so that a correct digit keeps its position and colour."""
    first, second = said
    return (second, first) if first == labels[1] or second == labels[0] else said


def in_colours(digits: Float[Tensor, "2 c h w"]) -> Float[Tensor, "3 h w"]:
    """Blend two digits additively: the first in red, the second in green."""
    return torch.einsum("khw,kc->chw", digits[:, 0], digits.new_tensor([RED, GREEN])).clamp(0, 1)


def _answer(model: nn.Module, pairs: Pairs) -> _Answers:
    parts = []
    for batch in pairs_in_order(pairs, 100, next(model.parameters()).device):
        capsules = model(batch.images)
        parts.append((batch.images, capsules.poses, batch.labels, capsules.activity.argsort(-1, descending=True)))
    return _Answers(*map(torch.cat, zip(*parts, strict=True)))


def _pair(numbers: Int64[Tensor, "2"]) -> tuple[int, int]:
    first, second = numbers.tolist()
    return first, second


def _draw(model: nn.Module, answers: _Answers, chosen: list[tuple[int, tuple[int, int], str]]) -> list[Drawn]:
    """Decode both targets of each (index, targets, mark)."""
    if not chosen:
        return []
    indices = [index for index, _, _ in chosen]
    targets = torch.tensor([targets for _, targets, _ in chosen], device=answers.labels.device)
    decoded = reconstruct_both(model, answers.poses[indices], targets).cpu()
    return [
        Drawn(answers.images[index].cpu(), _pair(answers.labels[index]), targets, mark, digits)
        for (index, targets, mark), digits in zip(chosen, decoded, strict=True)
    ]


def _columns(figure: Figure, left: float, top: float, columns: list[Drawn]) -> None:
    """Draw tiles of input and output above their captions; the two columns of one error stand close together."""
    for n, column in enumerate(columns):
        if n > 0:
            left += 0.69 if column.mark == "P" else 0.78 if columns[n - 1].mark == "P" else 0.74
        above, below = place(figure, left, top + 0.3, 0.66, 0.66), place(figure, left, top + 1.01, 0.66, 0.66)
        show(above, column.image[:1].expand(3, -1, -1))  # white on black, as the colours below
        show(below, in_colours(column.digits))
        name, colour = {"": ("R", BLUE), "P": ("R: P", ORANGE), "*": ("*R", ORANGE)}[column.mark]
        captions = (("labels", "L", column.labels, INK), ("drawn", name, column.targets, colour))
        for row, letter, (first, second), ink in captions:
            words = f"{letter}: ({first}, {second})"
            write(figure, left + 0.33, top + ROWS[row], words, color=ink, ha="center", va="center", fontsize=8)
