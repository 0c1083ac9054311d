"""Three training stages of a product of expert capsules (Hauser 2019): autoencoder, experts W, decoder U.

Only the autoencoder is trained by backpropagation. The experts use Algorithm 1 and the decoder the rule of section 4.1,
each with all other weights fixed. No stage uses labels. Stored predictions are errors, as in `ReconstructionTask`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from torchcaps.analysis.routing import evaluating
from torchcaps.analysis.sample_quality import study
from torchcaps.data import Labelled
from torchcaps.data.augment import Augmentation, Batch
from torchcaps.layers import Capsules
from torchcaps.ops import reconstruction_loss
from torchcaps.ops.experts import (
    chain,
    contrast,
    firing,
    in_ball,
    mix_down,
    on_probability,
    sparsity,
    statistics,
    sweep,
)
from torchcaps.runtime.distributed import as_first, mean_of_all
from torchcaps.train.tasks.reconstruct import ReconstructionTask


@dataclass(frozen=True, kw_only=True)
class Autoencode(ReconstructionTask):
    """Training of the convolutional filters: cross entropy of the pixels, summed over an image, mean over the batch."""

    def parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        return _under(model, "autoencoder")

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        logits = model.autoencoder(batch.images).float()
        loss = binary_cross_entropy_with_logits(logits, batch.images, reduction="none").sum((-3, -2, -1)).mean()
        return {"loss": loss, "squared_error": reconstruction_loss(logits.sigmoid(), batch.images).mean()}

    def errors(self, model: nn.Module, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b"]:
        return reconstruction_loss(model.autoencoder(images).sigmoid(), images)


@dataclass(frozen=True, kw_only=True)
class LearnExperts(ReconstructionTask):
    """Algorithm 1: contrastive divergence for one layer of experts; the loss is the fraction not reconstructed.

    `sweeps`: length k of the chain (CD-k). `sampled`: sample on/off states instead of using their probabilities.
    `persistent`: keep the chains between steps. A chain with all experts off stays off, so it is re-seeded from an
    image. `sparse`: weight of a term, not in the paper, that pulls the on-fraction of an expert towards `goal`.
    `start_length`: mean capsule length that scales the initialisation; None keeps the paper's N(0, 0.01).
    """

    layer: int = 0
    sweeps: int = 1
    sampled: bool = False
    persistent: bool = False
    sparse: float = 0.0
    goal: float = 0.1
    start_length: float | None = 0.2

    @torch.no_grad()
    def init(self, model: nn.Module, batch: Batch) -> None:
        if self.persistent and not hasattr(model, f"chain_{self.layer}"):
            raise ValueError("persistent chains were asked for and the model keeps none; build it with n_chains")
        if self.start_length is not None:
            model.encoders[self.layer].scale_to(model.below(batch.images, self.layer)[0], self.start_length)

    def parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        return _under(model, f"encoders.{self.layer}")

    def updates(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        layer = model.encoders[self.layer]
        weight, rule, n_plain = layer.weight.contiguous(), layer.rule, layer.n_plain
        data = layer.phase(model.below(batch.images, self.layer)[0])
        start = layer.phase(model.chain(self.layer)) if self.persistent else data
        drawn = [torch.rand_like(start.sums[..., 0]) if self.sampled else None for _ in range(self.sweeps)]
        dreamt = chain(start, weight, drawn, rule, n_plain)
        if self.persistent:
            chains = _reseeded(dreamt.poses, data.poses)
            # processes draw different chains: keep those of the first
            model.chain(self.layer).copy_(as_first(chains.clone()))
        towards = contrast(data, dreamt, n_plain)
        if self.sparse:
            on = mean_of_all(on_probability(data.sums, n_plain).mean(0))
            towards = towards + self.sparse * sparsity(data, self.goal, n_plain, on)
        near = dreamt if self.sweeps == 1 and not self.persistent else sweep(data, weight, None, n_plain)
        missed = _missed(data.poses, near.poses).mean()
        losses = {
            "loss": missed,
            "on": on_probability(data.sums, n_plain).mean(),
            "dreamt_on": on_probability(dreamt.sums, n_plain).mean(),
        }
        return losses, {f"encoders.{self.layer}.weight": -towards}

    def errors(self, model: nn.Module, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b"]:
        layer = model.encoders[self.layer]
        data = model.phase(images, self.layer)
        return _missed(data.poses, sweep(data, layer.weight, None, layer.n_plain).poses)

    def probe(self, model: nn.Module, images: Float[Tensor, "b c h w"]) -> dict[str, float]:
        """Measure the on-probability of experts on data and after one sweep, and the error of the sweep."""
        with evaluating(model):
            layer = model.encoders[self.layer]
            data = model.phase(images, self.layer)
            dreamt = sweep(data, layer.weight, None, layer.n_plain)
            on, dreamt_on = (on_probability(phase.sums, layer.n_plain).mean().item() for phase in (data, dreamt))
            return {
                "probed_on": on,
                "probed_dreamt_on": dreamt_on,
                "probed_missed": _missed(data.poses, dreamt.poses).mean().item(),
            }


@dataclass(frozen=True, kw_only=True)
class LearnDecoder(ReconstructionTask):
    """Learning rule of U in section 4.1: match the decoder's reconstruction to the capsules below.

    `samples`: number of samples of each capsule that are drawn and evaluated at the end.
    """

    layer: int = 0
    samples: int = 0
    judge_steps: int = 1500  # training steps of the classifier that evaluates the samples
    memory: float = 0.99  # decay of two moving averages: direction of each capsule, length of those below

    def quick(self) -> "LearnDecoder":
        return replace(self, samples=min(self.samples, 2), judge_steps=min(self.judge_steps, 2))

    def parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        return _under(model, f"decoders.{self.layer}")

    def updates(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        encoder, decoder = model.encoders[self.layer], model.decoders[self.layer]
        poses, wanted = model.below(batch.images, self.layer)
        parents = encoder(poses)
        made = model.phase_down(parents.poses, self.layer)
        again = firing(mix_down(made.sums, decoder.weight.contiguous(), made.couplings), n_plain=encoder.n_plain)
        again = in_ball(again, encoder.n_plain)
        data, dreamt = made._replace(sums=wanted), made._replace(poses=again)
        model.visited(self.layer).lerp_(_mean_place(parents, encoder.n_plain), 1 - self.memory)
        model.loudness(self.layer).lerp_(mean_of_all(wanted.square().sum((-2, -1)).mean()).sqrt(), 1 - self.memory)
        losses = {"loss": _missed(wanted, made.sums).mean(), "capsules_missed": _missed(made.poses, again).mean()}
        return losses, {f"decoders.{self.layer}.weight": statistics(dreamt) - statistics(data)}

    def study(
        self,
        model: nn.Module,
        train: Labelled,
        test: Labelled,
        device: torch.device,
        augment: Sequence[Augmentation],
        seed: int,
    ) -> dict[str, Any]:
        """Draw samples of each capsule and evaluate them with a classifier."""
        return study(model, train, test, device, seed, self.samples, self.judge_steps) if self.samples else {}


def _reseeded(chains: Float[Tensor, "n i d"], data: Float[Tensor, "b i d"]) -> Float[Tensor, "n i d"]:
    """Replace chains that are all zeros by the capsules of images from the batch."""
    images = data[torch.arange(len(chains), device=data.device) % len(data)]
    return torch.where(chains.any(-1, keepdim=True).any(-2, keepdim=True), chains, images)


def _mean_place(capsules: Capsules, n_plain: int) -> Float[Tensor, "j e"]:
    """Compute the mean direction of each capsule; dimensions off the sphere are averaged over images with it on."""
    place = mean_of_all(capsules.poses.mean(0))
    if not n_plain:
        return place
    on = mean_of_all(capsules.activity.mean(0)).clamp(min=1e-6).unsqueeze(-1)
    return torch.cat([place[:, :-n_plain], place[:, -n_plain:] / on], -1)


def _missed(wanted: Float[Tensor, "b i d"], found: Float[Tensor, "b i d"]) -> Float[Tensor, "b"]:
    """Compute the squared distance as a fraction of the squared length of the target."""
    return (found - wanted).square().sum((-2, -1)) / wanted.square().sum((-2, -1)).clamp(min=1e-6)


def _under(model: nn.Module, part: str) -> dict[str, nn.Parameter]:
    """Return the parameters of one submodule, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if name.startswith(part + ".")}
