"""Replay of a result: train its first steps again and compare the logged losses."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchcaps.results.store import REPLAYED
from torchcaps.train import Diverged, Interrupted, Options, train
from torchcaps.train.checkpoint import load_checkpoint
from torchcaps.train.recipe import Run

# Largest relative deviation of a logged mean loss. Measured: an H200 repeats its own runs to 0.01 %, a CPU repeats an
# H200's to 0.5 % and those of another CPU with other threads to 0.03 %.
REPLAY_TOLERANCE = 0.05
# Between a CPU and a GPU for networks that draw random numbers themselves, since the two draw other ones. Measured on
# six files of an H200: 0.2 to 0.6 % on five, whose losses move slowly or are sums over pixels, and 6.5 % on
# sabour2017/like-cnn-end, whose loss halves in fifty steps. That one was replayed to step 100 only, and its seeds are
# up to 87 % apart, so almost four times its difference is allowed.
DRAWN_TOLERANCE = 0.25


class Check(NamedTuple):
    """Outcome of one check; `passed` is None for what was not checked."""

    name: str
    passed: bool | None
    text: str


def check_replay(result: Mapping[str, Any], run: Run, root: Path | None, device: str) -> Check:
    """Repeat the first training steps and check that every logged mean loss is close to the stored one."""
    stored = {line["step"]: line["loss"] for line in result["curve"] if line["step"] <= REPLAYED and "loss" in line}
    if not stored:
        return Check("replay", False, "the file's curve has no early steps")
    with tempfile.TemporaryDirectory() as folder:
        options = Options(
            out=Path(folder),
            device=device,
            root=root,
            log_every=min(stored),
            max_steps=max(stored),
            progress=sys.stderr.isatty(),
        )
        try:
            trained = train(run, name=result["recipe"], seed=result["seed"], options=options)
            again = {line["step"]: line["loss"] for line in trained.curve if "loss" in line}
            worst = max(_deviation(again.get(step, torch.inf), loss) for step, loss in stored.items())
            here = trained.evaluated_by["device"]
            other = here.endswith("threads") != str(result.get("device", here)).endswith("threads")
            # asked only where it decides, since it trains two more steps
            drawn = other and worst > REPLAY_TOLERANCE and _draws(run, result, replace(options, progress=False))
        except Diverged as error:
            return Check("replay", False, str(error).split(";")[0])
        except Interrupted as stop:
            raise Interrupted("the replay was stopped", stop.signum) from stop
    allowed = DRAWN_TOLERANCE if drawn else REPLAY_TOLERANCE
    why = f"; the network draws random numbers, on {here} others than on {result.get('device')}" if drawn else ""
    text = (
        f"{max(stored)} steps again: losses within {100 * worst:.2f} % of the stored ones "
        f"(allowed {100 * allowed:g} %{why})"
    )
    if worst > allowed:
        text += f"; the code may have changed since: replay it at its own commit, {str(result.get('commit'))[:12]}"
    return Check("replay", worst <= allowed, text)


def _deviation(again: float, stored: float) -> float:
    """Compute the relative deviation of a loss; that of NaN is infinite, since NaN compares as neither near nor far."""
    found = abs(again - stored) / max(abs(stored), 1e-9)
    return torch.inf if isnan(found) else found


def _draws(run: Run, result: Mapping[str, Any], options: Options) -> bool:
    """Whether a step of training takes numbers from the device's generator, as dropout and sampling do."""
    states = []
    for steps in (1, 2):
        short = replace(options, out=options.out / "draws", max_steps=steps)
        train(run, name=result["recipe"], seed=result["seed"], options=short)
        states.append(load_checkpoint(short.out / "checkpoint.safetensors").part("rng"))
    return any(not torch.equal(states[0][name], states[1][name]) for name in states[0] if name != "epoch")
