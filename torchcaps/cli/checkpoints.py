"""Commands that evaluate and inspect a trained model."""

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from torchcaps import data as datasets
from torchcaps.analysis.alive import dead_on, obituary
from torchcaps.analysis.equivariance import equivariance as measure
from torchcaps.analysis.equivariance import side_by_side
from torchcaps.analysis.routing import diagnose, lines
from torchcaps.cli.columns import tell_text
from torchcaps.cli.image_folder import tell_by_class
from torchcaps.cli.options import Device, Results, Root, Trained, console, in_words, plainly
from torchcaps.data.sets.pairs import paired_again
from torchcaps.figures import all_figures, save_figures
from torchcaps.papers import FIGURES
from torchcaps.pretrained import locate, open_model
from torchcaps.runtime.environment import pick_device
from torchcaps.runtime.files import write_whole
from torchcaps.runtime.metrics_log import read_metrics
from torchcaps.train.plain import to_plain
from torchcaps.train.recipe import Run
from torchcaps.train.tasks import Extras

# data sets made from MNIST by moving or overlaying digits; equivariance is measured on the plain digits
OF_MNIST = {"mnist", "affnist-like", "affnist", "multimnist"}
Json = Annotated[Path | None, typer.Option("--json", help="also write the numbers to this file")]


def evaluate(
    checkpoint: Trained,
    split: Annotated[str, typer.Option(help="test or train")] = "test",
    device: Device = "auto",
    data: Root = None,
    on: Annotated[
        str | None,
        typer.Option(help="evaluate on another data set of the same shape, or on a whole folder of your own images"),
    ] = None,
    each: Annotated[
        int | None, typer.Option(help="pairs of digits only: pairs per test digit; 1000 makes 10 million pairs")
    ] = None,
    file: Json = None,
) -> None:
    """Evaluate a trained model and report routing diagnostics.

    Uses the weights stored in the checkpoint.
    """
    where = pick_device(device)
    model, run, about = open_model(checkpoint, where)
    if on and isinstance(run.data, datasets.OwnImages):
        pictures = datasets.Labelled(*run.data.read_all(on)[:2])
    else:
        pictures = datasets.load(on or run.data, split, data, about["seed"])
    if each is not None:
        pictures = paired_again(pictures, each)
    task = run.stages[-1].task
    said = task.evaluate(model, pictures, where, run.augment)
    metrics = said.metrics
    extras = task.extras(model, pictures, where, run.augment) if isinstance(task, Extras) else {}
    name = f"{on} {split}" if on else split
    kind = datasets.info(run.data).kind
    console.print(_title(about), soft_wrap=True)
    tell_text(f"{name}: {in_words(metrics)} ({len(said.predictions):,} {kind})")
    if isinstance(run.data, datasets.OwnImages):
        tell_by_class(said.predictions.long(), pictures.labels, run.data)
    if extras:
        tell_text(plainly(extras))
    found = diagnose(model, pictures, where, augment=run.augment)
    dead = [obituary(name) for name in dead_on(model, pictures, where, run.augment)]
    for line in [*lines(found), *dead]:
        tell_text(line)
    if file:
        _write(
            file,
            {
                "name": about["name"],
                "seed": about["seed"],
                "step": about["step"],
                name: metrics,
                "extras": extras,
                "diagnostics": found,
            },
        )


def show_checkpoint(checkpoint: str, device: torch.device, data: Path | None) -> None:
    """Print a trained model, the settings of its run and the names of dead layers."""
    model, run, about = open_model(checkpoint, device)
    console.print(_title(about), soft_wrap=True)
    console.print_json(json.dumps(to_plain(run)))
    console.print(model, f"{sum(p.numel() for p in model.parameters()):,} parameters", sep="\n")
    for line in _health(model, run, device, data, about["seed"]):
        tell_text(line)


def _health(model: nn.Module, run: Run, device: torch.device, data: Path | None, seed: int) -> list[str]:
    """Name the dead layers, or say why they are not known: settings can be shown without the data."""
    try:
        images = datasets.load(run.data, "test", data, seed)
    except datasets.DataError as error:
        why, do = str(error).splitlines()[0].rstrip(":"), "say where the data lies with --data FOLDER"
        return [f"dead layers: not known, {why}" if "--data" in why else f"dead layers: not known, {why}; {do}"]
    if not isinstance(images, datasets.Labelled):
        return ["dead layers: not known, since they are looked for with labelled images alone"]
    return [obituary(name) for name in dead_on(model, images, device, run.augment)] or ["dead layers: none"]


def _title(about: dict[str, Any]) -> str:
    return f"{about['name']} seed {about['seed']}, {about['step']:,} training steps"


def figures(
    checkpoint: Annotated[
        Path,
        typer.Argument(help="a checkpoint, a name from `torchcaps pretrained`, or a paper such as sabour2017"),
    ],
    out: Path = Path("figures"),
    device: Device = "auto",
    data: Root = None,
    results: Results = Path("results"),
    runs: Annotated[Path, typer.Option(help="figures of a paper only: folder with its checkpoints")] = Path("runs"),
) -> None:
    """Draw figures of a trained model, or the figures of a paper from its results and checkpoints."""
    where = pick_device(device)
    if (paper := str(checkpoint)) in FIGURES:
        made = FIGURES[paper](results, runs, data, where)
        if not made:
            raise ValueError(
                f"nothing to draw of {paper}: no result of today's rows in {results}, no finished run in {runs}"
            )
        for path in save_figures(made, out / paper):
            print(path)
        return
    model, run, about = open_model(checkpoint, where)
    curve = read_metrics(locate(checkpoint).parent / "metrics.jsonl")
    test = datasets.load(run.data, "test", data, about["seed"])
    for path in save_figures(all_figures(model, test, curve, where, run.augment), out):
        print(path)


def equivariance(
    checkpoints: Annotated[list[Path], typer.Argument(help="one or more checkpoints, all measured on the same digits")],
    copies: Annotated[int, typer.Option(help="transformed copies of every test digit")] = 4,
    device: Device = "auto",
    data: Root = None,
    file: Json = None,
) -> None:
    """Measure how well a linear probe reads known transformations off a model's poses.

    Reports R² for shift, rotation, scale, shear and stroke width.
    """
    where = pick_device(device)
    found = {}
    for checkpoint in checkpoints:
        model, run, about = open_model(checkpoint, where)
        moved = not isinstance(run.data, datasets.OwnImages) and datasets.spec(run.data).source in OF_MNIST
        digits = datasets.load("mnist" if moved else run.data, "test", data, about["seed"])
        name = f"{about['name']} seed {about['seed']}"
        found[name if name not in found else str(checkpoint)] = measure(
            model, digits, where, augment=run.augment, copies=copies
        )
    print(side_by_side(found))
    if file:
        _write(file, {name: result.plain() for name, result in found.items()})


def _write(file: Path, numbers: dict) -> None:
    write_whole(file, (json.dumps(numbers, indent=1) + "\n").encode())
