"""`torchcaps demo`: train on handwritten digits in under a minute, print the accuracy and write a report."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console

from torchcaps.data import info, load
from torchcaps.figures import all_figures
from torchcaps.figures.canvas import canvas
from torchcaps.figures.report import write_report
from torchcaps.papers import RECIPES
from torchcaps.runtime.environment import device_name, make_folder
from torchcaps.train import Interrupted, Options, Trained, train

SPLITS = {"digits/stratified": "a random fifth held out", "digits/writers": "other writers held out"}


def demo(out: Path, seed: int, console: Console) -> Path:
    """Train on both splits of the digits and write a report on the first."""
    make_folder(out)  # fail before the training, not after it
    with canvas(1, 1):
        pass  # a missing matplotlib also fails here
    trained = {}
    for name, about in SPLITS.items():
        n_train = info(RECIPES[name].make().data).n_train
        console.print(f"Training on {n_train:,} digits, [bold]{about}[/]", highlight=False, markup=True)
        trained[name] = _train(name, seed)
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
    return report


def _train(name: str, seed: int) -> Trained:
    # a temporary folder: the demo never resumes
    with TemporaryDirectory() as folder:
        options = Options(out=Path(folder), log_every=10)
        try:
            return train(RECIPES[name].make(), name=name, seed=seed, options=options)
        except Interrupted as stop:
            raise Interrupted("the demonstration was stopped; it starts afresh next time", stop.signum) from stop


def _accuracy(trained: Trained) -> float:
    return 100 - trained.evaluations["test"].metrics["error_percent"]


def _facts(trained: dict[str, Trained], n_test: int) -> list[tuple[str, str]]:
    model = next(iter(trained.values())).model
    facts = [(f"Test accuracy, {about}", f"{_accuracy(trained[name]):.2f} %") for name, about in SPLITS.items()]
    facts.append(("Test images each", f"{n_test:,}"))
    facts.append(("Parameters", f"{sum(p.numel() for p in model.parameters()):,}"))
    facts.append(
        (
            "Training",
            f"{sum(part.seconds for part in trained.values()):.0f} s in all on {device_name(torch.device('cpu'))}",
        )
    )
    facts.append(("Images", "scikit-learn's handwritten digits, 8x8, enlarged to 16x16"))
    return facts
