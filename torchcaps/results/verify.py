"""Verification of a result file: recompute metrics, compare recipe and commit, replay the first steps."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.data import fingerprint
from torchcaps.probes.kinds import Probe, stored
from torchcaps.results.claims import Recipe
from torchcaps.results.store import REPLAYED, unpack
from torchcaps.train import Diverged, Interrupted, Options, splits, train
from torchcaps.train.plain import MIGRATIONS, differences, unlike, up_to_date
from torchcaps.train.recipe import Run

# Largest relative deviation of a logged mean loss; bfloat16 on a GPU against float32 on a CPU stays well below it.
REPLAY_TOLERANCE = 0.05


class Check(NamedTuple):
    """Outcome of one check."""

    name: str
    passed: bool
    text: str


def verify(
    result: Mapping[str, Any], recipes: Mapping[str, Recipe], root: Path | None, replay: bool, device: str
) -> list[Check]:
    """Run every check that this result allows."""
    run = stored(result["run"])
    # a resumed run may have several commits, and each must have the same recipe
    makers = [
        maker
        for maker in [*result.get("begun_by", []), result.get("evaluated_by", {})]
        if maker.get("commit") != result.get("commit")
    ]
    commits = [check_commit({**result, **maker}) for maker in [result, *filter(None, makers)]]
    checks = [*check_metrics(result, run, root), check_recipe(result, recipes), *commits]
    return checks + ([check_replay(result, run, root, device)] if replay and run.trains else [])


def check_metrics(result: Mapping[str, Any], run: Run | Probe, root: Path | None) -> list[Check]:
    """Recompute each metric from the stored predictions and the labels; the hash of the data must match."""
    checks = []
    for split, metrics in result["metrics"].items():
        part = splits.data_of(split)
        data = run.part(part, root, result["seed"])
        if (found := fingerprint(data)) != result["data"].get(part):
            made_on = str(result["data"].get(part))
            checks.append(
                Check(split, False, f"the data has sha256 {found[:8]}…, the result was made on {made_on[:8]}…")
            )
            continue
        predictions = unpack(result["predictions"][split]).long()
        if len(predictions) != len(data.labels):
            checks.append(Check(split, False, f"{len(predictions)} predictions for {len(data.labels)} images"))
            continue
        for name, value in run.score(predictions, data.labels).items():
            said = metrics.get(name)
            agrees = said is not None and abs(value - said) < 1e-9
            text = f"recomputed {value:g} from {len(predictions):,} predictions, the file says {said}"
            checks.append(Check(f"{split}.{name}", agrees, text))
        if "ensemble" in result:
            checks.append(check_scores(result["ensemble"][split], split, predictions, data.labels))
    return checks or [Check("metrics", False, "the file has no metrics")]


def check_scores(part: Mapping[str, Any], split: str, predictions: Tensor, labels: Tensor) -> Check:
    """Check that the stored scores give the stored predictions, up to float16 ties, and that the labels match."""
    scores = unpack(part["scores"]).view(torch.float16)
    off = (
        int((scores.gather(1, predictions[:, None]).squeeze(1) < scores.amax(1)).sum())
        if scores.shape[:1] == predictions.shape
        else -1
    )
    same = torch.equal(unpack(part["labels"]).long(), labels)
    text = (
        f"stored scores disagree with {off} of {len(predictions):,} predictions; "
        f"labels {'are' if same else 'are not'} those of the data"
    )
    return Check(f"{split}.scores", off == 0 and same, text)


def check_recipe(result: Mapping[str, Any], recipes: Mapping[str, Recipe]) -> Check:
    """Check that the current recipe of that name equals the stored run."""
    name = MIGRATIONS.recipes.get(result["recipe"], result["recipe"])
    if name not in recipes:
        return Check("recipe", False, f"there is no recipe {name!r} today")
    other = unlike(result["run"], recipes[name].make())
    return Check(
        "recipe", not other, "stale: stored, today: " + "; ".join(other[:3]) if other else "equals today's recipe"
    )


def check_commit(result: Mapping[str, Any], home: Path = Path(__file__).parents[2]) -> Check:
    """Check that the recipe at the stored commit equals the stored run."""
    stored = str(result.get("commit"))
    if not re.fullmatch(r"[0-9a-f]{40}", stored):
        return Check("commit", False, f"the file names no commit, but {stored!r}")
    if result.get("dirty", True):
        return Check(
            "commit", False, f"the code was not that of {stored[:12]} alone when this ran: it had changes not committed"
        )
    with tempfile.TemporaryDirectory() as folder:
        try:
            archive = subprocess.run(
                ["git", "-C", str(home), "archive", stored, "torchcaps"], check=True, capture_output=True
            ).stdout
            subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True, capture_output=True)
            command = [sys.executable, "-m", "torchcaps", "show", result["recipe"], "--json"]
            shown = subprocess.run(
                command, check=True, capture_output=True, text=True, cwd=folder, env=os.environ | {"PYTHONPATH": folder}
            ).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            missing = isinstance(error, subprocess.CalledProcessError) and error.cmd[0] == "git"
            hint = "; `git fetch --unshallow` completes a shallow clone" if missing else ""
            return Check("commit", False, f"could not look at {stored[:12]}: {_reason(error)}{hint}")
    other = differences(up_to_date(result["run"]), up_to_date(json.loads(shown)))
    return Check(
        "commit", not other, "stored, then: " + "; ".join(other[:3]) if other else f"{stored[:12]} has the same recipe"
    )


def check_replay(result: Mapping[str, Any], run: Run, root: Path | None, device: str) -> Check:
    """Repeat the first training steps and check that every logged mean loss is close to the stored one."""
    stored = {line["step"]: line["loss"] for line in result["curve"] if line["step"] <= REPLAYED and "loss" in line}
    if not stored:
        return Check("replay", False, "the file's curve has no early steps")
    with tempfile.TemporaryDirectory() as folder:
        every = min(stored)
        options = Options(
            out=Path(folder),
            device=device,
            root=root,
            log_every=every,
            max_steps=max(stored),
            progress=sys.stderr.isatty(),
        )
        try:
            trained = train(run, name=result["recipe"], seed=result["seed"], options=options)
        except Diverged as error:
            return Check("replay", False, str(error).split(";")[0])
        except Interrupted as stop:
            raise Interrupted("the replay was stopped", stop.signum) from stop
    again = {line["step"]: line["loss"] for line in trained.curve if "loss" in line}
    worst = max(abs(again.get(step, torch.inf) - loss) / abs(loss) for step, loss in stored.items())
    text = (
        f"{max(stored)} steps again: losses within {100 * worst:.2f} % of the stored ones "
        f"(allowed {100 * REPLAY_TOLERANCE:g} %)"
    )
    return Check("replay", worst <= REPLAY_TOLERANCE, text)


def _reason(error: Exception) -> str:
    output = getattr(error, "stderr", None)
    text = output.decode(errors="replace") if isinstance(output, bytes) else output
    return (text or str(error)).strip().splitlines()[-1]
