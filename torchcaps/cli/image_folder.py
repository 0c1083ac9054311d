"""Commands for your own images: train on a folder of them, and classify image files."""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from torchcaps import data as datasets
from torchcaps.cli.columns import AsJson, cut, tell_json, tell_text
from torchcaps.cli.options import Device, Trained, console, in_words
from torchcaps.cli.options import table as make_table
from torchcaps.cli.sweep import Failed
from torchcaps.data import Labelled, OwnImages, class_names
from torchcaps.data.sets.image_folder import ENDINGS, TEST_SHARE, Survey, survey
from torchcaps.data.sources.image_archives import image_module
from torchcaps.data.sources.user_images import read_image
from torchcaps.integrations.image_folder import at_chance, by_class, mean_over_classes, own_run
from torchcaps.pretrained import open_model
from torchcaps.results.store import make_result, write_result
from torchcaps.runtime.distributed import started
from torchcaps.runtime.environment import pick_device
from torchcaps.train import Options, train
from torchcaps.train.tasks.classify import Classify
from torchcaps.train.tasks.logits import ClassifyLogits

UNEVEN = 1.5  # ratio of the largest to the smallest class above which imbalance is reported
OF_SURVEY = ("--size", "--skip-unreadable")  # options that decide how images are read; the others decide the run


def train_own(
    folder: Path, seed: int, out: Path | None, device: str, deterministic: bool, given: dict[str, Any]
) -> Path:
    """Train on a folder of images, print its summary and the accuracy of every class, and return the result file.

    `given`: values of options for own images, such as `--size` and `--epochs`; those left out have defaults.
    """
    found = survey(folder, seed, given.get("--size"), given.get("--skip-unreadable", False))
    settings = {name[2:].replace("-", "_"): value for name, value in given.items() if name not in OF_SURVEY}
    run = own_run(found.data, **settings)
    tell(found, run.stages[0].balanced)
    routing = run.model_args.get("routing")
    name = f"own/{folder.resolve().name}-{run.model}" + (f"-{routing}" if routing else "")
    options = Options(
        out=out or Path("runs") / name / str(seed), device=device, root=folder, deterministic=deterministic
    )
    trained = train(run, name=name, seed=seed, options=options)
    said = trained.evaluations["test"]
    numbers = by_class(said.predictions.long(), trained.labels["test"], found.data.classes)
    trained.extras["by_class"] = {name: one._asdict() for name, one in numbers.items()}
    if started()[0] == 0:
        write_result(options.out / "result.json", make_result(name, seed, run, trained))
    console.print(f"{name} seed {seed}, test: {in_words(said.metrics)}", soft_wrap=True)
    tell_by_class(said.predictions.long(), trained.labels["test"], found.data)
    console.print(f"checkpoint: {options.out / 'checkpoint.safetensors'}", soft_wrap=True, highlight=False)
    return options.out / "result.json"


def tell(found: Survey, balanced: bool) -> None:
    """Print how the images are split and resized, and problems that the survey found."""
    lines = make_table("class", "training", "test")
    for name in found.data.classes:
        lines.add_row(name, f"{found.train[name]:,}", f"{found.test[name]:,}")
    console.print(lines)
    c, side, _ = found.data.shape
    least, most = ("x".join(map(str, pair)) for pair in found.sizes)
    sizes = f"of {least}" if least == most else f"of {least} to {most}"
    tell_text(
        f"images {sizes} pixels become {side}x{side}, {'grey' if c == 1 else 'colour'}: scaled to fit, padded with "
        "black"
    )
    if most != f"{side}x{side}":
        tell_text("  --size N sets another side length; larger images train more slowly")
    for bad in found.unreadable:
        tell_text(f"skipped, cannot be read: {bad.file}: {bad.reason}")
    if found.n_ignored:
        tell_text(f"{found.n_ignored} files were skipped: image files end in {' '.join(ENDINGS)}")
    if found.copies:
        tell_text(
            f"{found.copies} files are duplicates; remove them: a training image in the test set makes the test too "
            "easy"
        )
    largest, smallest = max(found.train.values()), min(found.train.values())
    if largest > UNEVEN * smallest:
        how = "classes are sampled equally often" if balanced else "classes are sampled by size"
        tell_text(
            f"the largest class has {largest / smallest:.1f} times as many images as the smallest: {how} (--balance, "
            "--no-balance)"
        )
    few = min(found.test.values())
    tell_text(
        f"{TEST_SHARE:.0%} of every class is held out for testing; one image is {100 / few:.0f} % of the smallest "
        "test class"
    )


