"""The loop, readable from top to bottom. It knows stages, tasks and files, and nothing of any paper."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps import parts
from torchcaps.checkpoint import Checkpoint, load_checkpoint, load_into, save_checkpoint
from torchcaps.data import Labelled, fingerprint
from torchcaps.data.batches import Batches, in_order
from torchcaps.data.pair_batches import batches_for
from torchcaps.diagnostics import diagnose
from torchcaps.journal import Journal, Speed, progress_bar
from torchcaps.machine import algorithms, device_name, made_by, make_folder, noted_signals, own_randomness, peak_memory, pick_device
from torchcaps.recipe import Run, Stage, differences, to_plain, unlike
from torchcaps.step import TrainingStep
from torchcaps.tasks import Evaluation

PROBED = 50  # images that a stage's probe looks at: their votes may lie in memory


class Diverged(RuntimeError):
    """The loss became NaN or infinite."""


class Interrupted(RuntimeError):
    """A signal asked the run to stop; everything is saved."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.signum = signum


@dataclass(kw_only=True)
class Options:
    """Where and how to run. Nothing here may change a result, but for the last bits on another device."""

    out: Path
    device: str = "cpu"
    root: Path | None = None  # a folder with data files
    deterministic: bool = False
    progress: bool = True
    log_every: int = 50
    save_every: int | None = None  # steps; None: about once a minute
    max_steps: int | None = None  # stop here, saved, as if interrupted: for replays and tests


@dataclass(kw_only=True)
class Trained:
    """A finished run: the model, and all that a result file tells."""

    model: nn.Module
    evaluations: dict[str, Evaluation]  # by part: test, test_ema, validation, another test set
    steps: int
    seconds: float
    peak_memory_bytes: int
    curve: list[dict[str, Any]]
    labels: dict[str, Tensor]  # by part, as the evaluations
    data: dict[str, str]  # hashes by part
    routing: str  # the backend, in words
    diagnostics: dict[str, Any]  # of the first part, by the weights of the last step
    extras: dict[str, Any]  # what the task has to say of it besides
    made_by: list[dict[str, Any]]  # device, versions and commit; several where a run was resumed elsewhere
    evaluated_by: dict[str, Any]
    stopped_early: bool = False


@dataclass
class _State:
    """What the loop carries along."""

    run: Run
    name: str
    seed: int
    model: nn.Module
    rng: torch.Generator
    data: dict[str, Labelled]
    options: Options
    stage: int = 0
    done: int = 0  # steps of earlier stages
    ended: bool = False  # the stage: its last step is done, or its stopping rule is met
    seconds: float = 0.0
    routing: str = ""
    made_by: list[dict[str, Any]] = field(default_factory=list)
    epoch_rng: Tensor | None = None  # the generator's state at the start of the current epoch
    journal: Journal | None = None
    started: float = field(default_factory=time.perf_counter)
    saved_at: float = field(default_factory=time.perf_counter)

    @property
    def path(self) -> Path:
        return self.options.out / "checkpoint.safetensors"

    def spent(self) -> float:
        return self.seconds + time.perf_counter() - self.started


def train(run: Run, *, name: str, seed: int, options: Options) -> Trained:
    """Train a run to its end, going on from `out`/checkpoint.safetensors where there is one."""
    device = pick_device(options.device)
    with algorithms(options.deterministic, device), own_randomness(seed, device), noted_signals() as caught:
        state, found = _begin(run, name, seed, options, device)
        ema: dict[str, Tensor] = {}
        for number in range(state.stage, len(run.stages)):
            state.stage = number
            step = _stage(state, run.stages[number], found, caught, device)
            state.done += int(step.counter)
            if not state.ended:
                return _finish(state, device, {}, stopped_early=True)
            ema, found, state.ended = step.ema, None, False
        trained = _finish(state, device, ema)
        if caught:
            raise Interrupted(f"the training is finished and saved in {state.path}; the same command evaluates it", caught[0])
        return trained


def _begin(run: Run, name: str, seed: int, options: Options, device: torch.device) -> tuple[_State, Checkpoint | None]:
    """Data, model and generator, fresh or from the checkpoint."""
    make_folder(options.out)
    if device.type == "cuda":
        gc.collect()  # a compiled step refers to itself: what an earlier run of this process held goes only now
        torch.cuda.reset_peak_memory_stats(device)
    # further test sets are large, and not wanted before the end
    data = {name: parts.part(run, name, options.root, seed) for name in ("train", *parts.names(run)) if name not in run.tests}
    model = run.build()
    model = model.to(device, memory_format=torch.channels_last) if device.type == "cuda" else model.to(device)
    state = _State(run, name, seed, model, torch.Generator().manual_seed(seed), data, options)
    found = load_checkpoint(state.path) if state.path.exists() else None
    if found:
        _resume(state, found, device)
    state.journal = Journal(options.out, found.about["step"] if found else 0)
    return state, found


