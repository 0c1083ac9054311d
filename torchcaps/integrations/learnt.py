"""Warnings of an estimator after its training: layers that died, answers no better than guessing."""

import warnings

import torch
from sklearn.exceptions import ConvergenceWarning

from torchcaps.analysis.alive import dead_on, obituary
from torchcaps.data import Labelled
from torchcaps.integrations.image_folder import at_chance, by_class
from torchcaps.models import CapsNet

N_ASKED = 256  # training images that are classified


@torch.no_grad()
def warn_if_nothing_was_learnt(model: CapsNet, data: Labelled, n_classes: int) -> None:
    """Warn of dead layers, and of a network at chance on the images that it was trained on."""
    cpu = torch.device("cpu")
    for name in dead_on(model, data, cpu):
        warnings.warn(obituary(name), ConvergenceWarning, stacklevel=3)
    some = slice(None, None, max(1, len(data.labels) // N_ASKED))  # of all classes, also where rows are sorted
    said = model(data.images[some].float() / 255).confidence.argmax(-1)
    names = tuple(str(number) for number in range(n_classes))
    if at_chance(by_class(said, data.labels[some], names), said):
        warnings.warn(
            f"at chance on the training images, where guessing gives {100 / n_classes:.1f} %; "
            "give more epochs, or a lower learning_rate",
            ConvergenceWarning,
            stacklevel=3,
        )
