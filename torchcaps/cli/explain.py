"""Which places of a picture a class capsule used."""

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from jaxtyping import UInt8
from torch import Tensor, nn

from torchcaps import data as datasets
from torchcaps.checkpoint import load_model
from torchcaps.cli.options import Device, Root
from torchcaps.cli.own import class_names
from torchcaps.data.pictures import image_module
from torchcaps.figures import save_figures
from torchcaps.figures.places import used_places
from torchcaps.machine import pick_device

FIRST = "0,1,2,3,4"


def explain(
    checkpoint: Annotated[Path, typer.Argument(help="of a network that routes by EM")],
    test: Annotated[str, typer.Option(help="pictures of the test part, by their numbers")] = FIRST,
    image: Annotated[list[Path] | None, typer.Option(help="your own picture instead: a grey file for each channel, left eye first")] = None,
    out: Path = Path("figures"),
    device: Device = "auto",
    data: Root = None,
) -> None:
    """Which places of a picture each class capsule used, as heat maps over it."""
    where = pick_device(device)
    model, run, about = load_model(checkpoint, where)
    names = class_names(run) if isinstance(run.data, datasets.OwnImages) or run.data.startswith("smallnorb") else None
    if image:
        pictures, labels = [own_picture(image, model)], [None]
    else:
        pictures, labels = _of_the_test_part(test, run.data, data, about["seed"])
    for path in save_figures({"places": used_places(model, pictures, labels, names)}, out):
        print(path)


def own_picture(files: list[Path], model: nn.Module) -> Tensor:
    """Grey files of one size as the channels of a picture, in 0..1: as they are, whatever their size."""
    channels = [_grey(file) for file in files]
    wanted = getattr(model, "image", (len(files),))[0]
    if len(files) != wanted:
        raise ValueError(f"the network takes pictures of {wanted} channels, got {len(files)} files; give --image once for each channel")
    if len(sizes := {tuple(channel.shape) for channel in channels}) > 1:
        raise ValueError(f"the files of one picture must have one size, got {' and '.join('x'.join(map(str, s)) for s in sorted(sizes))}")
    return torch.stack(channels).float() / 255


def _grey(file: Path) -> UInt8[Tensor, "h w"]:
    try:
        with image_module().open(file) as opened:
            return torch.from_numpy(np.array(opened.convert("L")))
    except (OSError, SyntaxError) as error:  # a broken PNG is a SyntaxError to Pillow
        raise ValueError(f"{file} is not a picture that Pillow can read ({error}); give another file") from error


def _of_the_test_part(numbers: str, name: str, root: Path | None, seed: int) -> tuple[list[Tensor], list[int]]:
    try:
        which = [int(number) for number in numbers.split(",")]
    except ValueError as error:
        raise ValueError(f"--test takes whole numbers with commas, as {FIRST}; got {numbers!r}") from error
    found = datasets.load(name, "test", root, seed)
    if not all(0 <= number < len(found.labels) for number in which):
        raise ValueError(f"{name} has {len(found.labels):,} test pictures, numbered from 0; got {numbers}")
    return list(found.images[which]), found.labels[which].tolist()
