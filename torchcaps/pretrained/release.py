"""Release of a finished run as a small weights file with result file, model card and registry entry."""

import hashlib
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.data import DataError, fingerprint
from torchcaps.pretrained.card import card
from torchcaps.pretrained.registry import FOLDER, Entry, add
from torchcaps.results.store import read_result, unpack, write_result
from torchcaps.runtime.files import write_whole
from torchcaps.train import splits
from torchcaps.train.checkpoint import Checkpoint, load_checkpoint, save_checkpoint, tensors_sha256
from torchcaps.train.loading import load_model, without
from torchcaps.train.plain import unlike
from torchcaps.train.recipe import Run, stored_run

LARGE = 1024  # smallest tensor to round, in values: biases and statistics stay exact


def release(
    checkpoint: Path,
    name: str,
    *,
    result: Path | None = None,
    rounded: bool = False,
    drop: tuple[str, ...] = (),
    about: str = "",
    licence: str = "MIT",
    folder: Path = FOLDER,
    root: Path | None = None,
    device: torch.device | None = None,
    again: bool = True,
) -> Entry:
    """Write NAME.safetensors, .json and .md into the folder, and add the model to the registry.

    `rounded`: round large tensors to bfloat16. `drop`: parts to leave out. `again`: evaluate the released file on the
    parts with available data.
    """
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise ValueError(f"a name is small letters, digits and single dashes, as capsnet-mnist; got {name!r}")
    found = load_checkpoint(checkpoint)
    _refuse_unfinished(checkpoint, found)
    said = read_result(result or checkpoint.parent / "result.json")
    _refuse_others(found, said)
    run = without(stored_run(found.about["run"]), drop)
    weights = {key: tensor for key, tensor in found.part("model").items() if key.split(".")[0] not in drop}
    if rounded:
        weights = {key: rounded_to_bfloat16(tensor) for key, tensor in weights.items()}
    header = {key: found.about[key] for key in ("name", "seed", "step", "run")} | {
        "without": list(drop),
        "commit": said["commit"],
    }
    path = folder / f"{name}.safetensors"
    save_checkpoint(path, {f"model/{key}": tensor for key, tensor in weights.items()}, header)
    write_result(path.with_suffix(".json"), said)
    return describe_file(path, about or f"{run.model} on {run.data}", root, device, licence, again)


def describe_file(
    path: Path,
    about: str,
    root: Path | None = None,
    device: torch.device | None = None,
    licence: str = "MIT",
    again: bool = True,
) -> Entry:
    """Evaluate a released file, and write its card and registry entry; its result file must be beside it."""
    said, content, found = read_result(path.with_suffix(".json")), path.read_bytes(), load_checkpoint(path)
    device = device or torch.device("cpu")
    model, run, header = load_model(path, device)
    if again:
        seen = measure(model, run, header["seed"], said, root, device)
    else:
        seen = Measured({}, {}, dict.fromkeys(splits.names(run), "it was not asked for"))
    if tensors_sha256(found.part("model")) == said.get("weights_sha256"):
        exact = {part: f"{why}; the weights are those trained, to the bit" for part, why in seen.unmeasured.items()}
        seen = seen._replace(unmeasured=exact)
    numbers: Counter[str] = Counter()
    for tensor in found.tensors.values():
        numbers[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
    made = Entry(
        about=about,
        file=path.name,
        sha256=hashlib.sha256(content).hexdigest(),
        bytes=len(content),
        recipe=said["recipe"],
        seed=said["seed"],
        commit=said["commit"],
        dirty=said["dirty"],
        model=run.model,
        n_parameters=sum(p.numel() for p in model.parameters()),
        numbers=dict(numbers),
        without=tuple(header.get("without", ())),
        licence=licence,
        metrics=said["metrics"],
        **seen._asdict(),
    )
    write_whole(path.with_suffix(".md"), card(path.stem, made, said).encode())
    add(path.stem, made, path.parent)
    return made


def rounded_to_bfloat16(tensor: Tensor) -> Tensor:
    """Round a large float32 tensor to bfloat16; return others unchanged."""
    return tensor.bfloat16() if tensor.dtype == torch.float32 and tensor.numel() >= LARGE else tensor


def _refuse_unfinished(path: Path, found: Checkpoint) -> None:
    about = found.about
    if "ended" not in about:
        raise ValueError(
            f"{path} is no checkpoint of a run, but a released file; give the checkpoint that it was made of"
        )
    if not (about["ended"] and about["stage"] == len(about["run"]["stages"]) - 1):
        raise ValueError(
            f"{path} is of a run that is not finished, at step {about['step']:,}; `torchcaps train` goes on with it"
        )


def _refuse_others(found: Checkpoint, said: dict[str, Any]) -> None:
    """Refuse a result file that was not made with exactly these weights."""
    about = found.about
    if (said["recipe"], said["seed"]) != (about["name"], about["seed"]):
        theirs, ours = f"{said['recipe']} seed {said['seed']}", f"{about['name']} seed {about['seed']}"
        raise ValueError(
            f"the result file is of {theirs}, the checkpoint of {ours}; give the result file of that run with --result"
        )
    if (got := tensors_sha256(found.part("model"))) != said.get("weights_sha256") or unlike(
        said["run"], stored_run(about["run"])
    ):
        raise ValueError(
            f"the result file was made by weights of sha256 {str(said.get('weights_sha256'))[:8]}…, "
            f"the checkpoint holds {got[:8]}…; "
            "give the result file that this very run wrote, with --result"
        )


class Measured(NamedTuple):
    """Evaluation of a released file, by part; the fields are those of `Entry`."""

    measured: dict[str, dict[str, float]]
    changed: dict[str, int]
    unmeasured: dict[str, str]


def measure(
    model: nn.Module, run: Run, seed: int, said: dict[str, Any], root: Path | None, device: torch.device
) -> Measured:
    """Evaluate the weights on every part of the run.

    Return the metrics, the number of changed predictions, and the reasons for parts that were not measured.
    """
    measured, changed, unmeasured = {}, {}, {}
    for name in splits.names(run):
        try:
            data = splits.part(run, name, root, seed)
        except DataError:
            unmeasured[name] = "the data were not at hand"
            continue
        if fingerprint(data) != said["data"].get(name):
            unmeasured[name] = "the data at hand were other ones than those of the result file"
            continue
        seen = run.stages[-1].task.evaluate(model, data, device, run.augment)
        measured[name] = seen.metrics
        changed[name] = int(
            (unpack(said["predictions"][name]) != seen.predictions.cpu())
            .reshape(len(seen.predictions), -1)
            .any(1)
            .sum()
        )
    return Measured(measured, changed, unmeasured)
