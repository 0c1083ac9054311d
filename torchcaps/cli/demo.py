"""`torchcaps demo`: train on handwritten digits for a minute or two, print the accuracy and write a report."""

import shutil
from pathlib import Path

import torch
from rich.console import Console

from torchcaps.cli.threads import fast_threads
from torchcaps.data import info, load
from torchcaps.figures import all_figures
from torchcaps.figures.canvas import canvas
from torchcaps.figures.report import write_report
from torchcaps.papers import RECIPES
from torchcaps.runtime.environment import device_in_words, device_name, make_folder
from torchcaps.train import Interrupted, Options, Trained, train

UNFINISHED = "unfinished"  # folder of the checkpoints, within that of the report
SPLITS = {"digits/stratified": "a random fifth held out", "digits/writers": "other writers held out"}


def demo(out: Path, seed: int, console: Console) -> Path:
    """Train on both splits of the digits and write a report on the first."""
    with canvas(1, 1):
        pass  # a missing matplotlib fails before the training, and leaves no folder
    make_folder(out)
    trained = {}
    with fast_threads("cpu"):
        for name, about in SPLITS.items():
            n_train = info(RECIPES[name].make().data).n_train
            console.print(f"Training on {n_train:,} digits, [bold]{about}[/]", highlight=False, markup=True)
            trained[name] = _train(name, seed, out / UNFINISHED)
    first = next(iter(SPLITS))
    data = load(RECIPES[first].make().data, "test", seed=seed)
    pictures = all_figures(trained[first].model, data, trained[first].curve, augment=RECIPES[first].make().augment)
    report = write_report(
        out / "report.html", "A capsule network reads handwriting", _facts(trained, len(data.labels)), pictures
    )
    for name, about in SPLITS.items():
        console.print(
            f"test accuracy, {about}: [bold green]{_accuracy(trained[name]):.2f} %[/]", highlight=False, markup=True
        )
    console.print(f"report: {report.resolve()}", soft_wrap=True, highlight=False)
    shutil.rmtree(out / UNFINISHED)  # the next demonstration trains anew
    return report


def _train(name: str, seed: int, folder: Path) -> Trained:
    """Train one network, or resume it where an interrupted demonstration left it."""
    options = Options(out=folder / name / str(seed), log_every=10)
    try:
        return train(RECIPES[name].make(), name=name, seed=seed, options=options)
    except Interrupted as stop:
        raise Interrupted("the demonstration was stopped; the same command goes on from there", stop.signum) from stop


def _accuracy(trained: Trained) -> float:
    return 100 - trained.evaluations["test"].metrics["error_percent"]


def _facts(trained: dict[str, Trained], n_test: int) -> list[tuple[str, str]]:
    model = next(iter(trained.values())).model
    facts = [(f"Test accuracy, {about}", f"{_accuracy(trained[name]):.2f} %") for name, about in SPLITS.items()]
    facts.append(("Test images each", f"{n_test:,}"))
    facts.append(("Parameters", f"{sum(p.numel() for p in model.parameters()):,}"))
    device = device_in_words(device_name(torch.device("cpu")))
    facts.append(("Training", f"{sum(part.seconds for part in trained.values()):.0f} s in all on {device}"))
    facts.append(("Images", "scikit-learn's handwritten digits, 8x8, enlarged to 16x16"))
    return facts