def tell_by_class(predictions: torch.Tensor, labels: torch.Tensor, data: OwnImages) -> None:
    """Print the accuracy of every class and its mean."""
    numbers = by_class(predictions, labels, data.classes)
    lines = make_table("class", "tested", "correct", "%")
    for name, one in numbers.items():
        lines.add_row(name, f"{one.n:,}", f"{one.right:,}", f"{one.percent:.1f}" if one.n else "-")
    console.print(lines)
    tell_text(f"mean over the classes: {mean_over_classes(numbers):.2f} % correct")
    if at_chance(numbers, predictions):
        tell_text("at chance: try more --epochs, a lower --learning-rate or more images")
        guessing = f"guessing gives {100 / len(numbers):.1f} %"
        if len(predictions.unique()) == 1:
            guessing += ", and the answer is always "
            guessing += f'"{cut(data.classes[predictions[0]], max(console.width - len(guessing) - 2, 1))}"'
        tell_text(guessing)


def predict(
    checkpoint: Trained,
    image: Annotated[list[Path], typer.Argument(help="image files, or folders of them")],
    device: Device = "auto",
    best: Annotated[int, typer.Option(help="number of classes to print for each image")] = 3,
    as_json: AsJson = False,
) -> None:
    """Classify image files with a trained model.

    Images are resized as in training; one line per image lists the best classes.

    Unreadable files are skipped and named at the end, with exit code 1.
    """
    where = pick_device(device)
    model, run, _ = open_model(checkpoint, where)
    about, task = datasets.info(run.data), run.stages[-1].task
    if (
        about.kind != "images"
        or about.n_labels > 1
        or not isinstance(task, Classify | ClassifyLogits)
        or about.shape[0] not in (1, 3)
    ):
        raise ValueError(
            f"predict needs a network that classifies greyscale or colour images; {checkpoint} was trained by "
            f"{type(task).__name__} on {run.data} of {about.shape[0]} channel(s); "
            "give another, or call the network itself by torchcaps.load"
        )
    image_module()  # a missing Pillow must not be reported as a broken file
    files = list(dict.fromkeys(file for path in image for file in _image_files(path)))
    read, bad = _read_all(files, about.shape)
    answers = {}
    if read:
        unlabelled = Labelled(torch.stack(list(read.values())), torch.zeros(len(read), dtype=torch.long))
        scores = task.evaluate(model, unlabelled, where, run.augment).answers
        # capsule lengths are probabilities already; logits are not
        shares = scores if isinstance(task, Classify) else scores.softmax(-1)
        answers = dict(zip(read, _best_classes(shares, class_names(run.data), best), strict=True))
    if as_json:
        tell_json([_answer_json(file, answers.get(file), bad.get(file)) for file in files])
    else:
        for file, classes in answers.items():
            print(f"{file}: {', '.join(f'{name} {value:.3f}' for name, value in classes.items())}")
    named = "".join(f"\n  {file}: {reason}" for file, reason in bad.items())
    if not read:
        raise ValueError(f"none of the images can be read:{named}\ngive another file")
    if bad:
        raise Failed(f"{len(bad)} of {len(files):,} images cannot be read and were skipped:{named}")


def _best_classes(shares: torch.Tensor, names: tuple[str, ...], best: int) -> list[dict[str, float]]:
    """Return the probabilities of the best classes of each image, by name, highest first."""
    values, which = shares.topk(min(best, len(names)))
    return [
        {names[label]: value for label, value in zip(labels, row, strict=True)}
        for labels, row in zip(which.tolist(), values.tolist(), strict=True)
    ]


def _answer_json(file: Path, classes: dict[str, float] | None, error: str | None) -> dict[str, Any]:
    if classes is None:
        return {"path": str(file), "error": error}
    return {"path": str(file), "classes": list(classes), "probabilities": list(classes.values())}


def _image_files(path: Path) -> list[Path]:
    if not path.exists():
        raise ValueError(f"there is no image {path}; give files or folders that exist")
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.rglob("*") if file.suffix.lower() in ENDINGS)
    if not found:
        raise ValueError(f"{path} holds no images; they end in {' '.join(ENDINGS)}")
    return found


def _read_all(files: list[Path], shape: tuple[int, int, int]) -> tuple[dict[Path, torch.Tensor], dict[Path, str]]:
    """Read images by file, and tell of the others why they cannot be read."""
    c, h, w = shape
    assert h == w
    read, bad = {}, {}
    for file in files:
        try:
            read[file] = torch.from_numpy(read_image(file, h, c).copy())
        except datasets.DataError as error:
            bad[file] = str(error)
    return read, bad
