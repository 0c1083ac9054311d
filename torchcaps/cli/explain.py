"""`torchcaps explain`: heat maps of what a class capsule used in an image or a sentence."""

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
    checkpoint: Annotated[Path, typer.Argument(help="checkpoint of a network with EM routing")],
    test: Annotated[str, typer.Option(help="indices of test images or test sentences")] = FIRST,
    image: Annotated[
        list[Path] | None,
        typer.Option(help="explain your own image: one greyscale file per channel, left camera first"),
    ] = None,
    sentence: Annotated[
        list[str] | None, typer.Option(help="explain your own sentence, in quotes; may be repeated")
    ] = None,
    label: Annotated[
        int | None, typer.Option(help="sentences only: class to explain; default: the predicted class")
    ] = None,
    out: Path = Path("figures"),
    device: Device = "auto",
    data: Root = None,
) -> None:
    """Draw heat maps of the image regions, or the tokens and layers, that each class capsule used."""
    where = pick_device(device)
    model, run, about = open_model(checkpoint, where)
    of_sentences = datasets.info(run.data).kind == "sentences"
    if of_sentences and image:
        raise ValueError(f"{checkpoint} is a network for sentences: give --sentence or --test instead of --image")
    if not of_sentences and (sentence or label is not None):
        raise ValueError(
            f"{checkpoint} is a network for images: give --image or --test instead of --sentence and --label"
        )
    if own := sentence if of_sentences else image:
        which, tests = [], None
    else:
        which, tests = _numbers(test, run.data), datasets.load(run.data, "test", data, about["seed"])
    if of_sentences:
        encoder = datasets.encoder_of(run.data, data).load(where)
        texts = own or [tests.texts[number] for number in which]
        made = {
            f"sentence_{n}": sentence_map(explained(model, encoder, text), label)
            for n, text in enumerate(texts, start=1)
        }
    else:
        named = isinstance(run.data, datasets.OwnImages) or datasets.spec(run.data).source == "smallnorb"
        names = class_names(run.data) if named else None
        images, labels = (
            ([own_image(own, model)], [None]) if own else (list(tests.images[which]), tests.labels[which].tolist())
        )
        made = {"places": used_places(model, images, labels, names, run.augment)}
    for path in save_figures(made, out):
        print(path)


def own_image(files: list[Path], model: nn.Module) -> Tensor:
    """Read greyscale files of one size as the channels of one image in 0..1, without resizing."""
    channels = [_grey(file) for file in files]
    wanted = getattr(model, "image", (len(files),))[0]
    if len(files) != wanted:
        raise ValueError(
            f"the network takes images of {wanted} channels, got {len(files)} files; give --image once for each channel"
        )
    if len(sizes := {tuple(channel.shape) for channel in channels}) > 1:
        raise ValueError(
            "the files of one image must have one size, got "
            f"{' and '.join('x'.join(map(str, s)) for s in sorted(sizes))}"
        )
    return torch.stack(channels).float() / 255


def _grey(file: Path) -> UInt8[Tensor, "h w"]:
    try:
        with image_module().open(file) as opened:
            return torch.from_numpy(np.array(opened.convert("L")))
    except (OSError, SyntaxError) as error:  # a broken PNG is a SyntaxError to Pillow
        raise ValueError(f"{file} is not an image that Pillow can read ({error}); give another file") from error


def _numbers(written: str, name: str) -> list[int]:
    """Parse indices of test examples and check that they exist."""
    try:
        which = [int(number) for number in written.split(",")]
    except ValueError as error:
        raise ValueError(f"--test takes whole numbers with commas, as {FIRST}; got {written!r}") from error
    about = datasets.info(name)
    if not all(0 <= number < about.n_test for number in which):
        raise ValueError(f"{name} has {about.n_test:,} test {about.kind}, numbered from 0; got {written}")
    return which
