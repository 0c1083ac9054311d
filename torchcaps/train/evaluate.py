"""Evaluation of a run: periodically during training, and once at its end."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int64
from torch import Tensor

from torchcaps.analysis.alive import dead_on, obituary
from torchcaps.analysis.routing import diagnose
from torchcaps.data import Labelled, fingerprint
from torchcaps.data.batches.images import in_order
from torchcaps.data.sets.sst import Sentences
from torchcaps.runtime.environment import made_by, peak_memory
from torchcaps.train import splits
from torchcaps.train.batchnorm import unmixed_statistics
from torchcaps.train.checkpoint import load_into, tensors_sha256
from torchcaps.train.state import State, Trained
from torchcaps.train.tasks import Evaluation, Extras, Study

if TYPE_CHECKING:
    from torchcaps.train.recipe import Stage, Watch

WATCHED = 8_2019  # seed of the watched sample, independent of the seed of a run
PROBED = 50  # images for a stage's probe; few, since their votes may be held in memory


def _not_training(function: Callable[..., Any]) -> Callable[..., Any]:
    """Count the time of a function of the state as evaluation."""

    @wraps(function)
    def timed(state: State, *args: Any, **how: Any) -> Any:
        with state.clock.phase("evaluation"):
            return function(state, *args, **how)

    return timed


@_not_training
def validate(state: State, stage: Stage, at: int, n_steps: int, epoch: int, device: torch.device) -> None:
    """Evaluate the validation parts about ten times per run, except a part that `watch` already covers."""
    watched = stage.watch and stage.watch.part
    if (at // epoch) % max(1, n_steps // epoch // 10) == 0:
        for part in [name for name in state.data if name.startswith(splits.HELD) and name != watched]:
            record(
                state,
                state.done + at,
                part,
                stage.task.evaluate(state.model, state.data[part], device, state.run.augment),
            )


def watch(state: State, stage: Stage, at: int, epoch: int, device: torch.device) -> None:
    """Log loss and error of the watched sample, and their standard deviations over batches of the training size."""
    rule = stage.watch
    if rule is None or at % (rule.every_steps or epoch * rule.every):
        return
    _watch(state, stage, rule, at, epoch, device)


@_not_training
def _watch(state: State, stage: Stage, rule: Watch, at: int, epoch: int, device: torch.device) -> None:
    some = sample(state.data[rule.part], rule.n_images)
    evaluation = stage.task.evaluate(state.model, some, device, state.run.augment)
    wrong = 100.0 * (evaluation.predictions.long() != some.labels)
    each = {"loss": stage.task.image_losses(state.model, evaluation.answers, some.labels), "error_percent": wrong}
    order = _drawn(len(some.labels))  # shuffled, so that batches do not follow the order of the set
    seen = {name: values[order] for name, values in each.items()}
    line = {name: values.double().mean().item() for name, values in seen.items()}
    n_batches = len(some.labels) // stage.batch
    if n_batches > 1:
        batches = {
            name: values[: n_batches * stage.batch].unflatten(0, (n_batches, -1)).double().mean(1)
            for name, values in seen.items()
        }
        line |= {f"{name}_sd": means.std().item() for name, means in batches.items()}
    named = {f"watched_{rule.part}_{name}": value for name, value in line.items()}
    state.metrics_log.write(state.done + at, stage=state.stage, epoch=at // epoch, **named)


@_not_training
def warn_of_dead_layers(state: State, device: torch.device) -> None:
    """Warn once of each capsule layer that is inactive on a few training images."""
    for name in dead_on(state.model, state.data["train"], device, state.run.augment):
        if name not in state.dead:
            state.dead.add(name)
            warnings.warn(obituary(name), RuntimeWarning, stacklevel=2)


def sample(data: Labelled | Sentences, n: int) -> Labelled | Sentences:
    """Draw `n` random examples, the same ones for every run.

    A set of at most `n` examples is returned unchanged, so that cached sentence embeddings of it are still found.
    """
    if n >= len(data.labels):
        return data
    order = _drawn(len(data.labels))[:n]
    if isinstance(data, Sentences):
        return data._replace(labels=data.labels[order], texts=tuple(data.texts[number] for number in order.tolist()))
    return Labelled(*(part[order] for part in data))


def _drawn(n: int) -> Int64[Tensor, " n"]:
    return torch.randperm(n, generator=torch.Generator().manual_seed(WATCHED))


@_not_training
def probe(state: State, stage: Stage, at: int, device: torch.device) -> None:
    """Log the task's probe on the first training images, with the preprocessing of evaluation."""
    first = next(
        in_order(Labelled(*(part[:PROBED] for part in state.data["train"])), PROBED, device, state.run.augment)
    )
    state.metrics_log.write(state.done + at, stage=state.stage, **stage.task.probe(state.model, first.images))


