"""Loading of models from checkpoints."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchcaps.train.checkpoint import load_checkpoint, load_into
from torchcaps.train.recipe import Run, stored_run


def load_model(path: Path, device: torch.device) -> tuple[nn.Module, Run, dict[str, Any]]:
    """Load a trained model, its run, and the header of its checkpoint.

    A released file may lack parts (`without`); the run is then that of the model without them.
    """
    found = load_checkpoint(path)
    run = without(stored_run(found.about["run"]), found.about.get("without", ()))
    model = run.build().to(device)
    load_into(model, found.part("model"), path)
    return model, run, found.about


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
