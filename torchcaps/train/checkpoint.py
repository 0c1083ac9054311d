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

# types of the header's entries, checked where a file is read: a hash shows damage, not a wrong content
HEADER: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "seed": int,
    "run": dict,
    "step": int,
    "stage": int,
    "done": int,
    "seconds": (int, float),
    "phases": dict,
    "made_by": list,
    "ended": bool,
    "met": bool,
    "without": list,
}
OF_A_RUN = ("name", "seed", "run", "step")


class Checkpoint(NamedTuple):
    """Tensors and header of a checkpoint file.

    Example:

        save_checkpoint(Path("net.safetensors"), {"model/weight": torch.zeros(2, 3)}, {"step": 20})
        found = load_checkpoint(Path("net.safetensors"))
        found.about["step"], list(found.part("model")["weight"].shape)  # (20, [2, 3])
    """

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
    return Checkpoint(tensors, _header(path, header["torchcaps"]))


def load_run(path: Path) -> Checkpoint:
    """Read the checkpoint of a run: one whose header tells the run, its seed and its step."""
    found = load_checkpoint(path)
    if missing := [key for key in OF_A_RUN if key not in found.about]:
        raise ValueError(f"{path} has no {', '.join(missing)} in its header, so it is of no run; use another one")
    return found


def _header(path: Path, text: str) -> dict[str, Any]:
    """Parse the header and check the types of its entries."""
    try:
        about = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} has a header that is no JSON ({error}); use another one") from error
    if not isinstance(about, dict):
        raise ValueError(f"{path} has a header that is a {type(about).__name__}, not an object; use another one")
    given = {key: kind for key, kind in HEADER.items() if key in about}
    wrong = [f"{key} is {str(about[key])[:40]!r}" for key, kind in given.items() if not _is(about[key], kind)]
    wrong += [f"{key} is {about[key]}" for key in ("step", "stage", "done") if not wrong and about.get(key, 0) < 0]
    if wrong:
        raise ValueError(f"{path} has a header that torchcaps does not write: {', '.join(wrong[:3])}; use another one")
    return about


def _is(value: Any, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def read_about(path: Path) -> dict[str, Any] | None:
    """Read the header of a checkpoint alone, without its hash; None where there is none."""
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get("torchcaps")
    except (SafetensorError, OSError):
        return None  # `load_checkpoint` says what is wrong
    return None if header is None else _header(path, header)


def check_makers(makers: list[Any], path: Path) -> list[dict[str, Any]]:
    """Return the makers of a run that goes on, or refuse them: its result tells the device and code of each."""
    for maker in makers:
        known = isinstance(maker, dict) and isinstance(maker.get("device"), str)
        if not known or not isinstance(maker.get("dirty"), bool):
            raise ValueError(
                f"{path} cannot be resumed: made_by must tell device and commit of every maker, got "
                f"{str(maker)[:40]!r}; remove that file, or give `train` another --out"
            )
    return makers


def tensors_sha256(tensors: Mapping[str, Tensor], header: str = "") -> str:
    """Hash names, dtypes, shapes and bytes of tensors, and the header if given."""
    digest = hashlib.sha256(header.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def load_into(model: torch.nn.Module, tensors: Mapping[str, Tensor], source: Path | str) -> None:
    """Copy tensors into a model, keeping device and memory layout; refuse NaN and tensors of another model."""
    check_shapes(model, tensors, source)
    own = model.state_dict()
    # rounded ones are read, as released; a weight of booleans would become zeros and ones
    if bad := [name for name in own if tensors[name].is_floating_point() != own[name].is_floating_point()]:
        raise ValueError(
            f"{source} holds {tensors[bad[0]].dtype} in {bad[0]}, not {own[bad[0]].dtype}; use another checkpoint"
        )
    check_finite({name: tensors[name] for name in own}, source)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


def check_finite(tensors: Mapping[str, Tensor], source: Path | str) -> None:
    """Refuse tensors with a NaN or an infinity."""
    if bad := [name for name, tensor in tensors.items() if not tensor.isfinite().all()]:
        raise ValueError(
            f"{source} has weights that are NaN or infinite, in {bad[0]} and {len(bad) - 1} more tensors; "
            "use an earlier checkpoint"
        )


def check_shapes(model: torch.nn.Module, tensors: Mapping[str, Tensor], source: Path | str) -> None:
    """Refuse tensors that are not those of the model, by name and shape; the model may lie on the meta device."""
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
