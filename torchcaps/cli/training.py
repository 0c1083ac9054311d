"""Commands that train: the demo, one recipe, or a folder of images."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from torchcaps.cli.columns import tell_text
from torchcaps.cli.demo import demo as run_demo
from torchcaps.cli.image_folder import train_own
from torchcaps.cli.options import Deterministic, Device, Out, Root, Seed, console, in_words, plainly
from torchcaps.cli.threads import fast_threads
from torchcaps.integrations.image_folder import AUGMENTATIONS
from torchcaps.papers import RECIPES
from torchcaps.results.claims import Recipe, find
from torchcaps.results.store import make_result, read_result, write_result
from torchcaps.runtime.distributed import started
from torchcaps.train import Options
from torchcaps.train.state import run_folder


def demo(
    out: Annotated[Path, typer.Option(help="output folder for the report")] = Path("demo"), seed: Seed = 0
) -> None:
    """Train a CapsNet on 1,797 handwritten digits and write a report: one to two minutes on two CPU cores.

    The same command resumes a stopped demo.
    """
    run_demo(out, seed, console)


def train_one(
    recipe: Annotated[
        str | None,
        typer.Argument(help="a recipe from `torchcaps ls`; leave out to train on your own images in --data FOLDER"),
    ] = None,
    seed: Seed = 0,
    out: Out = None,
    device: Device = "auto",
    data: Root = None,
    hold_out: Annotated[
        int | None, typer.Option(help="number of training images held out for validation; the test set is not used")
    ] = None,
    deterministic: Deterministic = False,
    smoke: Annotated[bool, typer.Option("--quick", help="train a few steps on generated images")] = False,
    size: Annotated[int | None, typer.Option(help="own images: side length in pixels after resizing")] = None,
    model: Annotated[str | None, typer.Option(help="own images: capsnet or em-capsnet")] = None,
    routing: Annotated[
        str | None,
        typer.Option(help="own images: routing of capsnet's class capsules; `torchcaps ls --routings` names them"),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="own images: number of epochs")] = None,
    balance: Annotated[
        bool | None, typer.Option(help="own images: sample classes equally often, or by their size")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="own images: largest learning rate")] = None,
    batch_size: Annotated[int | None, typer.Option(help="own images: images per training step")] = None,
    augment: Annotated[
        str | None, typer.Option(help=f"own images: {', '.join(AUGMENTATIONS)}, separated by commas, or none")
    ] = None,
    skip_unreadable: Annotated[bool, typer.Option(help="own images: skip unreadable files")] = False,
) -> None:
    """Train one recipe with one seed, or train on your own images.

    Own images: --data FOLDER with one folder per class. The same command resumes a stopped run.
    """
    own = {
        "--size": size,
        "--model": model,
        "--routing": routing,
        "--epochs": epochs,
        "--balance": balance,
        "--learning-rate": learning_rate,
        "--batch-size": batch_size,
        "--augment": augment,
        "--skip-unreadable": skip_unreadable or None,
    }
    given = {name: value for name, value in own.items() if value is not None}
    if recipe is None:
        if data is None or smoke or hold_out is not None:
            alone = f" alone, without {'--quick' if smoke else '--hold-out'}" if data else ""
            raise ValueError(
                f"give a recipe (`torchcaps ls` names them), or --data FOLDER{alone}: your own images, a folder for "
                "each class"
            )
        with fast_threads(device):
            path = train_own(data, seed, out, device, deterministic, given)
        console.print(f"result: {path}", soft_wrap=True)
        return
    if given:
        raise ValueError(
            f"{', '.join(given)} is for images of your own; a recipe has its own settings: leave out one or the other"
        )
    found = find(recipe, RECIPES)
    if not (probe := found.make()).trains:
        raise ValueError(
            f"{found.name} trains no network; `torchcaps reproduce {found.name}` makes it from "
            f"{' and '.join(probe.needs)}"
        )
    folder = out or run_folder(named(found, hold_out, smoke), seed)
    options = Options(out=folder, device=device, root=data, deterministic=deterministic)
    with fast_threads(device):
        path = train_recipe(found, seed, options, hold_out, smoke)
    if started()[0] > 0:
        return  # only the first of several processes writes the result
    result = read_result(path)
    for split, metrics in result["metrics"].items():
        console.print(f"{found.name} seed {seed}, {split}: {in_words(metrics)}")
    if result["extras"]:
        tell_text(f"{found.name} seed {seed}: {plainly(result['extras'])}")
    console.print(f"result: {path}", soft_wrap=True)


def train_recipe(recipe: Recipe, seed: int, options: Options, hold_out: int | None = None, smoke: bool = False) -> Path:
    """Train a recipe, or resume it, and write the result file beside its checkpoint."""
    run = recipe.make().quick() if smoke else recipe.make()
    if hold_out is not None:
        # a run with held-out images never sees the test set
        run = replace(
            run, hold_out=hold_out, tests=(), stages=tuple(replace(stage, watch=None) for stage in run.stages)
        )
    name = named(recipe, hold_out, smoke)
    found = run.execute(name, seed, options)
    path = options.out / "result.json"
    if started()[0] == 0:
        write_result(path, make_result(name, seed, run, found))
    return path


def named(recipe: Recipe, hold_out: int | None = None, smoke: bool = False) -> str:
    """Name a run: the recipe and how this run differs from it."""
    return recipe.name + ("-quick" if smoke else "") + (f"-hold-out-{hold_out}" if hold_out is not None else "")
