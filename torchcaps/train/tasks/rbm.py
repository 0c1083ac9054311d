"""What expert capsules are compared with: a restricted Boltzmann machine by CD-1, and a bottleneck by backpropagation."""

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
    """Squared error of the standardised maps, mean over the numbers; the autoencoder around them is held fixed."""

    def init(self, model: nn.Module, batch: Batch) -> None:
        model.standardise(batch.images)

    def parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        return {name: parameter for name, parameter in model.named_parameters() if not name.startswith("autoencoder.")}

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            visible = model.visible(batch.images)
        return {"loss": (model.decode(model.code(visible)) - visible).square().mean()}

    def study(
        self, model: nn.Module, train: Labelled, test: Labelled, device: torch.device, augment: Sequence[Augmentation], seed: int
    ) -> dict[str, Any]:
        """How well a linear probe classifies the code."""
        model.eval()
        return {"probe_accuracy": linear_probe(lambda images: model(images).poses, train, test, device)}


@dataclass(frozen=True, kw_only=True)
class LearnRBM(LearnBottleneck):
    """CD-1, hidden neurons drawn, visible ones at their mean; Gaussian visible neurons."""

    def updates(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        visible = model.visible(batch.images)
        uniform = torch.rand(len(visible), model.weight.shape[1], device=visible.device)
        towards, dreamt = contrast(visible, model.neurons(), uniform, binary=False)
        losses = {"loss": (dreamt - visible).square().mean()}
        return losses, {name: -value for name, value in towards._asdict().items()}
