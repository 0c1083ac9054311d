"""Networks of the playground: from an image to capsules by routing iteration, and from a capsule to an image.

The server and the exported page run the same two modules, `Look` and `Draw`.
Letters: t routing iterations, p positions in the image, n capsule types.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.data import DataInfo, OwnImages, class_names, info, spec
from torchcaps.data.augment import Augmentation, as_seen
from torchcaps.data.sets.pairs import MARGIN
from torchcaps.layers import RoutedCapsules
from torchcaps.layers.routings import by_agreement
from torchcaps.models import (
    Baseline,
    CapsNet,
    DeepCapsNet,
    EfficientCapsNet,
    EMCapsNet,
    EMSentenceNet,
    InvertedCapsNet,
    LCapsNet,
    MatrixCapsNet,
    PooledNet,
    RoutingNet,
)
from torchcaps.pretrained import at_hand, entry, open_model
from torchcaps.train.recipe import Run

N_PASSES = 5  # routing iterations for every network; the page marks the number used in training
MEASURES = {
    CapsNet: "length",
    DeepCapsNet: "length",
    RoutingNet: "length",
    EfficientCapsNet: "length",
    LCapsNet: "activity",
    MatrixCapsNet: "activity",
    EMCapsNet: "share",
    InvertedCapsNet: "share",
    Baseline: "share",
    PooledNet: "share",
}
BY_LOSS = {"margin": "length", "cross-entropy": "share", "likelihood": "activity", "spread": "activity"}
# networks of the playground, by registry name, with a short description; the page opens with the first
TITLES = {
    "capsnet-mnist-small": "capsules, MNIST",
    "capsnet-mnist": "capsules, MNIST, full size",
    "capsnet-digits": "capsules, 8x8 digits",
    "baseline-digits": "convolutions without capsules, 8x8 digits",
    "capsnet-digits-pairs": "capsules for two 8x8 digits",
}
# one small network with every routing in turn (docs/which-routing.md), in the tab that compares alone
COMPARED = {
    "routing-digits-dynamic": "dynamic routing",
    "routing-digits-max-min": "max-min couplings",
    "routing-digits-uniform": "uniform couplings, no routing",
    "routing-digits-em": "EM routing",
    "routing-digits-matrix-em": "matrix EM routing",
    "routing-digits-lazy": "lazy routing",
    "routing-digits-self-attention": "self-attention routing",
    "routing-digits-self-routing": "self-routing",
    "routing-digits-inverted": "inverted dot-product attention",
}
TITLES |= {name: f"{words}, 8x8 digits" for name, words in COMPARED.items()}


class Seen(NamedTuple):
    """Outputs for one image. A network without routing has one iteration and no capsules."""

    lengths: Float[Tensor, "t j"]
    poses: Float[Tensor, "t j e"]
    couplings: Float[Tensor, "t p j"]  # mean over the types at a position, weighted by their lengths
    strength: Float[Tensor, " p"]  # summed lengths at a position


def routed_classes(model: nn.Module) -> RoutedCapsules | None:
    """Return the class capsules of a CapsNet that routes by agreement; other networks only give an answer."""
    return by_agreement(model.classes) if isinstance(model, CapsNet) else None


def measure(model: nn.Module) -> str:
    """Name the numbers that a network gives for its classes: lengths, activities, or shares of a softmax."""
    routing = model.routing if isinstance(model, CapsNet | DeepCapsNet | RoutingNet) else None
    return MEASURES[type(model)] if routing is None else BY_LOSS[routing.loss]


class Look(nn.Module):
    """Module from an image with grey levels 0..255 [1 c h w] to Seen."""

    def __init__(self, model: nn.Module, augment: Sequence[Augmentation], n_passes: int = N_PASSES) -> None:
        super().__init__()
        self.model, self.augment, self.n_passes = model.eval(), tuple(augment), n_passes

    def forward(self, levels: Float[Tensor, "1 c h w"]) -> Seen:
        images = as_seen(levels, self.augment)
        layer = routed_classes(self.model)
        if layer is None:
            return self._only_answer(images)
        primary = self.model.primary_capsules(images)
        steps = list(layer.steps(primary, self.n_passes))
        poses, couplings = (torch.cat(parts) for parts in ([s.poses for s in steps], [s.couplings for s in steps]))
        n_places = self.model.grid[0] * self.model.grid[1]
        strength = rearrange(primary.activity, "1 (n p) -> n p", p=n_places)
        shares = rearrange(couplings, "t (n p) j -> t n p j", p=n_places)
        total = strength.sum(0)
        mean = (shares * strength[..., None]).sum(1) / total.clamp(min=1e-6)[:, None]
        return Seen(poses.square().sum(-1).sqrt(), poses, mean, total)

    def _only_answer(self, images: Float[Tensor, "1 c h w"]) -> Seen:
        found = self.model(images)
        if measure(self.model) == "share":
            answer = (found if isinstance(found, Tensor) else found.confidence).softmax(-1)
        else:
            answer = found.activity
        return Seen(answer, answer.new_zeros(1, 0, 0), answer.new_zeros(1, 0, 0), answer.new_zeros(0))


class Draw(nn.Module):
    """Decoder from capsules [k j e], zero except those to draw, to images [k h w] in 0..1."""

    def __init__(self, model: CapsNet) -> None:
        super().__init__()
        self.decoder = model.decoder

    def forward(self, poses: Float[Tensor, "k j e"]) -> Float[Tensor, "k h w"]:
        return self.decoder.net(poses.flatten(-2)).unflatten(-1, self.decoder.shape).squeeze(1)


@dataclass(frozen=True)
class Network:
    """An image network with the facts that the page needs."""

    name: str
    model: nn.Module
    run: Run
    note: str
    compared: bool = False  # shown only in the tab that compares

    @property
    def data(self) -> DataInfo:
        return info(self.run.data)

    @property
    def look(self) -> Look:
        return Look(self.model, self.run.augment)

    @property
    def draw(self) -> Draw | None:
        drawn = routed_classes(self.model) is not None and self.model.decoder is not None
        return Draw(self.model) if drawn else None

    def about(self) -> dict[str, Any]:
        routed = routed_classes(self.model)
        return {
            "name": self.name,
            "note": self.note,
            "n_parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "size": self.data.shape[1],
            "n_classes": self.data.n_classes,
            "labels": list(class_names(self.run.data)),
            "measure": measure(self.model),
            "pairs": self.data.n_labels == 2,
            "compared": self.compared,
            "margin": MARGIN if self.data.n_labels == 2 else 0,
            # how a drawing is preprocessed to look like the training images
            "style": _style(self.run.data),
            "n_passes": N_PASSES if routed else 1,
            "own_passes": routed.n_iters if routed else 1,
            "grid": list(self.model.grid) if routed else None,
            "places": _places(self.model, self.data.shape[1]) if routed else None,
            "d_class": routed.d_out if routed else 0,
            "draws": self.draw is not None,
        }


def _style(data: str | OwnImages) -> str:
    if isinstance(data, OwnImages):
        return "plain"
    return "optdigits" if spec(data).source == "digits" else "mnist"


def _places(model: CapsNet, side: int) -> dict[str, float]:
    """Compute the receptive field centre of the first primary capsule and the step to the next, in pixels."""
    step = model.primary.stride
    if model.conv.padding[0]:
        return {"first": (side - step * (model.grid[0] - 1)) / 2, "step": step}
    seen = model.conv.kernel_size[0] + model.primary.kernel - 1
    return {"first": seen / 2, "step": step}


def bundled_networks(most_bytes: int | None = None) -> list[Network]:
    """Load the networks at hand of at most that many bytes, with their errors from the registry."""
    names = [name for name in TITLES if at_hand(name) and (most_bytes is None or entry(name).bytes <= most_bytes)]
    return [replace(load_network(name, name), note=note(name), compared=name in COMPARED) for name in names]


def note(name: str) -> str:
    """Describe a bundled network and its test error."""
    wrong = next(iter(entry(name).measured["test"].values()))
    return f"{TITLES[name]}, {wrong:.2f} % error on test {'pairs' if 'pairs' in name else 'digits'}"


def load_network(path: str | Path, name: str = "") -> Network:
    """Load a checkpoint or pretrained model that takes one greyscale image; refuse other models."""
    return network_of(*open_model(path, torch.device("cpu")), name)


def network_of(model: nn.Module, run: Run, about: dict[str, Any], name: str = "") -> Network:
    if type(model) not in MEASURES:
        known = ", ".join(kind.__name__ for kind in (*MEASURES, EMSentenceNet))
        raise ValueError(
            f"the playground shows {known}; {about['name']} is a {type(model).__name__}: give another checkpoint"
        )
    shape = info(run.data).shape
    if shape[0] != 1 or shape[1] != shape[2]:
        raise ValueError(
            "the playground takes square greyscale images of one channel; "
            f"{about['name']} takes {'x'.join(map(str, shape))}: "
            "give one trained on digits, on MNIST or on greyscale images of your own"
        )
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return Network(
        name or f"{about['name']} seed {about['seed']}",
        model,
        run,
        f"{about['name']}, seed {about['seed']}, step {about['step']:,}",
    )
