"""Training set and evaluation parts of a run.

A part has the same name here and in a result file: `test`, `validation`, `validation_warped` (a view of the held-out
images), another data set (its test part), or a portion of one (data/subsets.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcaps.data import Labelled, hold_out, info, load
from torchcaps.data.subsets import portion, shown
from torchcaps.train.tasks import PerImage, Probed, Scheduled, Watched

if TYPE_CHECKING:
    from torchcaps.train.recipe import Run, Stage

HELD = "validation"


def names(run: Run) -> tuple[str, ...]:
    """List the parts that a finished run is evaluated on, in order."""
    if run.hold_out:
        return (*(f"{HELD}_{view}" for view in run.views), *run.tests) if run.views else (HELD, *run.tests)
    own = ("test", HELD) if info(run.data).n_validation else ("test",)
    return (*own, *run.tests)


def data_of(name: str) -> str:
    """Strip the suffix for averaged weights or unmixed statistics, leaving the name of the data part."""
    return name.removesuffix("_ema").removesuffix("_unmixed")


def check(run: Run) -> None:
    """Refuse settings that cannot be evaluated or would have no effect."""
    about = info(run.data)
    if run.views and not run.hold_out:
        raise ValueError(
            "views are of held-out images, and this run holds none out: give hold_out, "
            f"or leave out {', '.join(run.views)}"
        )
    if run.hold_out and about.kind == "sentences":
        raise ValueError(
            f"{run.data} has phrases of one sentence many times: held out, they would be known; "
            "use its -dev set for model selection"
        )
    at_hand = [name for name in names(run) if name not in run.tests]
    for stage in run.stages:
        _check_stage(run, stage, about.kind, at_hand)
    if about.n_labels > 1 and (
        run.keep_scores or any(stage.stop or stage.probe_every or stage.watch for stage in run.stages)
    ):
        raise ValueError(
            f"{run.data} has two classes in an image: no stopping rule, no probe, "
            "no watch and no stored scores are made for that"
        )


def _other_losses(task: type) -> str | None:
    """Name a method for losses that a task would not be asked by, since `losses_per_image` is."""
    if issubclass(task, Scheduled):
        return "losses_at"
    first = next(each for each in task.__mro__ if {"losses", "losses_per_image"} & vars(each).keys())
    return None if "losses_per_image" in vars(first) else "losses"


def _check_stage(run: Run, stage: Stage, kind: str, at_hand: list[str]) -> None:
    task = type(stage.task).__name__
    if stage.probe_every and kind == "sentences":
        raise ValueError(f"{run.data} holds sentences, and probes look at images: give its stages probe_every=0")
    if stage.probe_every and not isinstance(stage.task, Probed):
        raise ValueError(
            f"a stage asks {task} for probes, and it has no probe(model, images); give it one, or probe_every=0"
        )
    if stage.watch and not isinstance(stage.task, Watched):
        raise ValueError(
            f"a stage watches {task}, and it has no image_losses(model, answers, labels); give it one, or watch=None"
        )
    if stage.hard and not isinstance(stage.task, PerImage):
        raise ValueError(
            f"a stage asks {task} for hard images, and it has no losses_per_image(model, batch); "
            "give it one, or hard=None"
        )
    if stage.hard and (other := _other_losses(type(stage.task))):
        raise ValueError(
            f"a stage asks {task} for hard images, and it has a {other} that losses_per_image(model, batch) does not "
            "know; give it a losses_per_image of its own, or hard=None"
        )
    if stage.stop and stage.stop.part not in at_hand:
        raise ValueError(
            f"a stage stops by {stage.stop.part!r}, and this run has {', '.join(at_hand)}; stop by one of those"
        )
    if stage.watch and stage.watch.part not in at_hand:
        raise ValueError(
            f"a stage watches {stage.watch.part!r}, and this run has {', '.join(at_hand)}; watch one of those"
        )


def training(run: Run, root: Path | None, seed: int) -> Any:
    """Load the training set without the held-out images."""
    data = load(run.data, "train", root, seed)
    return hold_out(data, run.hold_out, seed)[0] if run.hold_out else data


def part(run: Run, name: str, root: Path | None, seed: int) -> Any:
    """Load a part of the run's data by name, or the training set (`train`)."""
    if name == "train":
        return training(run, root, seed)
    if "/" in name:
        return portion(name, root, seed)
    if name == "test" or name in run.tests:
        return load(run.data if name == "test" else name, "test", root, seed)
    if name == HELD and not run.hold_out and info(run.data).n_validation:
        return load(run.data, HELD, root, seed)
    if not run.hold_out or not name.startswith(HELD):
        raise ValueError(f"this run has no part {name!r}; it has train, {', '.join(names(run))}")
    held: Labelled = hold_out(load(run.data, "train", root, seed), run.hold_out, seed)[1]
    view = name.removeprefix(HELD).removeprefix("_")
    return shown(held, view) if view else held
