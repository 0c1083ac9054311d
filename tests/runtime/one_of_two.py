"""Run twice at once by runtime/test_distributed, as torchrun would: trains what `CASES` names, and writes what came
out.

Usage: RANK=0 or 1 and the rest of torchrun's variables, then one_of_two.py OUT. The second process kills itself at
the end.
one_of_two.py OUT NAME ... trains these smoke recipes and nothing else, in any number of processes; NAME@10 stops
after ten steps.
"""

import json
import os
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from torchcaps.data.augment import Augmentation
from torchcaps.layers.norm import PoseNorm, share_statistics
from torchcaps.papers import RECIPES
from torchcaps.runtime import metrics_log
from torchcaps.runtime.distributed import Lost, joined
from torchcaps.train import Diverged, Interrupted, Options, Trained, evaluate, train
from torchcaps.train.checkpoint import load_checkpoint, tensors_sha256
from torchcaps.train.recipe import Run, Stop
from torchcaps.train.step import TrainingStep
from torchcaps.train.tasks.classify import Classify


def made(name: str, steps: int | None = None, **stage) -> Run:
    """A smoke recipe without dropout: what a process draws inside a network is its own."""
    run = RECIPES[f"smoke/{name}"].make()
    args = run.model_args | ({"dropped": 0.0} if run.model in ("experts", "rbm") else {})
    changes = stage | ({"steps": steps} if steps else {})
    return replace(run, model_args=args, stages=tuple(replace(part, **changes) for part in run.stages))


# fmt: off
CASES = {
    "capsnet": made("capsnet"),  # shifts, reconstruction, an average of the weights
    "sparsecaps": made("sparsecaps", 12),  # statistics of winning, and boosts that follow from them
    "mixed sentences": made("em-sentences", 12),  # each mixed with the next, also across the border between the parts
    # batch norm; ends before rounding errors have grown to anything that can be seen in this network
    "mixed images": made("em-capsnet-mixup", 6),
    # batch norm of capsules, fitted to the first batch by every process and to the parts of both from then on
    "normalised capsules": made("matrix-capsnet-norm", 5),
    # gradients set by hand, a force by the mean over the batch, statistics of the decoder
    "experts": made("experts", 5),
    "stopped": made("capsnet-plain", stop=Stop(accuracy=10.0, part="test", every=5)),
}
# fmt: on


@dataclass(frozen=True, kw_only=True)
class OwnWay(Classify):
    """Wrong on purpose: every process goes another way."""

    def backward(self, model, batch, losses) -> None:
        super().backward(model, batch, losses)
        with torch.no_grad():
            next(model.parameters()).add_(int(os.environ["RANK"]))


@dataclass(frozen=True, kw_only=True)
class OwnStart(Classify):
    """A task whose processes prepare different values, as rounding does; the first one's is left alone."""

    def init(self, model, batch) -> None:
        with torch.no_grad():
            model.conv.weight.add_(int(os.environ.get("RANK", 0)))


@dataclass(frozen=True)
class MixesAnyhow(Augmentation):
    def mix(self, batch, drawn):
        return batch._replace(images=batch.images.flip(0))


def said(trained: Trained, out: Path) -> dict:
    checkpoint = load_checkpoint(out / "checkpoint.safetensors")
    losses = [(line["step"], line["loss"]) for line in trained.curve if "loss" in line]
    return {
        "losses": losses,
        "sha": tensors_sha256(checkpoint.tensors),
        "steps": trained.steps,
        "made_by": trained.made_by,
    }


def go(run: Run, out: Path, **options) -> dict:
    options = {"log_every": 1, "save_every": 3, "progress": False} | options
    return said(train(run, name="x", seed=0, options=Options(out=out, **options)), out)


def batch_norm_steps(norm: nn.Module, images: torch.Tensor) -> dict:
    """Outputs, gradients and running statistics, as lists of float64."""
    found = []
    for part in images:
        part = part.clone().requires_grad_()
        output = norm(part)
        norm.zero_grad()
        (output**3).mean().backward()
        found.append([output.detach(), part.grad, norm.weight.grad, norm.bias.grad])
    return {
        "steps": [[x.tolist() for x in each] for each in found],
        "state": {k: v.tolist() for k, v in norm.state_dict().items()},
    }


