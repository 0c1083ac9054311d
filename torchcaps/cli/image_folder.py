"""Commands for a user's own pictures: train on a folder of them, and ask a network about some."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from torchcaps import data as datasets
from torchcaps.cli.options import Device, Trained, console, numbers_of
from torchcaps.cli.options import table as make_table
from torchcaps.data import Labelled, OwnImages, class_names
from torchcaps.data.sets.image_folder import ENDINGS, TEST_SHARE, Survey, survey
from torchcaps.data.sources.image_archives import image_module
from torchcaps.data.sources.user_images import read_image
from torchcaps.integrations.image_folder import by_class, mean_over_classes, own_run
from torchcaps.pretrained import open_model
from torchcaps.results.store import make_result, write_result
from torchcaps.runtime.distributed import started
from torchcaps.runtime.environment import pick_device
from torchcaps.train import Options, train
from torchcaps.train.tasks.classify import Classify
from torchcaps.train.tasks.logits import ClassifyLogits

UNEVEN = 1.5  # times as many pictures of the largest class as of the smallest, from where it is worth a word


def train_own(
    folder: Path, seed: int, out: Path | None, device: str, size: int | None, model: str, epochs: int | None, balanced: bool,
    skip_unreadable: bool, deterministic: bool,
) -> Path:  # fmt: skip
    """Look at the folder, say what is there and what becomes of it, train, and tell every class's share. The result file."""
    found = survey(folder, seed, size, skip_unreadable)
    run = own_run(found.data, model, epochs, balanced)
    tell(found, balanced)
    name = f"own/{folder.resolve().name}-{model}"
    options = Options(out=out or Path("runs") / name / str(seed), device=device, root=folder, deterministic=deterministic)
    trained = train(run, name=name, seed=seed, options=options)
    said = trained.evaluations["test"]
    numbers = by_class(said.predictions.long(), trained.labels["test"], found.data.classes)
    trained.extras["by_class"] = {name: one._asdict() for name, one in numbers.items()}
    if started()[0] == 0:
        write_result(options.out / "result.json", make_result(name, seed, run, trained))
    console.print(f"{name} seed {seed}, test: {numbers_of(said.metrics)}", soft_wrap=True)
    tell_by_class(said.predictions.long(), trained.labels["test"], found.data)
    console.print(f"checkpoint: {options.out / 'checkpoint.safetensors'}", soft_wrap=True, highlight=False)
    return options.out / "result.json"


def tell(found: Survey, balanced: bool) -> None:
    lines = make_table("class", "to train on", "to test on")
    for name in found.data.classes:
        lines.add_row(name, f"{found.train[name]:,}", f"{found.test[name]:,}")
    console.print(lines)
    c, side, _ = found.data.shape
    least, most = ("x".join(map(str, pair)) for pair in found.sizes)
    sizes = f"of {least}" if least == most else f"of {least} to {most}"
    _say(f"pictures {sizes} pixels become {side}x{side}, {'grey' if c == 1 else 'colour'}: the whole picture, the rest of the square black")
    if most != f"{side}x{side}":
        _say("  --size N takes another side; a larger one takes longer")
    for bad in found.unreadable:
        _say(f"left out, cannot be read: {bad.file}: {bad.reason}")
    if found.n_ignored:
        _say(f"{found.n_ignored} files are no pictures by their ending and were not opened; pictures end in {' '.join(ENDINGS)}")
    if found.copies:
        _say(f"{found.copies} files are copies of others: a copy of a training picture in the test part makes the test easier; remove them")
    largest, smallest = max(found.train.values()), min(found.train.values())
    if largest > UNEVEN * smallest:
        how = "each is drawn as often as the others" if balanced else "they are drawn as often as they are there"
        _say(f"the largest class has {largest / smallest:.1f} times as many pictures as the smallest: {how} (--balance, --no-balance)")
    few = min(found.test.values())
    _say(f"{TEST_SHARE:.0%} of every class is held out by the seed; of the smallest test class one picture is {100 / few:.0f} %")


def tell_by_class(predictions: torch.Tensor, labels: torch.Tensor, data: OwnImages) -> None:
    numbers = by_class(predictions, labels, data.classes)
    lines = make_table("class", "tested", "right", "%")
    for name, one in numbers.items():
        lines.add_row(name, f"{one.n:,}", f"{one.right:,}", f"{one.percent:.1f}" if one.n else "-")
    console.print(lines)
    _say(f"mean over the classes: {mean_over_classes(numbers):.2f} % right")


def _say(line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True)


def predict(
    checkpoint: Trained,
    image: Annotated[list[Path], typer.Argument(help="pictures, or folders of them")],
    device: Device = "auto",
    best: Annotated[int, typer.Option(help="how many classes are told of each picture")] = 3,
) -> None:
    """What a trained network sees in pictures of your own, brought to its size as training pictures are; a line for each."""
    where = pick_device(device)
    model, run, _ = open_model(checkpoint, where)
    about, task = datasets.info(run.data), run.stages[-1].task
    if about.kind != "images" or about.n_labels > 1 or not isinstance(task, Classify | ClassifyLogits) or about.shape[0] not in (1, 3):
        raise ValueError(
            f"predict answers for networks that tell one class of a grey or colour picture; {checkpoint} was trained by "
            f"{type(task).__name__} on {run.data} of {about.shape[0]} channel(s); "
            "give another, or call the network itself by torchcaps.load"
        )
    image_module()  # without Pillow no other file would help
    files = [file for path in image for file in _pictures(path)]
    images = torch.stack([_read(file, about.shape) for file in files])
    unlabelled = Labelled(images, torch.zeros(len(files), dtype=torch.long))
    scores = task.evaluate(model, unlabelled, where, run.augment).answers
    # lengths say each for itself whether the class is there; logits only share it out
    shares = scores if isinstance(task, Classify) else scores.softmax(-1)
    names = class_names(run.data)
    for file, row in zip(files, shares, strict=True):
        values, which = row.topk(min(best, len(names)))
        said = ", ".join(f"{names[label]} {value:.3f}" for value, label in zip(values.tolist(), which.tolist(), strict=True))
        print(f"{file}: {said}")


def _pictures(path: Path) -> list[Path]:
    if not path.exists():
        raise ValueError(f"there is no picture {path}; give files or folders that exist")
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.rglob("*") if file.suffix.lower() in ENDINGS)
    if not found:
        raise ValueError(f"{path} holds no pictures; they end in {' '.join(ENDINGS)}")
    return found


def _read(file: Path, shape: tuple[int, int, int]) -> torch.Tensor:
    c, h, w = shape
    assert h == w
    try:
        return torch.from_numpy(read_image(file, h, c).copy())
    except datasets.DataError as error:
        raise ValueError(f"{file}: {error}; give another file") from error
