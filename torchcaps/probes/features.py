"""What a finished network says of many pictures, kept in files so that classifiers can be fitted to it later and elsewhere.

`<folder of the run>/features/<pool>-<number>.npz`, 25,000 pictures each: poses as half floats, the mask, and the hash of the weights
that made them. Half floats are three digits of each number; every classifier sees them so, wherever it is fitted.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.analysis.routing import evaluating
from torchcaps.data import Labelled
from torchcaps.data.batches.images import in_order
from torchcaps.data.subsets import picked, pool
from torchcaps.runtime.files import write_whole
from torchcaps.runtime.metrics_log import progress_bar
from torchcaps.train.checkpoint import load_checkpoint, load_into, tensors_sha256
from torchcaps.train.plain import unlike

if TYPE_CHECKING:
    from torchcaps.probes.kinds import FrozenClassifier, Probe

ROWS = 25_000  # pictures in a file: under 16 MB of 256 numbers each
AT_ONCE = 200
CHECKPOINT = "checkpoint.safetensors"


class Seen(NamedTuple):
    """A pool through a network."""

    poses: Float[Tensor, "n j e"]
    mask: Float[Tensor, "n j"]
    weights: str  # sha256

    def features(self, kind: str) -> Float[Tensor, "n f"]:
        """As float32, in a row."""
        poses = self.poses.float()
        return (poses * self.mask.float().unsqueeze(-1) if kind == "masked" else poses).flatten(1)


class Missing(ValueError):
    """Neither features nor a finished checkpoint are there."""


def look(probe: FrozenClassifier, name: str, folder: Path, device: torch.device, root: Path | None, seed: int, shown: bool = True) -> Seen:
    """The pool `name` through the network of `run`, whose folder this is: from its files, else from its checkpoint into them."""
    weights = finished_weights(probe, folder)
    if kept := _kept(folder, name, weights):
        return kept
    model = network(probe, folder, device)
    images = pool(name, root, seed)
    poses, masks = [], []
    with evaluating(model), progress_bar(f"features of {name} by {probe.of} seed {seed}", len(images.labels), 0, shown) as show:
        for batch in in_order(images, AT_ONCE, device, probe.network.augment):
            latent = model.latent(batch.images)
            poses.append(latent.poses.half().cpu())
            masks.append(latent.mask.half().cpu())
            show(min(AT_ONCE * len(poses), len(images.labels)), "")
    found = Seen(torch.cat(poses), torch.cat(masks), weights)
    _keep(folder, name, found)
    return found


def require(probe: FrozenClassifier, folder: Path) -> None:
    """Say at once what `look` would find missing, before pictures are read."""
    without = [name for name in probe.pools() if not _files(folder, name)]
    if without and finished_weights(probe, folder) is None:
        raise Missing(f"no features of {without[0]} and {_not_there(probe, folder)}; `torchcaps features {probe.of}` makes features of it")


def rows_of(name: str, seen: Float[Tensor, "n f"]) -> Float[Tensor, "m f"]:
    """Those of a portion, from what was seen of its pool."""
    return seen[picked(name, len(seen))]


def network(probe: Probe, folder: Path, device: torch.device) -> nn.Module:
    """As it was trained, to the end."""
    if finished_weights(probe, folder) is None:
        raise Missing(_not_there(probe, folder))
    model = probe.network.build().to(device)
    load_into(model, load_checkpoint(folder / CHECKPOINT).part("model"), folder / CHECKPOINT)
    return model


def finished_weights(probe: Probe, folder: Path) -> str | None:
    """The hash of the checkpoint's weights, if there is one that is finished; another run's is refused."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    found = load_checkpoint(path)
    if not found.about.get("ended", False) or found.about["stage"] != len(probe.network.stages) - 1:
        return None
    if unlike(found.about["run"], probe.network):
        raise ValueError(f"{path} is of another run than {probe.of} is today; train that again in another folder, or remove the file")
    return tensors_sha256(found.part("model"))


def _not_there(probe: Probe, folder: Path) -> str:
    return f"no finished checkpoint of {probe.of} in {folder}, which `torchcaps train {probe.of} --seed {folder.name}` makes"


def pixels(images: Labelled) -> Float[Tensor, "n f"]:
    """Pictures as rows of numbers in 0..1."""
    return images.images.flatten(1).float() / 255


def _files(folder: Path, name: str) -> list[Path]:
    start = folder / "features" / name.replace("/", "-")
    return sorted(start.parent.glob(f"{start.name}-*.npz"), key=lambda path: int(path.stem.rsplit("-", 1)[1]))


def _keep(folder: Path, name: str, seen: Seen) -> None:
    (folder / "features").mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, len(seen.poses), ROWS)):
        content, part = io.BytesIO(), slice(start, start + ROWS)
        arrays = {"poses": seen.poses[part].numpy(), "mask": seen.mask[part].numpy()}
        np.savez(content, **arrays, weights=np.array(seen.weights), n=np.array(len(seen.poses)))
        write_whole(folder / "features" / f"{name.replace('/', '-')}-{number}.npz", content.getvalue())


def _kept(folder: Path, name: str, weights: str | None) -> Seen | None:
    """What the files hold, if they are all there and of these weights; of whichever weights, if no checkpoint says otherwise."""
    parts = [np.load(path) for path in _files(folder, name)]
    if not parts:
        return None
    made_by = {str(part["weights"]) for part in parts}
    poses, mask = (torch.from_numpy(np.concatenate([part[key] for part in parts])) for key in ("poses", "mask"))
    if len(made_by) > 1 or len(poses) != int(parts[0]["n"]) or weights not in (None, *made_by):
        return None
    return Seen(poses, mask, made_by.pop())