def reached(state: State, stage: Stage, at: int, device: torch.device) -> bool:
    """Check whether the stopping rule of the stage is met."""
    rule = stage.stop
    if rule is None or at % rule.every:
        return False
    with state.clock.phase("evaluation"):
        evaluation = stage.task.evaluate(state.model, state.data[rule.part], device, state.run.augment)
    record(state, state.done + at, rule.part, evaluation)
    state.met = state.team.says_first(100 - evaluation.metrics["error_percent"] >= rule.accuracy)
    return state.met


def record(state: State, at: int, part: str, evaluation: Evaluation) -> None:
    """Write the metrics of a part to the metrics log."""
    state.metrics_log.write(
        at, stage=state.stage, **{f"{part}_{name}": value for name, value in evaluation.metrics.items()}
    )


@_not_training
def finish(state: State, device: torch.device, ema: dict[str, Tensor], stopped_early: bool = False) -> Trained:
    """Evaluate the weights of the last step. Averaged weights and unmixed batch norm statistics are separate parts.

    An unfinished run is evaluated only if `options.as_is` is set.
    """
    seconds, memory = state.spent(), peak_memory(device)
    hashes = {name: fingerprint(data) for name, data in state.data.items()}
    evaluations, labels, diagnostics, extras = {}, {}, {}, {}
    if state.options.as_is or not stopped_early:
        others = {"_ema": ema} | _unmixed(state, device)
        for name in splits.names(state.run):
            data = (
                state.data[name] if name in state.data else splits.part(state.run, name, state.options.root, state.seed)
            )
            hashes[name] = hashes.get(name) or fingerprint(data)
            found = _evaluations(state, name, data, others, device)
            evaluations |= found
            labels |= dict.fromkeys(found, data.labels)
        first = state.data[splits.names(state.run)[0]]
        diagnostics, extras = (
            diagnose(state.model, first, device, augment=state.run.augment),
            _extras(state, first, device),
        )
    state.metrics_log.close()
    return Trained(
        model=state.model,
        weights_sha256=tensors_sha256(state.model.state_dict()),
        evaluations=evaluations,
        labels=labels,
        data=hashes,
        steps=state.done,
        planned=sum(n_steps_of(stage, state.data["train"]) for stage in state.run.stages),
        seconds=seconds,
        peak_memory_bytes=memory,
        curve=state.metrics_log.lines,
        routing=state.routing,
        diagnostics=diagnostics,
        extras=extras,
        phases=state.clock.seconds,  # the same dictionary: the end of this function is counted too
        met=state.met if state.run.stages[-1].stop else None,
        made_by=state.made_by,
        evaluated_by=made_by(device),
        stopped_early=stopped_early,
    )


def _evaluations(
    state: State, name: str, data: Labelled, others: dict[str, dict[str, Tensor]], device: torch.device
) -> dict[str, Evaluation]:
    """Evaluate a part with the current weights, and with each set of other tensors under the suffixed name."""
    task, found = state.run.stages[-1].task, {}
    found[name] = task.evaluate(state.model, data, device, state.run.augment)
    if name.startswith(splits.HELD):
        record(state, state.done, name, found[name])
    for ending, tensors in others.items():
        if tensors:
            raw = {key: tensor.clone() for key, tensor in state.model.state_dict().items()}
            load_into(state.model, raw | tensors, "what is evaluated beside the run")
            found[name + ending] = task.evaluate(state.model, data, device, state.run.augment)
            load_into(state.model, raw, "the run")
    return found


def _extras(state: State, data: Labelled, device: torch.device) -> dict[str, Any]:
    task, augment, found = state.run.stages[-1].task, state.run.augment, {}
    if isinstance(task, Extras):
        found |= task.extras(state.model, data, device, augment)
    if isinstance(task, Study):
        found |= task.study(state.model, state.data["train"], data, device, augment, state.seed)
    return found


def _unmixed(state: State, device: torch.device) -> dict[str, dict[str, Tensor]]:
    """Compute batch norm statistics without mixup, keyed by the suffix of their metrics."""
    stage = state.run.stages[-1]
    if not stage.unmixed:
        return {}
    found = unmixed_statistics(
        state.model, state.data["train"], stage.batch, state.run.augment, stage.unmixed, device, state.seed
    )
    return {"_unmixed": found}


def n_steps_of(stage: Stage, data: Labelled) -> int:
    """Compute the number of planned training steps of a stage."""
    return stage.n_steps(len(data.labels))