def _resume(state: _State, found: Checkpoint, device: torch.device) -> None:
    about = found.about
    if "made_by" not in about:
        raise ValueError(f"{state.path} was written by an older torchcaps, which this one cannot resume; finish it there, or remove it")
    other = unlike(about["run"], state.run) + differences({"seed": about["seed"]}, {"seed": state.seed})
    if other:
        raise ValueError(f"{state.path} belongs to another run ({'; '.join(other[:3])}); give another folder, or remove that file")
    load_into(state.model, found.part("model"), state.path)
    state.stage, state.done, state.seconds, state.made_by = about["stage"], about["done"], about["seconds"], about["made_by"]
    state.ended = about.get("ended", False)
    state.rng.set_state(found.tensors["rng/epoch"])
    torch.set_rng_state(found.tensors["rng/cpu"])
    if "rng/cuda" in found.tensors and device.type == "cuda":
        torch.cuda.set_rng_state(found.tensors["rng/cuda"], device)


def _stage(state: _State, stage: Stage, found: Checkpoint | None, caught: list[int], device: torch.device) -> TrainingStep:
    """Train one stage to its end, or as far as a signal lets it."""
    n_steps = _n_steps(stage, state.data["train"])
    batches = batches_for(state.data["train"], stage.batch, state.run.augment, device)
    if not found:
        stage.task.init(state.model, batches.at(torch.zeros((), dtype=torch.long, device=device)))
    step = TrainingStep(stage, state.model, batches, n_steps, device)
    if found:
        step.load_state(found.part("step"))
    at, epoch, speed = int(step.counter), batches.n_steps, Speed(int(step.counter))
    stop = n_steps if state.options.max_steps is None else min(n_steps, state.options.max_steps - state.done)
    state.ended |= at >= n_steps
    stop = at if state.ended else stop
    if at % epoch and at < stop:
        _new_epoch(state, batches)
    if at < stop and (maker := made_by(device)) not in state.made_by[-1:]:
        state.made_by.append(maker)
    state.model.train()
    title = f"{state.name} seed {state.seed}" + (f" stage {state.stage + 1}" if len(state.run.stages) > 1 else "")
    title += f" on {device_name(device)}, routing: {step.routing}"
    state.routing = step.routing
    with progress_bar(title, n_steps, at, state.options.progress) as show:
        while at < stop:
            if at % epoch == 0:
                _new_epoch(state, batches)
            step()
            at += 1
            if at % state.options.log_every == 0 or at == stop:
                _log(state, step, at, speed, show)
            if stage.probe_every and at % stage.probe_every == 0:
                _probe(state, stage, at, device)
            if at % epoch == 0 and at < n_steps:
                _validate(state, stage, at, n_steps, epoch, device)
            state.ended = at == n_steps or _reached(state, stage, at, device)
            if state.ended and at < stop:
                stop = at
                _log(state, step, at, speed, show) if step.unread else None
            if caught or at == stop or _save_due(state, at):
                _save(state, step, at, whole_epoch=at % epoch == 0 or at == n_steps)
            if caught and at < stop:
                state.journal.close()
                raise Interrupted(
                    f"stopped at step {state.done + at} and saved {state.path}; the same command goes on from there", caught[0]
                )
    return step


def _new_epoch(state: _State, batches: Batches) -> None:
    state.epoch_rng = state.rng.get_state()
    batches.new_epoch(state.rng)


def _log(state: _State, step: TrainingStep, at: int, speed: Speed, show: Callable[..., None]) -> None:
    """Read what the device summed up since the last log point, and stop if the loss was ever not finite."""
    _refuse_bad(state, step)
    means = step.read_means()
    state.journal.write(state.done + at, stage=state.stage, seconds=round(state.spent(), 3), **means)
    accuracy = f"accuracy {100 - means['error_percent']:.2f}% " if "error_percent" in means else ""
    show(at, f"loss {means['loss']:.4f} {accuracy}{speed(at) * step.batches.batch:,.0f} images/s")


def _refuse_bad(state: _State, step: TrainingStep) -> None:
    bad = int(step.first_bad)
    if bad >= 0:
        state.journal.close()
        raise Diverged(f"the loss was not finite at step {state.done + bad + 1}; {_kept(state)}")


def _kept(state: _State) -> str:
    kept = f"the last good checkpoint is {state.path}" if state.path.exists() else "no checkpoint was written yet"
    return f"{kept}; try a lower rate, or look at the data"


