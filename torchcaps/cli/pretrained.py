"""Commands for the pretrained models that come with the package."""

from pathlib import Path
from typing import Annotated

import typer

from torchcaps import pretrained as models
from torchcaps.cli.options import Device, Root, console
from torchcaps.cli.options import table as make_table
from torchcaps.papers import RECIPES
from torchcaps.pretrained import release as releases
from torchcaps.runtime.environment import pick_device
from torchcaps.train.checkpoint import load_checkpoint


def pretrained(name: Annotated[str | None, typer.Argument(help="print the model card of this model")] = None) -> None:
    """List the pretrained models. `torchcaps.load(NAME)` and every command with a checkpoint take their names."""
    if name is not None:
        print(models.file_of(name).with_suffix(".md").read_text(), end="")
        return
    lines = make_table("name", "what it is", "parameters", "MB", "on its test set")
    for key, one in models.entries().items():
        numbers = next(iter((one.measured or one.metrics).values()))
        said = ", ".join(f"{metric} {value:.2f}" for metric, value in numbers.items())
        said = said if one.measured else f"{said}, as trained"
        lines.add_row(key, one.about, f"{one.n_parameters:,}", f"{one.bytes / 1e6:.2f}", said)
    console.print(lines)


def release(
    checkpoint: Annotated[
        Path, typer.Argument(help="checkpoint of a finished run: runs/RECIPE/SEED/checkpoint.safetensors")
    ],
    name: Annotated[str, typer.Argument(help="name for `torchcaps.load`, such as capsnet-mnist")],
    result: Annotated[
        Path | None, typer.Option(help="result file of that run; default: result.json beside the checkpoint")
    ] = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="round large tensors to bfloat16: half the bytes")] = False,
    without_decoder: Annotated[bool, typer.Option("--without-decoder", help="drop the decoder of a CapsNet")] = False,
    about: Annotated[str, typer.Option(help="one-line description; default: that of its recipe")] = "",
    licence: Annotated[str, typer.Option(help="licence of the weights")] = "MIT",
    folder: Annotated[Path, typer.Option(help="output folder for weights, model card and registry")] = models.FOLDER,
    device: Device = "auto",
    data: Root = None,
    measure: Annotated[
        bool, typer.Option(help="evaluate the released weights again; large test sets take hours on a CPU")
    ] = True,
) -> None:
    """Package a finished run as a pretrained model: weights, model card and registry entry.

    Evaluates the released weights where the test set is available.
    """
    recipe = RECIPES.get(load_checkpoint(checkpoint).about["name"])
    words = about or (recipe.about.splitlines()[0] if recipe else "")
    drop = ("decoder",) if without_decoder else ()
    made = releases.release(
        checkpoint,
        name,
        result=result,
        rounded=bf16,
        drop=drop,
        about=words,
        licence=licence,
        folder=folder,
        root=data,
        device=pick_device(device),
        again=measure,
    )
    print((folder / made.file).with_suffix(".md").read_text(), end="")
