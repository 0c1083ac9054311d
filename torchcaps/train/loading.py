"""Loading of models from checkpoints."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchcaps.train.checkpoint import check_shapes, load_into, load_run
from torchcaps.train.recipe import Run, stored_run

MOST_REPEATS = 1000  # of n_iters and n_layers, which no tensor of a file bounds


def load_model(path: Path, device: torch.device, n_classes: int | None = None) -> tuple[nn.Module, Run, dict[str, Any]]:
    """Load a trained model, its run, and the header of its checkpoint.

    A released file may lack parts (`without`); the run is then that of the model without them. With `n_classes`, all
    weights whose shape depends on the number of classes are new, also if that number stays the same.
    """
    found = load_run(path)
    run = without(stored_run(found.about["run"]), found.about.get("without", ()))
    _check_repeats(run.model_args, path)
    with torch.device("meta"):  # a size in the header that the tensors do not have must not take its memory
        check_shapes(run.build(), found.part("model"), path)
    model, tensors, about = run.build(n_classes).to(device), found.part("model"), found.about
    if n_classes is not None:
        fresh = model.state_dict()
        tensors |= {name: fresh[name] for name in head_of(run, n_classes)}
        about = about | {"n_classes": n_classes}
    load_into(model, tensors, path)
    return model, run, about


def head_of(run: Run, n_classes: int) -> list[str]:
    """List the tensors of a run's model whose shape depends on the number of classes; refuse a model without any."""
    with torch.device("meta"):  # shapes without weights, and without drawing random numbers
        here, larger = (run.build(n).state_dict() for n in (n_classes, n_classes + 1))
    head = [name for name, tensor in here.items() if tensor.shape != larger[name].shape]
    if not head:
        raise ValueError(
            f"n_classes={n_classes} asks for a new head, and {run.model} learns without classes, so it has none; "
            "load it without n_classes and train a classifier on its output"
        )
    return head


def _check_repeats(settings: Any, path: Path) -> None:
    """Refuse a number of iterations or layers that would run without end."""
    if is_dataclass(settings):  # options of a routing
        settings = {field.name: getattr(settings, field.name) for field in fields(settings)}
    if isinstance(settings, tuple):
        settings = dict(enumerate(settings))
    for name, value in settings.items() if isinstance(settings, dict) else ():
        if name in ("n_iters", "n_layers") and not (isinstance(value, int) and 0 <= value <= MOST_REPEATS):
            raise ValueError(f"{path} asks for {name}={str(value)[:40]}; at most {MOST_REPEATS:,} are run")
        _check_repeats(value, path)


def without(run: Run, parts: Sequence[str]) -> Run:
    """Return the run without these parts of its model. Only a CapsNet's decoder is not needed for prediction."""
    if not parts:
        return run
    if set(parts) != {"decoder"} or run.model != "capsnet" or not run.model_args.get("reconstruction", True):
        has = (
            f"{run.model}, reconstruction={run.model_args.get('reconstruction', True)}"
            if run.model == "capsnet"
            else run.model
        )
        raise ValueError(
            f"only the decoder of a capsnet can be left out, and this is {', '.join(parts)} of {has}; keep it whole"
        )
    return replace(run, model_args=run.model_args | {"reconstruction": False})
