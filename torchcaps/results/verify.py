"""Verification of a result file: recompute metrics, compare recipe and commit, replay the first steps.

It shows that a file is consistent with its data, its recipe and its commit. It cannot show that the training took
place: whoever makes up predictions can make up their error too. `--replay` is the stronger test: the losses of the
first steps come out only if this recipe is trained on these images. It tells seeds apart only where they differ by more
than the tolerance.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.data import DataError, fingerprint, info
from torchcaps.probes.kinds import Attack, Probe, Vote, stored
from torchcaps.results.claims import Recipe
from torchcaps.results.history import History
from torchcaps.results.replay import Check, check_replay
from torchcaps.results.store import read_result, result_path, unpack
from torchcaps.results.votes import check_vote
from torchcaps.train import splits
from torchcaps.train.checkpoint import load_checkpoint, tensors_sha256
from torchcaps.train.plain import MIGRATIONS, differences, unlike, up_to_date
from torchcaps.train.recipe import Run

# what nothing in the file tells again; times of the curve, and so ms per step, are the run's own clock's too
TOLD = "seconds", "phases", "date", "peak_memory_bytes", "device", "routing", "versions", "stopping_rule_met"
SEEDED = (
    "digits",
    "generated",
    "own images",
)  # sets that a run's seed draws; official ones are read once for all seeds


class Part(NamedTuple):
    """Labels and hash of one part of the data.

    Example:

        run = Run(data="generated", model="capsnet", model_args={})
        part = Parts(root=None)(run, "test", seed=0)
        len(part.labels), len(part.sha256)  # (256, 64)
    """

    labels: Tensor
    sha256: str


class Parts:
    """Parts of data, read and hashed once for all the result files that name them.

    Example:

        run, parts = Run(data="generated", model="capsnet", model_args={}), Parts(root=None)
        parts(run, "test", seed=0) is parts(run, "test", seed=0)  # True
    """

    def __init__(self, root: Path | None) -> None:
        self.root = root
        self.known: dict[tuple[Any, ...], Part] = {}

    def __call__(self, run: Run | Probe, name: str, seed: int) -> Part:
        network = run if isinstance(run, Run) else run.network
        n_images = run.n_images if isinstance(run, Attack) else None
        data = str(network.data)
        drawn = bool(network.hold_out) or data.startswith(SEEDED) or data.endswith("folds")
        key = type(run).__name__, data, network.hold_out, n_images, name, seed if drawn else None
        if key not in self.known:
            found = run.part(name, self.root, seed)
            self.known[key] = Part(found.labels, fingerprint(found))
        return self.known[key]


def verify(
    result: Mapping[str, Any],
    recipes: Mapping[str, Recipe],
    root: Path | None,
    replay: bool,
    device: str,
    checkpoint: Path | None = None,
    history: History | None = None,
    parts: Parts | None = None,
) -> list[Check]:
    """Run every check that this result allows, and list what is not checked."""
    run, history = stored(result["run"]), history or History()
    parts = parts or Parts(root)
    checks = [*check_metrics(result, run, root, parts), check_fitted(result, run, parts), *check_course(result, run)]
    checks += [check_weights(result, checkpoint), *unchecked(result)]
    checks += [check_recipe(result, recipes), *check_commits(result, history)]
    if not run.trains:
        return checks
    return [*checks, check_replay(result, run, root, device) if replay else NOT_REPLAYED]


NOT_REPLAYED = Check("replay", None, "give --replay to train the first steps again")


class Summary(NamedTuple):
    """Outcome of the checks of many files.

    Example:

        bad = [(Path("results/mine/capsnet/0.json"), Check("steps", False, "the recipe plans 20, the file says 2"))]
        Summary(3, bad, without_data={}).text()  # 3 result files, 1 bad
    """

    n: int
    bad: list[tuple[Path, Check]]
    without_data: dict[str, int]  # files whose metrics were not recomputed, by data set

    def text(self) -> str:
        """Say how many files are right, and what was not checked."""
        missing = ", ".join(f"{n} on {name}" for name, n in sorted(self.without_data.items()))
        files = len({path for path, _ in self.bad})
        unread = f"; metrics not recomputed, since the data is not here: {missing}" if missing else ""
        return f"{self.n:,} result {'file' if self.n == 1 else 'files'}, {files} bad{unread}"


def verify_all(
    folder: Path, recipes: Mapping[str, Recipe], root: Path | None, history: History, only: Path | None = None
) -> Summary:
    """Check every result file below a folder, and that each is its own seed's. Missing data is counted, not failed.

    `only`: those below this part of it, such as the folder of a row.
    """
    if only is not None and not only.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{only} is no part of {folder}, where result files are told by their paths; give --results")
    looked = folder if only is None else folder / only.resolve().relative_to(folder.resolve())
    paths = sorted(looked.rglob("*.json"))
    if not paths:
        raise ValueError(f"there is no result file below {looked}; `torchcaps reproduce` writes them")
    parts, bad, without_data, runs = Parts(root), [], {}, {}
    for path in paths:
        try:
            result = read_result(path)
        except ValueError as error:
            bad.append((path, Check("file", False, str(error))))
            continue
        try:
            checks = verify(result, recipes, root, False, "cpu", history=history, parts=parts)
            if isinstance(run := stored(result["run"]), Vote):
                checks = [*checks, check_vote(result, run, folder)]
        except DataError:
            name = result["data"].get("name", "?")
            without_data[name] = without_data.get(name, 0) + 1
            run = stored(result["run"])
            checks = [*check_course(result, run), check_recipe(result, recipes), *check_commits(result, history)]
        except ValueError as error:
            checks = [Check("file", False, str(error))]
        first = runs.setdefault(course_of(result), path)
        checks += [check_place(result, path, folder, first)]
        bad += [(path, check) for check in checks if check.passed is False]
    return Summary(len(paths), bad, without_data)


def course_of(result: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what two seeds of a row never share: predictions with the curve, or with the weights without a curve."""
    return result["recipe"], str(result["predictions"]), str(result["curve"] or result.get("weights_sha256"))


