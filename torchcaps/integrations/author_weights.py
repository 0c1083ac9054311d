"""Weights that a paper's author published, as checkpoints of ours.

A published file is a pickle, so it is read by PyTorch's restricted loader: tensors in plain containers and nothing
else. Sizes are checked before a tensor is read.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.papers import RECIPES
from torchcaps.runtime.environment import make_folder
from torchcaps.train.checkpoint import check_shapes, save_checkpoint
from torchcaps.train.plain import to_plain
from torchcaps.train.recipe import Run

MOST_BYTES = 16 << 20  # smallNORB's network has 1.1 MB
CONSTANTS = ("routings.0.CONST_one", "routings.1.CONST_one")  # buffers of the author's layers that always hold 1
COLUMNS_FIRST = [0, 1, 3, 2]  # two cameras; his coordinates are rows, columns, ours columns, rows
N_CONVOLUTIONS = 6


class Published(NamedTuple):
    """Run of ours that has the published network, and the function that renames and reorders its tensors."""

    row: str
    convert: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]


def _heinsen2019(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the smallNORB network of Heinsen 2019. Weights of his first layer, for any input, have an axis of 1."""
    norms = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    names = {}
    for number in range(N_CONVOLUTIONS):
        names |= {f"convolve.{3 * number}.{part}": f"maps.{number}.0.{part}" for part in norms}
        names |= {f"convolve.{3 * number + 1}.{part}": f"maps.{number}.1.{part}" for part in norms[:2]}
    for his, ours in (("compute_a", "scores"), ("compute_mu", "poses")):
        names |= {f"{his}.0.{part}": f"{ours}.0.{part}" for part in norms}
        names |= {f"{his}.1.{part}": f"{ours}.1.{part}" for part in norms[:2]}
    routing = {"W": "weight", "B": "bias", "beta_use": "beta_use", "beta_ign": "beta_ignore"}
    for number, layer in enumerate(("parts", "classes")):
        names |= {f"routings.{number}.{his}": f"{layer}.{ours}" for his, ours in routing.items()}
    missing, unknown = (
        [key for key in names if key not in theirs],
        [key for key in theirs if key not in (*names, *CONSTANTS)],
    )
    if missing or unknown:
        raise ValueError(
            "these are not the weights of Heinsen's smallNORB network: "
            + ", ".join([*(f"no {key}" for key in missing[:2]), *(f"unknown {key}" for key in unknown[:2])])
            + "; give smallNORB_pretrained_model_state_dict.pt"
        )
    for key in CONSTANTS:
        if key in theirs and theirs[key].flatten().tolist() != [1]:
            shown = str(theirs[key].flatten()[:3].tolist())
            raise ValueError(f"{key} must be the constant 1; got {shown}; give the file as its author published it")
    found = {ours: theirs[his] for his, ours in names.items()}
    for name, tensor in found.items():
        if name.startswith("parts.") and tensor.ndim and tensor.shape[0] == 1:
            found[name] = tensor[0]  # one transform for all inputs
        if name.startswith("maps.0.0.") and tensor.shape == (4,):
            found[name] = tensor[COLUMNS_FIRST]
    if found["maps.0.1.weight"].ndim == 4 and found["maps.0.1.weight"].shape[1] == 4:
        found["maps.0.1.weight"] = found["maps.0.1.weight"][:, COLUMNS_FIRST]
    return found


PUBLISHED = {"heinsen2019": Published("heinsen2019/smallnorb", _heinsen2019)}


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read tensors by name from a file of `torch.save`, running none of its code and within a bound of memory."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give the file that the paper's author published")
    size = path.stat().st_size
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            size = max(size, sum(entry.file_size for entry in archive.infolist()))
    if size > MOST_BYTES:
        raise ValueError(f"{path} has {size:,} bytes, at most {MOST_BYTES:,} are read; give the weights alone")
    try:
        # first without memory for the tensors, to see how large they say they are
        _checked(path, torch.load(path, map_location="meta", weights_only=True))
        return _checked(path, torch.load(path, map_location="cpu", weights_only=True))
    except (RuntimeError, EOFError, OSError, LookupError, TypeError, pickle.UnpicklingError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} holds no tensors that can be read safely ({reason}); give a state dict") from error


def _checked(path: Path, found: Any) -> dict[str, Tensor]:
    """Return what a file holds if it is tensors by name, each no larger than the bound."""
    if not isinstance(found, Mapping) or not all(isinstance(each, Tensor) for each in found.values()):
        raise ValueError(f"{path} holds a {type(found).__name__}, not tensors by name; give a state dict")
    declared = sum(each.numel() * each.element_size() for each in found.values())
    if declared > MOST_BYTES or any(each.is_sparse or each.is_complex() for each in found.values()):
        raise ValueError(f"{path} declares {declared:,} bytes of tensors; at most {MOST_BYTES:,} dense ones are read")
    return {str(name): tensor for name, tensor in found.items()}


def import_weights(paper: str, path: Path, out: Path) -> Run:
    """Convert published weights and save them as a checkpoint; return the run whose network they fit."""
    if paper not in PUBLISHED:
        raise ValueError(f"no published weights of {paper!r} are known; there are {', '.join(PUBLISHED)}")
    row, convert = PUBLISHED[paper]
    run = RECIPES[row].make()
    tensors = convert(read_state_dict(path))
    with torch.device("meta"):
        model = run.build()
    check_shapes(model, tensors, path)
    for name, own in model.state_dict().items():
        _check_numbers(path, name, tensors[name], own.dtype)
        tensors[name] = tensors[name].to(own.dtype)
    steps = [int(tensor) for name, tensor in tensors.items() if name.endswith("num_batches_tracked")]
    about = {"name": f"{paper}/published", "seed": 0, "run": to_plain(run), "step": max(0, *steps)}
    make_folder(out.parent)
    save_checkpoint(out, {f"model/{name}": tensor for name, tensor in tensors.items()}, about)
    return run


def _check_numbers(path: Path, name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """Refuse another kind of numbers than the network has, and values that no training gives."""
    do = "give the file as its author published it"
    if tensor.is_floating_point() != dtype.is_floating_point:
        raise ValueError(f"{path}: {name} must be numbers like {dtype}; got {tensor.dtype}; {do}")
    if not tensor.isfinite().all():
        n = int((~tensor.isfinite()).sum())
        raise ValueError(f"{path}: {name} must be finite; got {n:,} of {tensor.numel():,} numbers that are not; {do}")
    if name.endswith(("running_var", "num_batches_tracked")) and (tensor < 0).any():
        raise ValueError(f"{path}: {name} must be at least 0; got {tensor.min().item():g}; {do}")
