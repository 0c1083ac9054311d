"""Loading of pretrained models by name, or of checkpoints by path."""

from os import PathLike
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from torchcaps.data import class_names, info
from torchcaps.data.augment import as_seen
from torchcaps.pretrained.finding import file_of
from torchcaps.pretrained.registry import entries, entry
from torchcaps.train.loading import load_model
from torchcaps.train.plain import to_plain
from torchcaps.train.recipe import Run, stored_run
from torchcaps.train.state import checkpoint_path


def load(name: str | Path, device: str | torch.device = "cpu", *, n_classes: int | None = None) -> nn.Module:
    """Load a trained model in eval mode by name, `load("capsnet-digits")`, or by the path of a checkpoint.

    `n_classes`: for fine-tuning, replace the head by a new one for so many classes, and a decoder's first layer.
    `model.labels` are the class names, and `prepare(model, pixels)` makes its input from images as bytes.
    `model.about` holds its origin: `name` of the recipe, `seed`, `step`, and the whole `run` as plain data.
    """
    if n_classes is not None and (type(n_classes) is not int or n_classes < 1):
        raise ValueError(f"n_classes must be a whole number, 1 or more; got {n_classes!r}")
    model, run, about = load_model(locate(name), torch.device(device), n_classes)
    describe(model, run, about)
    return model.eval()


def open_model(name: str | Path, device: torch.device) -> tuple[nn.Module, Run, dict[str, Any]]:
    """Load a model by name or path, with its run and the header of its file."""
    return load_model(locate(name), device)


def locate(name: str | Path) -> Path:
    """Return the file of a pretrained model after checking its hash, or else the path as given.

    The folder of a run stands for the checkpoint in it. The name of a pretrained model takes precedence over a file of
    that name; give the full path to load the file.
    """
    if not isinstance(name, str | PathLike):
        raise ValueError(f"give the name of a pretrained model or the path of a checkpoint; got {name!r}")
    given, path = str(name), Path(name)
    if given in entries():
        return file_of(given)
    if not path.exists() and path.name == given and not path.suffix:
        entry(given)  # looks like a name, not a path: raises an error that lists the known names
    if not path.is_dir():
        return path
    if not checkpoint_path(path).exists():
        raise ValueError(
            f"{path} is a folder without {checkpoint_path(path).name}; give a checkpoint, or the --out folder of a run"
        )
    return checkpoint_path(path)


def describe(model: nn.Module, run: Run, about: dict[str, Any]) -> None:
    """Set `labels` and `about` on a model. The classes of a new head are numbers until somebody names them."""
    model.labels = tuple(about.get("labels", usual_labels(run, about)))
    told = ("name", "seed", "step", "n_classes", "labels")
    model.about = {key: about[key] for key in told if key in about} | {"run": to_plain(run)}


def usual_labels(run: Run, about: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the classes of the data, or of a new head the numbers."""
    new = about.get("n_classes")
    return class_names(run.data) if new is None else tuple(map(str, range(new)))


def prepare(model: nn.Module, pixels: UInt8[Tensor, "*b c h w"]) -> Float[Tensor, "*b c h2 w2"]:
    """Convert images as bytes to the input of the model, with its crop and standardisation as in evaluation."""
    about = getattr(model, "about", None)
    if about is None:
        raise ValueError(
            f"this {type(model).__name__} has no run that says how its images were prepared; "
            "take one from torchcaps.load"
        )
    run = stored_run(about["run"])
    data = info(run.data)
    if data.kind != "images":
        raise ValueError(
            f"this {type(model).__name__} was trained on {data.kind}; their encoder prepares them, not this"
        )
    if pixels.dtype != torch.uint8 or tuple(pixels.shape[-3:]) != data.shape:
        c, h, w = data.shape
        raise ValueError(
            f"prepare takes bytes (torch.uint8, 0 to 255) of shape [..., {c}, {h}, {w}], "
            f"got {pixels.dtype} of {list(pixels.shape)}; "
            "of numbers in 0..1 make (255 * x).round().to(torch.uint8), and bring images to that size"
        )
    return as_seen(pixels, run.augment).to(next(model.parameters()).device)