def check_place(result: Mapping[str, Any], path: Path, folder: Path, first: Path) -> Check:
    """Check that a file lies where its recipe and seed say, and repeats no other file: a copy is no further seed."""
    wanted = result_path(folder, result["recipe"], result["seed"])
    if path != wanted:
        return Check("place", False, f"recipe and seed are those of {wanted}")
    text = "recipe and seed are those of its path" if path == first else f"repeats {first}, of another seed"
    return Check("place", path == first, text)


def check_fitted(result: Mapping[str, Any], run: Run | Probe, parts: Parts) -> Check:
    """Compare the hashes of the data that the run was trained or fitted on, and their name, with the data here."""
    evaluated = {splits.data_of(split) for split in result["metrics"]}
    said = {name: sha256 for name, sha256 in result["data"].items() if name not in (*evaluated, "name")}
    wrong = [name for name, sha256 in said.items() if parts(run, name, result["seed"]).sha256 != sha256]
    wrong += ["name"] if result["data"].get("name") != str(run.data) else []
    wrong += [f"no hash of {part}" for part in run.learnt_from() if part not in result["data"]]
    text = f"differs: {', '.join(wrong)}" if wrong else f"name and {', '.join(sorted(said)) or 'no further part'} agree"
    return Check("data", not wrong, text)


def unchecked(result: Mapping[str, Any]) -> list[Check]:
    """List the numbers that the file states without what is needed to recompute them."""
    extras = ", ".join(name for name, value in result.get("extras", {}).items() if not isinstance(value, str))
    named = {"extras": f"not recomputable: {extras}"} if extras else {}
    told = [name for name in TOLD if result.get(name) is not None]
    named |= {"told": f"by the run alone: {', '.join(told)}"} if told else {}
    named |= {"diagnostics": "of the weights, which are not in the file"} if result.get("diagnostics") else {}
    return [Check(name, None, text) for name, text in named.items()]


