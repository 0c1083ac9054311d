"""Features of a finished network, cached in files so that classifiers can be fitted later and elsewhere.

`<folder of the run>/features/<pool>-<number>.npz` holds 25,000 images: poses and mask as half floats (three digits),
and the hash of the network's weights. Every classifier is fitted to the half floats, so the machine does not matter.
"""

from __future__ import annotations

import io
import zipfile
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

ROWS = 25_000  # images per file: under 16 MB with 256 features each
AT_ONCE = 200
CHECKPOINT = "checkpoint.safetensors"
DAMAGED = (ValueError, KeyError, EOFError, zipfile.BadZipFile)  # errors of reading a damaged .npz file


class Seen(NamedTuple):
    """Features of a pool of images."""

    poses: Float[Tensor, "n j e"]
    mask: Float[Tensor, "n j"]
    weights: str  # sha256

    def features(self, kind: str) -> Float[Tensor, "n f"]:
        """Return the poses (`masked`: times the mask) as float32, one row per image."""
        poses = self.poses.float()
        return (poses * self.mask.float().unsqueeze(-1) if kind == "masked" else poses).flatten(1)


class Missing(ValueError):
    """Error: neither features nor a finished checkpoint exist."""


def look(
    probe: FrozenClassifier,
    name: str,
    folder: Path,
    device: torch.device,
    root: Path | None,
    seed: int,
    shown: bool = True,
) -> Seen:
    """Return the features of the pool `name` from the cache in `folder`, or compute and cache them."""
    weights = finished_weights(probe, folder)
    if kept := _kept(folder, name, weights):
        return kept
    model = network(probe, folder, device)
    images = pool(name, root, seed)
    poses, masks = [], []
    with (
        evaluating(model),
        progress_bar(f"features of {name} by {probe.of} seed {seed}", len(images.labels), 0, shown) as show,
    ):
        for batch in in_order(images, AT_ONCE, device, probe.network.augment):
            latent = model.latent(batch.images)
            poses.append(latent.poses.half().cpu())
            masks.append(latent.mask.half().cpu())
            show(min(AT_ONCE * len(poses), len(images.labels)), "")
    found = Seen(torch.cat(poses), torch.cat(masks), weights)
    _keep(folder, name, found)
    return found


def require(probe: FrozenClassifier, folder: Path) -> None:
    """Raise Missing early, before images are read, if `look` would."""
    without = [name for name in probe.pools() if not _files(folder, name)]
    if without and finished_weights(probe, folder) is None:
        raise Missing(
            f"no features of {without[0]} and {_not_there(probe, folder)}; "
            f"`torchcaps features {probe.of}` makes features of it"
        )


def rows_of(name: str, seen: Float[Tensor, "n f"]) -> Float[Tensor, "m f"]:
    """Select the rows of a portion from the features of its pool."""
    return seen[picked(name, len(seen))]


def network(probe: Probe, folder: Path, device: torch.device) -> nn.Module:
    """Load the finished network of a probe from its checkpoint."""
    if finished_weights(probe, folder) is None:
        raise Missing(_not_there(probe, folder))
    model = probe.network.build().to(device)
    load_into(model, load_checkpoint(folder / CHECKPOINT).part("model"), folder / CHECKPOINT)
    return model


def finished_weights(probe: Probe, folder: Path) -> str | None:
    """Return the hash of the weights of a finished checkpoint, or None; refuse a checkpoint of another run."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    found = load_checkpoint(path)
    if not found.about.get("ended", False) or found.about["stage"] != len(probe.network.stages) - 1:
        return None
    if unlike(found.about["run"], probe.network):
        raise ValueError(
            f"{path} is of another run than {probe.of} is today; train that again in another folder, or remove the file"
        )
    return tensors_sha256(found.part("model"))


def _not_there(probe: Probe, folder: Path) -> str:
    command = f"torchcaps train {probe.of} --seed {folder.name}"
    return f"no finished checkpoint of {probe.of} in {folder}, which `{command}` makes"


def pixels(images: Labelled) -> Float[Tensor, "n f"]:
    """Flatten images to rows of pixel values in 0..1."""
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
    """Load cached features if the files are whole and match `weights`; None for `weights` accepts any."""
    if not (files := _files(folder, name)):
        return None
    try:
        parts = [np.load(io.BytesIO(path.read_bytes())) for path in files]
        made_by = {str(part["weights"]) for part in parts}
        poses, mask = (torch.from_numpy(np.concatenate([part[key] for part in parts])) for key in ("poses", "mask"))
        n_rows = int(parts[0]["n"])
    except DAMAGED:
        return None
    if len(made_by) > 1 or len(poses) != n_rows or weights not in (None, *made_by):
        return None
    return Seen(poses, mask, made_by.pop())
