"""Commands that measure speed and memory."""

from pathlib import Path
from typing import Annotated

import typer

from torchcaps import bench as benches
from torchcaps.cli.options import Device, console, say
from torchcaps.papers import RECIPES
from torchcaps.papers.jeong2019 import bench as jeong2019
from torchcaps.results.claims import find
from torchcaps.runtime.environment import pick_device

app = typer.Typer(no_args_is_help=True, help="Measure speed and memory.")


@app.command("train")
def bench_train(
    recipe: Annotated[str, typer.Argument(help="any recipe")] = "sabour2017/mnist-r3-recon",
    device: Device = "auto",
    steps: int = 200,
) -> None:
    """Measure a recipe on random images: milliseconds per training step, images per second, peak memory."""
    print(benches.bench_train(find(recipe, RECIPES), pick_device(device), steps))


@app.command("ops")
def bench_ops(
    device: Device = "auto",
    repeats: Annotated[int, typer.Option(help="maximum number of repeats; slow cases use fewer")] = 20,
    only: Annotated[
        list[str] | None, typer.Option(help="only cases whose name contains this text; repeat it or separate by commas")
    ] = None,
) -> None:
    """Measure forward and backward time of every op, backend and shape.

    A backend that disagrees with the reference gets no time.
    """
    benches.bench_ops(pick_device(device), repeats, console, only or (), say=say)


@app.command("scale")
def bench_scale(
    device: Device = "auto",
    out: Annotated[Path, typer.Option(help="output folder for the JSON file and the figure")] = Path("bench"),
) -> None:
    """Measure how time and memory of dynamic routing grow with input capsules, output capsules and batch size."""
    for path in benches.bench_scale(pick_device(device), out, console, say=say):
        print(path)


@app.command("ladder")
def bench_ladder(
    device: Device = "auto",
    steps: Annotated[int, typer.Option(help="timed training steps, in chunks of 10")] = 200,
    only: Annotated[
        list[str] | None, typer.Option(help="only methods whose name contains this text; may be repeated")
    ] = None,
) -> None:
    """Time training steps for Table 3 of Jeong 2019: ladder capsule networks and CapsNets at batch size 100."""
    jeong2019.bench_ladder(pick_device(device), steps, console, only or (), say=say)