def check_course(result: Mapping[str, Any], run: Run | Probe) -> list[Check]:
    """Check the number of steps against the recipe, and the curve against steps and metrics."""
    if not run.trains:
        counts = result.get("steps", 0), result.get("planned_steps", 0)
        return [Check("steps", counts == (0, 0), f"nothing is trained, the file says {counts[0]:,} of {counts[1]:,}")]
    n = info(run.data).n_train - run.hold_out
    planned = sum(stage.n_steps(n) for stage in run.stages)
    steps, said = result.get("steps", -1), result.get("planned_steps", planned)
    stopped = any(stage.stop for stage in run.stages) or "planned_steps" in result  # tables tell an unfinished run
    right = said == planned and (steps == planned or (0 <= steps < planned and stopped))
    counted = Check("steps", right, f"the recipe plans {planned:,}, the file says {steps:,} of {said:,}")
    order = [line["step"] for line in result["curve"]]
    wrong = [f"it ends at step {order[-1] if order else 0}"] if order[-1:] != [steps] else []
    wrong += ["its steps are not in order"] if order != sorted(order) else []
    wrong += [
        f"its last line says {split} {name} {line[f'{split}_{name}']:g}, the metrics say {value:g}"
        for line in result["curve"]
        if line["step"] == steps
        for split, metrics in result["metrics"].items()
        for name, value in metrics.items()
        if not abs(line.get(f"{split}_{name}", value) - value) <= 1e-5 * max(1, abs(value))  # NaN agrees with nothing
    ]
    text = "; ".join(wrong) or "ends with the steps and the metrics; --replay checks its start, nothing its middle"
    return [counted, Check("curve", not wrong, text)]


def check_weights(result: Mapping[str, Any], checkpoint: Path | None) -> Check:
    """Compare the hash of the weights with those of a checkpoint, if one is given."""
    said = result.get("weights_sha256", "")
    if checkpoint is None:
        return Check("weights", None, f"sha256 {said[:8]}… is that of weights elsewhere; --checkpoint FILE compares")
    found = tensors_sha256(load_checkpoint(checkpoint).part("model"))
    return Check("weights", found == said, f"{checkpoint} has sha256 {found[:8]}…, the file says {said[:8]}…")


def check_metrics(
    result: Mapping[str, Any], run: Run | Probe, root: Path | None, parts: Parts | None = None
) -> list[Check]:
    """Recompute each metric from the stored predictions and the labels; the hash of the data must match."""
    checks, parts = [], parts or Parts(root)
    for split, metrics in result["metrics"].items():
        part = splits.data_of(split)
        data = parts(run, part, result["seed"])
        if (found := data.sha256) != result["data"].get(part):
            made_on = str(result["data"].get(part))
            checks.append(
                Check(split, False, f"the data has sha256 {found[:8]}…, the result was made on {made_on[:8]}…")
            )
            continue
        if split not in result["predictions"]:
            checks.append(Check(split, False, "the file has no predictions for it"))
            continue
        # one or two bytes for an image: a small file must not declare, and take, gigabytes
        predictions = unpack(result["predictions"][split], 2 * len(data.labels)).long()
        if len(predictions) != len(data.labels):
            checks.append(Check(split, False, f"{len(predictions)} predictions for {len(data.labels)} images"))
            continue
        try:
            scores = run.score(predictions, data.labels)
        except RuntimeError:  # of torch: other shapes than the labels have
            shape = list(predictions.shape)
            checks.append(Check(split, False, f"predictions of shape {shape} for labels {list(data.labels.shape)}"))
            continue
        checks += [Check(f"{split}.{name}", None, "not recomputable") for name in metrics if name not in scores]
        for name, value in scores.items():
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
    same = torch.equal(unpack(part["labels"], labels.numel()).long(), labels)
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


def check_commits(result: Mapping[str, Any], history: History) -> list[Check]:
    """Check every commit that a result names: a resumed run may have several, all with the same recipe."""
    makers = [
        maker
        for maker in [*result.get("begun_by", []), result.get("evaluated_by", {})]
        if maker.get("commit") != result.get("commit")
    ]
    return [check_commit({**result, **maker}, history) for maker in [result, *filter(None, makers)]]


def check_commit(result: Mapping[str, Any], history: History) -> Check:
    """Check that the recipe at the stored commit equals the stored run."""
    stored = str(result.get("commit"))
    if not re.fullmatch(r"[0-9a-f]{40}", stored):
        return Check("commit", False, f"the file names no commit, but {stored!r}")
    if result.get("dirty", True):
        return Check(
            "commit", False, f"the code was not that of {stored[:12]} alone when this ran: it had changes not committed"
        )
    try:
        then = history.recipes(stored).get(result["recipe"])
    except ValueError as error:
        return Check("commit", False, str(error))
    if then is None:
        return Check("commit", False, f"{stored[:12]} has no recipe {result['recipe']!r}")
    other = differences(up_to_date(result["run"]), up_to_date(then))
    return Check(
        "commit", not other, "stored, then: " + "; ".join(other[:3]) if other else f"{stored[:12]} has the same recipe"
    )
