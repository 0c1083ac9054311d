"""The three stages of a product of expert capsules (Hauser 2019): the autoencoder, the experts W, their decoder U.

Only the first one backpropagates. The other two are Algorithm 1 and the rule of section 4.1, each with everything else
held fixed. No stage uses labels. A stored prediction is the error of an image, as in `ReconstructionTask`.
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
    """The filters: cross entropy of the pixels, summed over an image, mean over the batch."""

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
    """Algorithm 1: one layer of experts by contrastive divergence; the loss is the share not reconstructed.

    `sweeps`: length of the chain (CD-k). `sampled`: draw on/off instead of passing its probability on.
    `persistent`: continue the model's chains from step to step. A chain whose experts are all off stays off forever;
    persistent chains re-seed it from an image of the batch. `sparse`: weight of a force, not in the paper, towards
    being on for a share `goal` of the images. `start_length`: mean length that the initial weights are scaled to on
    one batch; None keeps the paper's N(0, 0.01).
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
            model.chain(self.layer).copy_(as_first(chains.clone()))  # drawn by each process for itself
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
        """Measure how often experts are on, in the data and after one sweep, and what the sweep misses."""
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
    """The rule of U in section 4.1: the capsules below, against what the decoder makes of those above.

    `samples`: number of samples of each capsule that are drawn and judged at the end.
    """

    layer: int = 0
    samples: int = 0
    judge_steps: int = 1500  # training steps of the network that judges
    memory: float = 0.99  # decay of the mean direction of each capsule, and of the length of those below

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
        """Draw samples of each capsule and judge them."""
        return study(model, train, test, device, seed, self.samples, self.judge_steps) if self.samples else {}


def _reseeded(chains: Float[Tensor, "n i d"], data: Float[Tensor, "b i d"]) -> Float[Tensor, "n i d"]:
    """Replace chains that are all zeros by the capsules of images of the batch."""
    images = data[torch.arange(len(chains), device=data.device) % len(data)]
    return torch.where(chains.any(-1, keepdim=True).any(-2, keepdim=True), chains, images)


def _mean_place(capsules: Capsules, n_plain: int) -> Float[Tensor, "j e"]:
    """Mean direction of each capsule; for dimensions off the sphere, their mean over the images it is on for."""
    place = mean_of_all(capsules.poses.mean(0))
    if not n_plain:
        return place
    on = mean_of_all(capsules.activity.mean(0)).clamp(min=1e-6).unsqueeze(-1)
    return torch.cat([place[:, :-n_plain], place[:, -n_plain:] / on], -1)


def _missed(wanted: Float[Tensor, "b i d"], found: Float[Tensor, "b i d"]) -> Float[Tensor, "b"]:
    """Squared distance as a share of the squared length of all that was wanted."""
    return (found - wanted).square().sum((-2, -1)) / wanted.square().sum((-2, -1)).clamp(min=1e-6)


def _under(model: nn.Module, part: str) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if name.startswith(part + ".")}
