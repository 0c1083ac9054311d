"""Which data a run is trained on, and on which parts it is judged.

A part's name is the name of its numbers in a result file: `test`, `validation`, `validation_warped` (a view of what was held
out), another data set whose test part is tested as well, a portion of one (data/portions.py), or an attack on the test part.
"""

from pathlib import Path
from typing import Any

from torchcaps.data import Labelled, hold_out, info, load
from torchcaps.data.subsets import portion, shown
from torchcaps.probes.kinds import Attack
from torchcaps.train.recipe import Run

HELD = "validation"


def names(run: Run) -> tuple[str, ...]:
    """Those that a finished run is judged on, in this order."""
    if run.judged_on():
        return run.judged_on()
    if not run.hold_out:
        return ("test", *(HELD,) * bool(info(run.data).n_validation), *run.tests)
    return (*(f"{HELD}_{view}" for view in run.views), *run.tests) if run.views else (HELD, *run.tests)


def data_of(name: str) -> str:
    """Averaged weights, and statistics of unmixed pictures, are judged on the part without that ending."""
    return name.removesuffix("_ema").removesuffix("_unmixed")


def check(run: Run) -> None:
    """Refuse what could only fail in the middle of a training, or be ignored in silence."""
    if run.views and not run.hold_out:
        raise ValueError(f"views are of held-out images, and this run holds none out: give hold_out, or leave out {', '.join(run.views)}")
    if run.hold_out and info(run.data).kind == "sentences":
        raise ValueError(f"{run.data} has phrases of one sentence many times: held out, they would be known; use its -dev set to choose by")
    if info(run.data).kind == "sentences" and any(stage.probe_every for stage in run.stages):
        raise ValueError(f"{run.data} holds sentences, and probes look at images: give its stages probe_every=0")
    at_hand = [name for name in names(run) if name not in run.tests]
    for stage in run.stages:
        if stage.stop and stage.stop.part not in at_hand:
            raise ValueError(f"a stage stops by {stage.stop.part!r}, and this run has {', '.join(at_hand)}; stop by one of those")
        if stage.watch and stage.watch.part not in at_hand:
            raise ValueError(f"a stage watches {stage.watch.part!r}, and this run has {', '.join(at_hand)}; watch one of those")
    two = info(run.data).n_labels > 1
    if two and (run.keep_scores or any(stage.stop or stage.probe_every or stage.watch for stage in run.stages)):
        raise ValueError(
            f"{run.data} has two classes in a picture: no stopping rule, no probe, no watch and no stored scores are made for that"
        )


def training(run: Run, root: Path | None, seed: int) -> Any:
    """What is trained on."""
    data = load(run.data, "train", root, seed)
    return hold_out(data, run.hold_out, seed)[0] if run.hold_out else data


def part(run: Run, name: str, root: Path | None, seed: int) -> Any:
    """A part by its name; `train` too."""
    if name == "train":
        return training(run, root, seed)
    if isinstance(run, Attack) and name in run.judged_on():
        return Labelled(*(tensor[: run.n_images] for tensor in load(run.data, "test", root, seed)))
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