def normalise(rank: int, size: int) -> dict:
    images = torch.rand(3, 8, 3, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    norm = nn.Sequential(nn.BatchNorm2d(3).double())
    norm = share_statistics(norm) if size > 1 else norm
    return batch_norm_steps(norm[0], images.chunk(size, 1)[rank])


class SomePoses(PoseNorm):
    """Takes poses alone; those whose first dimension is negative are absent."""

    def forward(self, poses: torch.Tensor) -> torch.Tensor:
        present = poses[..., 0] > 0
        return super().forward(poses * present.unsqueeze(-1), present)


def normalise_poses(rank: int, size: int) -> dict:
    poses = torch.randn(3, 8, 6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return batch_norm_steps(SomePoses(3, 2).double(), poses.chunk(size, 1)[rank])


def when(step: int, act) -> None:
    """In this process, after so many steps of a run."""
    once = TrainingStep.once

    def once_then_act(self) -> None:
        once(self)
        if int(self.counter) == step:
            TrainingStep.once = once
            act()

    TrainingStep.once = once_then_act


def error_of(run: Run, out: Path) -> tuple[str, list[str]]:
    """Return the error of a run, and the threads of a group that are alive when it is raised."""
    try:
        go(run, out)
    except (Diverged, Interrupted, Lost, ValueError) as error:
        return f"{type(error).__name__}: {error}", threads_of_a_group()
    return "none", []


def threads_of_a_group() -> list[str]:
    """By name, where Linux shows them."""
    return [name for path in Path("/proc/self/task").glob("*/comm") if "gloo" in (name := path.read_text())]


def main(out: Path) -> None:
    rank, found = int(os.environ["RANK"]), {}
    for name, run in CASES.items():
        found[name] = go(run, out / name)
    with joined(torch.device("cpu")) as team:
        found["batch norm"] = normalise(team.rank, team.size)
        found["pose norm"] = normalise_poses(team.rank, team.size)
        found["threads"] = threads_of_a_group()
    drops = made("baseline")
    found["dropout"] = go(drops, out / "dropout")
    go(drops, out / "dropout resumed", max_steps=7)
    found["dropout resumed"] = go(drops, out / "dropout resumed")
    go(CASES["capsnet"], out / "two then one", max_steps=10)
    found["one then two"] = go(CASES["capsnet"], out / "one then two")
    found["different"], _ = error_of(made("capsnet-plain", task=OwnWay()), out / "different")
    found["prepared"] = go(made("capsnet-plain", 5, task=OwnStart()), out / "prepared")
    found["unclear"], _ = error_of(replace(made("capsnet-plain"), augment=(MixesAnyhow(),)), out / "unclear")
    if rank == 1:
        when(5, lambda: os.kill(os.getpid(), signal.SIGTERM))
    found["told"], _ = error_of(CASES["capsnet"], out / "told")
    found["told, then resumed"] = go(CASES["capsnet"], out / "told")
    found["threads after"] = threads_of_a_group()
    if rank == 1:
        (out / "1.json").write_text(json.dumps(found))
        when(11, lambda: os.kill(os.getpid(), signal.SIGKILL))
    found["left alone"], found["threads left alone"] = error_of(CASES["capsnet"], out / "killed")
    (out / "0.json").write_text(json.dumps(found))


def main_of(names: list[str], out: Path) -> None:
    found = {}
    for name in names:
        recipe, _, steps = name.partition("@")
        options = {"max_steps": int(steps)} if steps else {}
        found[name] = go(made(recipe), out / name, device=os.environ.get("TEST_DEVICE", "cpu"), **options)
    (out / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    metrics_log.find_spec = lambda name: None  # TensorBoard takes longer to import than all of this
    evaluate.diagnose = (
        lambda *args, **how: {}
    )  # looks at every image in every pass; losses and weights do not depend on it
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    if names:
        main_of(names, folder)
    else:
        main(folder)
