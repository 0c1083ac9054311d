"""`torchcaps import`: weights that a paper's author published, as a checkpoint that every command reads."""

from pathlib import Path
from typing import Annotated

import typer

from torchcaps import data as datasets
from torchcaps.cli.options import Device, Root, console, in_words
from torchcaps.integrations.author_weights import PUBLISHED, import_weights
from torchcaps.pretrained import open_model
from torchcaps.runtime.environment import pick_device


def import_published(
    paper: Annotated[str, typer.Argument(help=f"the paper whose author published them: {', '.join(PUBLISHED)}")],
    file: Annotated[Path, typer.Argument(help="the published file, as torch.save wrote it")],
    out: Annotated[
        Path | None, typer.Option(help="where to save the checkpoint; default: runs/PAPER/published.safetensors")
    ] = None,
    device: Device = "auto",
    data: Root = None,
    evaluate: Annotated[
        bool, typer.Option(help="evaluate them on the test set if it is at hand; hours on a CPU")
    ] = True,
) -> None:
    """Convert weights that a paper's author published, and evaluate them.

    The file is read without running code from it. `torchcaps eval`, `predict` and `show` take the new checkpoint.
    """
    path = out or Path("runs") / paper / "published.safetensors"
    run = import_weights(paper, file, path)
    console.print(f"wrote {path}", soft_wrap=True)
    if not evaluate:
        return
    if datasets.status(run.data, data).startswith("missing"):
        console.print(f"not evaluated: {run.data} is not at hand (--data FOLDER, or `torchcaps data get {run.data}`)")
        return
    where = pick_device(device)
    model, run, about = open_model(path, where)
    images = datasets.load(run.data, "test", data, about["seed"])
    console.print(f"evaluating {len(images.labels):,} images on {where}")
    found = run.stages[-1].task.evaluate(model, images, where, run.augment)
    console.print(f"test: {in_words(found.metrics)} ({len(images.labels):,} images)", soft_wrap=True)
