"""Commands that measure speed and memory."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from torchcaps import bench as benches
from torchcaps.cli.options import Device, Results, console, say
from torchcaps.cli.record import bench_record
from torchcaps.data import info
from torchcaps.integrations.export import Plain, export_onnx
from torchcaps.papers import RECIPES
from torchcaps.papers.jeong2019 import bench as jeong2019
from torchcaps.papers.routings.costs import bench_routings as measure_routings
from torchcaps.papers.routings.rows import SETS
from torchcaps.pretrained import entries, open_model
from torchcaps.results.claims import find
from torchcaps.runtime.environment import pick_device

app = typer.Typer(no_args_is_help=True, help="Measure speed and memory.")
app.command("record")(bench_record)


@app.command("train")
def bench_train(
    recipe: Annotated[str, typer.Argument(help="any recipe")] = "sabour2017/mnist-r3-recon",
    device: Device = "auto",
    steps: int = 200,
    kernels: Annotated[int, typer.Option(min=0, help="list the N slowest kernels; skips the reference")] = 0,
) -> None:
    """Measure a recipe on random images: milliseconds per training step, images per second, peak memory."""
    found, where = find(recipe, RECIPES), pick_device(device)
    if kernels:
        print(benches.bench_kernels(found, where, steps, kernels))
    else:
        print(benches.bench_train(found, where, steps))


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


@app.command("predict")
def bench_predict(
    names: Annotated[list[str] | None, typer.Argument(help="pretrained models; all by default")] = None,
    device: Device = "auto",
    repeats: Annotated[int, typer.Option(help="maximum number of repeats; slow cases use fewer")] = 50,
    cpu_time: Annotated[bool, typer.Option(help="processor time, for one thread of a busy machine")] = False,
) -> None:
    """Measure prediction of pretrained models at batch sizes 1, 32 and 1024.

    On a CPU: PyTorch and ONNX Runtime. On a GPU: eager, compiled, and one CUDA graph.
    """
    where = pick_device(device)
    subjects = (_subject(name, where) for name in names or entries())
    benches.bench_predict(subjects, where, repeats, console, cpu_time, say=say)


def _subject(name: str, device: torch.device) -> benches.Subject:
    model, run, _ = open_model(name, device)
    plain = Plain(model.eval(), run.augment)
    return benches.Subject(name, plain, info(run.data).shape, lambda path: export_onnx(model, run, path))


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


@app.command("routings")
def bench_routings(
    names: Annotated[
        list[str],
        typer.Argument(
            help="a set (cifar, fashion, smallnorb, like or digits) or rows such as smallnorb-em", metavar="NAME"
        ),
    ],
    device: Device = "auto",
    steps: Annotated[int, typer.Option(help="timed training steps, in chunks of 10")] = 100,
    results: Results = Path("results"),
) -> None:
    """Time a training step of every routing compared in docs/which-routing.md; writes routings/costs.csv."""
    rows = {name.removeprefix("routings/"): row for name, row in RECIPES.items() if name.startswith("routings/")}
    if unknown := [name for name in names if name not in rows and name not in SETS]:
        raise ValueError(
            f"no row of routings is called {' or '.join(unknown)}; give {', '.join(SETS)}, or a row: smallnorb-em"
        )
    wanted = {row for name in names for row in rows if row == name or (name in SETS and row.startswith(f"{name}-"))}
    chosen = [recipe for row, recipe in rows.items() if row in wanted]
    console.print(str(measure_routings(chosen, pick_device(device), steps, results, say)), soft_wrap=True)