def _validate(state: _State, stage: Stage, at: int, n_steps: int, epoch: int, device: torch.device) -> None:
    """About ten times in a run, where training images are held out."""
    if state.run.hold_out and (at // epoch) % max(1, n_steps // epoch // 10) == 0:
        for part in [name for name in state.data if name != "train"]:
            _journal(state, state.done + at, part, stage.task.evaluate(state.model, state.data[part], device))


def _probe(state: _State, stage: Stage, at: int, device: torch.device) -> None:
    """On the first training images, as evaluation shows them."""
    first = next(in_order(Labelled(*(part[:PROBED] for part in state.data["train"])), PROBED, device, state.run.augment))
    state.journal.write(state.done + at, stage=state.stage, **stage.task.probe(state.model, first.images))


def _reached(state: _State, stage: Stage, at: int, device: torch.device) -> bool:
    """Whether the stopping rule is met."""
    rule = stage.stop
    if rule is None or at % rule.every:
        return False
    evaluation = stage.task.evaluate(state.model, state.data[rule.part], device)
    _journal(state, state.done + at, rule.part, evaluation)
    return 100 - evaluation.metrics["error_percent"] >= rule.accuracy


def _journal(state: _State, at: int, part: str, evaluation: Evaluation) -> None:
    state.journal.write(at, stage=state.stage, **{f"{part}_{name}": value for name, value in evaluation.metrics.items()})


def _save_due(state: _State, at: int) -> bool:
    if state.options.save_every:
        return at % state.options.save_every == 0
    return time.perf_counter() - state.saved_at > 60


def _save(state: _State, step: TrainingStep, at: int, whole_epoch: bool) -> None:
    _refuse_bad(state, step)
    tensors = {f"model/{name}": tensor for name, tensor in state.model.state_dict().items()}
    if not all(tensor.isfinite().all() for tensor in tensors.values()):  # a finite loss may have a gradient that is not
        raise Diverged(f"the weights are not finite after step {state.done + at}; {_kept(state)}")
    tensors |= {f"step/{name}": tensor for name, tensor in step.state().items()}
    # within an epoch the generator's state at its start, since its draws are made again on resume; at its end, the present one
    tensors |= {"rng/epoch": state.rng.get_state() if whole_epoch else state.epoch_rng, "rng/cpu": torch.get_rng_state()}
    if step.device.type == "cuda":
        tensors["rng/cuda"] = torch.cuda.get_rng_state(step.device)
    about = {"name": state.name, "seed": state.seed, "run": to_plain(state.run), "stage": state.stage, "done": state.done}
    about |= {"step": state.done + at, "ended": state.ended, "seconds": state.spent(), "made_by": state.made_by}
    save_checkpoint(state.path, tensors, about)
    state.saved_at = time.perf_counter()


def _finish(state: _State, device: torch.device, ema: dict[str, Tensor], stopped_early: bool = False) -> Trained:
    """Evaluate once, with the weights of the last step; averaged weights are a labelled extra."""
    seconds, memory, task = state.spent(), peak_memory(device), state.run.stages[-1].task
    hashes = {name: fingerprint(data) for name, data in state.data.items()}
    evaluations, labels = {}, {}
    for name in () if stopped_early else parts.names(state.run):
        data = state.data[name] if name in state.data else parts.part(state.run, name, state.options.root, state.seed)
        hashes[name] = hashes.get(name) or fingerprint(data)
        evaluations[name], labels[name] = task.evaluate(state.model, data, device), data.labels
        if name.startswith(parts.HELD):
            _journal(state, state.done, name, evaluations[name])
        if ema:
            raw = {name: tensor.clone() for name, tensor in state.model.state_dict().items()}
            load_into(state.model, raw | ema, "the average")
            evaluations[f"{name}_ema"], labels[f"{name}_ema"] = task.evaluate(state.model, data, device), data.labels
            load_into(state.model, raw, "the run")
    state.journal.close()
    judged = state.data[parts.names(state.run)[0]]
    diagnostics, extras = ({}, {}) if stopped_early else (diagnose(state.model, judged, device), task.extras(state.model, judged, device))
    return Trained(
        model=state.model, evaluations=evaluations, labels=labels, steps=state.done, seconds=seconds, peak_memory_bytes=memory,
        curve=state.journal.lines, data=hashes, routing=state.routing, diagnostics=diagnostics, extras=extras,
        made_by=state.made_by, evaluated_by=made_by(device), stopped_early=stopped_early,
    )  # fmt: skip


def _n_steps(stage: Stage, data: Labelled) -> int:
    return stage.steps if stage.steps is not None else stage.epochs * (len(data.labels) // stage.batch)
