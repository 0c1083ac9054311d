"""Commands about sentences."""

from pathlib import Path
from typing import Annotated

import typer

from torchcaps import data as datasets
from torchcaps.checkpoint import load_model
from torchcaps.cli.options import Device, Root
from torchcaps.data.files import write_whole
from torchcaps.figures import png
from torchcaps.figures.sentence_map import explain, sentence_map
from torchcaps.machine import pick_device


def explain_sentence(
    checkpoint: Path,
    text: Annotated[str, typer.Argument(help="the sentence, in quotes")],
    label: Annotated[int | None, typer.Option(help="the class to look at; else the answer")] = None,
    out: Annotated[Path, typer.Option(help="the picture")] = Path("sentence.png"),
    device: Device = "auto",
    data: Root = None,
) -> None:
    """Which tokens and layers a class capsule used of a sentence, as a heat map."""
    where = pick_device(device)
    model, run, _ = load_model(checkpoint, where)
    seen = explain(model, datasets.encoder_of(run.data, data).load(where), text)
    figure, caption = sentence_map(seen, label)
    write_whole(out, png(figure))
    print(caption)
    print(out)
