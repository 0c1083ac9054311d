"""Heat map of the tokens and layers that a class capsule used in a sentence (Heinsen 2019: D^use).

Letters: k classes, n tokens, l layers of the transformer.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.analysis.routing import evaluating
from torchcaps.data.batches.embeddings import InMemory
from torchcaps.data.sets.sst import SENTIMENTS, GeneratedEncoder
from torchcaps.data.sources.encoders import TransformerEncoder
from torchcaps.figures.canvas import BLUE, INK, MUTED, canvas, gains
from torchcaps.models import EMSentenceNet

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when something is drawn


class Explained(NamedTuple):
    """A sentence with its predicted probabilities and the data that each class used."""

    words: list[str]
    shares: Float[Tensor, " k"]  # softmax of the scores
    used: Float[Tensor, "k n l"]

    @property
    def answer(self) -> int:
        return int(self.shares.argmax())


@torch.no_grad()
def explain(model: EMSentenceNet, encoder: TransformerEncoder | GeneratedEncoder, text: str) -> Explained:
    """Compute what each class used of this sentence. Model and encoder must be on one device."""
    if not isinstance(model, EMSentenceNet):
        raise ValueError(
            f"only routing tells what a class used; {type(model).__name__} has none, "
            "take a checkpoint of an EMSentenceNet"
        )
    (tokens,) = encoder.tokenise([text])
    device = next(model.parameters()).device
    embeddings, present = InMemory.of(encoder, [tokens], device).take(
        torch.zeros(1, dtype=torch.long, device=device), len(tokens)
    )
    with evaluating(model):
        shares, used = model(embeddings, present).logit.softmax(-1), model.used(embeddings, present)
    return Explained(encoder.words(tokens), shares[0].float().cpu(), used[0].float().cpu())


def sentence_map(seen: Explained, label: int | None = None, names: Sequence[str] | None = None) -> tuple[Figure, str]:
    """Draw the data that class `label` used, by token and layer; None means the predicted class.

    Top: sums over the layers. Middle: every layer. Bottom: difference from the mean of all classes.
    """
    n_classes, n, n_layers = seen.used.shape
    names = names or SENTIMENTS.get(n_classes) or [f"class {number}" for number in range(n_classes)]
    label = seen.answer if label is None else label
    if not 0 <= label < n_classes:
        raise ValueError(f"there are classes 0 to {n_classes - 1}; got {label}")
    used = seen.used[label]
    more = used - seen.used.mean(0)
    with canvas(max(4.0, 1.6 + 0.34 * n), 2.6 + 0.3 * n_layers) as figure:
        tall = max(1.5, 0.14 * n_layers)
        bars, cells, others = figure.subplots(3, 1, sharex=True, height_ratios=(1, tall, tall))
        bars.bar(range(n), used.sum(1).tolist(), color=BLUE)
        bars.set(ylabel="all layers")
        bars.set_title(f"used by “{names[label]}” ({100 * seen.shares[label]:.0f} %)", color=INK)
        grid = {"origin": "lower", "aspect": "auto", "interpolation": "nearest"}
        shown = cells.imshow(used.T.numpy(), cmap="Blues", vmin=0, **grid)
        figure.colorbar(shown, ax=cells, label="fraction used", fraction=0.03, pad=0.01)
        most = max(float(more.abs().max()), 1e-9)
        shown = others.imshow(more.T.numpy(), cmap=gains(), vmin=-most, vmax=most, **grid)
        figure.colorbar(shown, ax=others, label="minus class mean", fraction=0.03, pad=0.01)
        for axes in (cells, others):
            axes.set(ylabel="layer")
        others.set_xticks(range(n), seen.words, rotation=60, ha="right", color=MUTED)
    token, layer = divmod(int(used.argmax()), n_layers)
    return figure, (
        f"Predicted: “{names[seen.answer]}” ({100 * seen.shares[seen.answer]:.1f} %). “{names[label]}” used "
        f"{100 * used.mean():.1f} % of all embeddings, most of {seen.words[token]!r} in layer {layer} "
        f"({100 * used[token, layer]:.1f} %). Layer 0 is the input of the first block. "
        "Fractions are those that the class "
        "used of a token through the part capsules, in the last routing iteration."
    )
