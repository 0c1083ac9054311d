"""Commands that train: the demonstration, and one recipe or a folder of pictures."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from torchcaps.cli.demo import demo as run_demo
from torchcaps.cli.image_folder import train_own
from torchcaps.cli.options import Deterministic, Device, Out, Root, Seed, console, numbers_of, plainly
from torchcaps.papers import RECIPES
from torchcaps.results.claims import Recipe, find
from torchcaps.results.store import make_result, read_result, write_result
from torchcaps.runtime.distributed import started
from torchcaps.train import Options
from torchcaps.train.state import run_folder


def demo(out: Annotated[Path, typer.Option(help="folder for the report")] = Path("demo"), seed: Seed = 0) -> None:
    """Train a CapsNet on 1,797 handwritten digits in under a minute and show what it learnt."""
    run_demo(out, seed, console)


def train_one(
    recipe: Annotated[str | None, typer.Argument(help="`torchcaps ls` names them; none: on your own pictures in --data FOLDER")] = None,
    seed: Seed = 0,
    out: Out = None,
    device: Device = "auto",
    data: Root = None,
    hold_out: Annotated[int | None, typer.Option(help="training images kept aside to validate on; the test set is then not seen")] = None,
    deterministic: Deterministic = False,
    smoke: Annotated[bool, typer.Option("--quick", help="a few steps on generated images: to see that it runs")] = False,
    size: Annotated[int | None, typer.Option(help="own pictures: the side that they are brought to")] = None,
    model: Annotated[str | None, typer.Option(help="own pictures: capsnet or em-capsnet")] = None,
    epochs: Annotated[int | None, typer.Option(help="own pictures: how often each is shown")] = None,
    balance: Annotated[bool | None, typer.Option(help="own pictures: draw every class as often as the others, or as it is")] = None,
    skip_unreadable: Annotated[bool, typer.Option(help="own pictures: leave out files that cannot be read")] = False,
) -> None:
    """Train one recipe with one seed, or on your own pictures: --data FOLDER with a folder for each class.

    The same command goes on where it was stopped.
    """
    own = {"--size": size, "--model": model, "--epochs": epochs, "--balance": balance, "--skip-unreadable": skip_unreadable or None}
    if recipe is None:
        if data is None or smoke or hold_out is not None:
            raise ValueError(
                "give a recipe (`torchcaps ls` names them), or --data FOLDER alone: your own pictures, a folder for each class"
            )
        path = train_own(data, seed, out, device, size, model or "capsnet", epochs, balance is not False, skip_unreadable, deterministic)
        console.print(f"result: {path}", soft_wrap=True)
        return
    if given := [name for name, value in own.items() if value is not None]:
        raise ValueError(f"{', '.join(given)} is for pictures of your own; a recipe has its own settings: leave out one or the other")
    found = find(recipe, RECIPES)
    if not (probe := found.make()).trains:
        raise ValueError(f"{found.name} trains no network; `torchcaps reproduce {found.name}` makes it from {' and '.join(probe.needs)}")
    folder = out or run_folder(named(found, hold_out, smoke), seed)
    options = Options(out=folder, device=device, root=data, deterministic=deterministic)
    path = train_recipe(found, seed, options, hold_out, smoke)
    if started()[0] > 0:
        return  # of several processes the first has written the result
    result = read_result(path)
    for split, metrics in result["metrics"].items():
        console.print(f"{found.name} seed {seed}, {split}: {numbers_of(metrics)}")
    if result["extras"]:
        console.print(f"{found.name} seed {seed}: {plainly(result['extras'])}", highlight=False, soft_wrap=True)
    console.print(f"result: {path}", soft_wrap=True)


def train_recipe(recipe: Recipe, seed: int, options: Options, hold_out: int | None = None, smoke: bool = False) -> Path:
    """Execute it, or go on; its result lies beside its checkpoint."""
    run = recipe.make().quick() if smoke else recipe.make()
    if hold_out is not None:
        # such a run sees no test set
        run = replace(run, hold_out=hold_out, tests=(), stages=tuple(replace(stage, watch=None) for stage in run.stages))
    name = named(recipe, hold_out, smoke)
    found = run.execute(name, seed, options)
    path = options.out / "result.json"
    if started()[0] == 0:
        write_result(path, make_result(name, seed, run, found))
    return path


def named(recipe: Recipe, hold_out: int | None = None, smoke: bool = False) -> str:
    """The recipe's name, and how this run of it differs."""
    return recipe.name + ("-quick" if smoke else "") + (f"-hold-out-{hold_out}" if hold_out is not None else "")
