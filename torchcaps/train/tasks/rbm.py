"""Baselines for expert capsules: a restricted Boltzmann machine (CD-1) and a bottleneck (backpropagation)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.analysis.sample_quality import linear_probe
from torchcaps.data import Labelled
from torchcaps.data.augment import Augmentation, Batch
from torchcaps.ops.rbm import contrast
from torchcaps.train.tasks.reconstruct import ReconstructionTask


@dataclass(frozen=True, kw_only=True)
class LearnBottleneck(ReconstructionTask):
    """Mean squared error of the standardised feature maps; the autoencoder around them stays fixed."""

    def init(self, model: nn.Module, batch: Batch) -> None:
        model.standardise(batch.images)

    def parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        return {name: parameter for name, parameter in model.named_parameters() if not name.startswith("autoencoder.")}

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            visible = model.visible(batch.images)
        return {"loss": (model.decode(model.code(visible)) - visible).square().mean()}

    def study(
        self,
        model: nn.Module,
        train: Labelled,
        test: Labelled,
        device: torch.device,
        augment: Sequence[Augmentation],
        seed: int,
    ) -> dict[str, Any]:
        """Measure the accuracy of a linear probe on the code."""
        model.eval()
        return {"probe_accuracy": linear_probe(lambda images: model(images).poses, train, test, device)}


@dataclass(frozen=True, kw_only=True)
class LearnRBM(LearnBottleneck):
    """CD-1 with sampled hidden units and Gaussian visible units at their mean."""

    def updates(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        visible = model.visible(batch.images)
        uniform = torch.rand(len(visible), model.weight.shape[1], device=visible.device)
        towards, dreamt = contrast(visible, model.neurons(), uniform, binary=False)
        losses = {"loss": (dreamt - visible).square().mean()}
        return losses, {name: -value for name, value in towards._asdict().items()}
