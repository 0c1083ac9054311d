"""Commands that time things."""

from pathlib import Path
from typing import Annotated

import typer

from torchcaps import bench as benches
from torchcaps.cli.options import Device, console, say
from torchcaps.papers import RECIPES
from torchcaps.papers.jeong2019 import bench as jeong2019
from torchcaps.results.claims import find
from torchcaps.runtime.environment import pick_device

app = typer.Typer(no_args_is_help=True, help="Speed and memory.")


@app.command("train")
def bench_train(
    recipe: Annotated[str, typer.Argument(help="any recipe")] = "sabour2017/mnist-r3-recon", device: Device = "auto", steps: int = 200
) -> None:
    """Milliseconds per training step, images per second and peak memory of a recipe, on random images."""
    print(benches.bench_train(find(recipe, RECIPES), pick_device(device), steps))


@app.command("ops")
def bench_ops(
    device: Device = "auto",
    repeats: Annotated[int, typer.Option(help="at most; fewer where they are slow")] = 20,
    only: Annotated[list[str] | None, typer.Option(help="cases whose name contains this; again, or with commas, for more")] = None,
) -> None:
    """The same per op, backend and shape, forward and backward. A backend that fails its check gets no time."""
    benches.bench_ops(pick_device(device), repeats, console, only or (), say=say)


@app.command("scale")
def bench_scale(device: Device = "auto", out: Annotated[Path, typer.Option(help="folder for numbers and picture")] = Path("bench")) -> None:
    """How time and memory of dynamic routing grow with inputs, outputs and batch: a table, a JSON file and a picture."""
    for path in benches.bench_scale(pick_device(device), out, console, say=say):
        print(path)


@app.command("ladder")
def bench_ladder(
    device: Device = "auto",
    steps: Annotated[int, typer.Option(help="timed, in chunks of 10")] = 200,
    only: Annotated[list[str] | None, typer.Option(help="methods whose name contains this; again for more")] = None,
) -> None:
    """Table 3 of Jeong 2019: a training step of ladder capsule networks and of CapsNets at batch 100, in one run."""
    jeong2019.bench_ladder(pick_device(device), steps, console, only or (), say=say)
