"""What a class capsule used: places of a picture, or tokens and layers of a sentence."""

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from jaxtyping import UInt8
from torch import Tensor, nn

from torchcaps import data as datasets
from torchcaps.cli.options import Device, Root
from torchcaps.data import class_names
from torchcaps.data.sources.image_archives import image_module
from torchcaps.figures import save_figures
from torchcaps.figures.places import used_places
from torchcaps.figures.sentence_map import explain as explained
from torchcaps.figures.sentence_map import sentence_map
from torchcaps.pretrained import open_model
from torchcaps.runtime.environment import pick_device

FIRST = "0,1,2,3,4"


def explain(
    checkpoint: Annotated[Path, typer.Argument(help="of a network that routes by EM")],
    test: Annotated[str, typer.Option(help="pictures or sentences of the test part, by their numbers")] = FIRST,
    image: Annotated[list[Path] | None, typer.Option(help="your own picture instead: a grey file for each channel, left eye first")] = None,
    sentence: Annotated[list[str] | None, typer.Option(help="your own sentence instead, in quotes; several are drawn one by one")] = None,
    label: Annotated[int | None, typer.Option(help="of a sentence: the class to look at; else the answer")] = None,
    out: Path = Path("figures"),
    device: Device = "auto",
    data: Root = None,
) -> None:
    """Which places of a picture, or which tokens and layers of a sentence, a class capsule used: as heat maps."""
    where = pick_device(device)
    model, run, about = open_model(checkpoint, where)
    of_sentences = datasets.info(run.data).kind == "sentences"
    if of_sentences and image:
        raise ValueError(f"{checkpoint} is of a network for sentences: give --sentence or --test instead of --image")
    if not of_sentences and (sentence or label is not None):
        raise ValueError(f"{checkpoint} is of a network for pictures: give --image or --test instead of --sentence and --label")
    if own := sentence if of_sentences else image:
        which, tests = [], None
    else:
        which, tests = _numbers(test, run.data), datasets.load(run.data, "test", data, about["seed"])
    if of_sentences:
        encoder = datasets.encoder_of(run.data, data).load(where)
        texts = own or [tests.texts[number] for number in which]
        made = {f"sentence_{n}": sentence_map(explained(model, encoder, text), label) for n, text in enumerate(texts, start=1)}
    else:
        named = isinstance(run.data, datasets.OwnImages) or datasets.spec(run.data).source == "smallnorb"
        names = class_names(run.data) if named else None
        pictures, labels = ([own_picture(own, model)], [None]) if own else (list(tests.images[which]), tests.labels[which].tolist())
        made = {"places": used_places(model, pictures, labels, names, run.augment)}
    for path in save_figures(made, out):
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


def _numbers(written: str, name: str) -> list[int]:
    """Of examples of the test part."""
    try:
        which = [int(number) for number in written.split(",")]
    except ValueError as error:
        raise ValueError(f"--test takes whole numbers with commas, as {FIRST}; got {written!r}") from error
    about = datasets.info(name)
    if not all(0 <= number < about.n_test for number in which):
        raise ValueError(f"{name} has {about.n_test:,} test {about.kind}, numbered from 0; got {written}")
    return which
