"""Commands for the pretrained models."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from torchcaps import pretrained as models
from torchcaps.cli.columns import AsJson, tell, tell_card, tell_json
from torchcaps.cli.options import Device, Root, console
from torchcaps.papers import RECIPES
from torchcaps.pretrained import release as releases
from torchcaps.runtime.environment import pick_device
from torchcaps.train.checkpoint import load_checkpoint


def pretrained(
    name: Annotated[str | None, typer.Argument(help="print the model card of this model")] = None,
    as_json: AsJson = False,
) -> None:
    """List the pretrained models. `torchcaps.load(NAME)` and every command with a checkpoint take their names."""
    if name is not None:
        if as_json:
            tell_json({"name": name, **asdict(models.entry(name))})
        else:
            tell_card(models.card_of(name))
        return
    if as_json:
        tell_json([{"name": key, **asdict(one)} for key, one in models.entries().items()])
        return
    rows = [(key, f"{one.bytes / 1e6:.2f}", _judged(one), one.about) for key, one in models.entries().items()]
    tell(("name", "MB", "on test", "what it is"), rows)
    console.print()
    if not all(one.measured for one in models.entries().values()):
        console.print("* as trained; the released file was not evaluated again", highlight=False)
    for key in models.entries():
        if not models.at_hand(key):
            console.print(f"{key} is not in the package; it is fetched when first loaded", highlight=False)
    console.print("torchcaps pretrained NAME: its card; torchcaps.load(NAME) loads it", highlight=False)


def _judged(one: models.Entry) -> str:
    """Format the first metric of the first test set, by which a model is judged; its card has the others."""
    metric, value = next(iter(next(iter((one.measured or one.metrics).values())).items()))
    said = f"{value:.2f} % error" if metric.endswith("error_percent") else f"{metric} {value:.2f}"
    return said if one.measured else f"{said}*"


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
    tell_card((folder / made.file).with_suffix(".md").read_text())
