"""Batch normalisation statistics, recomputed without mixup at the end of a run.

Under mixup (data/augment/mixup.py) the running means and variances are those of mixed images, but test images are not
mixed. The statistics are recomputed on training images with all augmentations except mixup. No weight changes, and no
test image is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from torchcaps.data import Labelled
from torchcaps.data.augment import Augmentation
from torchcaps.data.batches.pairs import batches_for

if TYPE_CHECKING:
    from torchcaps.train.recipe import Run


def norms_of(model: nn.Module) -> dict[str, nn.modules.batchnorm._BatchNorm]:
    """Return the layers with running statistics, by name."""
    found = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)}
    return {name: layer for name, layer in found.items() if layer.track_running_stats}


def check(run: Run, model: nn.Module) -> None:
    """Refuse `unmixed` for a model without batch normalisation."""
    if any(stage.unmixed for stage in run.stages) and not norms_of(model):
        raise ValueError(
            f"`unmixed` takes statistics of batch normalisation anew and {run.model!r} has none; leave it at 0"
        )


@torch.no_grad()
def unmixed_statistics(
    model: nn.Module,
    data: Labelled,
    batch: int,
    augment: Sequence[Augmentation],
    n: int,
    device: torch.device,
    seed: int,
) -> dict[str, Tensor]:
    """Compute running means and variances over `n` batches without mixup, keyed as in the model's state dict.

    The model itself is left unchanged.
    """
    plain = tuple(each for each in augment if type(each).mix is Augmentation.mix)
    batches, rng = batches_for(data, batch, plain, device), torch.Generator().manual_seed(seed)
    norms, was_training = norms_of(model), model.training
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    momenta = {name: layer.momentum for name, layer in norms.items()}
    model.eval()  # other layers keep their state, and dropout is off
    for layer in norms.values():
        layer.train()
        layer.reset_running_stats()
        layer.momentum = None  # cumulative mean over all batches, not a moving one
    for number in range(n):
        if number % batches.n_steps == 0:
            batches.new_epoch(rng)
        model(batches.at(torch.tensor(number % batches.n_steps, device=device)).images)
    kept = ("running_mean", "running_var")
    found = {f"{name}.{kind}": getattr(layer, kind).clone() for name, layer in norms.items() for kind in kept}
    for name, layer in norms.items():
        layer.momentum = momenta[name]
    for name, tensor in model.state_dict().items():
        tensor.copy_(before[name])
    model.train(was_training)
    return found
