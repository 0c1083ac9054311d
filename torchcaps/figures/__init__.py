"""Figures of a trained model, from its data and metrics log. matplotlib is imported when the first one is drawn."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from torchcaps.analysis.metrics import confusion
from torchcaps.data import Labelled
from torchcaps.data.augment import Augmentation
from torchcaps.data.sets.pairs import Pairs
from torchcaps.data.sets.sst import Sentences
from torchcaps.figures.canvas import png
from torchcaps.figures.draw import (
    confusion_matrix,
    couplings_over_iterations,
    dimension_sweeps,
    learning_curve,
    reconstructions,
)
from torchcaps.figures.numbers import pick_examples, predict, series, watch_routing
from torchcaps.figures.overlap import overlapping_digits
from torchcaps.figures.places import used_places
from torchcaps.figures.sentence_map import explain, sentence_map
from torchcaps.layers.routings import by_agreement
from torchcaps.models import EMCapsNet, EMSentenceNet
from torchcaps.ops.couplings import FIXED

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when something is drawn

MOST_MISTAKES = 3  # misclassified images in the figure of used places

__all__ = [
    "all_figures",
    "confusion_matrix",
    "couplings_over_iterations",
    "dimension_sweeps",
    "learning_curve",
    "overlapping_digits",
    "png",
    "reconstructions",
    "save_figures",
]


def all_figures(
    model: nn.Module,
    data: Labelled | Pairs | Sentences,
    curve: list[dict[str, Any]],
    device: torch.device | str = "cpu",
    augment: Sequence[Augmentation] = (),
) -> dict[str, tuple[Figure, str]]:
    """Draw every figure that this model allows, with captions, in the order of a report.

    Moves the model to `device`. Images are preprocessed by `augment` as in evaluation.
    """
    model.to(device)
    if isinstance(data, Pairs):
        return _figures_of_pairs(model, data, curve)
    if isinstance(data, Sentences):
        return _figures_of_sentences(model, data, curve, torch.device(device))
    predictions = predict(model, data, augment)
    examples = pick_examples(predictions, data.labels, model.n_classes)
    figures: dict[str, tuple[Figure, str]] = {}
    if series(curve, "loss")[0]:
        figures["learning_curve"] = learning_curve(curve), _learning_words(curve)
    figures["confusion_matrix"] = (
        confusion_matrix(predictions, data.labels, model.n_classes),
        _confusion_words(predictions, data.labels),
    )
    if getattr(model, "decoder", None) is not None:
        figures["reconstructions"] = reconstructions(model, data, predictions, augment), RECONSTRUCTION_WORDS
        if examples.correct:
            figures["dimension_sweeps"] = dimension_sweeps(model, data, predictions, augment), SWEEP_WORDS
    for name, indices in (("couplings", examples.correct), ("couplings_of_a_mistake", examples.failures)):
        for index in indices[:1] if _routes(model) else []:
            image, label = data.images[index], int(data.labels[index])
            figures[name] = (
                couplings_over_iterations(model, image, label, augment),
                _coupling_words(model, image, label, augment),
            )
    if isinstance(model, EMCapsNet):
        which = [*examples.correct, *examples.failures[:MOST_MISTAKES]]
        figures["places"] = used_places(model, list(data.images[which]), data.labels[which].tolist(), augment=augment)
    return figures


def _figures_of_pairs(model: nn.Module, data: Pairs, curve: list[dict[str, Any]]) -> dict[str, tuple[Figure, str]]:
    figures: dict[str, tuple[Figure, str]] = {}
    if series(curve, "loss")[0]:
        figures["learning_curve"] = learning_curve(curve), _learning_words(curve)
    if getattr(model, "decoder", None) is not None:
        figures["overlapping_digits"] = overlapping_digits(model, data)
    return figures


def _figures_of_sentences(
    model: nn.Module, data: Sentences, curve: list[dict[str, Any]], device: torch.device
) -> dict[str, tuple[Figure, str]]:
    figures: dict[str, tuple[Figure, str]] = {}
    if series(curve, "loss")[0]:
        figures["learning_curve"] = learning_curve(curve), _learning_words(curve)
    if isinstance(model, EMSentenceNet):
        encoder = data.encoder.load(device)
        for number, text in enumerate(data.texts[:3]):
            figures[f"sentence_{number + 1}"] = sentence_map(explain(model, encoder, text))
    return figures


def _routes(model: nn.Module) -> bool:
    """Check that couplings change: one iteration or fixed couplings leave nothing to show."""
    classes = by_agreement(getattr(model, "classes", None))
    return classes is not None and classes.n_iters > 1 and classes.couplings not in FIXED


def save_figures(figures: dict[str, tuple[Figure, str]], folder: Path | str) -> list[Path]:
    """Write one PNG per figure and captions.md into a folder; return the paths."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png" for name in figures]
    for path, (figure, _) in zip(paths, figures.values(), strict=True):
        path.write_bytes(png(figure))
    captions = folder / "captions.md"
    captions.write_text("".join(f"## {name}\n{caption}\n\n" for name, (_, caption) in figures.items()))
    return [*paths, captions] if figures else []


RECONSTRUCTION_WORDS = (
    "(l, p, r): label, prediction, and the class whose capsule is decoded. Shown are the first correctly classified "
    "image of each class and the first misclassified ones. After figure 3 of Sabour, Frosst and Hinton (2017)."
)
SWEEP_WORDS = (
    "Along a row, one pose dimension of the predicted class capsule is perturbed from -0.25 to +0.25 in steps of 0.05; "
    "the framed column is unchanged. "
    "After figure 4 of Sabour, Frosst and Hinton (2017)."
)


def _learning_words(curve: list[dict[str, Any]]) -> str:
    steps, losses = series(curve, "loss")
    return (
        f"{steps[-1]:,} training steps; the loss goes from {losses[0]:.3g} to {losses[-1]:.3g}. "
        "Each point is a mean over the steps since the last point."
    )


def _confusion_words(predictions: Int64[Tensor, " n"], labels: Int64[Tensor, " n"]) -> str:
    n_wrong = int((predictions != labels).sum())
    if n_wrong == 0:
        return f"All {len(labels):,} images are classified correctly."
    n_classes = int(max(predictions.max(), labels.max())) + 1
    wrong = confusion(predictions, labels, n_classes).fill_diagonal_(0)
    label, answer = divmod(int(wrong.argmax()), n_classes)
    times = int(wrong.max())
    often = (
        f"the most frequent error is {label} predicted as {answer} ({times:,} times)"
        if times > 1
        else "no error occurs twice"
    )
    return f"{n_wrong:,} of {len(labels):,} images are misclassified; {often}."


def _coupling_words(model: nn.Module, image: Tensor, label: int, augment: Sequence[Augmentation]) -> str:
    view = watch_routing(model, image, label, augment)
    answer = int(view.lengths[-1].argmax())
    share, long = 100 * view.mass[:, label], view.lengths[:, label]
    said = "" if answer == label else f"; the predicted class {answer} ends at {view.lengths[-1, answer]:.2f}"
    return (
        f"An image of class {label}. Over {len(share)} routing iterations, this class's fraction of the couplings goes "
        f"from {share[0]:.2f} % to {share[-1]:.2f} %, weighted by the length of the input capsules. "
        f"The length of its capsule goes from {long[0]:.2f} to {long[-1]:.2f}{said}. "
        "Maps: positions whose coupling to the class grew (blue) or fell (orange) since the first iteration."
    )
