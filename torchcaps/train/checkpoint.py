"""Checkpoints: one safetensors file with named tensors and a plain JSON header, written atomically, no pickle."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from torchcaps.runtime.files import write_whole


class Checkpoint(NamedTuple):
    """Tensors and header of a checkpoint file."""

    tensors: dict[str, Tensor]
    about: dict[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors under a prefix such as `model`, with the prefix removed."""
        start = prefix + "/"
        return {name.removeprefix(start): tensor for name, tensor in self.tensors.items() if name.startswith(start)}


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically: a kill or a full disk leaves the old file intact."""
    # contiguous, since safetensors refuses channels-last tensors
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = json.dumps(dict(about))
    content = save(plain, metadata={"torchcaps": header, "sha256": tensors_sha256(plain, header)})
    try:
        write_whole(path, content)
    except OSError as error:
        kept = f"the previous checkpoint {path} is untouched" if path.exists() else "there is no earlier checkpoint"
        message = f"could not write the checkpoint ({error.strerror}); {kept}; free space or choose another --out"
        raise OSError(error.errno, message, str(path)) from error


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint and check its hash; refuse a damaged file or one that torchcaps did not write."""
    if not path.is_file():
        raise ValueError(
            f"no checkpoint at {path}; `torchcaps train RECIPE --out FOLDER` writes FOLDER/checkpoint.safetensors"
        )
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a dict
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path} is not a whole checkpoint ({error}); use another one, or start again in a new folder"
        ) from error
    if "torchcaps" not in header:
        raise ValueError(
            f"{path} is a safetensors file of something else, it has no torchcaps header; give one that torchcaps wrote"
        )
    if (found := tensors_sha256(tensors, header["torchcaps"])) != header.get("sha256"):
        said = header.get("sha256", "nothing")
        raise ValueError(
            f"{path} is damaged: its content has sha256 {found[:8]}…, its header says {said[:8]}…; use another one"
        )
    return Checkpoint(tensors, json.loads(header["torchcaps"]))


def read_about(path: Path) -> dict[str, Any] | None:
    """Read the header of a checkpoint alone, without its hash; None where there is none."""
    try:
        with safe_open(path, framework="pt") as file:
            return json.loads((file.metadata() or {}).get("torchcaps", "null"))
    except (SafetensorError, OSError):
        return None  # `load_checkpoint` says what is wrong


def tensors_sha256(tensors: Mapping[str, Tensor], header: str = "") -> str:
    """Hash names, dtypes, shapes and bytes of tensors, and the header if given."""
    digest = hashlib.sha256(header.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def load_into(model: torch.nn.Module, tensors: Mapping[str, Tensor], source: Path | str) -> None:
    """Copy tensors into a model, keeping device and memory layout; refuse tensors of another model."""
    own = model.state_dict()
    wrong = [f"no {name}" for name in own if name not in tensors] + [
        f"unknown {name}" for name in tensors if name not in own
    ]
    both = [name for name in own if name in tensors]
    wrong += [
        f"{name} is {list(tensors[name].shape)}, not {list(own[name].shape)}"
        for name in both
        if tensors[name].shape != own[name].shape
    ]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise ValueError(
            f"{source} is a checkpoint of another model: {', '.join(wrong[:3])}{more}; "
            "give the one that this recipe wrote"
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
