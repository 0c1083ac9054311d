"""Commands about the trained models that come with the package."""

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


def pretrained(name: Annotated[str | None, typer.Argument(help="one of them, whose card is shown")] = None) -> None:
    """The trained models that come along, for `torchcaps.load(NAME)` and wherever a command takes a checkpoint."""
    if name is not None:
        print(models.file_of(name).with_suffix(".md").read_text(), end="")
        return
    lines = make_table("name", "what it is", "parameters", "MB", "this file, of its test part")
    for key, one in models.entries().items():
        numbers = next(iter((one.measured or one.metrics).values()))
        said = ", ".join(f"{metric} {value:.2f}" for metric, value in numbers.items()) + ", as trained" * (not one.measured)
        lines.add_row(key, one.about, f"{one.n_parameters:,}", f"{one.bytes / 1e6:.2f}", said)
    console.print(lines)


def release(
    checkpoint: Annotated[Path, typer.Argument(help="of a finished run, runs/RECIPE/SEED/checkpoint.safetensors")],
    name: Annotated[str, typer.Argument(help="what `torchcaps.load` shall know it by, as capsnet-mnist")],
    result: Annotated[Path | None, typer.Option(help="the result file of that run; else result.json beside the checkpoint")] = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="round large tensors to bfloat16: half the bytes")] = False,
    without_decoder: Annotated[bool, typer.Option("--without-decoder", help="leave a CapsNet's decoder out")] = False,
    about: Annotated[str, typer.Option(help="what it is, in a line; else what its recipe says")] = "",
    licence: Annotated[str, typer.Option(help="of the weights")] = "MIT",
    folder: Annotated[Path, typer.Option(help="where files, card and registry go")] = models.FOLDER,
    device: Device = "auto",
    data: Root = None,
    measure: Annotated[bool, typer.Option(help="again, with the weights in the file; large test sets take hours on a CPU")] = True,
) -> None:
    """Make a trained model of a finished run: a small file, its card and its line in the registry, measured where its data are at hand."""
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
